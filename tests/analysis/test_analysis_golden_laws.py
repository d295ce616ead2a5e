"""Published fits and ours: every row of the golden folder about laws of loss."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis.allocation import exponents, growth
from analysis.floor import free, pinned
from analysis.size_tokens import bootstrap, fit

OWN_START = [math.log(406.4), math.log(410.7), math.log(1.69), 0.34, 0.28]
"""Where the optimiser behind Hoffmann et al.'s published law is said to have stopped."""


def rounded(law, digits):
    return [f"{law.named[name]:.{n}f}" for name, n in digits.items()]


@pytest.fixture
def chinchilla(golden):
    """Parameters, tokens and losses of the digitised runs without the five highest losses."""
    table = pd.read_csv(golden("chinchilla_digitised.csv")).sort_values("loss").iloc[:-5]
    size, compute, loss = (table[name].to_numpy() for name in ("Model Size", "Training FLOP", "loss"))
    return size, compute / 6 / size, loss


CHINCHILLA = {"A": 2, "B": 1, "E": 4, "alpha": 4, "beta": 4}


def test_chinchilla_from_the_start_where_another_optimiser_stopped(chinchilla):
    law = fit(*chinchilla, OWN_START)
    assert rounded(law, CHINCHILLA) == ["477.83", "2143.4", "1.8172", "0.3473", "0.3672"]
    assert law.certificate.distance > 0.1


def test_chinchilla_from_every_start_of_the_replication(chinchilla):
    law = fit(*chinchilla)
    assert rounded(law, CHINCHILLA) == ["477.83", "2143.4", "1.8172", "0.3473", "0.3672"]
    assert law.certificate.agreeing > 1000
    replication = {"A": 482.01, "B": 2085.43, "E": 1.8169, "alpha": 0.3478, "beta": 0.3658}
    for name, value in replication.items():
        assert law.named[name] == pytest.approx(value, rel=0.03)
    assert exponents(law.parameters[None])[0][0] == pytest.approx(0.514, abs=0.001)


INTERVALS = {"E": (1.768, 1.872), "alpha": (0.317, 0.371), "beta": (0.331, 0.415)}


@pytest.mark.parametrize("replicates", [400, pytest.param(4000, marks=pytest.mark.slow)])
def test_chinchilla_bootstrap_intervals(chinchilla, replicates):
    """To the error of a 2.5 % quantile from so many replicates, of a normal of the interval's width."""
    sample = bootstrap(fit(*chinchilla, OWN_START), replicates)
    assert sample.failed == 0
    for name, (low, high) in INTERVALS.items():
        error = (high - low) / 3.92 * math.sqrt(0.025 * 0.975 / replicates) / 0.058
        assert sample.intervals[name] == pytest.approx((low, high), abs=3 * error + 0.0005)


def test_olmo_ladder_predicts_the_13b_run(golden):
    table = pd.read_csv(golden("olmo_ladder_c4.csv"))
    small = table[
        table["size"].isin(["190M", "370M", "760M", "1B"]) & table["mult"].isin(["1xC", "2xC", "5xC", "10xC"])
    ]
    law = fit(small["N"], small["D"], small["c4_ma5"])
    digits = {"A": 3, "B": 3, "E": 4, "alpha": 4, "beta": 4}
    assert rounded(law, digits) == ["12.483", "33.477", "0.9344", "0.1036", "0.1620"]
    assert f"{law.loss(13_202_396_160, 5e12):.5f}" == "2.34439"


def test_kyo_runs(golden):
    table = pd.read_csv(golden("kyo_runs.csv"))
    law = fit(table["N"], table["D"], table["loss"])
    digits = {"E": 3, "A": 0, "B": 0, "alpha": 4, "beta": 4}
    assert rounded(law, digits) == ["1.784", "442", "1272", "0.3426", "0.3420"]


@pytest.fixture
def porian(golden):
    return pd.read_csv(golden("porian_optimal_pairs.csv"))


def test_porian_exponent_of_size_plain_and_weighted_by_standard_deviations(porian):
    assert f"{growth(porian['flops'], porian['n'])[0]:.5f}" == "0.70806"
    assert f"{growth(porian['flops'], porian['n'], porian['n_star_std'])[0]:.5f}" == "0.71149"
    wrong = growth(porian["flops"], porian["n"], 1 / porian["n_star_std"] ** 2)[0]
    assert f"{wrong:.4f}" != "0.7115"


def test_porian_law_with_a_floor_is_on_the_published_valley_and_lower(porian):
    """The published floor .3608 comes from the pairs of 1e16 < C < 5e17 by an optimiser that stopped at tolerance 1e-6.

    At that floor A and alpha are the published ones. The valley is so flat that the minimum is at .3547, and that the
    interval of the floor is 0 to 2.73.
    """
    pairs = porian[(porian["flops"] > 1e16) & (porian["flops"] < 5e17)]
    x, y = np.log(pairs["flops"]), np.log(pairs["loss"])
    published = pinned(x, y, 0.3608)
    assert published.coefficient() == pytest.approx(29.755, abs=0.001)
    assert f"{published.exponent:.5f}" == "0.05377"
    best = free(x, y)
    assert best.law.squares < published.squares < best.law.squares * (1 + 1e-5)
    assert best.law.floor == pytest.approx(0.3547, abs=0.0001)
    assert best.interval == pytest.approx((0, 2.733), abs=0.001)
