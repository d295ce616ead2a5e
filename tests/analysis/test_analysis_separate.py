"""An exponent for each arm: M over compute, and the difference of the exponents."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress, nct
from scipy.stats import t as student

from analysis.multiplier import estimates
from analysis.pairing import SizePair
from analysis.powerlaw import PowerLaw
from analysis.runs import load
from analysis.separate import ln_multiplier_between, separate_slopes
from analysis.student import POWER, detectable_errors, power_of_t


def block(golden):
    return estimates(load(golden("attnres_table2.csv")), "6nd")[0]


def printed(a, alpha):
    """A published curve L = a C^-alpha as a law; C in any unit."""
    return PowerLaw(0, alpha, 0.0, 0.0, math.log(a), 0.0, (0.0, 0.0))


@pytest.mark.parametrize(("compute", "m"), [(5.6, "1.254"), (0.5, "1.202")])
def test_the_papers_printed_curves_give_the_known_multipliers(compute, m):
    value = ln_multiplier_between(printed(1.891, 0.057), printed(1.870, 0.058), math.log(compute))
    assert f"{math.exp(value):.3f}" == m


def test_separate_fits_of_the_papers_table_have_the_known_interval(golden):
    slopes = separate_slopes(block(golden).pairs)
    middle = slopes.at(slopes.arm.centre_ln_compute, paired=False)
    assert [f"{end:.3f}" for end in middle.interval] == ["1.138", "1.357"]


def noisy_pairs(seed, n=6):
    generator = np.random.default_rng(seed)
    x = np.sort(generator.uniform(40, 43, n))
    size = generator.normal(0, 0.003, n)
    base = 3 - 0.06 * x + size + generator.normal(0, 0.002, n)
    arm = 2.98 - 0.062 * x + size + generator.normal(0, 0.002, n)
    return tuple(SizePair(str(i), (0,), *map(float, row)) for i, row in enumerate(zip(base, arm, x, x, strict=True)))


@given(st.integers(0, 200))
def test_the_difference_of_exponents_is_the_slope_of_the_pairs(seed):
    """With equal compute it is the slope of d on ln C, with that regression's own test."""
    pairs = noisy_pairs(seed)
    found = separate_slopes(pairs).exponent_difference
    d = [p.ln_loss_baseline - p.ln_loss_arm for p in pairs]
    line = linregress([p.ln_compute_arm for p in pairs], d)
    assert found.difference == pytest.approx(line.slope, abs=1e-9)
    assert found.p_value == pytest.approx(line.pvalue, rel=1e-4, abs=1e-9)
    half = student.ppf(0.975, 4) * line.stderr
    assert found.interval == pytest.approx((line.slope - half, line.slope + half), rel=1e-4, abs=1e-8)
    assert found.detectable == pytest.approx(line.stderr * detectable_errors(4), rel=1e-4)


@pytest.mark.parametrize("df", [2, 3, 6, 20])
def test_the_smallest_that_could_be_seen_is_seen_in_80_percent(df):
    effect = detectable_errors(df)
    critical = student.ppf(0.975, df)
    power = 1 - nct.cdf(critical, df, effect) + nct.cdf(-critical, df, effect)
    assert power == pytest.approx(POWER, abs=1e-4)
    assert power_of_t(df, 0.0) == pytest.approx(0.05, abs=1e-4)


def test_planted_slopes_give_m_that_changes_with_compute():
    x = np.linspace(40, 44, 5)
    pairs = tuple(SizePair(str(c), (0,), 3 - 0.05 * c, 3.001 - 0.0502 * c, c, c) for c in map(float, x))
    slopes = separate_slopes(pairs)
    for c in (40.0, 42.0, 50.0):
        needed = (3 - (3.001 - 0.0502 * c)) / 0.05
        assert slopes.at(c).multiplier == pytest.approx(math.exp(needed - c), rel=1e-6)
    assert slopes.exponent_difference.difference == pytest.approx(0.0002, rel=1e-6)


def test_in_range_is_where_both_arms_have_runs(golden):
    slopes = separate_slopes(block(golden).pairs)
    low, high = slopes.baseline.ln_compute_range
    for point in slopes.curve():
        own = low - 1e-9 <= point.ln_compute <= high + 1e-9
        needed = low - 1e-9 <= point.ln_compute + point.ln_multiplier <= high + 1e-9
        assert point.in_range == (own and needed)
    points = [p.in_range for p in slopes.curve()]
    assert points[0] is False
    assert points[-1] is False
    assert any(points)


def test_the_interval_of_the_curve_holds_the_truth_in_95_percent():
    """At the smallest compute, where the exponents matter most; 2,000 tables, so within 1.5 % for sure."""
    held, low = [], 40.0
    truth = ln_multiplier_between(
        PowerLaw(0, 0.06, 0, 0, 3.0, 0, (0, 0)), PowerLaw(0, 0.062, 0, 0, 3.07, 0, (0, 0)), low
    )
    generator = np.random.default_rng(5)
    x = np.linspace(40, 43, 6)
    for _ in range(2000):
        size = generator.normal(0, 0.003, 6)
        base = 3 - 0.06 * x + size + generator.normal(0, 0.002, 6)
        arm = 3.07 - 0.062 * x + size + generator.normal(0, 0.002, 6)
        rows = zip(base, arm, x, x, strict=True)
        point = separate_slopes(tuple(SizePair("s", (0,), *map(float, r)) for r in rows)).at(low)
        held.append(point.ln_interval[0] <= truth <= point.ln_interval[1])
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)


def test_without_a_falling_baseline_there_is_no_curve():
    rising = tuple(SizePair(str(c), (0,), 0.01 * c, 0.01 * c - 0.1, c, c) for c in (1, 2, 3, 4))
    assert separate_slopes(rising) is None
    assert separate_slopes(()) is None
    assert separate_slopes(rising[:2]) is None
    weak = tuple(SizePair(str(c), (0,), -0.05 * c + e, -0.05 * c, c, c) for c, e in enumerate((0.3, -0.3, 0.2, -0.25)))
    slopes = separate_slopes(weak)
    assert slopes is None or slopes.at(2.0).interval is None
