"""Errors a user can cause: one line each, naming the thing and the remedy. The command line exits 2 on them."""


class AnalysisError(Exception):
    """Base of every error that a user can cause and mend."""


class TableError(AnalysisError):
    """A table of runs is missing, damaged, or cannot answer the question."""


class FitError(AnalysisError):
    """There are too few points, or points without spread, for a fit."""


class NotIdentifiable(FitError):
    """The rows cannot tell the parameters of a law apart, whatever their losses are."""


class FitRefused(FitError):
    """A fit was made and its certificate does not hold."""


class OutputError(AnalysisError):
    """A file cannot be written."""
