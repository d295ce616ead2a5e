"""Conditions on the values of a configuration, and the base class that holds it to them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from scaling.errors import ConfigError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Rule:
    """A condition on the values of `keys`; `allowed` says, for the error message, what is."""

    keys: tuple[str, ...]
    holds: Callable[[Any], bool]
    allowed: str

    def problem(self, values: Any, prefix: str = "") -> str | None:
        """The error line if `values` (anything with the keys as attributes) breaks the rule, else None."""
        try:
            if self.holds(values):
                return None
        except (TypeError, ArithmeticError):
            pass
        given = ", ".join(f"{prefix}{key} is {getattr(values, key)!r}" for key in self.keys)
        return f"{given}: {self.allowed}"


class Checked:
    """Base of the configuration classes: building one with a bad value raises ConfigError naming every bad key."""

    rules: ClassVar[tuple[Rule, ...]] = ()

    def __post_init__(self) -> None:
        problems = [p for rule in self.rules if (p := rule.problem(self))]
        if problems:
            raise ConfigError(problems, where=type(self).__name__)


def each(keys: tuple[str, ...], holds: Callable[[Any], bool], allowed: str) -> tuple[Rule, ...]:
    """The same condition on each of several values."""

    def rule(key: str) -> Rule:
        return Rule((key,), lambda config: holds(getattr(config, key)), allowed)

    return tuple(rule(key) for key in keys)


def at_least(low: float, *keys: str) -> tuple[Rule, ...]:
    """Values from `low` on."""
    return each(keys, lambda value: value >= low, f"must be at least {low}")


def positive(*keys: str) -> tuple[Rule, ...]:
    """Values above 0."""
    return each(keys, lambda value: value > 0, "must be greater than 0")


def named(*keys: str) -> tuple[Rule, ...]:
    """Names become folder names, so they are letters, digits, dot, underscore and hyphen."""
    return each(keys, lambda value: bool(_NAME.fullmatch(value)), "must be letters, digits, '.', '_' or '-'")
