"""Residual schemes, one file each. Every module here is imported, so a scheme registers itself by existing.

A scheme of an installed package registers itself too, where the package names its module as an entry point of the
group `scaling.residual_schemes`.
"""

from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules

from scaling.errors import ConfigError
from scaling.model.residual.scheme import SCHEMES, ResidualScheme, build_scheme, scheme_problems

for _module in iter_modules(__path__):
    try:
        import_module(f"{__name__}.{_module.name}")
    except Exception as error:  # of any kind: the file may be a user's
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise ConfigError(
            f"{__path__[0]}/{_module.name}.py{where} cannot be imported ({type(error).__name__}: {error}): "
            "mend it, or move it elsewhere"
        ) from error

ENTRY_POINTS = "scaling.residual_schemes"
for _point in entry_points(group=ENTRY_POINTS):
    try:
        _point.load()
    except Exception as error:  # of any kind: the package is somebody's
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"package {_point.dist.name if _point.dist else '?'}: its entry point {_point.name} = {_point.value} "
            f"({ENTRY_POINTS}) cannot be loaded ({type(error).__name__}: {reason}): mend the package, or uninstall it"
        ) from error

__all__ = ["SCHEMES", "ResidualScheme", "build_scheme", "scheme_problems"]
