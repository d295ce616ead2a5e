"""Other ways to the interval of M: Fieller's set, the profile likelihood, several arms at once."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import dunnett, multivariate_t
from scipy.stats import t as student

from analysis.fieller import fieller, fieller_sets
from analysis.multiplier import estimate, estimates
from analysis.paired import paired
from analysis.pairing import SizePair
from analysis.powerlaw import t_quantile
from analysis.profile import profile_cut, profile_excess, profile_interval
from analysis.runs import load
from analysis.simulate import Setting, simulate
from analysis.simultaneous import dunnett_quantile, pooled_variance, simultaneous


def some_tables(count=50, **changes):
    setting = Setting(**{"sizes": 5, "size_sd": 0.003, "run_sd": 0.002, "multiplier": 1.2} | changes)
    drawn = simulate(setting, count, np.random.default_rng(3))
    ratio = np.random.default_rng(4).normal(0, 0.02, setting.sizes)
    return drawn.base_loss, drawn.arm_loss[0], drawn.base_compute, drawn.arm_compute + ratio


def pairs_of(base_loss, arm_loss, base_compute, arm_compute):
    return tuple(
        SizePair(f"s{i}", (0,), *map(float, row))
        for i, row in enumerate(zip(base_loss, arm_loss, base_compute, arm_compute, strict=True))
    )


def golden_numbers(golden, arm="block", ledger="6nd"):
    return next(m for m in estimates(load(golden("attnres_table2.csv")), ledger) if m.arm == arm).numbers


def test_many_tables_at_once_give_what_each_gives_alone():
    base, arm, cb, ca = some_tables()
    together = paired(base, arm, cb, ca)
    for i in (0, 7, 49):
        alone = estimate("block", "model", pairs_of(base[i], arm[i], cb, ca))
        assert together.ln_multiplier[i] == pytest.approx(alone.ln_multiplier, rel=1e-12)
        assert together.variance[i] == pytest.approx(alone.variance, rel=1e-9)
        assert together.df[i] == pytest.approx(alone.df, rel=1e-9)
        assert together.alpha_se[i] == pytest.approx(alone.law.exponent_se, rel=1e-9)


def test_fieller_reproduces_the_papers_table(golden):
    found = fieller(golden_numbers(golden))
    assert found.bounded
    assert [f"{end:.3f}" for end in found.ends] == ["1.178", "1.308"]


@given(st.integers(0, 49), st.floats(-1, 1))
def test_fieller_holds_what_a_t_test_does_not_reject(i, ln_m):
    """The definition: mean(d) - alpha (ln M - mean ratio), over its standard error."""
    base, arm, cb, ca = some_tables()
    p = paired(base[i], arm[i], cb, ca)
    x = ln_m - p.ratio.mean()
    statistic = (p.difference.mean() - p.alpha * x) / math.sqrt(p.spread * p.alpha**2 + x**2 * p.alpha_se**2)
    sets = fieller_sets(p)
    assert bool(sets.holds(ln_m)) == (abs(statistic) <= student.ppf(0.975, 3))
    low, high = sets.ends
    assert bool(sets.bounded)
    assert bool(sets.holds(ln_m)) == (low <= ln_m <= high)


@pytest.mark.parametrize("i", [0, 20])
def test_fiellers_ends_are_where_the_t_test_just_rejects_with_unequal_compute_too(i):
    base, arm, cb, ca = some_tables()
    p = paired(base[i], arm[i], cb, ca + 0.3)
    for end in fieller_sets(p).ends:
        statistic = (p.difference.mean() - p.alpha * (end - p.ratio.mean())) / math.sqrt(
            p.spread * p.alpha**2 + (end - p.ratio.mean()) ** 2 * p.alpha_se**2
        )
        assert abs(statistic) == pytest.approx(student.ppf(0.975, 3))


def test_fieller_is_unbounded_and_says_so_where_the_exponent_is_weak():
    noise = np.array([0.3, -0.3, 0.2, -0.25])
    x = np.arange(4.0)
    p = paired(-0.05 * x + noise, -0.05 * x - 0.1 + noise, x, x)
    found = fieller(p)
    assert not found.bounded
    low, high = found.ends
    middle = math.log(math.sqrt(low * high)) if low > 0 else low
    assert not fieller_sets(p).holds(middle)
    assert fieller_sets(p).holds(50.0)
    assert fieller_sets(p).holds(-50.0)
    rough = paired(-0.05 * x + noise, -0.05 * x + noise[::-1], x, x)
    assert fieller(rough).ends is None
    assert fieller_sets(rough).holds(0.3)


def test_profile_of_the_papers_table_is_near_the_t_interval(golden):
    low, high = profile_interval(golden_numbers(golden))
    assert (low, high) == pytest.approx((1.1874, 1.2938), abs=5e-5)


@pytest.mark.parametrize("i", [0, 11])
def test_profile_is_the_likelihood_maximised_over_the_exponent(i):
    """The likelihood again, with scipy's minimiser and the model written out."""
    base, arm, cb, ca = some_tables()
    n = 5
    p = paired(base[i], arm[i], cb, ca)
    x, y = (cb + ca) / 2, (base[i] + arm[i]) / 2

    def cost(alpha, ln_m):
        line = y + alpha * x
        gain = base[i] - arm[i] - alpha * (ln_m - (cb - ca))
        return n * math.log(((line - line.mean()) ** 2).sum()) + n * math.log((gain**2).sum())

    def profiled(ln_m):
        return minimize_scalar(cost, bounds=(0.02, 0.12), args=(ln_m,), method="bounded", options={"xatol": 1e-10}).fun

    best = minimize_scalar(profiled, bounds=(-0.2, 0.6), method="bounded", options={"xatol": 1e-9})
    for ln_m in (-0.1, 0.1, 0.4):
        assert float(profile_excess(p, ln_m)) == pytest.approx(profiled(ln_m) - best.fun, abs=1e-5)
    cut = n * math.log(1 + student.ppf(0.975, n - 1) ** 2 / (n - 1))
    assert profile_cut(n) == pytest.approx(cut)
    ends = [brentq(lambda q: profiled(q) - best.fun - cut, *bracket) for bracket in ((-2, best.x), (best.x, 3))]
    assert profile_interval(p) == pytest.approx([math.exp(end) for end in ends], rel=1e-4)


