"""Holds out examples of a labelled corpus for validation.

Example:
    readers, count = hold_out(corpus)  # readers of all parts; number of training examples
"""

import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from support.classification.labelled import Labelled, Reader

VALID_EXAMPLES = 2000  # held out of training where there is no validation part
MIN_ONE_IN = 20  # but at most one example in so many


def hold_out(corpus: Labelled) -> tuple[dict[str, Reader], int]:
    """Returns the readers of all parts, and how many examples the training part has.

    Without a validation part, some of these examples are held out as one. A hash of the example
    chooses them, so that equal examples stay together.
    """
    if "train" not in corpus.parts:
        return corpus.parts, 0
    count = sum(1 for _ in corpus.read_labels("train"))
    if "valid" in corpus.parts:
        return corpus.parts, count
    one_in = max(MIN_ONE_IN, count // VALID_EXAMPLES)
    parts: dict[str, Reader] = {
        "train": partial(select, corpus, one_in, held_out=False),
        "valid": partial(select, corpus, one_in, held_out=True),
    }
    if "test" in corpus.parts:
        parts["test"] = corpus.parts["test"]
    return parts, count


def select(corpus: Labelled, one_in: int, held_out: bool) -> Iterator[tuple[Any, str]]:
    """Yields those examples of the training part that are held out, or those that are not."""
    first_hash: dict[str, int] = {}  # of each class: its first example is always trained on
    for example, name in corpus.parts["train"]():
        content = example.encode() if corpus.modality == "text" else example.tobytes()
        code = zlib.crc32(content)
        is_first = first_hash.setdefault(name, code) == code
        is_held_out = code % one_in == 0 and not is_first
        if is_held_out == held_out:
            yield example, name
