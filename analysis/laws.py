"""The power law of every arm of a table."""

from __future__ import annotations

from analysis.errors import FitError
from analysis.pairing import BASELINE, size_points
from analysis.powerlaw import PowerLaw, fit
from analysis.runs import Runs


def arm_laws(runs: Runs, ledger: str) -> dict[str, PowerLaw | str]:
    """L = A C^-alpha of the baseline and of every arm in one ledger, over paired sizes averaged over their seeds.

    Where no law can be fitted there is a text that says why.
    """
    laws: dict[str, PowerLaw | str] = {}
    for variant in (BASELINE, *runs.arms):
        points = size_points(runs.pairs, variant, ledger)
        try:
            laws[variant] = fit(points["ln_compute"], points["ln_loss"])
        except FitError as error:
            laws[variant] = str(error)
    return laws
