"""One BPE for both languages, the encoded corpus on disk, and the batches of every step.

    corpus = find_corpus("multi30k")                   # support/corpora/pairs.py
    folder = prepare(corpus, cache, vocab_size=8000)   # support/translation/encoding.py
    batches = Batches(Pairs(folder, "train"), batch_tokens=4096, seed=1)
    batch = batches.micro_batch(0, 0, num_micro_batches=1, device=torch.device("cpu"))
    loss, nll = model(*batch)                          # see `Pairs.batch`

The batch of each step is a deterministic function of the corpus, the seed and the step number,
so every rank can compute it without communication.
"""

import json
import math
import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import DTypeLike
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

PAD, BOS, EOS = 0, 1, 2
MAX_WORD = 1000  # characters
# A run of more than MAX_WORD letters, or digits, or other characters, such as dashes. Learning
# a BPE takes time that grows with the square of the longest run.
LONG_WORD = re.compile(r"[^\W\d_]{N,}|\d{N,}|(?:_|[^\w\s]){N,}".replace("N", str(MAX_WORD + 1)))
SIDES = ("src", "tgt")
NFC = normalizers.NFC()  # Unicode can write é in two ways; this makes their bytes equal


# --- Byte-level BPE ---------------------------------------------------------------------------


class BPE:
    """Text to token ids and back (Sennrich et al., 2016), over bytes: no text is unknown."""

    def __init__(self, serialized: str):
        self.serialized = serialized
        self.tokenizer = Tokenizer.from_str(serialized)
        self.tokenizer.encode_special_tokens = True  # a "<eos>" typed by a user is text
        self.vocab_size = self.tokenizer.get_vocab_size()

    @staticmethod
    def train(
        texts: Iterator[str], vocab_size: int, normalizer: normalizers.Normalizer = NFC
    ) -> "BPE":
        """Learns at most `vocab_size` tokens, at least the 256 bytes and 3 special ones.

        normalizer: what every text goes through first, also those that are encoded later.
        """
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizer
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<pad>", "<bos>", "<eos>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(map(without_long_words, texts), trainer)
        return BPE(tokenizer.to_str())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text, without bos and eos, and with single spaces."""
        encodings = self.tokenizer.encode_batch_fast([with_spaces(text) for text in texts])
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of token ids, on one line."""
        return " ".join(self.tokenizer.decode(ids).split())


def with_spaces(text: str) -> str:
    """Returns a text with one space between words, instead of tabs, line ends and others."""
    return " ".join(text.split())


def without_long_words(text: str) -> str:
    """Returns a text with a space in the place of each match of LONG_WORD."""
    if len(text) <= MAX_WORD:  # as nearly all are
        return text
    return LONG_WORD.sub(" ", text)


# --- The encoded corpus on disk ---------------------------------------------------------------


def append_ids(path: str, sentences: list[list[int]], dtype: np.dtype) -> int:
    """Appends ids to PATH.ids, and where each sentence ends to PATH.offsets, after a zero.

    Returns how many ids it has appended.
    """
    lengths = np.array([len(ids) for ids in sentences], dtype=np.int64)
    with open(f"{path}.ids", "ab") as ids, open(f"{path}.offsets", "ab") as offsets:
        if not offsets.tell():
            offsets.write(np.zeros(1, np.int64).tobytes())
        start = ids.tell() // dtype.itemsize
        ids.write(np.fromiter(chain.from_iterable(sentences), dtype).tobytes())
        offsets.write((start + lengths.cumsum()).tobytes())
    return int(lengths.sum())


def map_file(path: Path | str, dtype: DTypeLike) -> np.ndarray:
    """Returns the content of a file: mapped from disk or, if that fails, read."""
    try:
        return np.memmap(path, dtype=dtype, mode="r")
    except (OSError, ValueError):  # on some network file systems, and for empty files
        return np.fromfile(path, dtype)


