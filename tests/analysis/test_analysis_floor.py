import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import least_squares

from analysis.errors import FitError
from analysis.floor import free, pinned, sweep
from analysis.powerlaw import fit, t_quantile

X = np.linspace(40, 50, 9)


def ln_losses(floor, alpha=0.2, sd=0.0, seed=0):
    noise = np.random.default_rng(seed).normal(0, sd, len(X))
    return np.log(floor + np.exp(0.5 - alpha * (X - 45))) + noise


@given(st.floats(0, 3), st.floats(0.05, 0.8))
def test_a_planted_law_is_recovered_at_its_floor(floor, alpha):
    law = pinned(X, ln_losses(floor, alpha), floor)
    assert law.exponent == pytest.approx(alpha, rel=1e-6)
    assert law.coefficient() == pytest.approx(math.exp(0.5 + 45 * alpha), rel=1e-5)
    np.testing.assert_allclose(law.loss(X), np.exp(ln_losses(floor, alpha)), rtol=1e-7)
    assert law.residual_sd < 1e-6


def test_a_floor_of_zero_is_the_law_without_a_floor():
    y = ln_losses(0.5, sd=0.02)
    law, line = pinned(X, y, 0.0), fit(X, y)
    assert law.exponent == pytest.approx(line.exponent, rel=1e-10)
    assert law.exponent_interval == pytest.approx(line.exponent_interval, rel=1e-8)
    assert law.coefficient(1e18) == pytest.approx(line.coefficient(1e18), rel=1e-8)
    assert law.residual_sd == pytest.approx(line.residual_sd, rel=1e-8)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 999), st.floats(0, 1.2))
def test_a_pinned_fit_and_its_error_equal_scipys(seed, floor):
    y = ln_losses(1.0, sd=0.01, seed=seed)
    law = pinned(X, y, floor)
    ours = least_squares(
        lambda p: np.log(floor + np.exp(p[0] - p[1] * (X - 45))) - y, [0.5, 0.2], xtol=1e-15, ftol=1e-15, gtol=1e-15
    )
    assert law.exponent == pytest.approx(ours.x[1], rel=1e-6)
    covariance = np.linalg.inv(ours.jac.T @ ours.jac) * 2 * ours.cost / (len(X) - 2)
    assert law.exponent_se == pytest.approx(math.sqrt(covariance[1, 1]), rel=1e-4)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 999), st.floats(0.3, 2))
def test_a_free_floor_is_the_least_squares_of_scipy_and_its_ends_are_on_the_cut(seed, floor):
    y = ln_losses(floor, 0.3, sd=0.005, seed=seed)
    best = free(X, y)
    theirs = least_squares(
        lambda p: np.log(p[2] + np.exp(p[0] - p[1] * (X - 45))) - y,
        [0.5, 0.3, floor],
        bounds=([-9, -9, 0], [9, 9, math.exp(y.min())]),
        xtol=1e-15,
        ftol=1e-15,
        gtol=1e-15,
    )
    assert best.law.squares <= 2 * theirs.cost * (1 + 1e-9)
    assert best.law.floor == pytest.approx(theirs.x[2], abs=1e-4)
    low, high = best.interval
    assert low <= best.law.floor <= high
    cut = best.law.squares * (1 + t_quantile(len(X) - 3) ** 2 / (len(X) - 3))
    for end, limit in ((low, 0.0), (high, math.exp(y.min()))):
        assert end == pytest.approx(limit, rel=2e-3) or pinned(X, y, end).squares == pytest.approx(cut, rel=1e-6)
    assert best.exponents == (pinned(X, y, low).exponent, pinned(X, y, high).exponent)


def test_the_interval_of_a_free_floor_holds_the_truth_about_as_often_as_it_says():
    hits = [low <= 1.0 <= high for low, high in (free(X, ln_losses(1.0, 0.3, 0.01, s)).interval for s in range(50))]
    assert 0.86 <= np.mean(hits) <= 1


def test_few_sizes_do_not_exclude_that_there_is_no_floor():
    x = X[:5] / 4 + 30
    best = free(x, np.log(2.0) - 0.06 * (x - x[0]) + np.random.default_rng(0).normal(0, 0.003, 5))
    assert best.interval[0] == 0
    assert best.exponents[1] > 2 * best.exponents[0]


def test_a_noiseless_floor_is_found():
    best = free(X, ln_losses(1.5, 0.3))
    assert best.law.floor == pytest.approx(1.5, abs=1e-4)


def test_a_sweep_leaves_out_floors_that_losses_go_below():
    y = ln_losses(1.0)
    assert [law.floor for law in sweep(X, y, [0, 0.5, 1.0, 5.0])] == [0, 0.5, 1.0]
    with pytest.raises(FitError, match="a floor of 5 is not"):
        pinned(X, y, 5.0)
    with pytest.raises(FitError, match="a floor of -1 is not"):
        pinned(X, y, -1.0)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        (X[:3], ln_losses(1.0)[:3], "a free floor needs at least 4 sizes and there are 3"),
        (X, ln_losses(1.0)[::-1], "does not fall with compute"),
        (np.full(9, 45.0), ln_losses(1.0), "same compute"),
        ([], [], "at least 4 sizes and there are 0"),
    ],
)
def test_points_that_cannot_show_a_floor_are_refused(x, y, says):
    with pytest.raises(FitError, match=says):
        free(x, y)
