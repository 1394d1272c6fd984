"""Metrics against small cases worked out by hand, and against scikit-learn."""

import numpy as np
import pytest

from support.classification.metrics import compute_metrics, metrics_table, per_class
from support.common.text_table import aligned

# Of 4 cats 3 were found, of 5 dogs 4, of 1 bird none: it was taken for a cat.
PETS = [[3, 1, 0], [1, 4, 0], [1, 0, 0]]
NAMES = ["cat", "dog", "bird"]


def test_a_case_worked_out_by_hand():
    precision, recall, f1 = [3 / 5, 4 / 5, 0], [3 / 4, 4 / 5, 0], [6 / 9, 8 / 10, 0]
    expected = {
        "accuracy": 7 / 10,
        "precision": sum(precision) / 3,
        "recall": sum(recall) / 3,
        "f1": sum(f1) / 3,
        "weighted_precision": (4 * 0.6 + 5 * 0.8) / 10,
        "weighted_recall": 7 / 10,
        "weighted_f1": (4 * 6 / 9 + 5 * 0.8) / 10,
    }
    assert compute_metrics(np.array(PETS)) == pytest.approx(expected, abs=1e-12)
    rows = per_class(np.array(PETS), NAMES)
    assert [row["name"] for row in rows] == NAMES
    assert [row["support"] for row in rows] == [4, 5, 1]
    for name, values in (("precision", precision), ("recall", recall), ("f1", f1)):
        assert [row[name] for row in rows] == pytest.approx(values, abs=1e-12)


def test_what_is_divided_by_nothing_counts_0():
    # "missed" was there, "invented" was predicted. The third class was neither, and so is left
    # out of the mean.
    confusion = np.array([[2, 0, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0]])
    with np.errstate(all="raise"):
        found = compute_metrics(confusion)
        assert compute_metrics(confusion * 0) == dict.fromkeys(found, 0.0)
    assert found["accuracy"] == pytest.approx(2 / 3)
    assert found["precision"] == found["recall"] == found["f1"] == pytest.approx(1 / 3)
    assert found["weighted_precision"] == found["weighted_recall"] == pytest.approx(2 / 3)


def test_large_counts_stay_exact():
    n = 2**53
    confusion = np.array([[n + 1, 0], [1, n]])  # float64 has no n + 1
    assert [row["support"] for row in per_class(confusion, ["a", "b"])] == [n + 1, n + 1]


def test_the_table_has_a_row_a_class_and_is_aligned():
    table = metrics_table(np.array([[1, 0], [0, 0]]), ["a", "b"])
    assert table.count("(classes without examples: 1; ") == 1
    lines = metrics_table(np.array(PETS) * 1000, NAMES).splitlines()
    assert (
        len(lines) == 1 + 3 + 1 + 3 + 1 + 4
        and len({len(line) for line in lines[:8] if line}) == 1
    )
    counts = [line.split() for line in lines[-4:]]
    assert counts[0] == ["predicted", "as", *NAMES] and [row[:2] for row in counts[1:]] == [
        ["true", name] for name in NAMES
    ]
    assert [[int(cell.replace(",", "")) for cell in row[2:]] for row in counts[1:]] == (
        np.array(PETS) * 1000
    ).tolist()
    rows = {line[:13].strip(): line[13:].split() for line in lines}
    assert rows["dog"] == ["0.8000", "0.8000", "0.8000", "5,000"]
    assert rows["mean"] == ["0.4667", "0.5167", "0.4889", "10,000"]
    assert rows["weighted mean"] == ["0.6400", "0.7000", "0.6667", "10,000"]
    assert rows["accuracy"] == ["0.7000", "10,000"]


def test_chinese_classes_are_aligned_too():
    """In a terminal a Chinese character takes two columns, and an accent none."""
    assert aligned([["体育", "1"], ["cafe\u0301", "23"], ["a", "體育"]]) == [
        "体育     1",
        "cafe\u0301    23",
        "a     體育",
    ]


@pytest.mark.optional
@pytest.mark.parametrize("classes", [2, 3, 20])
def test_scikit_learn_says_the_same(classes):
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(classes)
    for size in (1, 5, 1000):  # with few, some classes have none
        true, taken = random.integers(0, classes, size), random.integers(0, classes, size)
        taken = np.where(random.random(size) < 0.6, true, taken)
        confusion = np.bincount(classes * true + taken, minlength=classes**2)
        confusion = confusion.reshape(classes, classes)
        names = list(range(classes))
        assert (confusion == metrics.confusion_matrix(true, taken, labels=names)).all()
        found = compute_metrics(confusion)
        assert found["accuracy"] == pytest.approx(metrics.accuracy_score(true, taken))
        for prefix, average in (("", "macro"), ("weighted_", "weighted")):
            theirs = metrics.precision_recall_fscore_support(
                true, taken, average=average, zero_division=0
            )
            ours = [found[prefix + name] for name in ("precision", "recall", "f1")]
            assert ours == pytest.approx(theirs[:3], abs=1e-12)
        theirs = metrics.precision_recall_fscore_support(
            true, taken, labels=names, zero_division=0
        )
        for name, values in zip(("precision", "recall", "f1", "support"), theirs):
            assert [row[name] for row in per_class(confusion, names)] == pytest.approx(values)
