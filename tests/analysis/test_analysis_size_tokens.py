import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from analysis import size_tokens
from analysis.certificate import certify, check_rows
from analysis.chinchilla import Rows, evaluate
from analysis.descent import Descent, descend
from analysis.errors import AnalysisError, FitRefused, NotIdentifiable
from analysis.size_tokens import bootstrap, fit, loss_at, starts_of_the_replication

SIZE, TOKENS = (x.ravel() for x in np.meshgrid(np.geomspace(3e7, 1e10, 6), np.geomspace(1e9, 1e12, 5)))
TRUE = np.array([math.log(480), math.log(2100), math.log(1.8), 0.35, 0.37])
FEW = starts_of_the_replication()[::97]


def losses(parameters=TRUE, sd=0.0, seed=0, size=SIZE, tokens=TOKENS):
    return loss_at(parameters, size, tokens) * np.exp(np.random.default_rng(seed).normal(0, sd, len(size)))


def test_the_grid_is_that_of_the_replication():
    grid = starts_of_the_replication()
    assert grid.shape == (4500, 5)
    assert len(np.unique(grid, axis=0)) == 4500
    assert list(grid.min(axis=0)) == [0, 0, -1, 0, 0]
    assert list(grid.max(axis=0)) == [25, 25, 1, 2, 2]


@settings(max_examples=15, deadline=None)
@given(
    floor=st.floats(1, 2.5),
    excess=st.tuples(st.floats(0.2, 1), st.floats(0.2, 1)),
    alpha=st.floats(0.2, 0.6),
    beta=st.floats(0.2, 0.6),
)
def test_planted_parameters_are_recovered(floor, excess, alpha, beta):
    """`excess` is the loss above the floor in the middle of the sizes and of the tokens."""
    middle = np.log(SIZE).mean(), np.log(TOKENS).mean()
    a, b = (math.log(x) + k * m for x, k, m in zip(excess, (alpha, beta), middle))
    planted = np.array([a, b, math.log(floor), alpha, beta])
    law = fit(SIZE, TOKENS, losses(planted), FEW)
    np.testing.assert_allclose(law.parameters, planted, rtol=1e-4, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.floats(0.5, 2))