@pytest.mark.parametrize("ln_m", [-1.0, -0.3, 0.8, 2.0, 5.0])
@pytest.mark.parametrize("noise", [(1e-4, 3e-3), (3e-3, 1e-4)])
def test_the_best_exponent_is_found_among_two_valleys(ln_m, noise):
    """Far from the estimate the line and the pairs want different exponents; on a fine grid, the best is the best."""
    generator = np.random.default_rng(1)
    x = np.linspace(0, 2, 6)
    y, d = 1 - 0.06 * x + generator.normal(0, noise[0], 6), 0.012 + generator.normal(0, noise[1], 6)
    p = paired(y + d / 2, y - d / 2, x, x)
    alphas = np.linspace(-0.06, 0.08, 400_001)
    line = float(p.residual_sum) + float(p.compute_sum) * (alphas - float(p.alpha)) ** 2
    gains = ((p.difference - alphas[:, None] * ln_m) ** 2).sum(1)
    least = 6 * math.log(float(p.residual_sum)) + 6 * math.log(((p.difference - p.difference.mean()) ** 2).sum())
    on_grid = (6 * np.log(line * gains)).min() - least
    assert on_grid - 0.05 < float(profile_excess(p, ln_m)) <= on_grid + 1e-6


def test_profile_with_a_known_exponent_is_the_t_interval():
    """Where the line is all but exact, alpha is known and the cut is exactly Student's."""
    x = np.linspace(0, 2, 6)
    d = 0.06 * 0.2 + np.array([1, -2, 0.5, 1.5, -1.5, 0.5]) * 1e-3
    y = 1 - 0.06 * x + np.array([1, -1, 1, -1, 1, -1]) * 1e-9
    p = paired(y + d / 2, y - d / 2, x, x)
    half = student.ppf(0.975, 5) * d.std(ddof=1) / math.sqrt(6) / 0.06
    middle = d.mean() / 0.06
    assert profile_interval(p) == pytest.approx((math.exp(middle - half), math.exp(middle + half)), rel=1e-6)


def test_profile_without_scatter_or_with_no_end_is_none():
    x = np.arange(4.0)
    exact = paired(1 - 0.05 * x, 0.98 - 0.05 * x, x, x)
    assert profile_interval(exact) is None
    noise = np.array([0.9, -0.9, 0.6, -0.8])
    assert profile_interval(paired(-0.05 * x + noise, -0.05 * x - 0.1 + noise[::-1], x, x)) is None


