"""Labelled examples, texts or pictures, encoded on disk once and mapped by all processes.

folder = prepare(corpus, corpus.checksum(), cache, tokenizer, max_length, picture, 8000)
train = Texts(folder, "train")                         # or Pictures
x, label, weight = train.batch(rows)
weights = class_weights(train.labels, classes=4, alike=False)
batches = ExampleBatches(train, batch_tokens, seed, batch_size, weights)
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

from data import BPE, Batches, make_once, name_folder
from support.classification.images import Picture, move
from support.classification.labelled import Labelled, classes_of
from support.classification.splits import hold_out
from support.common.errors import UserError

FORMAT = 4  # of the files: raise it where the same examples would be stored otherwise
BLOCK = 1000  # texts encoded at a time: what is cut off a long one takes half a MiB


def prepare(
    corpus: Labelled,
    checksum: str,
    cache: Path,
    tokenizer: str,
    max_length: int,
    picture: Picture | None,
    vocab_size: int,
) -> Path:
    """Encodes a labelled corpus into a folder that any number of processes can map.

    tokenizer: a serialized one, or "": then a byte-level BPE of `vocab_size` is trained, on lower
    case. Without a validation part some examples are held out (support/classification/splits.py). Raises
    UserError.
    """
    for how in ("", tokenizer):  # a given one may have been trained here
        made_of = [
            FORMAT,
            corpus.name,
            checksum,
            how,
            max_length,
            vocab_size,
            vars(picture) if picture else None,
        ]
        folder = name_folder(cache, corpus.name, made_of)
        kept = folder / "tokenizer.json"
        if kept.is_file() and tokenizer in (how, kept.read_text(encoding="utf-8")):
            return folder
    return make_once(
        folder, lambda partial: encode(corpus, partial, tokenizer, max_length, vocab_size)
    )


def encode(
    corpus: Labelled, folder: Path, serialized: str, max_length: int, vocab_size: int
) -> None:
    """Writes tokenizer.json, a few flat files for each part, and meta.json."""
    classes = classes_of(corpus)
    number = {name: i for i, name in enumerate(classes)}
    parts, count = hold_out(corpus)
    meta = {
        "name": corpus.name,
        "kind": corpus.kind,
        "classes": classes,
        "held_out": "valid" not in corpus.parts,
        "parts": {},
    }
    if corpus.kind == "text":
        some = islice(parts["train"](), 0, None, -(-count // 1_000_000))  # a million are enough
        texts = (text for text, _ in some)  # "Oil" and "oil" are to be one word
        bpe = serialized or BPE.train(texts, vocab_size, lower=True).serialized
        (folder / "tokenizer.json").write_text(bpe, encoding="utf-8")
        tokenizer = Tokenizer.from_str(bpe)
    for part, read in parts.items():
        path, examples = folder / part, ((example, number[name]) for example, name in read())
        if corpus.kind == "text":
            counts = write_texts(examples, path, tokenizer, max_length)
        else:
            counts = write_pictures(examples, path)
        if not counts["examples"]:
            hint = " (--valid names some)" if meta["held_out"] and part == "valid" else ""
            raise UserError(f"{corpus.name}: the {part} part has no example{hint}")
        meta["parts"][part] = counts
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def encode_texts(
    tokenizer: Tokenizer, texts: list[str], max_length: int
) -> tuple[list[list[int]], int]:
    """The token ids of each text, at most `max_length`, and how many texts had more."""
    tokenizer.enable_truncation(max_length)
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True  # a "[PAD]" in a text is text
    # Hardly a token is longer than a dozen characters, and to tokenize a whole book takes long.
    texts, most = [text.strip() for text in texts], 100 * max_length
    encoded = tokenizer.encode_batch([text[:most] for text in texts])
    cut = [bool(e.overflowing) or len(text) > most for e, text in zip(encoded, texts)]
    return [e.ids for e in encoded], sum(cut)


def write_texts(
    examples: Iterator[tuple[str, int]], path: Path, tokenizer: Tokenizer, max_length: int
) -> dict:
    """Writes PATH.ids, .offsets and .labels. Raises UserError if all texts to train on are empty."""
    counts, some = {"examples": 0, "cut": 0, "tokens": 0}, False
    with (
        open(f"{path}.ids", "wb") as ids,
        open(f"{path}.offsets", "wb") as offsets,
        open(f"{path}.labels", "wb") as labels,
    ):
        offsets.write(np.zeros(1, np.int64).tobytes())
        while block := list(islice(examples, BLOCK)):
            texts, numbers = zip(*block)
            some = some or any(texts)
            encoded, cut = encode_texts(tokenizer, list(texts), max_length)
            lengths = np.array([len(text) for text in encoded], dtype=np.int64)
            ids.write(np.concatenate([np.array(text, np.int32) for text in encoded]).tobytes())
            offsets.write((counts["tokens"] + lengths.cumsum()).tobytes())
            labels.write(np.array(numbers, np.int32).tobytes())
            counts["examples"] += len(block)
            counts["cut"] += cut
            counts["tokens"] += int(lengths.sum())
    if path.name == "train" and counts["examples"] and not some:
        raise UserError("the texts to train on are all empty")
    return counts


def write_pictures(examples: Iterator[tuple[np.ndarray, int]], path: Path) -> dict:
    """Writes PATH.pixels, bytes of (channels, height, width) each, and PATH.labels."""
    counts = {"examples": 0, "shape": None}
    with open(f"{path}.pixels", "wb") as pixels, open(f"{path}.labels", "wb") as labels:
        for picture, number in examples:
            pixels.write(picture.tobytes())
            labels.write(np.int32(number).tobytes())
            counts["examples"] += 1
            counts["shape"] = picture.shape
    return counts


class Texts:
    """One part of an encoded corpus of texts."""

    def __init__(self, folder: Path, part: str, pad: int = 0):
        self.pad = pad
        path = folder / f"{part}.ids"  # an empty file cannot be mapped
        self.ids = (
            np.memmap(path, dtype=np.int32, mode="r")
            if path.stat().st_size
            else np.zeros(1, np.int32)
        )
        self.offsets = np.memmap(folder / f"{part}.offsets", dtype=np.int64, mode="r")
        self.labels = np.memmap(folder / f"{part}.labels", dtype=np.int32, mode="r")

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Tokens of the texts `rows`, (rows,); an empty text counts as one of padding."""
        return [np.maximum(self.offsets[rows + 1] - self.offsets[rows], 1)]

    def targets(self, rows: np.ndarray) -> int:
        """One target for each text."""
        return len(rows)

    def batch(self, rows: np.ndarray, width: int = 0) -> tuple[torch.Tensor, ...]:
        """(ids, label, weight): (rows, width) int64, padded; (rows,) int64; (rows,) fp32, all 1.

        No rows make a single one of padding whose weight is 0.
        """
        if not len(rows):
            return (
                torch.full((1, width or 1), self.pad),
                torch.zeros(1, dtype=int),
                torch.zeros(1),
            )
        starts, lengths = self.offsets[rows], self.offsets[rows + 1] - self.offsets[rows]
        column = np.arange(width or int(lengths.max(initial=1)))[None]
        at = np.minimum(starts[:, None] + column, len(self.ids) - 1)
        ids = np.where(column < lengths[:, None], self.ids[at], self.pad)
        return (
            torch.from_numpy(ids.astype(np.int64)),
            torch.from_numpy(self.labels[rows].astype(np.int64)),
            torch.ones(len(rows)),
        )


