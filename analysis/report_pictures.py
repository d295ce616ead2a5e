"""The part of a page that shows what is drawn beside the multiplier: a sentence and a figure each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from analysis.page import figure_link

_PICTURES = {
    "Arms at one size": {
        "ablations": "Bars start at the baseline's loss and end at the arm's, the label; the lowest is on top.",
    },
    "Block size": {
        "block_size": "Loss against the number of sublayers that one block sums; Full keeps every output apart.",
    },
    "Shape at equal compute": {
        "shape_grid": "Loss of every shape at about the same parameters and compute, in one colour scale; the best of "
        "each arm is framed.",
    },
    "Training": {
        "training_curves": "Loss against tokens, one panel a size.",
        "loss_gap": "Loss of the largest size's arms at the same tokens, and how far each is below the baseline.",
    },
    "Over depth": {
        "depth": "Magnitudes by depth at the end of training. A title has the largest over the smallest of each arm.",
        "depth_weights_": "Weights of the sources at the end of training, averaged over tokens; source 0 is the "
        "embedding, and white is where there is no source.",
    },
}
"""Heading, then the name of a figure, or how its name begins, and the sentence before it."""


def picture_sections(figures: Mapping[str, Path]) -> list[str]:
    """Headings, sentences and figures, of those that were drawn.

    Args:
        figures: paths by the figure's name.
    """
    sections = []
    for heading, pictures in _PICTURES.items():
        parts = []
        for start, sentence in pictures.items():
            found = [
                path for name, path in figures.items() if name == start or (start[-1] == "_" and name.startswith(start))
            ]
            if found:
                parts += [sentence, *(figure_link(path, path.stem.replace("_", " ")) for path in found)]
        if parts:
            sections += [f"## {heading}", *parts]
    return sections
