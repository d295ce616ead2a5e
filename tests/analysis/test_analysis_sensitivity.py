"""Other choices: pinned floors, one size fewer, no law; seeds; the test against a claim."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import f_oneway
from scipy.stats import t as student

from analysis.claim import ClaimError, judge
from analysis.fieller import Fieller
from analysis.multiplier import estimate, estimates
from analysis.pairing import SizePair
from analysis.runs import load
from analysis.seeds import seed_noise
from analysis.sensitivity import HIGHEST_FLOOR, floors, law_free, leave_one_out, pinned
from analysis.study_wording import fieller_text


def sizes_with_floor(floor, m=1.25, alpha=0.3, n=5):
    """L = floor + (M C)^-alpha, exactly."""
    return tuple(
        SizePair(
            f"s{c}",
            (0,),
            math.log(floor + math.exp(-alpha * c)),
            math.log(floor + m**-alpha * math.exp(-alpha * c)),
            c,
            c,
        )
        for c in range(n)
    )


@pytest.mark.parametrize("floor", [0.0, 1.0, 1.5])
def test_the_true_floor_pinned_gives_the_true_multiplier(floor):
    m = estimate("block", "model", sizes_with_floor(floor))
    assert pinned(m, floor).multiplier == pytest.approx(1.25, rel=1e-9)
    if floor:
        assert all(s.ln_multiplier != pytest.approx(math.log(1.25), rel=1e-3) for s in m.sizes[::4])


def test_floors_are_round_start_at_none_and_stay_below_every_loss(golden):
    (block, *_) = estimates(load(golden("attnres_table2.csv")), "6nd")
    swept = floors(block)
    assert [f.floor for f in swept] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4]
    assert swept[0].estimate == block
    assert swept[-1].floor < HIGHEST_FLOOR * 1.693
    assert all(f.estimate.interval for f in swept)
    assert floors(replace(block, numbers=None)) == ()


def test_leaving_a_size_out_is_the_estimate_without_it(golden):
    (block, *_) = estimates(load(golden("attnres_table2.csv")), "6nd")
    left = leave_one_out(block)
    assert [x.size for x in left] == ["194M", "241M", "296M", "436M", "528M"]
    assert left[4].estimate == estimate("block", "6nd", block.pairs[:4], 1e-3)
    assert leave_one_out(estimate("block", "6nd", block.pairs[:3])) == ()


def test_without_a_law_m_is_read_between_the_baselines_runs():
    pairs = tuple(
        SizePair(str(c), (0,), *map(math.log, (base, arm)), c, c)
        for c, base, arm in ((0.0, 2.0, 1.9), (1.0, 1.8, 1.8), (2.0, 1.7, 1.65), (3.0, 1.6, 1.5))
    )
    first, second, third, fourth = law_free(pairs)
    assert first.ln_multiplier == pytest.approx(math.log(2 / 1.9) / math.log(2 / 1.8))
    assert second.ln_multiplier == 0
    assert third.ln_multiplier == pytest.approx(math.log(1.7 / 1.65) / math.log(1.7 / 1.6))
    assert fourth.ln_multiplier is None
    worse = law_free(tuple(replace(p, ln_loss_arm=p.ln_loss_baseline + 0.05) for p in pairs))
    assert worse[0].multiplier is None
    assert worse[1].multiplier < 1


def test_a_baseline_that_rises_again_counts_at_its_first_crossing():
    base = (2.0, 1.8, 1.9, 1.7)
    pairs = tuple(SizePair(str(i), (0,), math.log(b), math.log(1.85), float(i), 0.0) for i, b in enumerate(base))
    assert all(0 < x.ln_multiplier < 1 for x in law_free(pairs))


def test_the_runs_deviation_and_lack_of_fit_are_those_of_an_analysis_of_variance(planted, table):
    runs = load(table(planted({"block": 1.2}, noise=0.002, seeds=4)))
    (m,) = estimates(runs, "model")
    found = seed_noise(runs.pairs, m)
    gains = [
        np.log(rows["loss_baseline"]) - np.log(rows["loss_arm"]) for _, rows in runs.pairs.groupby("size", sort=False)
    ]
    assert found.run_sd == pytest.approx(math.sqrt(np.mean([g.var() for g in gains]) / 2))
    assert (found.df, found.df_between) == (12, 3)
    expected = f_oneway(*gains)
    assert found.lack_of_fit == pytest.approx(expected.statistic)
    assert found.p_value == pytest.approx(expected.pvalue)


def test_a_multiplier_that_changes_with_size_does_not_fit(planted, table):
    rows = planted({"block": 1.2}, noise=0.0005, seeds=3)
    for row in rows:
        if row["variant"] == "block" and row["size"] in ("s2", "s3"):
            row["val_loss"] *= 0.98
    runs = load(table(rows))
    assert seed_noise(runs.pairs, estimates(runs, "model")[0]).p_value < 1e-4


def test_one_seed_says_nothing_of_noise_and_unequal_numbers_are_weighed(planted, table):
    single = load(table(planted({"block": 1.2}, noise=0.002), "one"))
    assert seed_noise(single.pairs, estimates(single, "model")[0]) is None
    rows = [r for r in planted({"block": 1.2}, noise=0.002, seeds=3) if r["size"] != "s0" or r["seed"] == 0]
    uneven = load(table(rows, "uneven"))
    assert seed_noise(uneven.pairs, estimates(uneven, "model")[0]).df == 6


CLAIMS = st.tuples(st.floats(0.9, 1.6), st.floats(0.005, 0.3))


@given(CLAIMS, st.integers(0, 30))
def test_the_verdict_is_that_of_the_two_intervals(given_claim, seed):
    claim, margin = given_claim
    generator = np.random.default_rng(seed)
    noise = generator.normal(0, 0.002, (2, 5))
    sizes = tuple(
        SizePair(str(c), (0,), 3 - 0.06 * c + noise[0, c], 2.987 - 0.06 * c + noise[1, c], c, c) for c in range(5)
    )
    m = estimate("block", "model", sizes)
    found = judge(m, claim, margin)
    half = student.ppf(0.95, m.df) * math.sqrt(m.variance)
    ninety = math.exp(m.ln_multiplier - half), math.exp(m.ln_multiplier + half)
    assert found.interval_90 == pytest.approx(ninety)
    if claim / (1 + margin) <= ninety[0] and ninety[1] <= claim * (1 + margin):
        assert found.verdict == "consistent"
        assert found.p_equivalent <= 0.05
    elif not m.interval[0] <= claim <= m.interval[1]:
        assert found.verdict == "not consistent"
        assert found.p_equal < 0.05
    else:
        assert found.verdict == "cannot tell"


def test_the_papers_claim_against_its_own_table(golden):
    found = {m.arm: m for m in estimates(load(golden("attnres_table2.csv")), "6nd")}
    assert judge(found["block"], 1.25).verdict == "consistent"
    assert judge(found["full"], 1.25).verdict == "cannot tell"
    assert judge(found["block"], 1.25, 0.01).verdict == "cannot tell"
    assert judge(found["block"], 1.6).verdict == "not consistent"


def test_an_unbounded_set_is_written_with_what_it_leaves_out():
    assert fieller_text(Fieller(True, (1.178, 1.308))) == "1.178 to 1.308"
    assert fieller_text(Fieller(False, None)) == "unbounded: any M"
    assert fieller_text(Fieller(False, (0.512345, 1.04))) == "unbounded: below 0.512 or above 1.04"


def test_without_an_interval_one_cannot_tell():
    rising = estimate("block", "model", tuple(SizePair(str(c), (0,), 0.1 * c, 0.1 * c, c, c) for c in range(4)))
    assert judge(rising, 1.25).verdict == "cannot tell"
    assert judge(rising, 1.25).interval_90 is None


@pytest.mark.parametrize(
    ("claim", "margin"), [(0, 0.05), (-1, 0.05), (math.inf, 0.05), (math.nan, 0.05), (1.25, 0), (1.25, 2)]
)
def test_a_claim_that_cannot_be_is_refused(golden, claim, margin):
    with pytest.raises(ClaimError):
        judge(estimates(load(golden("attnres_table2.csv")), "6nd")[0], claim, margin)
