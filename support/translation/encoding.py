"""A parallel corpus, encoded on disk once, for any number of processes."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data import BPE, EOS, SIDES, append_ids, with_spaces
from support.common.errors import UserError
from support.common.streams import note
from support.corpora.encoded import (
    CHARACTERS_PER_TOKEN,
    encoded_folder,
    in_order,
    make_once,
    with_progress,
)
from support.corpora.held_out import count_shared, hash_pair, hold_out_pairs
from support.corpora.pairs import Reader

FORMAT = 11  # of the encoded corpus: increase it when the same file is read differently
BLOCK = 2_000  # pairs encoded at once, so that memory does not grow with the corpus
BPE_PAIRS = 1_000_000  # enough to learn a BPE from
MANY_PAIRS = 300_000  # whose preparation takes long enough to say so


def prepare(
    corpus, cache: Path, vocab_size: int = 8000, max_length: int = 128, bpe: str = ""
) -> Path:
    """Encodes a corpus into a folder that any number of processes can map, and returns it.

    corpus: has a `name`, a `checksum`, and `parts`, readers of sentence pairs for train,
    valid and test. bpe: a serialized one, or "" to train one of `vocab_size` tokens. Without a
    validation set, some pairs are held out of training: see `hold_out_pairs`. Raises UserError.
    """
    description = [FORMAT, corpus.name, corpus.checksum, vocab_size, max_length]
    folder = encoded_folder(cache, corpus.name, description, bpe)
    return make_once(folder, lambda new: encode(corpus, new, vocab_size, max_length, bpe))


def encode(corpus, folder: Path, vocab_size: int, max_length: int, bpe: str) -> dict[str, Any]:
    """Writes tokenizer.json and the encoded parts; returns the content of meta.json.

    Raises UserError if a part has no pair.
    """
    is_held_out = "valid" not in corpus.parts
    parts = hold_out_pairs(corpus.parts) if is_held_out else corpus.parts
    # Every part is read here, so that errors in a file come before the BPE is trained.
    pairs = with_progress(corpus.parts["train"](), f"{corpus.name}: pairs read")
    num_pairs = sum(1 for _ in pairs)
    # A validation set that was held out is not compared: it has nothing in common.
    shared = count_shared(corpus.parts | {"train": parts["train"]}, hash_pair)
    if num_pairs >= MANY_PAIRS:
        first = "" if bpe else "first a BPE is trained, then "
        note(
            f"{corpus.name}: {num_pairs:,} pairs; {first}they are encoded, which takes a "
            f"minute or more for each million"
        )
    encoder = BPE(bpe) if bpe else train_bpe(parts["train"], num_pairs, vocab_size)
    (folder / "tokenizer.json").write_text(encoder.serialized, encoding="utf-8")
    meta: dict[str, Any] = {"name": corpus.name, "held_out": is_held_out, "parts": {}}
    for part in in_order(parts):
        pairs = with_progress(parts[part](), f"{corpus.name}, {part}: pairs encoded")
        counts = encode_part(pairs, encoder, folder / part, max_length)
        if not counts["examples"]:
            hint = ""
            if is_held_out and part == "valid":
                hint = "; too few sources differ to hold some out of training: pass --valid"
            raise UserError(
                f"{corpus.name}: no sentence pair in the {part} set ({counts['empty']:,} with "
                f"an empty side, {counts['too_long']:,} longer than --max-length {max_length}"
                f"){hint}"
            )
        meta["parts"][part] = counts | {"in_training": shared.get(part, 0)}
    return meta


def train_bpe(read: Reader, num_pairs: int, vocab_size: int) -> BPE:
    """Returns a BPE of both languages. num_pairs: as many as `read` yields, or more."""
    stride = max(1, math.ceil(num_pairs / BPE_PAIRS))
    some_pairs = islice(read(), 0, None, stride)
    texts = (with_spaces(text) for pair in some_pairs for text in pair)
    return BPE.train(texts, vocab_size)


def encode_part(
    pairs: Iterator[tuple[str, str]], bpe: BPE, path: Path, max_length: int
) -> dict[str, Any]:
    """Writes flat arrays, PATH.src.ids and PATH.src.offsets, the same for tgt.

    Each sentence ends with eos, which counts as a token. Pairs with an empty side, or with more
    than `max_length` tokens or CHARACTERS_PER_TOKEN times as many characters, are left out. The
    parts that are translated and scored later, all but the training set, are kept as text too.
    There a pair that is left out is a pair of empty lines: lines keep their numbers. Returns
    counts, and the type of the ids.
    """
    dtype = np.dtype(np.uint16 if bpe.vocab_size <= 1 << 16 else np.uint32)
    counts = {"examples": 0, "too_long": 0, "empty": 0, "tokens": 0}
    max_chars = CHARACTERS_PER_TOKEN * max_length
    while block := list(islice(pairs, BLOCK)):
        # Texts are cut to save memory. One extra character marks those that are too long.
        texts = [[text.strip()[: max_chars + 1] for text in side] for side in zip(*block)]
        ids = [bpe.encode(side) for side in texts]
        faults = [
            fault_of(texts_of_pair, ids_of_pair, max_length)
            for texts_of_pair, ids_of_pair in zip(zip(*texts), zip(*ids))
        ]
        counts["examples"] += faults.count("")
        counts["empty"] += faults.count("empty")
        counts["too_long"] += faults.count("too_long")
        for side, lines, sentences in zip(SIDES, zip(*block), ids):
            kept = [[*each, EOS] for each, fault in zip(sentences, faults) if not fault]
            counts["tokens"] += append_ids(f"{path}.{side}", kept, dtype)
            if path.name != "train":
                with open(f"{path}.{side}.txt", "a", encoding="utf-8", newline="") as file:
                    for line, fault in zip(lines, faults):
                        file.write("\n" if fault else f"{line}\n")
    return counts | {"dtype": dtype.name}


def fault_of(texts: Sequence[str], ids: Sequence[list[int]], max_length: int) -> str:
    """Returns why a pair is left out, "empty" or "too_long", or "" if it is kept.

    texts: its sides, cut after one character too many; ids: their tokens, without eos.
    """
    if not all(ids):
        return "empty"
    is_document = max(map(len, texts)) > CHARACTERS_PER_TOKEN * max_length
    is_long = max(map(len, ids)) + 1 > max_length
    return "too_long" if is_document or is_long else ""


def read_text(folder: Path, part: str, side: str) -> list[str]:
    """Returns the lines of one side, "src" or "tgt", of "valid" or "test".

    The lines of pairs that were left out are empty.
    """
    # Read as bytes: in text mode a lone carriage return would end a line as well.
    return (folder / f"{part}.{side}.txt").read_bytes().decode().split("\n")[:-1]
