import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import linregress

from analysis.errors import FitError
from analysis.laws import arm_laws
from analysis.powerlaw import fit, t_quantile
from analysis.runs import load
from scaling.compute import PFLOPS_DAY


@given(
    alpha=st.floats(0.01, 0.9),
    a=st.floats(0.5, 50),
    xs=st.lists(st.floats(-3, 60), min_size=3, max_size=12, unique=True).filter(lambda x: max(x) - min(x) > 1),
)
def test_a_noiseless_law_is_recovered(alpha, a, xs):
    law = fit(xs, [math.log(a) - alpha * x for x in xs])
    assert law.exponent == pytest.approx(alpha, rel=1e-6, abs=1e-9)
    assert law.coefficient() == pytest.approx(a, rel=1e-6)
    assert law.ln_compute(a * math.exp(-alpha * 5)) == pytest.approx(5, abs=1e-4)


@given(st.integers(3, 20), st.integers(0, 10_000))
def test_estimates_and_errors_equal_scipys(n, seed):
    generator = np.random.default_rng(seed)
    x = generator.uniform(40, 50, n)
    y = 1 - 0.1 * x + generator.normal(0, 0.05, n)
    law, reference = fit(x, y), linregress(x, y)
    assert law.exponent == pytest.approx(-reference.slope, rel=1e-8)
    assert law.exponent_se == pytest.approx(reference.stderr, rel=1e-8)
    low, high = law.coefficient_interval()
    assert math.log(high / low) / 2 / t_quantile(n - 2) == pytest.approx(reference.intercept_stderr, rel=1e-6)
    assert law.df == n - 2


def test_fewer_than_three_points_or_no_spread_is_refused():
    with pytest.raises(FitError, match="at least 3 sizes and there are 2"):
        fit([1, 2], [3, 2])
    with pytest.raises(FitError, match="same compute"):
        fit([5, 5, 5], [3, 2, 1])


@pytest.mark.parametrize(
    ("ledger", "arm", "a", "alpha"),
    [
        ("paper", "baseline", "1.8921", "0.05656"),
        ("paper", "block", "1.8716", "0.05818"),
        ("paper", "full", "1.8653", "0.05743"),
        ("6nd", "baseline", "1.862", "0.0549"),
        ("6nd", "block", "1.841", "0.0565"),
        ("6nd", "full", "1.835", "0.0558"),
    ],
)
def test_the_papers_table_gives_the_known_laws(golden, ledger, arm, a, alpha):
    law = arm_laws(load(golden("attnres_table2.csv")), ledger)[arm]
    assert f"{law.coefficient(PFLOPS_DAY):.{len(a) - 2}f}" == a
    assert f"{law.exponent:.{len(alpha) - 2}f}" == alpha
