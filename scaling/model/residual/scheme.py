"""The interface of a residual scheme, and the registry.

Letters: B batch, T time, D width, N sources, L sublayers (each attention and each MLP is one).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from scaling.errors import ConfigError

if TYPE_CHECKING:
    from scaling.config import ResidualConfig

SCHEMES: dict[str, type[ResidualScheme]] = {}


class ResidualScheme(nn.Module, ABC):
    """How the outputs of earlier sublayers become the input of the next.

    A new scheme is a subclass in a file of this folder, `class Mine(ResidualScheme, name="mine")`. The keyword-only
    arguments of its `__init__` are its options; it raises ConfigError for bad ones. `state` may be anything.
    """

    name: ClassVar[str]
    n_channel_groups: int = 1
    """Groups of neighbouring channels, of one size, that are weighed apart."""

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if name is None:
            return
        if name in SCHEMES and SCHEMES[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"residual scheme {name!r} is registered twice")
        cls.name = name
        SCHEMES[name] = cls

    def __init__(self, n_sublayers: int, d_model: int, eps: float) -> None:
        super().__init__()
        self.n_sublayers = n_sublayers
        self.d_model = d_model
        self.eps = eps

    @abstractmethod
    def start(self, embedding: Tensor) -> Any:
        """The state before the first sublayer, from the embedding (B, T, D)."""

    @abstractmethod
    def read(self, state: Any, sublayer: int) -> Tensor:
        """What sublayer 0 .. L-1 sees, before its own PreNorm: (B, T, D)."""

    def normed_read(self, state: Any, sublayer: int, norm: nn.RMSNorm) -> Tensor:
        """`read` with the sublayer's PreNorm: (B, T, D). A scheme may do the two as one, so as to keep less."""
        return norm(self.read(state, sublayer))

    def read_weights(self, state: Any, sublayer: int) -> Tensor | None:
        """Weights (N, B, T) that `read` gives its sources: the embedding first, last what holds the sublayer before.

        None where a scheme has no such weights. Only for the record: it need not be fast.
        """
        return None

    @abstractmethod
    def write(self, state: Any, sublayer: int, output: Tensor) -> Any:
        """The state once the sublayer's output (B, T, D) is in it."""

    @abstractmethod
    def finish(self, state: Any) -> Tensor:
        """What the final norm and the head see: (B, T, D)."""

    def init_weights(self) -> None:
        """Set the scheme's own parameters to where training starts."""

    @property
    def n_parameters(self) -> int:
        """The scheme's own parameters."""
        return sum(p.numel() for p in self.parameters())

    @property
    @abstractmethod
    def flops_per_token(self) -> int:
        """Forward FLOPs per token of contractions over D; additions of the plain residual stream are not counted."""


def check_whole(option: str, value: Any, low: int, high: int, what: str = "") -> None:
    """Raise ConfigError unless an option's value is a whole number from low to high; `what` says what high is."""
    if type(value) is not int or not low <= value <= high:
        which = f", {what}" if what else ""
        raise ConfigError(f"residual.options.{option} is {value!r}: must be a whole number from {low} to {high}{which}")


def build_scheme(
    config: ResidualConfig, n_sublayers: int, d_model: int, eps: float, device: str | None = None
) -> ResidualScheme:
    """The scheme that a configuration names.

    Raises:
        ConfigError: the scheme or one of its options does not exist, or an option has a bad value.
    """
    if config.scheme not in SCHEMES:
        raise ConfigError(f"residual.scheme is {config.scheme!r}: must be one of {', '.join(sorted(SCHEMES))}")
    scheme = SCHEMES[config.scheme]
    signature = inspect.signature(scheme.__init__).parameters.values()
    allowed = [p.name for p in signature if p.kind is inspect.Parameter.KEYWORD_ONLY]
    unknown = [
        f"residual.options.{key} is not an option of {config.scheme}: it has {', '.join(allowed) or 'none'}"
        for key in config.options
        if key not in allowed
    ]
    if unknown:
        raise ConfigError(unknown)
    try:
        with torch.device(device or torch.get_default_device()):
            return scheme(n_sublayers, d_model, eps, **config.options)
    except (TypeError, ValueError, AttributeError, RuntimeError) as error:  # whatever a scheme of somebody's raises
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"residual scheme {config.scheme} cannot be built with options {config.options} ({reason}): "
            f"correct them, or {inspect.getsourcefile(scheme)}"
        ) from error


def scheme_problems(config: ResidualConfig, n_sublayers: int, d_model: int) -> list[str]:
    """The lines that say what is wrong with a residual configuration; none if it can be built."""
    try:
        build_scheme(config, n_sublayers, d_model, eps=0.0, device="meta")
    except ConfigError as error:
        return error.problems
    return []
