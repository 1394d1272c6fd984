"""Which training examples are held out for validation; which examples two parts share."""

import hashlib
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from typing import Any

import numpy as np

HOLD_OUT_VERSION = 4  # in checksums of corpora: increase it when other examples are held out
FEW_VALID = 100  # examples, of which each is at least a point of accuracy
MAX_SHARED = 0.1  # of a part; in many corpora a few short texts occur several times


def hold_out_pairs(parts: dict) -> dict:
    """Returns the readers of a corpus of pairs, with a validation set held out of training.

    It has about 1,000 pairs, or one in 20 if these are fewer. A hash of the source chooses
    them, so that all pairs of a source stay together; if all sources are equal, it is empty.
    Pairs with an empty side do not count.
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
    """Returns a number of 32 bits, the same for texts that differ only in spaces around them.

    Unicode's ways to write the same character count as equal. It is 0 if the text is empty.
    """
    content = unicodedata.normalize("NFC", text.strip()).encode()
    return hash_bytes(content) if content else 0


def hash_bytes(content: bytes) -> int:
    """Returns a number of 32 bits that is as good as random.

    A checksum such as CRC-32 is not: those of "I have 1 apple", "I have 2 apples" and so on
    follow a pattern, so the smallest ones would not be a random choice.
    """
    return int.from_bytes(hashlib.blake2b(content, digest_size=4).digest(), "big")


def hash_pair(pair: tuple[str, str]) -> int:
    """Returns a number of 32 bits, as `hash_text` does for a text.

    It is 0 if a side is empty, since such a pair is left out.
    """
    source, target = map(str.strip, pair)
    return hash_text(f"{source}\t{target}") if source and target else 0


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


def count_shared(
    parts: Mapping[str, Callable[[], Iterable]], hash_of: Callable[[Any], int]
) -> dict[str, int]:
    """Returns how many examples of each part but "train" are in the training set as well.

    hash_of: returns the hash of an example, or 0 if it does not count.
    """
    hashes = {
        part: [code for code in map(hash_of, read()) if code]
        for part, read in parts.items()
        if part != "train"
    }
    others = set().union(*hashes.values())
    shared = others.intersection(map(hash_of, parts["train"]())) if others else set()
    return {part: sum(code in shared for code in codes) for part, codes in hashes.items()}


def warnings_of_parts(counts_of_parts: dict[str, dict[str, Any]], unit: str) -> list[str]:
    """Returns warnings of a small validation set, and of parts that share training examples.

    counts_of_parts: from meta.json; unit: what the examples are.
    """
    lines = []
    valid = counts_of_parts["valid"]["examples"]
    if valid < FEW_VALID:
        lines.append(
            f"warning: the valid set has only {valid:,} {unit}, so its scores are rough; "
            f"--valid names a larger one"
        )
    for part, counts in counts_of_parts.items():
        examples = counts["examples"]
        shared = min(counts["in_training"], examples)  # some may be too long
        if shared > MAX_SHARED * examples:
            lines.append(
                f"warning: {shared:,} of the {examples:,} {unit} of the {part} set are "
                f"in the training set, too: its scores do not tell how good the model is"
            )
    return lines
