"""Residual schemes, one file each. Every module here is imported, so a scheme registers itself by existing."""

from importlib import import_module
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

__all__ = ["SCHEMES", "ResidualScheme", "build_scheme", "scheme_problems"]
