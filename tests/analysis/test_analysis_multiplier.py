import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t as student

from analysis.multiplier import estimate, estimates
from analysis.pairing import SizePair
from analysis.runs import load


@st.composite
def pairs(draw, noise=0.01):
    """Sizes on a falling law, the arms' compute unequal, with noise in everything."""
    alpha = draw(st.floats(0.05, 0.5))
    gain = draw(st.floats(-0.05, 0.3))
    jitter = st.floats(-noise, noise)
    sizes = []
    for i in range(draw(st.integers(3, 8))):
        base, arm = 40 + i + draw(jitter), 40 + i + draw(jitter)
        ln_losses = (3 - alpha * base + draw(jitter), 3 - alpha * (arm + gain) + draw(jitter))
        sizes.append(SizePair(f"s{i}", (0,), *ln_losses, base, arm))
    return tuple(sizes)


def of(sizes):
    return estimate("block", "model", tuple(sizes))


@given(
    m=st.floats(0.3, 4),
    alpha=st.floats(0.02, 0.5),
    dearer=st.floats(0.5, 2),
    xs=st.lists(st.integers(30, 60), min_size=3, max_size=8, unique=True),
)
def test_a_planted_multiplier_is_recovered_whatever_the_arms_cost(m, alpha, dearer, xs):
    sizes = [
        SizePair(str(x), (0,), 1 - alpha * x, 1 - alpha * (x + math.log(m * dearer)), x, x + math.log(dearer))
        for x in xs
    ]
    result = of(sizes)
    assert result.multiplier == pytest.approx(m, rel=1e-6)
    assert all(size.multiplier == pytest.approx(m, rel=1e-6) for size in result.sizes)
    assert result.law.exponent == pytest.approx(alpha, rel=1e-6)


@given(pairs(), st.floats(-50, 50))
def test_the_unit_of_compute_does_not_matter(sizes, shift):
    moved = [
        replace(p, ln_compute_baseline=p.ln_compute_baseline + shift, ln_compute_arm=p.ln_compute_arm + shift)
        for p in sizes
    ]
    assert of(moved).ln_multiplier == pytest.approx(of(sizes).ln_multiplier, rel=1e-6, abs=1e-8)
    assert of(moved).variance == pytest.approx(of(sizes).variance, rel=1e-4, abs=1e-12)


@given(pairs(), st.floats(-3, 3))
def test_the_unit_of_loss_does_not_matter(sizes, shift):
    moved = [replace(p, ln_loss_baseline=p.ln_loss_baseline + shift, ln_loss_arm=p.ln_loss_arm + shift) for p in sizes]
    assert of(moved).ln_multiplier == pytest.approx(of(sizes).ln_multiplier, rel=1e-6, abs=1e-8)


@given(pairs())
def test_swapping_the_arms_inverts_every_multiplier(sizes):
    swapped = of(
        SizePair(p.size, p.seeds, p.ln_loss_arm, p.ln_loss_baseline, p.ln_compute_arm, p.ln_compute_baseline)
        for p in sizes
    )
    for one, other in zip(of(sizes).sizes, swapped.sizes, strict=True):
        assert one.ln_multiplier == pytest.approx(-other.ln_multiplier, rel=1e-9, abs=1e-9)
    assert of(sizes).df == pytest.approx(swapped.df) if swapped.df else of(sizes).df is None


@given(pairs())
def test_equal_arms_are_worth_one_and_say_why_there_is_no_interval(sizes):
    result = of(replace(p, ln_loss_arm=p.ln_loss_baseline, ln_compute_arm=p.ln_compute_baseline) for p in sizes)
    if result.law.exponent_is_positive:
        assert result.multiplier == 1
        assert result.interval is None
        assert "do not differ" in result.reason


