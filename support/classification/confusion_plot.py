"""A plot of a confusion matrix: which classes are mistaken for which."""

import math
from pathlib import Path

import numpy as np

from support.common.figures import new_figure, size_of
from support.common.text_table import text_width

MAX_CLASSES_WITH_COUNTS = 20  # above that, cells are too small for numbers


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
    cell = 8 / n
    if n <= MAX_CLASSES_WITH_COUNTS:
        longest_count = f"{counts.max():,}"
        cell = max(0.4, 0.075 * len(longest_count) + 0.05)
    label = 0.07 * max(map(text_width, names))
    matrix = max(2, cell * n)
    every = max(1, math.ceil(0.1 / cell))  # labels that would overlap are left out
    with new_figure(path, 1.5 + matrix + label, 0.8 + matrix + label) as figure:
        axes = figure.subplots()
        image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=100)
        axes.set_xticks(range(0, n, every), names[::every], rotation=90)
        axes.set_yticks(range(0, n, every), names[::every])
        axes.set(xlabel="predicted class", ylabel="true class")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(True)
        figure.colorbar(image, label="share of the true class (%)", shrink=0.8)
        if n <= MAX_CLASSES_WITH_COUNTS:
            for row, column in zip(*counts.nonzero()):
                share = shares[row, column]
                text = f"{counts[row, column]:,}\n{share:.1f} %"
                color = "white" if share > 50 else "black"
                axes.text(column, row, text, fontsize=6, ha="center", va="center", color=color)
    print(f"{path}: {size_of(figure)}")
