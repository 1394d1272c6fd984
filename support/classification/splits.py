"""Holds out examples of a labelled corpus for validation.

Example:
    readers = hold_out_labelled(corpus)  # of all parts
"""

import zlib
from collections.abc import Iterator

import numpy as np

from data import choose_held_out, hash_text, hold_out
from support.classification.corpus import Labelled, Reader

VALID_EXAMPLES = 2000  # held out if there is no validation set,
ONE_IN = 20  # but at most one of so many examples


def hold_out_labelled(corpus: Labelled) -> dict[str, Reader]:
    """Returns the readers of all parts, with some training examples held out for validation.

    If there is a validation set, none are. A hash of the example chooses them, so that equal
    examples stay together (`choose_held_out` in data.py).
    """
    if "train" not in corpus.parts or "valid" in corpus.parts:
        return corpus.parts
    first_of_class: dict[str, int] = {}

    def read_hashes() -> Iterator[int]:
        for example, name in corpus.parts["train"]():
            code = hash_example(example)
            first_of_class.setdefault(name, code)
            yield code

    hashes = np.fromiter(read_hashes(), np.uint32)
    # The first example of each class is trained on, so that every class is known. An empty text
    # would be chosen before others, since its hash is 0.
    trained = [hash_text(""), *first_of_class.values()]
    others = hashes[~np.isin(hashes, trained)]
    held_out = choose_held_out(others, min(VALID_EXAMPLES, len(hashes) // ONE_IN))
    return hold_out(corpus.parts, lambda example: hash_example(example) in held_out)


def hash_example(example: str | np.ndarray) -> int:
    """Returns a 32-bit hash of an image or a text. Upper and lower case count as equal."""
    if isinstance(example, str):
        return hash_text(example.lower())
    return zlib.crc32(example.tobytes())
