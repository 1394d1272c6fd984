"""Accuracy, precision, recall and F1, computed from a classifier's confusion matrix.

    confusion = confusion_matrix(labels, predictions, num_classes)
    compute_metrics(confusion)["f1"]                       # from 0 to 1
    print(metrics_table(confusion, ["World", "Sports"]))

A confusion matrix counts examples: row i, column j counts those of class i that were predicted
as class j.
"""

import numpy as np

from support.common.text_table import aligned

RATES = ("precision", "recall", "f1")
LARGEST_MATRIX = 10  # most classes with which the table has the confusion matrix, too


def confusion_matrix(labels, predictions, num_classes: int) -> np.ndarray:
    """Returns the confusion matrix, (classes, classes), of classes by number."""
    confusion = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(confusion, (labels, predictions), 1)
    return confusion


def compute_metrics(confusion: np.ndarray) -> dict[str, float]:
    """Returns the accuracy, and the mean and the weighted mean of precision, recall and F1.

    confusion: (classes, classes), integers. All metrics are from 0 to 1. A metric that would be
    divided by 0, such as the precision of a class that was never predicted, is 0. The mean
    leaves out classes that have no example and were never predicted. The weighted mean weights
    each class by its number of examples.
    """
    support = confusion.sum(1)
    rates = rates_per_class(confusion)
    occurs = support + confusion.sum(0) > 0
    metrics = {"accuracy": float(divide(np.trace(confusion), confusion.sum()))}
    for name in RATES:
        metrics[name] = float(divide(rates[name][occurs].sum(), occurs.sum()))
    for name in RATES:
        metrics[f"weighted_{name}"] = float(divide(rates[name] @ support, support.sum()))
    return metrics


def per_class(confusion: np.ndarray, classes: list[str]) -> list[dict]:
    """Returns name, precision, recall, f1 and support (number of examples) of each class."""
    rates = rates_per_class(confusion)
    return [
        {
            "name": name,
            **{rate: float(rates[rate][i]) for rate in RATES},
            "support": int(confusion[i].sum()),
        }
        for i, name in enumerate(classes)
    ]


def metrics_table(confusion: np.ndarray, classes: list[str]) -> str:
    """Returns a table to print: a line for each class, the means over classes, the accuracy.

    With up to ten classes the confusion matrix follows.
    """
    metrics = compute_metrics(confusion)
    total = f"{confusion.sum():,}"
    rows = [["class", "precision", "recall", "F1", "examples"]]
    for entry in per_class(confusion, classes):
        rates = [f"{entry[rate]:.4f}" for rate in RATES]
        rows.append([entry["name"], *rates, f"{entry['support']:,}"])
    end_of_classes = len(rows)
    means = [f"{metrics[rate]:.4f}" for rate in RATES]
    weighted_means = [f"{metrics[f'weighted_{rate}']:.4f}" for rate in RATES]
    rows.append(["mean", *means, total])
    rows.append(["weighted mean", *weighted_means, total])
    rows.append(["accuracy", "", "", f"{metrics['accuracy']:.4f}", total])
    lines = aligned(rows)
    lines.insert(end_of_classes, "")
    empty_classes = int((confusion.sum(1) == 0).sum())
    if empty_classes:
        lines.append(
            f"(classes without examples: {empty_classes}; "
            f"the mean leaves out those that were never predicted, too)"
        )
    if len(classes) <= LARGEST_MATRIX:
        matrix = [["predicted as", *classes]]
        for name, row in zip(classes, confusion):
            matrix.append([f"true {name}", *(f"{count:,}" for count in row)])
        lines += ["", *aligned(matrix)]
    return "\n".join(lines)


def rates_per_class(confusion: np.ndarray) -> dict[str, np.ndarray]:
    """Returns the precision, recall and F1 of each class: three arrays, (classes,)."""
    correct = confusion.diagonal()
    predicted = confusion.sum(0)
    support = confusion.sum(1)
    return {
        "precision": divide(correct, predicted),
        "recall": divide(correct, support),
        "f1": divide(2 * correct, predicted + support),
    }


def divide(a, b) -> np.ndarray:
    """Returns a / b, and 0 where b is 0."""
    return np.where(b == 0, 0.0, a / np.maximum(b, 1))
