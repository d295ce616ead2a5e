"""Residual schemes, one file each. Every module here is imported, so a scheme registers itself by existing."""

from importlib import import_module
from pkgutil import iter_modules

from scaling.model.residual.scheme import SCHEMES, ResidualScheme, build_scheme, scheme_problems

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

__all__ = ["SCHEMES", "ResidualScheme", "build_scheme", "scheme_problems"]
