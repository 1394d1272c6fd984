"""What a classifier's confusion matrix says: accuracy, precision, recall, F1.

    figures(confusion)["f1"]                               # from 0 to 1
    print(table(confusion, ["World", "Sports"]))

A confusion matrix counts examples: row i, column j has those of class i that were taken for class
j. Matrices of several processes are added up before anything is worked out.
"""

import numpy as np
from torch import Tensor

from support.common.text_table import aligned

RATES = ("precision", "recall", "f1")


def figures(confusion: Tensor | np.ndarray) -> dict[str, float]:
    """Accuracy, and of precision, recall and F1 the mean over classes and the weighted mean.

    confusion: (classes, classes), integers. All figures are from 0 to 1. What would be divided by
    0, as the precision of a class that was never predicted, is 0. The weighted mean counts a class
    as often as it has examples.
    """
    counts = as_array(confusion)
    by_class, support = rates(counts), counts.sum(1)
    found = {"accuracy": float(ratio(np.trace(counts), counts.sum()))}
    found |= {name: float(by_class[name].mean()) for name in RATES}
    return found | {
        f"weighted_{name}": float(ratio(by_class[name] @ support, support.sum()))
        for name in RATES
    }


def per_class(confusion: Tensor | np.ndarray, classes: list[str]) -> list[dict]:
    """For each class its name, precision, recall, f1, and support: how many examples it has."""
    counts = as_array(confusion)
    by_class = rates(counts)
    return [
        {
            "name": name,
            **{rate: float(by_class[rate][i]) for rate in RATES},
            "support": int(counts[i].sum()),
        }
        for i, name in enumerate(classes)
    ]


def table(confusion: Tensor | np.ndarray, classes: list[str]) -> str:
    """The figures to print: a line for each class, the means over classes, and accuracy.

    Of up to ten classes the confusion matrix, too.
    """
    found, examples = figures(confusion), f"{as_array(confusion).sum():,}"
    rows = [["class", "precision", "recall", "F1", "examples"]]
    rows += [
        [each["name"], *(f"{each[rate]:.4f}" for rate in RATES), f"{each['support']:,}"]
        for each in per_class(confusion, classes)
    ]
    means = [
        ["mean", *(f"{found[rate]:.4f}" for rate in RATES), examples],
        ["weighted mean", *(f"{found[f'weighted_{rate}']:.4f}" for rate in RATES), examples],
        ["accuracy", "", "", f"{found['accuracy']:.4f}", examples],
    ]
    lines = aligned(rows + means)
    lines.insert(len(rows), "")
    if missing := int((as_array(confusion).sum(1) == 0).sum()):
        lines.append(f"(classes without examples: {missing}; each counts as 0 in the mean)")
    if len(classes) <= 10:
        counts = [
            [f"of {name}", *(f"{count:,}" for count in row)]
            for name, row in zip(classes, as_array(confusion))
        ]
        lines += ["", *aligned([["taken for", *classes], *counts])]
    return "\n".join(lines)


def as_array(confusion) -> np.ndarray:
    """(classes, classes), int64, of a tensor on a CPU, an array or lists."""
    return np.asarray(confusion, dtype=np.int64)


def rates(counts: np.ndarray) -> dict[str, np.ndarray]:
    """Precision, recall and F1 of each class."""
    right, predicted, support = counts.diagonal(), counts.sum(0), counts.sum(1)
    return {
        "precision": ratio(right, predicted),
        "recall": ratio(right, support),
        "f1": ratio(2 * right, predicted + support),
    }


def ratio(a, b) -> np.ndarray:
    """a / b, and 0 where b is 0."""
    return np.where(b == 0, 0.0, a / np.maximum(b, 1))
