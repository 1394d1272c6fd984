"""Holds out examples of a labelled corpus for validation.

Example:
    readers, count = hold_out_labelled(corpus)  # of all parts; of training examples
"""

import zlib
from collections.abc import Iterator

import numpy as np

from data import choose_held_out, hash_text, split_readers
from support.classification.corpus import Labelled, Reader

VALID_EXAMPLES = 2000  # held out if there is no validation set,
ONE_IN = 20  # but at most one of so many examples


def hold_out_labelled(corpus: Labelled) -> tuple[dict[str, Reader], int]:
    """Returns the readers of all parts, and how many examples the training set has.

    Without a validation set, some of these examples are held out as one; they are counted, too.
    A hash of the example chooses them, so that equal examples stay together (`choose_held_out`
    in data.py).
    """
    if "train" not in corpus.parts:
        return corpus.parts, 0
    if "valid" in corpus.parts:
        return corpus.parts, sum(1 for _ in corpus.labels["train"]())
    first_of_class: dict[str, int] = {}

    def read_hashes() -> Iterator[int]:
        for example, name in corpus.parts["train"]():
            code = hash_example(example)
            first_of_class.setdefault(name, code)
            yield code

    hashes = np.fromiter(read_hashes(), np.uint32)
    # The first example of each class is trained on, so that every class is known.
    others = hashes[~np.isin(hashes, list(first_of_class.values()))]
    held_out = choose_held_out(others, min(VALID_EXAMPLES, len(hashes) // ONE_IN))
    parts: dict[str, Reader] = split_readers(
        corpus.parts["train"], lambda example: hash_example(example) in held_out
    )
    if "test" in corpus.parts:
        parts["test"] = corpus.parts["test"]
    return parts, len(hashes)


def hash_example(example: str | np.ndarray) -> int:
    """Returns a 32-bit hash of an image or a text. Upper and lower case count as equal."""
    if isinstance(example, str):
        return hash_text(example.lower())
    return zlib.crc32(example.tobytes())