@pytest.mark.parametrize(("arms", "df"), [(2, 5), (3, 14), (5, 10), (5, 3)])
def test_dunnetts_quantile_bounds_95_percent_of_the_multivariate_t(arms, df):
    shape = np.full((arms, arms), 0.5) + 0.5 * np.eye(arms)
    c = np.full(arms, dunnett_quantile(arms, float(df)))
    inside = multivariate_t(shape=shape, df=df).cdf(c, lower_limit=-c, maxpts=100_000, random_state=1)
    assert inside == pytest.approx(0.95, abs=3e-4)


def test_dunnetts_quantile_is_that_of_scipys_own_test():
    """Three groups of four and a control of four: scipy's intervals have the same half-width in standard errors."""
    generator = np.random.default_rng(0)
    control, *groups = generator.normal(size=(4, 4))
    interval = dunnett(*groups, control=control, random_state=1).confidence_interval()
    pooled = np.mean([x.var(ddof=1) for x in (control, *groups)])
    half = (interval.high - interval.low) / 2 / math.sqrt(pooled / 2)
    assert dunnett_quantile(3, 12.0) == pytest.approx(half.mean(), abs=0.01)
    assert dunnett_quantile(1, 7.5) == t_quantile(7.5)


def test_the_pooled_variance_is_what_sizes_and_arms_leave_unexplained():
    """By least squares with a column an arm and a column a size, the baseline's gains being 0."""
    worth = np.random.default_rng(2).normal(size=(3, 5))
    cells = np.vstack([np.zeros(5), worth])
    rows = [(i, j) for i in range(4) for j in range(5)]
    design = np.array([[*(i == a for a in range(4)), *(j == s for s in range(1, 5))] for i, j in rows], dtype=float)
    observed = np.array([cells[i, j] for i, j in rows])
    residuals = observed - design @ np.linalg.lstsq(design, observed, rcond=None)[0]
    assert float(pooled_variance(worth)) == pytest.approx(residuals @ residuals / 12)


def test_several_arms_have_intervals_for_all_at_once(planted, table, golden):
    runs = load(golden("attnres_table2.csv"))
    found = simultaneous(estimates(runs, "6nd"))
    assert set(found) == {"block", "full", "mhc_lite"}
    assert found["block"].interval == pytest.approx((1.1793, 1.3017), abs=5e-5)
    assert set(simultaneous(estimates(runs, "paper"))) == {"block", "full"}
    one = load(table(planted({"block": 1.2}, noise=0.001)))
    assert simultaneous(estimates(one, "model")) == {}


def test_arms_without_sizes_in_common_have_no_joint_interval(planted, table):
    compute = tuple(1e18 * 2**i for i in range(8))
    rows = planted({"block": 1.2, "full": 1.3}, noise=0.001, compute=compute)
    kept = [
        row for row in rows if row["variant"] == "baseline" or (int(row["size"][1]) < 5) == (row["variant"] == "block")
    ]
    multipliers = estimates(load(table(kept)), "model")
    assert all(m.interval for m in multipliers)
    assert simultaneous(multipliers) == {}


def test_rounding_is_the_least_scatter(golden):
    """Losses that are equal after rounding do not make an interval of no width."""
    x = range(40, 45)
    sizes = tuple(SizePair(str(c), (0,), 1 - 0.06 * c, 1 - 0.06 * c - 0.012, c, c) for c in x)
    exact, rounded = estimate("block", "model", sizes), estimate("block", "model", sizes, 1e-3)
    assert exact.interval is None or exact.interval[1] / exact.interval[0] < 1.0001
    expected = np.mean([1e-6 / 12 * (1 / p.loss_baseline**2 + 1 / p.loss_arm**2) for p in sizes]) / 0.06**2 / 5
    assert rounded.spread_variance == pytest.approx(expected, rel=1e-3)
    assert rounded.interval is not None
    seeded = tuple(replace(p, seeds=(0, 1, 2, 3)) for p in sizes)
    assert estimate("block", "model", seeded, 1e-3).spread_variance == pytest.approx(expected / 4, rel=1e-3)
    (block, *_) = estimates(load(golden("attnres_table2.csv")), "6nd")
    assert block.loss_step == 1e-3
    assert 0.003 < block.rounding_sd < 0.005
