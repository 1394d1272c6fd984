"""One BPE for both languages, the encoded corpus on disk, and the batches of every step.

    corpus = find_corpus("multi30k")                   # in support/corpora/pairs.py
    folder = prepare(corpus, cache, vocab_size=8000)   # trains the BPE and encodes, once
    batches = Batches(Pairs(folder, "train"), batch_tokens=4096, seed=1)
    src, tgt_in, tgt_out = batches.shard(step=0, shard=0, num_shards=1, device=device)

The batch of each step is a deterministic function of the corpus, the seed and the step number,
so every rank can compute it without communication.
"""

import hashlib
import json
import math
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from support.common.errors import UserError

PAD, BOS, EOS = 0, 1, 2
FORMAT = 1  # of the encoded corpus: raise it where the same text would be stored otherwise
BPE_PAIRS = 1_000_000  # as many pairs are enough to learn a BPE
VALID_PAIRS = 1000  # held out of training where there is no validation part
MIN_ONE_IN = 20  # but at most one pair in so many
BLOCK_PAIRS = 20_000  # pairs that are encoded at a time

Pair = tuple[str, str]
PairReader = Callable[[], Iterator[Pair]]


class Corpus(Protocol):
    """What is needed of a corpus; support/corpora/pairs.py finds such corpora."""

    name: str
    parts: dict[str, PairReader]  # train; perhaps valid and test
    files: list[Path]  # for error messages

    def checksum(self) -> str:
        """Returns a checksum of what the files hold."""


# --- Byte-level BPE ---------------------------------------------------------------------------


class BPE:
    """Text to token ids and back (Sennrich et al., 2016), over bytes, so no text is unknown."""

    def __init__(self, serialized: str):
        self.serialized = serialized
        self.tokenizer = Tokenizer.from_str(serialized)
        self.tokenizer.encode_special_tokens = True  # a "<eos>" typed by a user is text
        self.vocab_size = self.tokenizer.get_vocab_size()

    @staticmethod
    def train(texts: Iterator[str], vocab_size: int, lower: bool = False) -> "BPE":
        """Learns at most `vocab_size` tokens, at least the 256 bytes and 3 special tokens.

        lower: whether every text is made lower case, also those that are encoded later.
        """
        tokenizer = Tokenizer(models.BPE())
        tokenizer.normalizer = normalizers.Lowercase() if lower else None
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=["<pad>", "<bos>", "<eos>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts, trainer)
        return BPE(tokenizer.to_str())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the token ids of each text, without bos, eos and white space around it."""
        stripped = [text.strip() for text in texts]
        return [encoding.ids for encoding in self.tokenizer.encode_batch_fast(stripped)]

    def decode(self, ids: list[int]) -> str:
        """Returns the text of token ids, on one line."""
        return " ".join(self.tokenizer.decode(ids).split())


# --- The encoded corpus on disk ---------------------------------------------------------------


def prepare(
    corpus: Corpus,
    cache: Path,
    vocab_size: int = 8000,
    max_length: int = 128,
    bpe: str | None = None,
) -> Path:
    """Encodes a corpus into a folder, which any number of processes can map, and returns it.

    The folder, in `cache`, is named by a hash of the corpus, of `max_length` and of the BPE, so
    a later call finds it. bpe: a serialized BPE, as of a run that is resumed; without it, one
    of `vocab_size` tokens is trained. Without a validation part, about 1,000 pairs (at most one
    in 20) are held out of training. A hash of the source chooses them, so that equal sentences
    stay together. Raises UserError.
    """
    checksum = corpus.checksum()  # reads all files

    def encoded_folder(bpe: str | None) -> Path:
        description = [FORMAT, corpus.name, checksum, vocab_size, max_length, bpe]
        return name_folder(cache, corpus.name, description)

    # The BPE that is passed may be the one that was trained here.
    own_folder = encoded_folder(None)
    if is_complete(own_folder) and read_bpe(own_folder) == bpe:
        return own_folder
    return make_once(
        encoded_folder(bpe),
        lambda partial: encode_corpus(corpus, partial, vocab_size, max_length, bpe),
    )


def name_folder(cache: Path, name: str, description: list) -> Path:
    """Returns the folder of an encoded corpus: NAME-HASH, by a hash of all it is made of."""
    digest = hashlib.sha256(json.dumps(description).encode()).hexdigest()
    return cache / f"{name}-{digest[:16]}"


def is_complete(folder: Path) -> bool:
    """Returns whether a folder has a whole encoded corpus."""
    return (folder / "meta.json").is_file()


def make_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Returns `folder` with what `write` has written there, now or earlier. Raises UserError.

    It is written under another name and renamed, so what is there is whole.
    """
    if is_complete(folder):
        return folder
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="partial-") as name:
            partial = Path(name)
            write(partial)
            try:
                partial.rename(folder)
            except OSError:  # perhaps another run has made the same folder meanwhile
                if not is_complete(folder):
                    raise
    except OSError as problem:
        raise UserError(
            f"the encoded corpus cannot be written to {cache} ({problem.strerror}); set "
            f"XDG_CACHE_HOME to another folder"
        ) from problem
    return folder


