import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import huber as scipys_huber

from analysis.chinchilla import Rows, evaluate, jacobian, residuals, shares

SIZE, TOKENS = (x.ravel() for x in np.meshgrid(np.geomspace(1e7, 1e10, 5), np.geomspace(1e9, 1e12, 4)))
parameters = st.tuples(
    st.floats(-2, 2), st.floats(-2, 2), st.floats(-1, 1), st.floats(-0.5, 1.5), st.floats(-0.5, 1.5)
).map(np.array)


def rows_of(seed):
    generator = np.random.default_rng(seed)
    return Rows.of(SIZE, TOKENS, np.exp(generator.normal(1, 0.3, len(SIZE))))


@given(parameters, st.integers(0, 99), st.sampled_from([1e-3, 0.1, 10.0]))
def test_the_objective_is_hubers_loss_over_its_threshold(p, seed, huber):
    rows = rows_of(seed)
    a, b, e, alpha, beta = p
    ln_l = np.log(np.exp(e) + np.exp(a - alpha * rows.x) + np.exp(b - beta * rows.y))
    expected = scipys_huber(huber, ln_l - rows.ln_loss).mean() / huber
    assert evaluate(rows, p[None], huber=huber).value[0] == pytest.approx(expected, rel=1e-10)


@settings(max_examples=40)
@given(parameters, st.integers(0, 99), st.sampled_from([1e-3, 0.1, 10.0]))
def test_the_gradient_and_the_hessian_equal_finite_differences(p, seed, huber):
    rows, h = rows_of(seed), 1e-6
    weights = np.random.default_rng(seed).integers(0, 4, (1, len(rows))).astype(float)
    r = np.abs(residuals(rows, p[None])[0])
    if np.abs(r - huber).min() < 1e-4:
        return  # a kink within reach of the differences
    at = evaluate(rows, p[None], weights, huber)
    moved = np.repeat(p[None], 10, axis=0)
    moved[:5] += h * np.eye(5)
    moved[5:] -= h * np.eye(5)
    there = evaluate(rows, moved, np.repeat(weights, 10, axis=0), huber)
    np.testing.assert_allclose((there.value[:5] - there.value[5:]) / (2 * h), at.gradient[0], atol=1e-6)
    np.testing.assert_allclose((there.gradient[:5] - there.gradient[5:]) / (2 * h), at.hessian[0], atol=1e-5, rtol=1e-5)


@given(parameters)
def test_the_jacobian_equals_finite_differences_and_the_shares_sum_to_one(p):
    rows, h = rows_of(0), 1e-6
    plus, minus = (residuals(rows, p + sign * h * np.eye(5)) for sign in (1, -1))
    np.testing.assert_allclose((plus - minus).T / (2 * h), jacobian(rows, p), atol=1e-7)
    np.testing.assert_allclose(shares(rows, p[None])[1].sum(axis=0), 1)


@given(parameters)
def test_centring_changes_the_parameters_and_not_the_law(p):
    rows = rows_of(0)
    a, b, e, alpha, beta = p
    expected = np.log(np.exp(e) + np.exp(a - alpha * np.log(SIZE)) + np.exp(b - beta * np.log(TOKENS)))
    np.testing.assert_allclose(shares(rows, rows.centred(p[None]))[0][0], expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(rows.plain(rows.centred(p[None]))[0], p, atol=1e-12)


def test_parameters_far_away_overflow_nothing():
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        rows = rows_of(0)
        at = evaluate(rows, np.array([[25.0, 25, 1, -400, 400], [-900, -900, -900, 0, 0]]))
    assert np.isfinite(at.value).all()
    assert np.isfinite(at.hessian).all()


def test_a_row_that_counts_twice_is_two_rows():
    rows, p = rows_of(1), np.array([[0.1, 0.2, 0.3, 0.4, 0.5]])
    twice = Rows(*(np.concatenate([x, x[:3]]) for x in (rows.x, rows.y, rows.ln_loss)), rows.centre)
    weights = np.ones((1, len(rows)))
    weights[0, :3] = 2
    one, two = evaluate(rows, p, weights), evaluate(twice, p)
    for a, b in ((one.value, two.value), (one.gradient, two.gradient), (one.hessian, two.hessian)):
        np.testing.assert_allclose(a * len(rows), b * len(twice))
