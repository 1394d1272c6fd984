"""Which examples of a labelled corpus are held out of training, to validate on.

readers, count = hold_out(corpus)                      # of all parts; of the part to train on
"""

import zlib
from collections.abc import Callable, Iterator
from functools import partial

from support.classification.labelled import Labelled


def hold_out(corpus: Labelled) -> tuple[dict[str, Callable[[], Iterator[tuple]]], int]:
    """The readers of all parts, and how many examples the part to train on has in the corpus.

    Where there is no validation part, some 2,000 of those are held out as one, but at most one in
    20. A hash of the example chooses them, so that equal ones stay together.
    """
    read = corpus.parts.get("train", tuple)  # a folder may have a test part alone
    count = sum(1 for _ in (corpus.labels.get("train") or read)())
    one_in = max(20, count // 2000)

    def choose(held_out: bool) -> Iterator[tuple]:
        first = {}  # of each class one is kept to train on
        for example, name in read():
            code = zlib.crc32(example.encode() if corpus.kind == "text" else example.tobytes())
            is_first = first.setdefault(name, code) == code
            if held_out == (code % one_in == 0 and not is_first):
                yield example, name

    if "valid" in corpus.parts:
        return corpus.parts, count
    own = {"train": partial(choose, False), "valid": partial(choose, True)}
    return own | {part: corpus.parts[part] for part in corpus.parts if part != "train"}, count