class Sentences:
    """Token ids that `append_ids` has written, mapped: all processes share the same memory."""

    def __init__(self, path: str, dtype: DTypeLike):
        self.ids = map_file(f"{path}.ids", dtype)  # of all sentences, one after another
        self.offsets = map_file(f"{path}.offsets", np.int64)  # sentence i begins at [i]

    def lengths(self, rows: np.ndarray) -> np.ndarray:
        """Returns how many tokens the sentences `rows` have, (rows,)."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def padded(self, rows: np.ndarray, width: int, pad: int = PAD) -> torch.Tensor:
        """Returns the sentences `rows`, padded: (rows, width) int64; width: 0 for the longest.

        Without rows it returns one row of padding.
        """
        if not len(rows):
            return torch.full((1, width or 1), pad)
        lengths = self.lengths(rows)
        column = np.arange(width or int(lengths.max(initial=1)))
        # Past the end of a sentence this reads the next one, which np.where leaves out.
        position = np.minimum(self.offsets[rows, None] + column, len(self.ids) - 1)
        out = np.where(column < lengths[:, None], self.ids[position], pad)
        return torch.from_numpy(out.astype(np.int64))


class Pairs:
    """One part of an encoded corpus: training, validation or test set."""

    def __init__(self, folder: Path, part: str):
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        dtype = meta["parts"][part]["dtype"]
        self.sides = [Sentences(f"{folder / part}.{side}", dtype) for side in SIDES]

    def __len__(self) -> int:
        return len(self.sides[0].offsets) - 1

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns source and target lengths of the pairs `rows`, (rows,) each, with eos."""
        return [side.lengths(rows) for side in self.sides]

    def num_targets(self, rows: np.ndarray) -> int:
        """Returns the target tokens of the pairs `rows`, without padding."""
        return int(self.lengths(rows)[1].sum())

    def batch(
        self, rows: np.ndarray, src_width: int = 0, tgt_width: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """Returns (src, tgt_in, tgt_out, token_indices), int64.

        src: (rows, src_width), padded; tgt_in, tgt_out: (rows, tgt_width), padded;
        token_indices: (tokens,), which elements of tgt_out.flatten() are not padding. A width
        of 0 is that of the longest sentence. Without rows it returns one row of padding, so
        that a rank with nothing to do still takes the step.
        """
        src_side, tgt_side = self.sides
        src = src_side.padded(rows, src_width)
        tgt_out = tgt_side.padded(rows, tgt_width)  # ids, eos, padding
        is_token = tgt_out != PAD
        tgt_in = tgt_out.roll(1, dims=1)  # each token one position later
        tgt_in[:, 0] = BOS
        tgt_in[~is_token] = PAD  # bos, ids, padding
        token_indices = is_token.flatten().nonzero().squeeze(1)
        return src, tgt_in, tgt_out, token_indices


# --- Batches ----------------------------------------------------------------------------------

# How many examples are sorted at once, so that a large corpus fits in memory.
BLOCK_SIZE = 1 << 20


def group_by_length(
    lengths: list[np.ndarray], batch_tokens: int, rng: np.random.Generator, batch_size: int = 0
) -> list[np.ndarray]:
    """Divides examples into batches of similar length, so that little padding is needed.

    lengths: (examples,) of each side, in tokens. A batch takes `batch_size` examples, or, if
    that is 0, as many as fit in `batch_tokens` tokens of the longer side. Examples of equal
    lengths are shuffled by `rng`. With `batch_tokens`, the length of a batch's longest example
    decides how many it has: at least one, and from 32 on a multiple of 8, so that few shapes
    occur, and processes get equal shares. The last batch may have fewer.
    """
    # The first and the last side: a classifier's examples have only one, which is both.
    longer = np.maximum(lengths[0], lengths[-1])
    difference = lengths[0] - lengths[-1]
    shuffled = rng.permutation(len(longer))
    # By the longer side, then by the difference, then at random: the last key counts first.
    ascending = np.lexsort((shuffled, difference, longer))
    order = ascending[::-1]
    batches = []
    start = 0
    while start < len(order):
        size = batch_size
        if not size:
            size = max(1, batch_tokens // int(longer[order[start]]))
            if size >= 32:
                size -= size % 8
        batches.append(order[start : start + size])
        start += size
    return batches


class Batches:
    """The batches of training: a pure function of the corpus, the seed and the step's number.

    examples: Pairs, or a classifier's examples (support/classification/examples.py).
    batch_tokens, batch_size: the size of a step over all processes, see `group_by_length`.
    """

    def __init__(self, examples, batch_tokens: int, seed: int, batch_size: int = 0):
        self.examples = examples
        self.seed = seed
        self.batch_tokens = batch_tokens
        self.batch_size = batch_size
        self.num_blocks = math.ceil(len(examples) / BLOCK_SIZE)
        self.plan = lru_cache(maxsize=2)(self.plan_block)  # keeps the last two blocks
        # Lengths alone decide how many steps a block has: as many in all epochs as in epoch 0.
        steps_of_blocks = [len(self.plan(0, block)) for block in range(self.num_blocks)]
        self.block_starts = np.cumsum([0, *steps_of_blocks])  # the first step of each block
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.prefetched: dict[tuple[int, int], Future] = {}  # by step and index
        self.seconds_waited = 0.0  # for micro-batches, until the caller sets it to 0

    def __len__(self) -> int:
        """Returns the number of steps in an epoch: the same in each, as lengths decide it."""
        return int(self.block_starts[-1])

    def plan_block(self, epoch: int, block: int) -> list[np.ndarray]:
        """Returns the examples of each step in one block of an epoch, in random order."""
        rng = np.random.default_rng([self.seed, epoch, block])
        # Every n-th example, so that a block of a sorted corpus is like all others.
        rows = np.arange(block, len(self.examples), self.num_blocks)
        lengths = self.examples.lengths(rows)
        batches = group_by_length(lengths, self.batch_tokens, rng, self.batch_size)
        return [rows[batches[i]] for i in rng.permutation(len(batches))]

    def rows(self, step: int) -> np.ndarray:
        """Returns which examples a step has, (examples,); steps are counted over all epochs."""
        epoch, step_of_epoch = divmod(step, len(self))
        block = int(np.searchsorted(self.block_starts, step_of_epoch, side="right")) - 1
        return self.plan(epoch, block)[step_of_epoch - self.block_starts[block]]

    def num_targets(self, step: int) -> int:
        """Returns how many targets a step has, which its loss is divided by."""
        return self.examples.num_targets(self.rows(step))

    def micro_batch(
        self, step: int, index: int, num_micro_batches: int, device: torch.device
    ) -> tuple[torch.Tensor, ...]:
        """Returns one of a step's micro-batches, as tensors on `device`.

        Micro-batch i of m has the step's examples i, i + m, i + 2m, ... All of a step's
        micro-batches have the same widths. For a GPU, a thread prepares the same micro-batch of
        the next step in advance, and the copy to the GPU is asynchronous.
        """
        start = time.perf_counter()
        if device.type == "cuda":
            batch = self.take_prefetched(step, index, num_micro_batches)
        else:
            batch = self.make_micro_batch(step, index, num_micro_batches)
        self.seconds_waited += time.perf_counter() - start
        return tuple(tensor.to(device, non_blocking=True) for tensor in batch)

    def take_prefetched(
        self, step: int, index: int, num_micro_batches: int
    ) -> tuple[torch.Tensor, ...]:
        """Returns a micro-batch in pinned memory; a thread then makes that of the next step."""

        def make(step: int) -> tuple[torch.Tensor, ...]:
            batch = self.make_micro_batch(step, index, num_micro_batches)
            return tuple(tensor.pin_memory() for tensor in batch)

        for each in (step, step + 1):
            if (each, index) not in self.prefetched:
                self.prefetched[each, index] = self.executor.submit(make, each)
        return self.prefetched.pop((step, index)).result()

    def make_micro_batch(
        self, step: int, index: int, num_micro_batches: int
    ) -> tuple[torch.Tensor, ...]:
        """Makes a micro-batch in the CPU's memory."""
        rows = self.rows(step)
        widths = [int(lengths.max()) for lengths in self.examples.lengths(rows)]
        return self.collate(rows[index::num_micro_batches], widths, epoch=step // len(self))

    def collate(
        self, rows: np.ndarray, widths: list[int], epoch: int
    ) -> tuple[torch.Tensor, ...]:
        """Makes tensors of examples; a classifier's may look different in each epoch."""
        return self.examples.batch(rows, *widths)


def evaluation_batches(
    examples, batch_tokens: int, data_rank: int, data_size: int, device: torch.device
) -> Iterator[tuple[np.ndarray, list[torch.Tensor]]]:
    """Yields this rank's batches of an evaluation: which examples, and their tensors.

    data_size: the number of groups of ranks that share the examples out; data_rank: the group
    of this rank. A group is a TP group in train_tp.py, and elsewhere a single rank. Each
    example is in one batch of one group. All groups take equally many batches, because FSDP's
    all-gathers need all ranks: in the last one a group may have no example.
    """
    lengths = examples.lengths(np.arange(len(examples)))
    batches = group_by_length(lengths, batch_tokens, np.random.default_rng(0))
    batches += [np.arange(0)] * (-len(batches) % data_size)
    for rows in batches[data_rank::data_size]:
        yield rows, [tensor.to(device) for tensor in examples.batch(rows)]
