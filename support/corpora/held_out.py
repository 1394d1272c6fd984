"""Which training examples are held out as a validation set, where a corpus has none."""

import unicodedata
import zlib
from collections.abc import Callable, Iterable
from itertools import compress

import numpy as np


def hold_out_pairs(parts: dict) -> dict:
    """Returns the readers of a corpus of pairs, with a validation set held out of training.

    It has about 1,000 pairs, at most one in 20, but at least one. A hash of the source chooses
    them, so that equal sentences stay together. Pairs with an empty side do not count.
    """
    fields = [("hash", np.uint32), ("is_whole", bool)]
    pairs = (
        (hash_text(source), bool(source.strip() and target.strip()))
        for source, target in parts["train"]()
    )
    all_pairs = np.fromiter(pairs, fields)
    hashes = all_pairs["hash"]
    whole = hashes[all_pairs["is_whole"]]
    chosen = choose_held_out(whole, size=min(1000, len(whole) // 20))
    return parts | hold_out(parts["train"], hashes, chosen)


def hold_out(
    read: Callable[[], Iterable], hashes: np.ndarray, chosen: set[int]
) -> dict[str, Callable[[], Iterable]]:
    """Returns readers of the training set without the chosen examples, and of these as "valid".

    read: the reader of all examples; hashes: of each of them; chosen: those of the validation
    set.
    """
    is_held_out = np.isin(hashes, list(chosen))  # so that no example is hashed again
    return {
        "train": lambda: compress(read(), ~is_held_out),
        "valid": lambda: compress(read(), is_held_out),
    }


def hash_text(text: str) -> int:
    """Returns a number of 32 bits; texts that are encoded alike have the same."""
    return zlib.crc32(unicodedata.normalize("NFC", text.strip()).encode())


def choose_held_out(hashes: np.ndarray, size: int) -> set[int]:
    """Returns which hashes are held out of training; about `size` examples have them.

    hashes: (examples,). Hashes that more than `size` / 10 examples share are not chosen, as a
    single text would decide the score. If all are so frequent, the least frequent are chosen.
    """
    if not len(hashes):
        return set()
    values, counts = np.unique(hashes, return_counts=True)
    is_rare = counts <= max(size // 10, counts.min())
    if is_rare.all():
        is_rare[-1] = False  # at least one hash is left to train on
    # np.unique sorts the hashes, so the first ones are a random choice of examples.
    candidates = values[is_rare]
    counts = counts[is_rare]
    num_before = counts.cumsum() - counts  # examples of all candidates before each
    return set(candidates[num_before < max(1, size)].tolist())
