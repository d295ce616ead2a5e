import math

import pytest

from analysis.compare import compare
from analysis.multiplier import estimates
from analysis.runs import load
from analysis.wording import estimate_text, interval_text


@pytest.fixture
def two(planted, table):
    """The same arm in two experiments."""
    first = table(planted({"block": 1.5, "full": 1.6}, noise=0.001), "first")
    second = table(planted({"block": 1.2}, noise=0.002, compute=(1e18, 3e18, 9e18, 2e19, 4e19)), "second")
    return first, second


def test_the_ratio_has_the_interval_of_independent_experiments(two):
    a, b = map(load, two)
    block, full = compare(a, b, "model")
    one, other = (estimates(runs, "model")[0] for runs in (a, b))
    assert block.ratio == pytest.approx(one.multiplier / other.multiplier)
    assert block.ratio == pytest.approx(1.25, rel=0.05)
    low, high = block.interval
    assert math.sqrt(low * high) == pytest.approx(block.ratio)
    half = math.log(high / low) / 2
    widest = max(math.log(m.interval[1] / m.interval[0]) / 2 for m in (one, other))
    assert widest * 0.7 < half < 2 * widest
    assert full.ratio is None
    assert "only the first has this arm" in full.reason


def test_swapping_the_tables_inverts_the_ratio(two):
    a, b = map(load, two)
    there, back = compare(a, b, "model")[0], compare(b, a, "model")[0]
    assert there.ratio == pytest.approx(1 / back.ratio)
    assert there.interval == pytest.approx((1 / back.interval[1], 1 / back.interval[0]))


def test_compare_prints_both_side_by_side(two, analysis):
    status, out, _ = analysis("compare", *two)
    assert status == 0
    assert "ledger model" in out
    a, b = (estimates(load(folder), "model")[0] for folder in two)
    for m in (a, b):
        assert f"{estimate_text(m)} ({interval_text(m.interval)})" in out


def test_tables_without_a_common_ledger_are_refused(two, planted, table, analysis):
    rows = planted({"block": 1.2})
    for row in rows:
        row["seconds"] = row.pop("flops_model")
    status, _, err = analysis("compare", two[0], table(rows, "third"))
    assert status == 2
    assert "in one ledger only" in err
    status, _, err = analysis("compare", *two, "--ledger", "paper")
    assert status == 2
    assert "no compute in ledger 'paper'" in err


def test_an_estimate_without_interval_gives_a_ratio_without_one(two, planted, table):
    weak = load(table(planted({"block": 1.2}, noise=0.05, compute=(1e18, 1.1e18, 1.2e18, 1.3e18)), "weak"))
    result = compare(load(two[0]), weak, "model")[0]
    assert result.interval is None
    assert result.reason
