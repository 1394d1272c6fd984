"""A plot of a confusion matrix: which classes are mistaken for which."""

import math
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from support.common.figures import save

MAX_CLASSES_WITH_COUNTS = 20  # above that, cells are too small for numbers
DPI = 300


def draw_confusion(confusion, classes: list[str], path: Path) -> None:
    """Writes a plot of a confusion matrix to a PNG file, and prints its size in pixels.

    confusion: (classes, classes), integers; rows are true classes. The larger a cell's share of
    its row, the darker it is. With up to 20 classes, the cells that are not empty have their
    counts and shares written in them.
    """
    counts = np.asarray(confusion)
    n = len(classes)
    shares = 100 * counts / np.maximum(counts.sum(1, keepdims=True), 1)
    names = [name if len(name) <= 40 else f"{name[:19]}…{name[-20:]}" for name in classes]

    # In inches: wide enough for the counts, with room for the labels.
    if n <= MAX_CLASSES_WITH_COUNTS:
        longest_count = f"{counts.max():,}"
        cell = max(0.4, 0.075 * len(longest_count) + 0.05)
    else:
        cell = 8 / n
    label = 0.07 * max(len(name) for name in names)
    matrix = max(2, cell * n)
    width = 1.5 + matrix + label
    height = 0.8 + matrix + label
    every = max(1, math.ceil(0.1 / cell))  # labels that would overlap are left out
    with matplotlib.rc_context({"font.size": 8, "axes.grid": False, "text.parse_math": False}):
        figure = Figure((width, height), dpi=DPI, layout="constrained")
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        axes.set_xticks(range(0, n, every), names[::every], rotation=90)
        axes.set_yticks(range(0, n, every), names[::every])
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.tick_params(length=0)
        if n <= MAX_CLASSES_WITH_COUNTS:
            write_counts(axes, counts, shares)
        figure.colorbar(image, label="share of the true class (%)", shrink=0.8)
        save(figure, path)
    print(f"{path}: {int(DPI * width)} x {int(DPI * height)} pixels")


def write_counts(axes: Axes, counts: np.ndarray, shares: np.ndarray) -> None:
    """Writes count and share (in percent) into each cell that is not empty."""
    for row, column in zip(*counts.nonzero()):
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
