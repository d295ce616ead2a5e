"""What is wrong with a figure as it is drawn: texts that touch or that leave it."""

import itertools
from unittest.mock import patch

from matplotlib.text import Text


def texts(figure):
    """The texts that drawing the figure draws (a tick beyond its axis has a label too, which is not)."""
    found = {}
    draw = Text.draw

    def noting(text, *args, **kwargs):
        if text.get_visible() and text.get_text().strip():
            found[id(text)] = text
        return draw(text, *args, **kwargs)

    with patch.object(Text, "draw", noting):
        figure.draw_without_rendering()
    return list(found.values())


def flaws(figure):
    """Texts that touch another or leave the figure."""
    found = []
    boxes = [(t.get_text(), t.get_window_extent()) for t in texts(figure)]
    for (one, a), (other, b) in itertools.combinations(boxes, 2):
        width, height = min(a.x1, b.x1) - max(a.x0, b.x0), min(a.y1, b.y1) - max(a.y0, b.y0)
        if width > -1 and height > 0.5:
            found.append(f"{one!r} overlaps {other!r}")
    for text, box in boxes:
        if box.x0 < -0.5 or box.y0 < -0.5 or box.x1 > figure.bbox.x1 + 0.5 or box.y1 > figure.bbox.y1 + 0.5:
            found.append(f"{text!r} is cut off")
    return found
