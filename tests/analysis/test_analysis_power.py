"""Planning: what a design detects, the cheapest design, and noise from an earlier table."""

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legibility import flaws

from analysis.errors import TableError
from analysis.fieller import fieller_sets
from analysis.figures.planning import power_curves
from analysis.measured_noise import measure
from analysis.paired import paired
from analysis.plan import next_plan, plan
from analysis.power import Design, DesignError, Noise, cheapest, detectable, detection, grid
from analysis.powerlaw import t_quantile
from analysis.runs import load
from analysis.simulate import Setting, simulate
from analysis.student import POWER

NOISE = Noise(run_sd=0.0022, size_sd=0.0028)


@pytest.mark.parametrize(("sizes", "seeds", "m"), [(3, 1, 1.2), (5, 1, 1.1), (5, 2, 1.07), (8, 1, 1.05), (4, 4, 1.0)])
def test_the_power_is_the_share_of_simulated_tables_that_leave_out_one(sizes, seeds, m):
    setting = Setting(sizes, NOISE.size_sd, NOISE.run_sd, m, seeds, span=math.log(8))
    drawn = simulate(setting, 4000, np.random.default_rng(1))
    p = paired(drawn.base_loss, drawn.arm_loss[0], drawn.base_compute, drawn.arm_compute)
    t = np.array([t_quantile(df) for df in p.df])
    seen = fieller_sets(p).bounded & (np.abs(p.ln_multiplier) > t * np.sqrt(p.variance))
    assert detection(Design(sizes, seeds), NOISE, m) == pytest.approx(seen.mean(), abs=0.03)


@settings(max_examples=15)
@given(st.integers(3, 9), st.integers(1, 6), st.floats(5e-4, 0.005))
def test_what_a_design_detects_is_detected_in_80_percent_and_more_runs_detect_less(sizes, seeds, sd):
    noise = Noise(sd)
    found = detectable(Design(sizes, seeds), noise)
    assert found is not None
    assert found == pytest.approx(math.exp(1e-5)) or detection(Design(sizes, seeds), noise, found) == pytest.approx(
        POWER, abs=1e-3
    )
    assert detectable(Design(sizes + 1, seeds), noise) <= found
    assert detectable(Design(sizes, seeds + 1), noise) <= found


def test_a_design_that_sees_nothing_says_none():
    assert detectable(Design(3, 1), Noise(0.05)) is None
    assert cheapest(Noise(0.2), 1.01) is None


@pytest.mark.parametrize("m", [1.05, 1.1, 1.25, 0.8])
def test_no_design_that_detects_it_costs_less_than_the_cheapest(m):
    best = cheapest(NOISE, m)
    assert detection(best, NOISE, m) >= POWER
    for other in grid(range(3, 11), range(1, 9)):
        if other.cost(8) < best.cost(8) - 1e-9:
            assert detection(other, NOISE, m) < POWER


def test_cost_is_every_run_in_runs_of_the_largest():
    assert Design(3, 2).cost(4.0) == pytest.approx(2 * 2 * (1 + 1 / 2 + 1 / 4))
    assert Design(3, 2).runs == 12


def test_noise_is_measured_from_seeds_or_else_from_the_scatter_of_pairs(planted, table):
    compute = tuple(1e18 * 1.3**i for i in range(20))
    seeded = measure(load(table(planted({"block": 1.2}, noise=0.002, seeds=4, compute=compute), "s")), "model")
    assert seeded.source == "seeds"
    assert seeded.noise.run_sd == pytest.approx(0.002, rel=0.2)
    assert seeded.noise.alpha == pytest.approx(0.06, rel=0.05)
    assert seeded.noise.span == pytest.approx(1.3**19)
    single = measure(load(table(planted({"block": 1.2}, noise=0.002, compute=compute), "one")), "model")
    assert "scatter" in single.source
    assert single.noise.run_sd == pytest.approx(0.002, rel=0.4)
    assert single.noise.size_sd < 0.0015
    flat = planted({"block": 1.2})
    for row in flat:
        row["val_loss"] = 4 - row["val_loss"]
    with pytest.raises(TableError, match="says nothing of noise"):
        measure(load(table(flat, "flat")), "model")


