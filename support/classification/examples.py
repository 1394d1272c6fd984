"""Labelled examples that are encoded on disk: mapped by all processes, divided into batches.

Example:
    train = Texts(folder, "train")                     # or Images; encoded by encoding.py
    x, label, weight = train.batch(rows)               # images as bytes, a quarter of fp32
    batches = ExampleBatches(train, batch_tokens, seed, batch_size, weights=np.ones(8))
"""

from functools import lru_cache
from pathlib import Path

import numpy as np
import torch

from data import Batches, Sentences, map_file
from support.classification.images import shift_and_mirror
from support.common.files import read_json


class Examples:
    """One part of an encoded corpus. Each example has one target: its label."""

    window = 0  # see `Texts`

    def __init__(self, folder: Path, part: str):
        self.labels = map_file(folder / f"{part}.labels", np.int32)

    def __len__(self) -> int:
        return len(self.labels)

    def num_targets(self, rows: np.ndarray) -> int:
        """Returns the number of targets of the examples `rows`."""
        return len(rows)

    def batch(self, rows: np.ndarray, width: int = 0) -> tuple[torch.Tensor, ...]:
        """Returns (x, label, weight): label is (rows,) int64, weight (rows,) fp32 and all 1.

        x is what `inputs` returns. Without rows it is the first example, with the weight 0, so
        that a rank with nothing to do still takes the step.
        """
        weight = torch.ones(len(rows))
        if not len(rows):
            rows = np.zeros(1, np.int64)
            weight = torch.zeros(1)
        label = torch.from_numpy(self.labels[rows].astype(np.int64))
        return self.inputs(rows, width), label, weight

    def inputs(self, rows: np.ndarray, width: int) -> torch.Tensor:
        """Returns the examples `rows` without their labels: see `Texts` and `Images`."""
        raise NotImplementedError


class Texts(Examples):
    """One part of an encoded corpus of texts.

    window: if it is not 0, a text counts as one of its windows: at most this many tokens.
    """

    def __init__(self, folder: Path, part: str, pad: int = 0, window: int = 0):
        super().__init__(folder, part)
        self.pad = pad
        self.window = window
        self.texts = Sentences(f"{folder / part}", np.int32)

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the tokens of the texts `rows`, (rows,); an empty text counts as one."""
        return [np.clip(self.texts.lengths(rows), 1, self.window or None)]

    def inputs(self, rows: np.ndarray, width: int) -> torch.Tensor:
        """Returns padded ids, (rows, width) int64. 0 means the width of the longest text."""
        return self.texts.padded(rows, width, self.pad)


class Images(Examples):
    """One part of an encoded corpus of images. tokens: how many a model makes of an image."""

    def __init__(self, folder: Path, part: str, tokens: int):
        super().__init__(folder, part)
        shape = read_json(folder / "meta.json")["parts"][part]["shape"]
        self.pixels = map_file(folder / f"{part}.pixels", np.uint8).reshape(-1, *shape)
        self.tokens = tokens

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns the tokens of the images `rows`, (rows,)."""
        return [np.full(len(rows), self.tokens)]

    def inputs(self, rows: np.ndarray, width: int) -> torch.Tensor:
        """Returns pixels, (rows, channels, height, width) uint8; `width` is ignored."""
        return torch.from_numpy(self.pixels[rows])


class ExampleBatches(Batches):
    """The batches of a classifier's training: with class weights, and with augmentation.

    weights: (classes,) factors of the losses, by class; crop: the most pixels that an image is
    shifted by; flip: whether half of the images are mirrored; token_dropout: the share of a
    text's tokens that are hidden. What is drawn depends on the seed, the epoch and the example
    alone, and not on how the processes share a step.
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
        super().__init__(examples, batch_tokens, seed, batch_size)
        self.crop = crop
        self.flip = flip
        self.token_dropout = token_dropout
        # FSDP in bf16 or fp16 rounds the model's inputs, so all scripts use rounded weights.
        self.weights = torch.from_numpy(weights).bfloat16().float()
        self.shares = lru_cache(maxsize=1)(self.draw_shares)
        self.offsets_and_flips = lru_cache(maxsize=1)(self.draw_offsets_and_flips)

    def draw_shares(self, epoch: int) -> np.ndarray:
        """Returns (examples,) numbers from 0 to 1, which choose a window of each text."""
        # No block of Batches has this number, so these draws differ from those that shuffle.
        return np.random.default_rng([self.seed, epoch, 1 << 21]).random(len(self.examples))

    def draw_offsets_and_flips(self, epoch: int) -> np.ndarray:
        """Returns (examples, 3): pixels down, pixels to the right, and 1 to mirror it."""
        rng = np.random.default_rng([self.seed, epoch, 1 << 20])  # likewise
        shift = rng.integers(-self.crop, self.crop + 1, (len(self.examples), 2))
        mirror = rng.integers(0, 2 if self.flip else 1, (len(self.examples), 1))
        return np.concatenate([shift, mirror], axis=1)

    def collate(
        self, rows: np.ndarray, widths: list[int], epoch: int
    ) -> tuple[torch.Tensor, ...]:
        """Returns (x, label, weight) like `Examples.batch`, augmented and weighted."""
        x, label, weight = self.examples.batch(rows, *widths)
        if self.examples.window and len(rows):
            x = self.draw_windows(rows, widths[0], epoch)
        if (self.crop or self.flip) and len(rows):
            draws = self.offsets_and_flips(epoch)[rows]
            x = torch.from_numpy(shift_and_mirror(x.numpy(), draws))
        if self.token_dropout and len(rows):
            self.hide_tokens(x, rows, epoch)
        return x, label, weight * self.weights[label]

    def draw_windows(self, rows: np.ndarray, width: int, epoch: int) -> torch.Tensor:
        """Returns the ids of a window of each text, (rows, width), drawn anew in each epoch."""
        texts = self.examples.texts
        size = self.examples.window
        # The window of a random token. All windows are equally likely, since those of a long
        # text are full.
        token = (self.shares(epoch)[rows] * texts.lengths(rows)).astype(np.int64)
        first = torch.from_numpy(token // size * size)  # the first token of its window
        ids = texts.padded(rows, int(first.max()) + width, self.examples.pad)
        return ids.take_along_dim(first[:, None] + torch.arange(width), dim=1)

    def hide_tokens(self, ids: torch.Tensor, rows: np.ndarray, epoch: int) -> None:
        """Replaces a share of the tokens by padding, but not the first: no text is empty."""
        length = ids.shape[1] - 1
        drawn = [np.random.default_rng([self.seed, epoch, row]).random(length) for row in rows]
        hidden = torch.from_numpy(np.stack(drawn) < self.token_dropout)
        ids[:, 1:][hidden] = self.examples.pad
