"""Settings from YAML files and the command line to the classes of `config.py`, every error of a file at once.

Types are jsonargparse's to judge, values the classes' own rules'. A nested configuration may be written out or be
the path of a file of its own, relative to the file that names it.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from scaling.errors import ConfigError
from scaling.rules import Checked

C = TypeVar("C", bound=Checked)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """A YAML file's mapping.

    Raises:
        ConfigError: the file is missing, is not YAML, or holds something else than keys and values.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist: give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): give the path of a YAML file") from None
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is not YAML ({reason}): mend that line") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no keys: write settings as `key: value`, one a line")
    return values


def load(cls: type[C], path: str | Path, overrides: Mapping[str, Any] | None = None) -> C:
    """The configuration in a file, with `overrides` (dotted keys) put over it.

    Raises:
        ConfigError: listing every unknown key, wrong type and bad value of the file.
    """
    values = expand(cls, read_yaml(path), Path(path).parent)
    return build(cls, override(values, overrides or {}), where=str(path))


def build(cls: type[C], values: Mapping[str, Any], where: str = "") -> C:
    """The configuration that plain values describe.

    Raises:
        ConfigError: listing every problem.
    """
    problems: list[str] = []
    built = collect(cls, values, "", problems)
    if built is None:
        raise ConfigError(problems, where)
    return built


def override(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of nested values with dotted keys set."""
    copy: dict[str, Any] = dict(values)
    for key, value in overrides.items():
        head, _, rest = key.partition(".")
        if rest:
            inner = copy.get(head)
            copy[head] = override(inner if isinstance(inner, Mapping) else {}, {rest: value})
        else:
            copy[head] = value
    return copy


def expand(cls: type, values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Read the files that stand where a nested configuration of `cls` could be written out."""
    expanded = dict(values)
    for name, hint in typing.get_type_hints(cls).items():
        if _configuration(hint) and isinstance(expanded.get(name), str):
            expanded[name] = read_yaml(folder / expanded[name])
    return expanded


def collect(cls: type[C], values: Any, prefix: str, problems: list[str]) -> C | None:
    """Build `cls`, or add a line to `problems` for every bad key below `prefix` and return None."""
    if not isinstance(values, Mapping):
        problems.append(
            f"{prefix.rstrip('.') or cls.__name__} is {values!r}: must be keys and values, or a file of them"
        )
        return None
    before = len(problems)
    hints = typing.get_type_hints(cls)
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            problems.append(f"{prefix}{key} is not a setting: there are {', '.join(known)}")
    good: dict[str, Any] = {}
    bad: set[str] = set()
    for name, spec in known.items():
        if name not in values:
            if spec.default is MISSING and spec.default_factory is MISSING:
                problems.append(f"{prefix}{name} is missing: must be {_words(hints[name])}")
                bad.add(name)
        elif (nested_cls := _configuration(hints[name])) and not (
            values[name] is None and NoneType in get_args(hints[name])
        ):
            nested = collect(nested_cls, values[name], f"{prefix}{name}.", problems)
            if nested is None:
                bad.add(name)
            else:
                good[name] = nested
        elif (element := _element(hints[name])) and isinstance(values[name], Mapping):
            entries = {k: collect(element, v, f"{prefix}{name}.{k}.", problems) for k, v in values[name].items()}
            if None in entries.values():
                bad.add(name)
            else:
                good[name] = entries
        else:
            try:
                good[name] = _typed(hints[name], values[name])
            except (ArgumentError, TypeError, ValueError):
                problems.append(f"{prefix}{name} is {values[name]!r}: must be {_words(hints[name])}")
                bad.add(name)
    partial = SimpleNamespace(**{n: _default(s) for n, s in known.items() if n not in bad | good.keys()}, **good)
    for rule in cls.rules:
        if bad.isdisjoint(rule.keys) and (problem := rule.problem(partial, prefix)):
            problems.append(problem)
    if len(problems) > before:
        return None
    try:
        return cls(**good)
    except ConfigError as error:
        problems.extend(prefix + p for p in error.problems)
        return None


def override_arguments(parser: ArgumentParser, groups: Mapping[str, type[Checked]]) -> None:
    """Add `--group.key` for every setting of every group. Values stay text: `collect` judges them with the file's."""
    for group, cls in groups.items():
        section = parser.add_argument_group(f"{group} settings", "each replaces what the file says")
        hints, docs = typing.get_type_hints(cls), docstrings(cls)
        for spec in fields(cls):  # type: ignore[arg-type]
            hint = hints[spec.name]
            section.add_argument(
                f"--{group}.{spec.name}",
                type=str,
                nargs="+" if get_origin(hint) is list else None,
                default=None,
                metavar=spec.name.upper(),
                help=f"{docs.get(spec.name, '')} Given as {_words(hint)}.",
            )


def given_overrides(arguments: Any, groups: Mapping[str, type[Checked]]) -> dict[str, Any]:
    """The dotted keys that the command line set."""
    given = {}
    for group, cls in groups.items():
        hints = typing.get_type_hints(cls)
        for spec in fields(cls):  # type: ignore[arg-type]
            text = arguments[f"{group}.{spec.name}"]
            if text is not None:
                is_text = isinstance(text, list) or str in (hints[spec.name], *get_args(hints[spec.name]))
                given[f"{group}.{spec.name}"] = text if is_text else _yaml_value(text)
    return given


def _yaml_value(text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _configuration(hint: Any) -> type[Checked] | None:
    """The configuration class that a hint names, alone or beside None, else None."""
    return next((h for h in (hint, *get_args(hint)) if is_dataclass(h) and get_origin(hint) is not dict), None)  # type: ignore[return-value]


def _element(hint: Any) -> type[Checked] | None:
    """The configuration class of the values of a `dict[str, Config]`, else None."""
    arguments = get_args(hint)
    return arguments[1] if get_origin(hint) is dict and is_dataclass(arguments[1]) else None  # type: ignore[return-value]


def docstrings(cls: type) -> dict[str, str]:
    """The docstring under each field, which Python itself does not keep."""
    from docstring_parser import parse_from_object

    parsed = parse_from_object(cls)
    return {p.arg_name: " ".join((p.description or "").split()) for p in parsed.params}


@functools.cache
def _parser_of(hint: Any) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--value", type=hint)
    return parser


def _typed(hint: Any, value: Any) -> Any:
    """`value` as jsonargparse reads it for the type, except that true and false are not numbers."""
    if isinstance(value, bool) and bool not in (hint, *get_args(hint)) and hint is not Any:
        raise TypeError
    if value is None and NoneType not in get_args(hint):
        raise TypeError
    with contextlib.redirect_stderr(io.StringIO()):
        typed = _parser_of(hint).parse_object({"value": value})["value"]
    if isinstance(typed, float) and not math.isfinite(typed):
        raise ValueError
    return typed


def _default(spec: Any) -> Any:
    return spec.default if spec.default is not MISSING else spec.default_factory()


def _words(hint: Any) -> str:
    """A type in the words of an error message."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(str(a) for a in arguments)
    if origin in (Union, UnionType):
        parts = [_words(a) for a in arguments if a is not NoneType]
        return " or ".join(parts) + (", or left out" if NoneType in arguments else "")
    if origin is list:
        return f"a list, each {_words(arguments[0])}"
    if origin is tuple:
        return f"a list of {len(arguments)}, each {_words(arguments[0])}"
    if origin is dict:
        return "keys and values"
    if is_dataclass(hint):
        return "keys and values, or a file of them"
    return {int: "a whole number", float: "a finite number", str: "text", bool: "true or false"}.get(hint, str(hint))