def test_the_verb_prints_writes_and_draws(analysis, tmp_path):
    status, out, _ = analysis("power", "--sd", "0.0022", "--multiplier", "1.1", "--out", tmp_path)
    assert status == 0
    assert "The cheapest design that detects 1.1x in 80% of experiments: 5 sizes, 1 seed; 10 runs" in out
    record = json.loads((tmp_path / "power.json").read_text())
    assert record["cheapest"] == {
        "sizes": 5,
        "seeds": 1,
        "runs": 10,
        "cost": pytest.approx(2 * sum(8 ** (-i / 4) for i in range(5))),
    }
    assert len(record["designs"]) == 18
    assert record["noise"]["source"] == "given"
    assert {path.name for path in tmp_path.iterdir()} == {"power.json", "power.png", "power.svg"}


def test_the_verb_takes_its_noise_from_an_earlier_table(planted, table, analysis):
    folder = table(planted({"block": 1.2}, noise=0.002, seeds=3))
    status, out, _ = analysis("power", "--table", folder, "--sizes", "[4,6]", "--seeds", "2", "--alpha", "0.05")
    assert status == 0
    assert "runs.csv: seeds, 8 degrees of freedom" in out
    assert "alpha 0.05;" in out
    assert list(folder.iterdir()) == [folder / "runs.csv"]


BAD = {
    "no noise": ((), "give --sd"),
    "two sizes": (("--sd", "0.002", "--sizes", "2"), "at least 3"),
    "no seeds": (("--sd", "0.002", "--seeds", "0"), "at least 1"),
    "no list": (("--sd", "0.002", "--sizes", "[]"), "empty list"),
    "negative noise": (("--sd", "-0.002"), "sd is -0.002"),
    "noise that is not a number": (("--sd", "nan"), "sd"),
    "negative noise of sizes": (("--sd", "0.002", "--size_sd", "-1"), "size's sd is -1"),
    "flat law": (("--sd", "0.002", "--alpha", "0"), "alpha is 0"),
    "no span": (("--sd", "0.002", "--span", "1"), "span is 1"),
    "no effect": (("--sd", "0.002", "--multiplier", "1"), "multiplier of 1 cannot be detected"),
    "text": (("--sd", "small"), "sd"),
    "no table": (("--table", "nowhere"), "nowhere does not exist"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_plan_that_cannot_be_is_one_line_and_status_2(analysis, bad):
    arguments, says = BAD[bad]
    status, out, err = analysis("power", *arguments)
    assert status == 2
    assert out == ""
    assert says in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("asked", [None, 1.1, 1.001])
def test_the_power_curve_is_legible_and_shows_what_is_asked(asked):
    made = plan(None, None, 0.0022, None, None, None, asked, None, None, None)
    figure = power_curves(made)
    assert flaws(figure) == []
    (axes,) = figure.axes
    lines = [line for line in axes.get_lines() if line.get_marker() not in ("None", "o")]
    assert [len(line.get_xdata()) for line in lines] == [6, 6, 6]
    for line, seeds in zip(lines, (1, 2, 4), strict=True):
        assert list(line.get_ydata()) == [m for d, m in made.detects.items() if d.seeds == seeds]
    assert bool([line for line in axes.get_lines() if line.get_linestyle() == ":"]) == (asked is not None)


def test_a_table_plans_its_successor_or_says_nothing(planted, table):
    runs = load(table(planted({"block": 1.2}, noise=0.002), "noisy"))
    made = next_plan(runs, "model")
    noise = measure(runs, "model").noise
    assert made.noise == noise
    assert made.detects[Design(5, 2)] == detectable(Design(5, 2), noise)
    equal = [{**row, "val_loss": row["flops_model"] ** -0.05} for row in planted({"block": 1.2})]
    assert next_plan(load(table(equal, "equal")), "model") is None


def test_designs_and_noise_that_cannot_be_are_refused():
    for make in (lambda: Design(2, 1), lambda: Design(3, 0), lambda: Noise(0.0), lambda: Noise(0.1, -1)):
        with pytest.raises(DesignError):
            make()
