"""One style for every figure: for half a page's width, for colour-blind readers, and for print in grey.

The schemes' colours are Okabe and Ito's and one of Tol's, which common forms of colour blindness keep apart; in grey,
markers and dashes do.
"""

from __future__ import annotations

import colorsys
import math
import re
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from itertools import cycle
from typing import Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

P = ParamSpec("P")
F = TypeVar("F", bound=Figure | None)

WIDTH = 3.5
"""Width of a figure in inches: half a page."""

STYLE: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.labelsize": 8,
    "axes.titlesize": 8,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 4.5,
    "figure.dpi": 100,
    "savefig.dpi": 250,
    "figure.constrained_layout.use": True,
    "text.parse_math": False,
    "svg.hashsalt": "attnres-scaling",
}


@dataclass(frozen=True)
class Look:
    """How one arm is drawn everywhere."""

    colour: str
    marker: str
    dashes: tuple[int, tuple[float, ...]]
    """Offset and lengths of dashes and gaps in units of the line's width; no lengths: solid."""

    def point(self) -> Line2D:
        """A marker alone, for a legend."""
        return Line2D([], [], color=self.colour, marker=self.marker, linestyle="")

    def line(self) -> Line2D:
        """A line in the arm's dashes, for a legend."""
        return Line2D([], [], color=self.colour, linestyle=self.dashes)


_KNOWN = {
    "baseline": Look("#1a1a1a", "o", (0, ())),
    "block": Look("#0072b2", "s", (0, (5, 1.2))),
    "full": Look("#d55e00", "^", (0, (2.5, 1))),
    "mhc_lite": Look("#009e73", "D", (0, (6, 1, 1, 1))),
    "mhc": Look("#882255", "d", (0, (3, 1, 3, 1, 1, 1))),
    "hyper_connections": Look("#56b4e9", "8", (0, (7, 1, 2, 1))),
    "denseformer": Look("#e69f00", "h", (0, (1.5, 0.8))),
    "highway": Look("#cc79a7", "p", (0, (9, 1.5))),
    # Ablations are shades of the scheme that they change.
    "full_input_query": Look("#8f3f00", "*", (0, (4, 1))),
    "full_scalars": Look("#f2a36e", "H", (0, (1, 0.8, 3, 0.8))),
    "full_sigmoid": Look("#b5532a", "v", (0, (6, 2))),
    "full_no_key_norm": Look("#e88a52", "<", (0, (2, 2))),
    "full_window": Look("#dda174", ">", (0, (1, 1.8))),
    "block_heads": Look("#003f63", "P", (0, (7, 1, 1, 1, 1, 1))),
    "block_no_key_norm": Look("#7fb3d5", "X", (0, (3, 3))),
}
_OTHERS = (
    Look("#999933", "v", (0, (1, 1))),
    Look("#6a3d9a", "P", (0, (4, 1, 1, 1, 1, 1))),
    Look("#44aa99", "X", (0, (8, 2))),
    Look("#8c6d31", "<", (0, (3, 2))),
    Look("#7f7f7f", ">", (0, (1, 2))),
)


_BLOCK_SIZE = re.compile(r"block_size_(\d+)")


def looks(variants: Iterable[str]) -> dict[str, Look]:
    """The look of each variant, the same in every figure.

    A scheme that is not known has one of five looks by its name; where two of a figure have the same, the later in
    the alphabet has the next that is free.
    """
    names = list(variants)
    found = {name: look for name in names if (look := _known(name))}
    free: list[Look] = []
    for name in sorted({*names} - {*found}):
        free = free or list(_OTHERS)
        start = zlib.crc32(name.encode()) % len(_OTHERS)
        found[name] = next(look for look in (*_OTHERS[start:], *_OTHERS[:start]) if look in free)
        free.remove(found[name])
    return {name: found[name] for name in names}


def series(names: Iterable[str]) -> dict[str, Look]:
    """Looks for what has an order and is no arm, such as numbers of seeds."""
    return dict(zip(names, cycle(_OTHERS), strict=False))


def _known(variant: str) -> Look | None:
    if size := _BLOCK_SIZE.fullmatch(variant):
        return _of_block_size(int(size[1]))
    return _KNOWN.get("full_window" if variant.startswith("full_window") else variant)


def _of_block_size(size: int) -> Look:
    """Block's square in its hue: the larger the blocks, the lighter and the longer the dashes."""
    hue, _, _ = colorsys.rgb_to_hls(*to_rgb(_KNOWN["block"].colour))
    doublings = min(math.log2(max(size, 1)), 6)
    colour = to_hex(colorsys.hls_to_rgb(hue, 0.084 + 0.086 * doublings, 0.7))
    return Look(colour, _KNOWN["block"].marker, (0, (1.5 + doublings, 1.6)))


def styled(draw: Callable[P, F]) -> Callable[P, F]:
    """Draw a figure in the one style, whatever the user's own settings are."""

    @wraps(draw)
    def in_style(*args: P.args, **kwargs: P.kwargs) -> F:
        with mpl.rc_context():
            mpl.rcdefaults()
            mpl.rcParams.update(STYLE)  # type: ignore[arg-type]
            return draw(*args, **kwargs)

    return in_style
