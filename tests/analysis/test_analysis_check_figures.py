"""The figures of the checks: forest plot, M over compute, pinned floors."""

import math

import pytest
from legibility import flaws, texts

from analysis.figures import forest, multiplier_curve, pinned_floors
from analysis.runs import load
from analysis.study import studies

COMPUTE = (1e18, 2e18, 4e18, 8e18, 1.6e19)
CASES = {
    "one arm": {"multipliers": {"block": 1.25}},
    "three arms": {"multipliers": {"block": 1.25, "full": 1.3, "mhc_lite": 1.28}},
    "five arms": {"multipliers": {"block": 1.1, "full": 1.3, "mhc_lite": 1.2, "scalar": 0.9, "window": 1.0}},
    "worse than the baseline": {"multipliers": {"block": 0.7}},
    "no loss in common": {"multipliers": {"block": 40.0}},
    "three sizes": {"multipliers": {"block": 1.2}, "compute": (1e15, 2e15, 3e15)},
    "a wide range": {"multipliers": {"block": 1.5}, "compute": (1e14, 1e16, 1e18, 1e20, 1e22), "alpha": 0.2},
    "much noise": {"multipliers": {"block": 1.2, "full": 1.1}, "noise": 0.01},
    "twelve sizes": {"multipliers": {"block": 1.2, "full": 1.3}, "compute": tuple(1e18 * 1.5**i for i in range(12))},
    "names that are long or odd": {
        "multipliers": {"_hidden$x^2$ & a name of great length": 1.25, "$\\frac$": 1.4, "残差": 1.2}
    },
}


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("case", CASES)
def test_legible_in_every_case(planted, table, case):
    runs = load(table(planted(**{"compute": COMPUTE, "noise": 0.0005, **CASES[case]})))
    assert [flaws(draw(runs, "model")) for draw in (forest, multiplier_curve, pinned_floors)] == [[], [], []]


@pytest.fixture
def runs(planted, table):
    rows = planted({"block": 1.25, "full": 1.4}, compute=COMPUTE, noise=0.0005)
    for row in rows:
        row["seconds"] = row["flops_model"] / 1e15 * (1.1 if row["variant"] == "full" else 1)
    return load(table(rows))


def test_the_forest_has_every_size_ledger_and_interval(runs):
    figure = forest(runs, "model", claim=1.3)
    assert flaws(figure) == []
    (axes,) = figure.axes
    labels = [t.get_text() for t in axes.get_yticklabels()]
    assert labels == [*(f"s{i}" for i in range(5)), "all sizes, model", "all sizes, seconds"] * 2
    lines = axes.get_lines()
    drawn = [tuple(line.get_xdata()) for line in lines]
    for ledger in ("model", "seconds"):
        for s in studies(runs, ledger):
            assert s.multiplier.interval in drawn
            assert (s.multiplier.multiplier,) in drawn
    assert all(s.simultaneous.interval in drawn for s in studies(runs, "model"))
    for s in studies(runs, "model"):
        for size in s.multiplier.sizes:
            (marker,) = (line for line in lines if tuple(line.get_xdata()) == (size.multiplier,))
            assert (marker.get_markerfacecolor() != "white") == size.in_range
    assert "claim, 1.3\N{MULTIPLICATION SIGN}" in [t.get_text() for t in texts(figure)]


def test_the_curve_is_solid_in_range_and_hatched_where_extrapolated(runs):
    figure = multiplier_curve(runs, "model")
    for axes, s in zip(figure.axes, studies(runs, "model"), strict=True):
        inside = [line for line in axes.get_lines() if line.get_gid() == "in range"]
        outside = [line for line in axes.get_lines() if line.get_gid() == "extrapolated"]
        assert len(inside) == 1
        assert len(outside) == 2
        assert inside[0].get_linestyle() == "-"
        assert {line.get_linestyle() for line in outside} == {"--"}
        scale = math.exp(s.separate.arm.ln_compute_range[0]) / 1e18
        unit = 1e18 * scale / min(inside[0].get_xdata())
        for x, y in zip(inside[0].get_xdata(), inside[0].get_ydata(), strict=True):
            assert s.separate.at(math.log(x * unit)).multiplier == pytest.approx(y, rel=0.01)
        bands = axes.collections
        assert sorted(band.get_hatch() or "" for band in bands) == ["", "////", "////"]


def test_the_floors_are_drawn_with_their_intervals(runs):
    figure = pinned_floors(runs, "model")
    (axes,) = figure.axes
    drawn = [tuple(line.get_ydata()) for line in axes.get_lines()]
    for s in studies(runs, "model"):
        assert tuple(f.estimate.multiplier for f in s.floors) in drawn
        assert all(f.estimate.interval in drawn for f in s.floors)


def test_without_an_estimate_there_is_no_curve_and_no_floor(planted, table):
    rows = [{**row, "val_loss": 4 - row["val_loss"]} for row in planted({"block": 1.25}, compute=COMPUTE)]
    runs = load(table(rows))
    assert multiplier_curve(runs, "model") is None
    assert pinned_floors(runs, "model") is None
    assert flaws(forest(runs, "model")) == []