def test_units_change_the_factors_and_nothing_else(of_size, of_tokens, of_loss):
    law = fit(SIZE, TOKENS, losses(sd=0.01), FEW)
    other = fit(SIZE * of_size, TOKENS * of_tokens, losses(sd=0.01) * of_loss, FEW)
    one, two = law.named, other.named
    assert (two["alpha"], two["beta"]) == pytest.approx((one["alpha"], one["beta"]), rel=1e-5)
    assert two["E"] == pytest.approx(one["E"] * of_loss, rel=1e-5)
    assert two["A"] == pytest.approx(one["A"] * of_size ** one["alpha"] * of_loss, rel=1e-3)
    assert two["B"] == pytest.approx(one["B"] * of_tokens ** one["beta"] * of_loss, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_no_other_optimiser_finds_less(seed):
    """The minimum of single-start descents by scipy, on the same objective, from our own end and from afar."""
    law = fit(SIZE, TOKENS, losses(sd=0.02, seed=seed), FEW)
    rows = law.rows
    ours = evaluate(rows, law.centred).value[0]

    def objective(p):
        at = evaluate(rows, p[None])
        return at.value[0], at.gradient[0]

    starts = [law.centred[0], *rows.centred(TRUE[None] * np.linspace(0.8, 1.2, 8)[:, None])]
    theirs = min(minimize(objective, start, jac=True, method="BFGS").fun for start in starts)
    assert ours <= theirs * (1 + 1e-9)


def test_an_outlier_hardly_moves_the_law():
    y = losses(sd=0.005)
    y[7] *= 1.5
    law = fit(SIZE, TOKENS, y, FEW)
    assert law.named["E"] == pytest.approx(1.8, abs=0.05)
    assert law.named["alpha"] == pytest.approx(0.35, abs=0.03)


def test_the_fit_is_the_same_from_near_and_from_many_starts():
    y = losses(sd=0.01)
    near, many = fit(SIZE, TOKENS, y, TRUE), fit(SIZE, TOKENS, y)
    np.testing.assert_allclose(near.parameters, many.parameters, rtol=1e-6)
    c = many.certificate
    assert c.failures == ()
    assert c.starts == 4500
    assert c.agreeing > 450
    assert c.disagreement < 1e-4
    assert c.gradient < 1e-8
    assert c.distance > 1
    assert c.rank == 5
    assert 5 < c.condition < 1000
    assert near.certificate.distance > 0


def stay(rows, starts, weights=None):
    """An optimiser that takes its start for a minimum."""
    at = evaluate(rows, starts, weights)
    return Descent(starts.copy(), at.value, np.abs(at.gradient).max(axis=1))


def test_an_optimiser_that_stays_at_its_start_is_found_out(monkeypatch):
    monkeypatch.setattr(size_tokens, "descend", stay)
    for starts in (TRUE, FEW):
        with pytest.raises(FitRefused, match=r"gradient is .*the fit equals its start"):
            fit(SIZE, TOKENS, losses(sd=0.01), starts)


def test_a_fit_that_equals_its_start_is_refused_even_at_a_minimum():
    y = losses(sd=0.01)
    end = fit(SIZE, TOKENS, y, TRUE).parameters
    with pytest.raises(FitRefused, match=r"^fit refused: the fit equals its start: nothing was fitted[^;]*$"):
        fit(SIZE, TOKENS, y, end)


def test_a_best_objective_that_one_start_alone_reaches_is_refused():
    rows = Rows.of(SIZE, TOKENS, losses(sd=0.01))
    starts = rows.centred(np.array([TRUE, TRUE * 1.1, TRUE * 0.9]))
    ends = descend(rows, starts)
    worse = Descent(ends.sets, ends.value * [1, 1.1, 1.1], ends.gradient)
    assert certify(rows, starts, worse)[1].failures == ("only 1 of 3 starts ended at the best objective",)
    assert certify(rows, starts, ends)[1].failures == ()


def test_equal_objectives_at_different_parameters_are_refused():
    rows = Rows.of(SIZE, TOKENS, losses(sd=0.01))
    starts = rows.centred(np.array([TRUE, TRUE * 1.1]))
    ends = descend(rows, starts)
    apart = Descent(ends.sets + np.array([[0] * 5, [0, 0, 0, 0.1, 0]]), ends.value, ends.gradient)
    (failure,) = certify(rows, starts, apart)[1].failures
    assert "end 0.1 apart" in failure


@pytest.mark.parametrize(
    ("planted", "says"),
    [
        ([2.0, 4.0, -30, 0.1, 0.15], "the floor E runs to 0"),
        ([-40.0, 7, 0.5, 0.35, 0.3], r"A / N\^alpha runs to 0"),
        ([7.0, -40, 0.5, 0.35, 0.3], "the Jacobian has rank 4 of 5"),
    ],
)
def test_a_parameter_at_its_bound_is_refused_by_name(planted, says):
    with pytest.raises(FitRefused, match=says):
        fit(SIZE, TOKENS, losses(np.array(planted)), FEW)


def test_a_loss_that_rises_with_tokens_is_refused():
    with pytest.raises(FitRefused, match=r"beta is -0\.10\d, not above 0"):
        fit(SIZE, TOKENS, losses(np.array([math.log(480), -3, 0.5, 0.35, -0.1]), sd=0.001), FEW)


@pytest.mark.parametrize("ratio", [1, 20, 1e4])
@pytest.mark.parametrize("jitter", [0, 0.05])
def test_tokens_in_proportion_to_parameters_are_not_identifiable_by_name(ratio, jitter):
    size = np.geomspace(1e7, 1e10, 30)
    tokens = ratio * size * np.exp(np.random.default_rng(0).normal(0, jitter, 30))
    with pytest.raises(NotIdentifiable, match=r"not identifiable: tokens go with parameters \((100\.0|99\.\d) %"):
        fit(size, tokens, losses(sd=0.01, size=size, tokens=tokens))


def test_two_lengths_of_training_at_each_of_many_sizes_are_identifiable():
    size = np.repeat(np.geomspace(1e7, 1e9, 12), 2)
    check_rows(Rows.of(size, size * np.tile([20, 40], 12), np.full(24, 3.0)))


@pytest.mark.parametrize(
    ("keep", "says"),
    [
        (slice(0, 1), "3 different sizes and there are 1"),
        (np.flatnonzero(np.isclose(TOKENS, 1e9)), "3 different numbers of tokens and there are 1"),
        (np.flatnonzero(np.isin(SIZE, np.unique(SIZE)[:2])), "3 different sizes and there are 2"),
        ([0, 6, 2, 13, 27], "five parameters and there are 5 runs"),
    ],
)
def test_too_few_rows_sizes_or_tokens_are_not_identifiable(keep, says):
    with pytest.raises(NotIdentifiable, match=says) as raised:
        fit(SIZE[keep], TOKENS[keep], losses()[keep])
    assert isinstance(raised.value, AnalysisError)


def test_the_bootstrap_is_reproducible_and_covers_the_truth():
    law = fit(SIZE, TOKENS, losses(sd=0.01), TRUE)
    one, two, other = bootstrap(law, 200, 1), bootstrap(law, 200, 1), bootstrap(law, 200, 2)
    assert one.intervals == two.intervals
    assert one.intervals != other.intervals
    assert one.failed == 0
    assert one.reason == ""
    for name, true in (("E", 1.8), ("alpha", 0.35), ("beta", 0.37)):
        low, high = one.intervals[name]
        assert low < true < high
        assert high - low < 0.3


def test_failed_replicates_are_counted_and_too_many_leave_no_interval(monkeypatch):
    law = fit(SIZE, TOKENS, losses(sd=0.01), TRUE)

    def some_fail(rows, starts, weights):
        ends = descend(rows, starts, weights)
        return Descent(ends.sets, ends.value, np.where(np.arange(len(starts)) < failing, 1.0, 0))

    monkeypatch.setattr(size_tokens, "descend", some_fail)
    for failing, kept in ((3, True), (40, False)):
        sample = bootstrap(law, 200)
        assert sample.failed == failing
        assert len(sample.sets) == 200 - failing
        assert all((interval is not None) == kept for interval in sample.intervals.values())
        assert sample.reason == ("" if kept else "40 of 200 bootstrap replicates failed")


def test_replicates_without_enough_sizes_fail_and_do_not_become_infinite():
    size = np.array([1e8, 1e9, 1e10, 1e8, 1e9, 1e10, 1e8])
    tokens = np.array([1e9, 1e10, 1e9, 1e11, 1e9, 1e11, 1e10])
    law = fit(size, tokens, losses(sd=0.001, size=size, tokens=tokens), TRUE * 1.01)
    sample = bootstrap(law, 300)
    assert 20 < sample.failed <= 300
    assert np.isfinite(sample.sets).all()
    assert set(sample.intervals.values()) == {None}


def test_a_floor_at_zero_in_a_replicate_is_kept_and_counted():
    planted = np.array([2.0, 4.0, math.log(0.05), 0.1, 0.15])
    law = fit(SIZE, TOKENS, losses(planted, sd=0.003), planted * 1.01)
    sample = bootstrap(law, 200)
    assert sample.at_floor_zero == (np.exp(sample.sets[:, 2]) < 1e-3).sum() > 0
    assert sample.failed == 0
