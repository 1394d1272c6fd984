"""Labelled examples, texts or images, encoded on disk once and mapped by all processes.

Example:
    folder = prepare(corpus, corpus.checksum(), cache, tokenizer, max_length, transform, 8000)
    train = Texts(folder, "train")                     # or Images
    x, label, weight = train.batch(rows)               # images as bytes: a quarter of fp32
    weights = class_weights(train.labels, classes=4, balanced=False)
    batches = ExampleBatches(train, batch_tokens, seed, batch_size, weights)
"""

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from data import BPE, Batches, is_encoded, make_once, map_file, name_folder
from support.classification.corpus import Labelled, Reader, classes_of
from support.classification.images import ImageTransform, shift_and_mirror
from support.classification.splits import hold_out
from support.common.errors import UserError

FORMAT = 8  # of the files: increase it when the same examples are stored differently
BLOCK = 1000  # texts encoded at a time; the part cut off a long one takes half a MiB
BPE_TEXTS = 200_000  # enough to train a tokenizer on; each distinct word takes about 1 KB
CHARACTERS_PER_TOKEN = 100  # hardly a token has more than a dozen


def prepare(
    corpus: Labelled,
    checksum: str,
    cache: Path,
    tokenizer: str,
    max_length: int,
    transform: ImageTransform | None,
    vocab_size: int,
) -> Path:
    """Encodes a labelled corpus into a folder that any number of processes can map.

    tokenizer: a serialized one, or "": then a byte-level BPE of `vocab_size` is trained, on
    lower case. Without a validation set some examples are held out
    (support/classification/splits.py). Raises UserError.
    """

    def encoded_folder(tokenizer: str) -> Path:
        description = [
            FORMAT,
            corpus.name,
            checksum,
            tokenizer,
            max_length,
            vocab_size,
            vars(transform) if transform else None,
        ]
        return name_folder(cache, corpus.name, description)

    # The tokenizer that is passed may be the one that was trained here.
    own_folder = encoded_folder("")
    if tokenizer and is_encoded(own_folder) and read_tokenizer(own_folder) == tokenizer:
        return own_folder
    return make_once(
        encoded_folder(tokenizer),
        lambda partial: encode_corpus(corpus, partial, tokenizer, max_length, vocab_size),
    )


def encode_corpus(
    corpus: Labelled, folder: Path, serialized: str, max_length: int, vocab_size: int
) -> dict[str, Any]:
    """Writes tokenizer.json and a few flat files for each part. Raises UserError.

    serialized: a tokenizer, or "" to train one. Returns what is in the files, for meta.json.
    """
    classes = classes_of(corpus)
    numbers = {name: i for i, name in enumerate(classes)}
    is_held_out = "valid" not in corpus.parts
    decoded = folder / "decoded"
    if corpus.modality == "image" and is_held_out:
        corpus = decode_once(corpus, decoded)
    parts, count = hold_out(corpus)
    meta: dict[str, Any] = {
        "name": corpus.name,
        "modality": corpus.modality,
        "classes": classes,
        "held_out": is_held_out,
        "parts": {},
    }
    if corpus.modality == "text":
        serialized = serialized or train_tokenizer(parts["train"], count, vocab_size)
        (folder / "tokenizer.json").write_text(serialized, encoding="utf-8")
        tokenizer = Tokenizer.from_str(serialized)
    for part, read in parts.items():
        examples = ((example, numbers[name]) for example, name in read())
        if corpus.modality == "text":
            counts = write_texts(examples, folder / part, tokenizer, max_length)
        else:
            counts = write_images(examples, folder / part)
        if not counts["examples"]:
            hint = "; pass one with --valid" if is_held_out and part == "valid" else ""
            raise UserError(f"{corpus.name}: the {part} set has no example{hint}")
        meta["parts"][part] = counts
    decoded.unlink(missing_ok=True)
    return meta


def decode_once(corpus: Labelled, path: Path) -> Labelled:
    """Returns a corpus of images with its training set read from one file, which it writes.

    To choose what is held out, the part is read several times, and to decode images takes long.
    """
    with open(path, "wb") as file:
        for image, _ in corpus.parts["train"]():
            file.write(image.tobytes())
            shape = image.shape

    def read() -> Iterator[tuple[np.ndarray, str]]:
        with open(path, "rb") as file:
            for name in corpus.read_labels("train"):
                content = file.read(math.prod(shape))
                yield np.frombuffer(content, np.uint8).reshape(shape), name

    return replace(corpus, parts=corpus.parts | {"train": read})


def read_tokenizer(folder: Path) -> str:
    """Returns the serialized tokenizer of an encoded corpus of texts."""
    return (folder / "tokenizer.json").read_text(encoding="utf-8")