@given(pairs())
def test_interval_is_the_stated_formula(sizes):
    """The definition again, written as in the text it comes from, by hand and with scipy's distribution."""
    result = of(sizes)
    if result.interval is None:
        return
    lb, la, cb, ca = np.array(
        [[p.ln_loss_baseline, p.ln_loss_arm, p.ln_compute_baseline, p.ln_compute_arm] for p in sizes]
    ).T
    n = len(sizes)
    x, y = (cb + ca) / 2, (lb + la) / 2
    (slope, _), covariance = np.polyfit(x, y, 1, cov=True)
    alpha, se = -slope, math.sqrt(covariance[0, 0])
    ln_m = (lb - la) / alpha + cb - ca
    v1, v2 = ln_m.var(ddof=1) / n, ((lb - la).mean() / alpha**2) ** 2 * se**2
    df = (v1 + v2) ** 2 / (v1**2 / (n - 1) + v2**2 / (n - 2))
    half = student.ppf(0.975, df) * math.sqrt(v1 + v2)
    assert result.interval == pytest.approx((math.exp(ln_m.mean() - half), math.exp(ln_m.mean() + half)), rel=1e-5)
    assert min(n - 1, n - 2) <= result.df + 1e-9 <= 2 * n


def test_unequal_ratios_of_compute_widen_the_interval():
    """A noisy ledger, such as seconds, must not look as sure as an exact one."""
    exact = [SizePair(str(x), (0,), 1 - 0.1 * x, 0.98 - 0.1 * x + (x % 2) * 1e-4, x, x) for x in range(40, 46)]
    noisy = [replace(p, ln_compute_arm=p.ln_compute_arm + (-1) ** i * 0.2) for i, p in enumerate(exact)]
    assert of(noisy).variance > 5 * of(exact).variance


@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_loss_that_does_not_fall_gives_no_multiplier(slope):
    result = of(SizePair(str(x), (0,), slope * x, slope * x - 0.1, x, x) for x in (1, 2, 3, 4))
    assert result.multiplier is None
    assert result.interval is None
    assert "does not fall with compute" in result.reason


def test_a_weak_exponent_gives_the_estimate_without_an_interval():
    noise = (0.3, -0.3, 0.2, -0.25)
    result = of(SizePair(str(x), (0,), -0.05 * x + e, -0.05 * x - 0.1 + e, x, x) for x, e in zip(range(4), noise))
    assert result.multiplier > 1
    assert result.interval is None
    assert "includes 0" in result.reason


def test_only_sizes_whose_loss_the_baseline_reached_are_in_range():
    alpha = 0.1
    result = of(SizePair(str(x), (0,), 1 - alpha * x, 1 - alpha * (x + 0.5), x, x) for x in range(40, 45))
    assert [size.in_range for size in result.sizes] == [True, True, True, True, False]
    worse = of(SizePair(str(x), (0,), 1 - alpha * x, 1 - alpha * (x - 0.5), x, x) for x in range(40, 45))
    assert [size.in_range for size in worse.sizes] == [False, True, True, True, True]


def test_seeds_are_averaged_in_log_loss_over_those_both_arms_have(planted, table):
    rows = planted({"block": 1.25}, noise=0.01, seeds=3)
    rows = [row for row in rows if not (row["variant"] == "block" and row["size"] == "s1" and row["seed"] == 2)]
    runs = load(table(rows))
    (result,) = estimates(runs, "model")
    by = {(row["variant"], row["size"], row["seed"]): math.log(row["val_loss"]) for row in rows}
    second = result.pairs[1]
    assert second.seeds == (0, 1)
    assert second.ln_loss_baseline == pytest.approx((by["baseline", "s1", 0] + by["baseline", "s1", 1]) / 2)
    assert result.pairs[0].ln_loss_arm == pytest.approx(sum(by["block", "s0", seed] for seed in range(3)) / 3)
    assert [finding.subject for finding in runs.hygiene.of("unpaired")] == ["block, size s1, seed 2"]


@pytest.mark.parametrize(
    ("arm", "multiplier", "low", "high"),
    [
        ("block", "1.239", "1.189", "1.291"),
        ("full", "1.306", "1.240", "1.377"),
        ("mhc_lite", "1.264", "1.222", "1.308"),
    ],
)
def test_the_papers_table_gives_the_known_multipliers(golden, arm, multiplier, low, high):
    results = {m.arm: m for m in estimates(load(golden("attnres_table2.csv")), "6nd")}
    result = results[arm]
    assert f"{result.multiplier:.3f}" == multiplier
    assert [f"{end:.3f}" for end in result.interval] == [low, high]
    if arm == "block":
        assert f"{result.df:.1f}" == "5.4"
