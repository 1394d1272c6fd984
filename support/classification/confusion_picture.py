"""A picture of a confusion matrix: which classes are taken for which."""

import math
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure

WRITTEN = 20  # classes, up to which every cell has its numbers
DPI = 300


def draw(confusion, classes: list[str], path: Path) -> None:
    """Writes a picture of a confusion matrix to a PNG file, and says how large it is.

    confusion: (classes, classes), integers; rows are true classes. A cell is dark where it has a
    large share of its row; up to 20 classes it has its count written in it, too, and its share
    below, unless it is empty.
    """
    counts, n = np.asarray(confusion), len(classes)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [name if len(name) <= 40 else f"{name[:19]}…{name[-20:]}" for name in classes]

    # In inches: wide enough for counts, with room for the labels; large matrices get small cells.
    cell = max(0.4, 0.075 * len(f"{counts.max():,}") + 0.05) if n <= WRITTEN else 8 / n
    label = 0.07 * max(map(len, names))
    size = 1.5 + max(2, cell * n) + label, 0.8 + max(2, cell * n) + label
    every = max(1, math.ceil(0.1 / cell))  # of the labels, so that none overlap
    with matplotlib.rc_context({"font.size": 8, "axes.grid": False, "text.parse_math": False}):
        figure = Figure(size, dpi=DPI, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)  # light to dark: one hue
        axes.set_xticks(range(0, n, every), names[::every], rotation=90)
        axes.set_yticks(range(0, n, every), names[::every])
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.tick_params(length=0)
        for row, column in zip(*counts.nonzero()) if n <= WRITTEN else ():
            share = shares[row, column]
            axes.text(
                column,
                row,
                f"{counts[row, column]:,}\n{share:.1f} %",
                fontsize=6,
                ha="center",
                va="center",
                color="white" if share > 50 else "black",
            )
        figure.colorbar(image, label="share of the true class (%)", shrink=0.8)
        figure.savefig(path, format="png")
    print("{}: {} x {} pixels".format(path, *(int(DPI * inches) for inches in size)))