class Pictures:
    """One part of an encoded corpus of pictures; `tokens`: how many a picture is cut into."""

    def __init__(self, folder: Path, part: str, picture: Picture, tokens: int):
        shape = json.loads((folder / "meta.json").read_text())["parts"][part]["shape"]
        self.pixels = np.memmap(folder / f"{part}.pixels", np.uint8, "r").reshape(-1, *shape)
        self.labels = np.memmap(folder / f"{part}.labels", dtype=np.int32, mode="r")
        self.picture, self.tokens = picture, tokens

    def __len__(self) -> int:
        return len(self.labels)

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Tokens of the pictures `rows`, (rows,)."""
        return [np.full(len(rows), self.tokens)]

    def targets(self, rows: np.ndarray) -> int:
        """One target for each picture."""
        return len(rows)

    def batch(
        self, rows: np.ndarray, width: int = 0, moved: np.ndarray | None = None
    ) -> tuple[torch.Tensor, ...]:
        """(pictures, label, weight): (rows, channels, height, width) fp32; the others (rows,).

        moved: (rows, 3) how far each is moved down and right, and whether it is mirrored.
        """
        if not len(rows):
            return (
                torch.zeros(1, *self.pixels.shape[1:]),
                torch.zeros(1, dtype=int),
                torch.zeros(1),
            )
        x = self.pixels[rows] if moved is None else move(self.pixels[rows], moved)
        return (
            normalize(x, self.picture),
            torch.from_numpy(self.labels[rows].astype(np.int64)),
            torch.ones(len(rows)),
        )


def normalize(pixels: np.ndarray, picture: Picture) -> torch.Tensor:
    """Bytes (pictures, channels, height, width) as the model takes them, in fp32."""
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (picture.mean, picture.std))
    return (torch.from_numpy(np.ascontiguousarray(pixels)).float() / 255 - mean) / std


def class_weights(labels: np.ndarray, classes: int, alike: bool) -> np.ndarray:
    """(classes,): all 1, or if `alike` such that all classes count as if equally frequent."""
    counts = np.bincount(labels, minlength=classes)
    return len(labels) / classes / np.maximum(counts, 1) if alike else np.ones(classes)


class ExampleBatches(Batches):
    """The batches of a classifier's training: with class weights, and examples that vary.

    weights: (classes,) factors of the loss of an example of each class; crop: pixels that an image
    is moved by at most; flip: whether half of the images are mirrored; token_dropout: the share of
    a text's tokens that are hidden. All is drawn anew in each epoch, by seed, epoch and example
    alone, so that it does not depend on how the processes share a step. Raises UserError.
    """

    def __init__(
        self,
        examples: Texts | Pictures,
        batch_tokens: int,
        seed: int,
        batch_size: int,
        weights: np.ndarray,
        crop: int = 0,
        flip: bool = False,
        token_dropout: float = 0.0,
    ):
        if token_dropout and isinstance(examples, Pictures):
            raise UserError("--token-dropout is for texts, but the corpus has images")
        if (crop or flip) and isinstance(examples, Texts):
            raise UserError("--crop and --flip are for images, but the corpus has texts")
        super().__init__(examples, batch_tokens, seed, batch_size)
        self.crop = crop
        self.flip = flip
        self.token_dropout = token_dropout
        # FSDP with bf16 rounds what goes into the model: so all scripts use the rounded weights.
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