def train_tokenizer(read: Reader, count: int, vocab_size: int) -> str:
    """Returns a serialized byte-level BPE, on lower case: "Oil" and "oil" become one word."""
    stride = math.ceil(count / BPE_TEXTS)
    texts = (text for text, _ in islice(read(), 0, None, stride))
    return BPE.train(texts, vocab_size, lower=True).serialized


def encode_texts(
    tokenizer: Tokenizer, texts: list[str], max_length: int
) -> tuple[list[list[int]], int]:
    """Returns the token ids of each text, at most `max_length`, and how many texts had more."""
    tokenizer.enable_truncation(max_length)
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a "[PAD]" in a text is text
    # To tokenize a whole book takes long: what cannot be among the first tokens is left out.
    longest = CHARACTERS_PER_TOKEN * max_length
    texts = [text.strip() for text in texts]
    encodings = tokenizer.encode_batch([text[:longest] for text in texts])
    num_cut = 0
    for text, encoding in zip(texts, encodings):
        if encoding.overflowing or len(text) > longest:
            num_cut += 1
    return [encoding.ids for encoding in encodings], num_cut


def write_texts(
    examples: Iterator[tuple[str, int]], path: Path, tokenizer: Tokenizer, max_length: int
) -> dict:
    """Writes PATH.ids, .offsets and .labels; returns counts.

    Raises UserError if all texts of the training set are empty.
    """
    counts = {"examples": 0, "cut": 0, "tokens": 0}
    has_text = False
    with (
        open(f"{path}.ids", "wb") as ids,
        open(f"{path}.offsets", "wb") as offsets,
        open(f"{path}.labels", "wb") as labels,
    ):
        offsets.write(np.zeros(1, np.int64).tobytes())
        while block := list(islice(examples, BLOCK)):
            texts = [text for text, _ in block]
            has_text = has_text or any(texts)
            encoded, cut = encode_texts(tokenizer, texts, max_length)
            lengths = np.array([len(text) for text in encoded], dtype=np.int64)
            ids.write(np.concatenate([np.array(text, np.int32) for text in encoded]).tobytes())
            offsets.write((counts["tokens"] + lengths.cumsum()).tobytes())
            labels.write(np.array([label for _, label in block], np.int32).tobytes())
            counts["examples"] += len(block)
            counts["cut"] += cut
            counts["tokens"] += int(lengths.sum())
    if path.name == "train" and counts["examples"] and not has_text:
        raise UserError("the texts of the training set are all empty")
    return counts


def write_images(examples: Iterator[tuple[np.ndarray, int]], path: Path) -> dict:
    """Writes PATH.pixels, bytes of (images, channels, height, width), and PATH.labels."""
    counts: dict[str, Any] = {"examples": 0, "shape": None}
    with open(f"{path}.pixels", "wb") as pixels, open(f"{path}.labels", "wb") as labels:
        for image, label in examples:
            pixels.write(image.tobytes())
            labels.write(np.int32(label).tobytes())
            counts["examples"] += 1
            counts["shape"] = image.shape
    return counts


