import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from analysis.allocation import compute_range, exponents, growth, optima, optimal_size, optimum
from analysis.errors import FitError
from analysis.powerlaw import fit as fit_line
from analysis.size_tokens import bootstrap, fit, loss_at

TRUE = np.array([math.log(480), math.log(2100), math.log(1.8), 0.35, 0.37])


@given(
    st.tuples(st.floats(2, 9), st.floats(2, 9), st.floats(-1, 1), st.floats(0.1, 0.9), st.floats(0.1, 0.9)),
    st.floats(17, 26),
)
def test_the_optimal_size_has_the_lowest_loss_of_its_compute(parameters, lg_compute):
    p, compute = np.array(parameters), 10**lg_compute
    size = optimal_size(p[None], compute)[0]
    found = minimize_scalar(
        lambda ln_n: loss_at(p, math.exp(ln_n), compute / 6 / math.exp(ln_n)),
        bounds=(math.log(size) - 5, math.log(size) + 5),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert found.x == pytest.approx(math.log(size), abs=1e-3)


def test_optima_grow_with_the_exponents_that_are_given():
    a, b = (values[0] for values in exponents(TRUE[None]))
    assert a + b == pytest.approx(1)
    assert a == pytest.approx(0.37 / 0.72)
    one, ten = optimal_size(TRUE[None], np.array([1e20, 1e21]))[0]
    assert math.log10(ten / one) == pytest.approx(a)


def test_an_optimum_spends_its_compute_and_its_interval_holds_it():
    generator = np.random.default_rng(0)
    size, tokens = (x.ravel() for x in np.meshgrid(np.geomspace(3e7, 1e10, 6), np.geomspace(1e9, 1e12, 5)))
    law = fit(size, tokens, loss_at(TRUE, size, tokens) * np.exp(generator.normal(0, 0.01, 30)), TRUE)
    sample = bootstrap(law, 200)
    low, high = compute_range(law)
    assert (low, high) == pytest.approx((6 * 3e7 * 1e9, 6 * 1e10 * 1e12))
    results = optima(law, sample)
    assert [o.compute for o in results] == pytest.approx([low, math.sqrt(low * high), high, 10 * high])
    assert [o.in_range for o in results] == [True, True, True, False]
    for o in results:
        assert 6 * o.size * o.tokens == pytest.approx(o.compute)
        assert o.ratio == pytest.approx(o.tokens / o.size)
        assert o.loss == pytest.approx(float(law.loss(o.size, o.tokens)))
        for value, interval in ((o.size, o.size_interval), (o.tokens, o.tokens_interval), (o.ratio, o.ratio_interval)):
            assert interval[0] < value < interval[1]
    assert optimum(law, 1e21).size_interval is None


def test_a_weighted_growth_takes_standard_deviations():
    """Three equal points of one standard deviation are one point of it over the root of three; a variance is not."""
    x = np.array([1.0, 2, 3, 4, 5])
    y = np.array([1.0, 2.2, 2.9, 4.3, 4.8])
    thrice = np.concatenate([x, x[:1], x[:1]]), np.concatenate([y, y[:1], y[:1]])
    sd = np.array([1 / math.sqrt(3), 1, 1, 1, 1])
    expected = fit_line(*thrice).exponent
    assert fit_line(x, y, sd).exponent == pytest.approx(expected, rel=1e-12)
    assert fit_line(x, y, sd**2).exponent != pytest.approx(expected, rel=1e-3)
    assert fit_line(x, y, 7 * sd).exponent_se == pytest.approx(fit_line(x, y, sd).exponent_se, rel=1e-12)
    assert fit_line(x, y, 7 * sd).residual_sd == pytest.approx(fit_line(x, y, sd).residual_sd, rel=1e-12)
    assert fit_line(x, y, 7 * sd).coefficient_interval() == pytest.approx(fit_line(x, y, sd).coefficient_interval())
    plain = fit_line(x, y)
    assert fit_line(x, y, np.full(5, 0.3)).exponent_interval == pytest.approx(plain.exponent_interval, rel=1e-12)


@pytest.mark.parametrize("sd", [[1, 1, 0], [1, 1, -1], [1, 1, math.inf], [1, 1, math.nan], [1, 1]])
def test_a_standard_deviation_that_is_none_is_refused(sd):
    with pytest.raises(FitError, match="a standard deviation above 0 for each of the 3 points"):
        growth([1e18, 2e18, 4e18], [1e8, 2e8, 3e8], sd)


def test_growth_is_the_slope_with_its_interval():
    compute = np.array([1e18, 1e19, 1e20, 1e21])
    exponent, (low, high) = growth(compute, compute**0.5 * np.array([1, 1.01, 0.99, 1]))
    assert low < exponent < high
    assert exponent == pytest.approx(0.5, abs=0.01)