def encode_corpus(
    corpus: Corpus, folder: Path, vocab_size: int, max_length: int, bpe: str | None
) -> None:
    """Writes bpe.json, the encoded parts, and meta.json, which counts what is in them."""
    sizes = {part: count_pairs(corpus, part) for part in corpus.parts}
    readers = dict(corpus.parts)
    hold_out = "valid" not in corpus.parts
    if hold_out:
        one_in = max(MIN_ONE_IN, sizes["train"] // VALID_PAIRS)
        readers["train"] = partial(select_pairs, corpus, one_in, held_out=False)
        readers["valid"] = partial(select_pairs, corpus, one_in, held_out=True)
    if bpe:
        encoder = BPE(bpe)
    else:
        stride = math.ceil(sizes["train"] / BPE_PAIRS)
        sample = islice(readers["train"](), 0, None, stride)
        encoder = BPE.train((text.strip() for pair in sample for text in pair), vocab_size)
    (folder / "bpe.json").write_text(encoder.serialized, encoding="utf-8")
    parts = {}
    for part in ("train", "valid", "test"):
        if part not in readers:
            continue
        counts = encode_part(readers[part](), encoder, folder / part, max_length)
        if not counts["pairs"]:
            hint = "; pass one with --valid" if hold_out and part == "valid" else ""
            raise UserError(
                f"{corpus.name}: no sentence pair is left for the {part} part "
                f"({counts['empty']:,} with an empty side, {counts['too_long']:,} longer than "
                f"--max-length {max_length}){hint}"
            )
        parts[part] = counts
    meta = {"name": corpus.name, "held_out": hold_out, "parts": parts}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def count_pairs(corpus: Corpus, part: str) -> int:
    """Reads a whole part, so that an error in it is found before anything is written."""
    count = sum(1 for _ in corpus.parts[part]())
    if not count:
        files = ", ".join(map(str, corpus.files))
        raise UserError(f"the {part} part of {corpus.name} is empty: {files}")
    return count


def select_pairs(corpus: Corpus, one_in: int, held_out: bool) -> Iterator[Pair]:
    """Yields those pairs of the training part that are held out, or those that are not."""
    for src, tgt in corpus.parts["train"]():
        is_held_out = zlib.crc32(src.encode()) % one_in == 0
        if is_held_out == held_out:
            yield src, tgt


def encode_part(pairs: Iterator[Pair], bpe: BPE, path: Path, max_length: int) -> dict[str, Any]:
    """Writes a part as flat arrays. Returns counts of its pairs and tokens, and the ids' dtype.

    PATH.src.ids has the tokens of all sentences, PATH.src.offsets where each begins and where
    the last ends; the same for tgt. All parts but train are also kept as text, with the pairs
    that are left out, because they are translated and scored later.
    """
    dtype = np.dtype(np.uint16 if bpe.vocab_size <= 1 << 16 else np.uint32)
    counts = {"pairs": 0, "too_long": 0, "empty": 0}
    ends = {"src": 0, "tgt": 0}  # where the next sentence begins
    for side in ends:
        append(f"{path}.{side}.offsets", np.zeros(1, np.int64).tobytes())
    while block := list(islice(pairs, BLOCK_PAIRS)):
        texts = dict(zip(ends, zip(*block)))
        if path.name != "train":
            for side in ends:
                lines = "".join(text + "\n" for text in texts[side])
                append(f"{path}.{side}.txt", lines.encode())
        kept = []
        for src, tgt in zip(bpe.encode(texts["src"]), bpe.encode(texts["tgt"])):
            if not src or not tgt:
                counts["empty"] += 1
            elif max(len(src), len(tgt)) + 1 > max_length:  # with the end mark
                counts["too_long"] += 1
            else:
                kept.append((src, tgt))
        counts["pairs"] += len(kept)
        for side, sentences in zip(ends, zip(*kept)):
            lengths = np.array([len(ids) for ids in sentences], dtype=np.int64)
            ids = np.fromiter(chain.from_iterable(sentences), dtype)
            append(f"{path}.{side}.ids", ids.tobytes())
            append(f"{path}.{side}.offsets", (ends[side] + lengths.cumsum()).tobytes())
            ends[side] += len(ids)
    tokens = sum(ends.values()) + 2 * counts["pairs"]  # with end marks
    return {**counts, "tokens": tokens, "dtype": dtype.name}


def append(path: str, content: bytes) -> None:
    """Appends to a file, which is made if it is not there."""
    with open(path, "ab") as file:
        file.write(content)


def read_bpe(folder: Path) -> str:
    """Returns the serialized BPE of an encoded corpus."""
    return (folder / "bpe.json").read_text(encoding="utf-8")


def read_text(folder: Path, part: str, side: str) -> list[str]:
    """Returns the lines of a part that was kept as text. side: "src" or "tgt"."""
    # As bytes: in text mode a lone carriage return would end a line as well.
    return (folder / f"{part}.{side}.txt").read_bytes().decode().split("\n")[:-1]


class Pairs:
    """One part of an encoded corpus, mapped from disk: all processes share the same memory."""

    def __init__(self, folder: Path, part: str):
        self.counts = json.loads((folder / "meta.json").read_text())["parts"][part]
        self.sides = []
        for side in ("src", "tgt"):
            offsets = np.memmap(folder / f"{part}.{side}.offsets", dtype=np.int64, mode="r")
            ids = np.memmap(folder / f"{part}.{side}.ids", dtype=self.counts["dtype"], mode="r")
            self.sides.append((ids, offsets))

    def __len__(self) -> int:
        return self.counts["pairs"]

    def lengths(self, rows: np.ndarray) -> list[np.ndarray]:
        """Returns source and target lengths, (rows,) each, in tokens with the end mark."""
        return [offsets[rows + 1] - offsets[rows] + 1 for _, offsets in self.sides]

    def targets(self, rows: np.ndarray) -> int:
        """Returns the number of target tokens in pairs, without padding."""
        return int(self.lengths(rows)[1].sum())

    def batch(
        self, rows: np.ndarray, src_width: int = 0, tgt_width: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """Returns (src, tgt_in, tgt_out): int64, (rows, src_width) and twice (rows, tgt_width).

        A width of 0 is that of the longest sentence. Without rows it returns one row of
        padding, so that a process with nothing to do still takes the step.
        """
        src = self.pad_side(0, rows, src_width)
        tgt = self.pad_side(1, rows, tgt_width)
        tgt_in = tgt[:, :-1].masked_fill(tgt[:, :-1] == EOS, PAD)
        return src[:, 1:].contiguous(), tgt_in, tgt[:, 1:].contiguous()

    def pad_side(self, side: int, rows: np.ndarray, width: int) -> torch.Tensor:
        """Returns bos, the tokens, eos and padding: int64, (rows, 1 + width)."""
        ids, offsets = self.sides[side]
        starts = offsets[rows]
        lengths = offsets[rows + 1] - starts  # without eos
        if not width:
            width = 1 + int(lengths.max(initial=0))
        padded = np.full((max(len(rows), 1), 1 + width), PAD, dtype=np.int64)
        if len(rows):
            columns = np.arange(width)
            indices = np.minimum(starts[:, None] + columns, len(ids) - 1)  # of the last row
            padded[:, 0] = BOS
            padded[:, 1:] = np.where(columns < lengths[:, None], ids[indices], PAD)
            padded[np.arange(len(rows)), 1 + lengths] = EOS
        return torch.from_numpy(padded)


# --- Batches ----------------------------------------------------------------------------------

BLOCK_SIZE = (
    1 << 20
)  # examples that are sorted at a time, so that a large corpus fits in memory


def group_by_length(
    lengths: list[np.ndarray], batch_tokens: int, rng: np.random.Generator, batch_size: int = 0
) -> list[np.ndarray]:
    """Cuts examples into steps of like length, so that little padding is needed.

    lengths: (examples,) of each side, in tokens. A step takes `batch_size` examples, or, if
    that is 0, as many as fit in `batch_tokens` tokens of the longer side. Examples of equal
    lengths are shuffled by `rng`. The number of examples depends on the length alone, and is a
    multiple of 8 from 32 on: few distinct shapes occur, and processes get equal shares.
    """
    longer = np.maximum(lengths[0], lengths[-1])
    difference = lengths[0] - lengths[-1]
    shuffled = rng.permutation(len(longer))
    order = np.lexsort((shuffled, difference, longer))[
        ::-1
    ]  # by the last key first, descending
    steps = []
    start = 0
    while start < len(order):
        size = batch_size
        if not size:
            size = max(1, batch_tokens // int(longer[order[start]]))
            if size >= 32:
                size -= size % 8
        steps.append(order[start : start + size])
        start += size
    return steps


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
        self.plan = lru_cache(maxsize=2)(self.plan_block)
        steps_of_blocks = [len(self.plan(0, block)) for block in range(self.num_blocks)]
        self.block_starts = np.cumsum([0, *steps_of_blocks])  # the first step of each block
        self.executor = ThreadPoolExecutor(max_workers=1)
        self.prefetched: dict[tuple[int, int], Future] = {}  # by step and shard

    def __len__(self) -> int:
        """Returns the number of steps in an epoch: the same in each, as lengths decide it."""
        return int(self.block_starts[-1])

    def plan_block(self, epoch: int, block: int) -> list[np.ndarray]:
        """Returns the examples of each step in one block of an epoch, in random order."""
        rng = np.random.default_rng([self.seed, epoch, block])
        rows = np.arange(block, len(self.examples), self.num_blocks)
        lengths = self.examples.lengths(rows)
        steps = group_by_length(lengths, self.batch_tokens, rng, self.batch_size)
        return [rows[steps[i]] for i in rng.permutation(len(steps))]

    def rows(self, step: int) -> np.ndarray:
        """Returns which examples a step has, (examples,); steps count on over the epochs."""
        epoch, step_of_epoch = divmod(step, len(self))
        block = int(np.searchsorted(self.block_starts, step_of_epoch, side="right")) - 1
        return self.plan(epoch, block)[step_of_epoch - self.block_starts[block]]

    def targets(self, step: int) -> int:
        """Returns how many targets a step has in all shards: what its loss is divided by."""
        return self.examples.targets(self.rows(step))

    def shard(
        self, step: int, shard: int, num_shards: int, device: torch.device
    ) -> tuple[torch.Tensor, ...]:
        """Returns one shard of a step's examples as tensors on `device`.

        Shard i of n holds the step's examples i, i + n, i + 2n, ... All shards have the same
        widths. For a GPU, the same shard of the next step is made meanwhile, in a thread, and
        the copy to the GPU does not wait for what the GPU is computing.
        """
        if device.type != "cuda":
            return self.make_shard(step, shard, num_shards)
        prefetched = self.prefetched.pop((step, shard), None)
        following = self.executor.submit(self.make_shard, step + 1, shard, num_shards, True)
        self.prefetched[step + 1, shard] = following
        if prefetched is None:
            batch = self.make_shard(step, shard, num_shards, pin_memory=True)
        else:
            batch = prefetched.result()
        return tuple(tensor.to(device, non_blocking=True) for tensor in batch)

    def make_shard(
        self, step: int, shard: int, num_shards: int, pin_memory: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Makes a shard in the CPU's memory, which is pinned if it is to be copied to a GPU."""
        rows = self.rows(step)
        widths = [int(lengths.max()) for lengths in self.examples.lengths(rows)]
        batch = self.collate(rows[shard::num_shards], widths, epoch=step // len(self))
        if pin_memory:
            return tuple(tensor.pin_memory() for tensor in batch)
        return batch

    def collate(
        self, rows: np.ndarray, widths: list[int], epoch: int
    ) -> tuple[torch.Tensor, ...]:
        """Makes tensors of examples; a classifier's may look different in each epoch."""
        return self.examples.batch(rows, *widths)