class Texts:
    """One part of an encoded corpus of texts."""

    def __init__(self, folder: Path, part: str, pad: int = 0):
        self.pad = pad
        self.ids = map_file(folder / f"{part}.ids", np.int32)
        if not len(self.ids):  # all texts are empty
            self.ids = np.zeros(1, np.int32)
        self.offsets = map_file(folder / f"{part}.offsets", np.int64)
        self.labels = map_file(folder / f"{part}.labels", np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the tokens of the texts `rows`, (rows,); an empty text counts as one."""
        return [np.maximum(self.offsets[rows + 1] - self.offsets[rows], 1)]

    def targets(self, rows: np.ndarray) -> int:
        """Returns the targets of the texts `rows`: one each."""
        return len(rows)

    def batch(self, rows: np.ndarray, width: int = 0) -> tuple[torch.Tensor, ...]:
        """Returns (ids, label, weight): (rows, width) int64, (rows,) int64, (rows,) fp32.

        ids are padded to `width`, or if it is 0, to the longest text; weights are 1. Without
        rows it returns a single text of padding whose weight is 0.
        """
        if not len(rows):
            empty = torch.full((1, width or 1), self.pad)
            return empty, torch.zeros(1, dtype=torch.int64), torch.zeros(1)
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        column = np.arange(width or int(lengths.max(initial=1)))[None]
        positions = np.minimum(starts[:, None] + column, len(self.ids) - 1)
        ids = np.where(column < lengths[:, None], self.ids[positions], self.pad)
        return (
            torch.from_numpy(ids.astype(np.int64)),
            torch.from_numpy(self.labels[rows].astype(np.int64)),
            torch.ones(len(rows)),
        )


class Images:
    """One part of an encoded corpus of images; tokens: how many a model makes of an image."""

    def __init__(self, folder: Path, part: str, tokens: int):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        shape = meta["parts"][part]["shape"]
        self.pixels = map_file(folder / f"{part}.pixels", np.uint8).reshape(-1, *shape)
        self.labels = map_file(folder / f"{part}.labels", np.int32)
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the tokens of the images `rows`, (rows,)."""
        return [np.full(len(rows), self.tokens)]

    def targets(self, rows: np.ndarray) -> int:
        """Returns the targets of the images `rows`: one each."""
        return len(rows)

    def batch(
        self, rows: np.ndarray, width: int = 0, moves: np.ndarray | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Returns (pixels, label, weight).

        pixels: (rows, channels, height, width) bytes; label: (rows,) int64; weight: (rows,)
        fp32, all 1. Without rows it returns a single black image whose weight is 0. moves:
        (rows, 3), how each image is shifted and mirrored (see `shift_and_mirror`).
        """
        if not len(rows):
            black = torch.zeros(1, *self.pixels.shape[1:], dtype=torch.uint8)
            return black, torch.zeros(1, dtype=torch.int64), torch.zeros(1)
        pixels = self.pixels[rows]
        if moves is not None:
            pixels = shift_and_mirror(pixels, moves)
        return (
            torch.from_numpy(pixels),
            torch.from_numpy(self.labels[rows].astype(np.int64)),
            torch.ones(len(rows)),
        )


def class_weights(labels: np.ndarray, classes: int, balanced: bool) -> np.ndarray:
    """Returns the factor of each class in the loss, (classes,).

    All factors are 1 unless `balanced`; then all classes count as if they were equally
    frequent.
    """
    if not balanced:
        return np.ones(classes)
    counts = np.bincount(labels, minlength=classes)
    return len(labels) / classes / np.maximum(counts, 1)


class ExampleBatches(Batches):
    """The batches of a classifier's training: with class weights, and examples that vary.

    weights: (classes,) factors of the loss of an example of each class; crop: pixels that an
    image is moved by at most; flip: whether half of the images are mirrored; token_dropout: the
    share of a text's tokens that are hidden. All is drawn anew in each epoch, by seed, epoch
    and example alone, so that it does not depend on how the processes share a step. Raises
    UserError.
    """

    def __init__(
        self,
        examples: Texts | Images,
        batch_tokens: int,
        seed: int,
        batch_size: int,
        weights: np.ndarray,
        crop: int = 0,
        flip: bool = False,
        token_dropout: float = 0.0,
    ):
        if token_dropout and isinstance(examples, Images):
            raise UserError("--token-dropout is for texts, but the corpus has images")
        if (crop or flip) and isinstance(examples, Texts):
            raise UserError("--crop and --flip are for images, but the corpus has texts")
        super().__init__(examples, batch_tokens, seed, batch_size)
        self.crop = crop
        self.flip = flip
        self.token_dropout = token_dropout
        # FSDP with bf16 rounds the model's inputs, so all scripts use the rounded weights.
        self.weights = torch.from_numpy(weights).bfloat16().float()
        self.moves = lru_cache(maxsize=1)(self.draw_moves)

    def draw_moves(self, epoch: int) -> np.ndarray:
        """Returns (examples, 3): pixels down, pixels to the right, and 1 if it is mirrored."""
        rng = np.random.default_rng([self.seed, epoch, 1 << 20])
        shift = rng.integers(-self.crop, self.crop + 1, (len(self.examples), 2))
        mirror = rng.integers(0, 2, (len(self.examples), 1))
        if not self.flip:
            mirror[:] = 0
        return np.concatenate([shift, mirror], axis=1)

    def collate(
        self, rows: np.ndarray, widths: list[int], epoch: int
    ) -> tuple[torch.Tensor, ...]:
        """Returns (x, label, weight) as `batch` of the examples does."""
        if self.crop or self.flip:
            x, label, weight = self.examples.batch(rows, *widths, self.moves(epoch)[rows])
        else:
            x, label, weight = self.examples.batch(rows, *widths)
        if self.token_dropout and len(rows):
            self.hide_tokens(x, rows, epoch)
        return x, label, weight * self.weights[label]

    def hide_tokens(self, ids: torch.Tensor, rows: np.ndarray, epoch: int) -> None:
        """Replaces a share of the tokens by padding, except the first, so no text is empty."""
        length = ids.shape[1] - 1
        drawn = [np.random.default_rng([self.seed, epoch, row]).random(length) for row in rows]
        hidden = torch.from_numpy(np.stack(drawn) < self.token_dropout)
        ids[:, 1:][hidden] = self.examples.pad
