"""One BPE for both languages, the encoded corpus on disk, and the batches of every step.

    corpus = find_corpus("multi30k")                   # in support/corpora/pairs.py
    folder = prepare(corpus, cache, vocab_size=8000)   # trains the BPE and encodes, once
    batches = Batches(Pairs(folder, "train"), batch_tokens=4096, seed=1)
    src, tgt_in, tgt_out = batches.shard(step=0, shard=0, num_shards=1, device=torch.device("cpu"))

The batch of each step is a deterministic function of the corpus, the seed and the step number,
so every rank can compute it without communication.
"""

import hashlib
import json
import math
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from support.common.errors import UserError

PAD, BOS, EOS = 0, 1, 2
FORMAT = 1  # of the encoded corpus: raise it where the same text would be stored otherwise


# --- Byte-level BPE ---------------------------------------------------------------------------


class BPE:
    """Text to token ids and back (Sennrich et al., 2016), over bytes: no text is unknown to it."""

    def __init__(self, serialized: str):
        self.serialized = serialized
        self.tokenizer = Tokenizer.from_str(serialized)
        self.tokenizer.encode_special_tokens = True  # a "<eos>" typed by a user is text
        self.vocab_size = self.tokenizer.get_vocab_size()

    @staticmethod
    def train(texts: Iterator[str], vocab_size: int, lower: bool = False) -> "BPE":
        """Learns at most `vocab_size` tokens (at least the 256 bytes and 3 marks) from `texts`.

        lower: it makes every text lower case first, also those that it encodes later.
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

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token ids of each text, without bos and eos; white space around a text is left out."""
        return [
            e.ids for e in self.tokenizer.encode_batch_fast([text.strip() for text in texts])
        ]

    def decode(self, ids: list[int]) -> str:
        """The text of token ids, on one line."""
        return " ".join(self.tokenizer.decode(ids).split())


# --- The encoded corpus on disk ---------------------------------------------------------------


def prepare(
    corpus, cache: Path, vocab_size: int = 8000, max_length: int = 128, bpe: str | None = None
) -> Path:
    """Encodes a corpus into a folder that any number of processes can map, and returns the folder.

    corpus: has a `name`, a `checksum()`, and `parts`, a reader of sentence pairs for train,
    valid and test. The folder, in `cache`, is named by a hash of the corpus, the BPE (or how to
    train it) and `max_length`, so a later call finds it. Without a validation part, about 1,000
    pairs (at most one in 20) are held out of training, chosen by a hash of their source so that
    equal sentences stay together. Raises UserError.
    """
    checksum = corpus.checksum()  # of a large corpus it takes a while
    for how in (None, bpe):  # a given BPE may be the one that was trained
        made_of = [FORMAT, corpus.name, checksum, vocab_size, max_length, how]
        folder = name_folder(cache, corpus.name, made_of)
        if (folder / "meta.json").is_file() and bpe in (how, read_bpe(folder)):
            return folder
    return make_once(
        folder, lambda partial: encode(corpus, partial, vocab_size, max_length, bpe)
    )


def name_folder(cache: Path, name: str, made_of: list) -> Path:
    """Where in `cache` an encoded corpus is kept, by a hash of all it is made of."""
    return cache / f"{name}-{hashlib.sha256(json.dumps(made_of).encode()).hexdigest()[:16]}"


def make_once(folder: Path, write: Callable[[Path], None]) -> Path:
    """Returns `folder` as `write` has filled it, now or earlier; meta.json is its last file.

    It is filled under another name and renamed, so what is there is whole. Raises UserError.
    """
    if (folder / "meta.json").is_file():
        return folder
    cache = folder.parent
    try:
        cache.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=cache, prefix="partial-"))
    except OSError as problem:
        raise UserError(
            f"{cache}: the encoded corpus cannot be kept there ({problem.strerror}); "
            f"XDG_CACHE_HOME names another place"
        ) from problem
    try:
        write(partial)
        try:
            partial.rename(folder)
        except OSError:  # another run made the same folder meanwhile
            if not (folder / "meta.json").is_file():
                raise
    except OSError as problem:
        raise UserError(
            f"the encoded corpus cannot be written to {cache} ({problem})"
        ) from problem
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def encode(corpus, folder: Path, vocab_size: int, max_length: int, bpe: str | None) -> None:
    """Writes bpe.json, the encoded parts, and meta.json, which counts what is in them."""
    pairs = {part: count_pairs(corpus, part) for part in corpus.parts}
    held_out = (
        0 if "valid" in corpus.parts else max(20, pairs["train"] // 1000)
    )  # one in so many
    stride = -(-pairs["train"] // 1_000_000)  # a million pairs are enough to learn a BPE

    def split(part: str) -> Iterator[tuple[str, str]]:
        for pair in corpus.parts["train" if held_out and part == "valid" else part]():
            is_valid = held_out and zlib.crc32(pair[0].encode()) % held_out == 0
            if not held_out or part == "test" or is_valid == (part == "valid"):
                yield pair

    texts = (text.strip() for pair in islice(split("train"), 0, None, stride) for text in pair)
    encoder = BPE(bpe) if bpe else BPE.train(texts, vocab_size)
    (folder / "bpe.json").write_text(encoder.serialized, encoding="utf-8")
    meta = {"name": corpus.name, "held_out": bool(held_out), "parts": {}}
    for part, purpose in (
        ("train", "train on"),
        ("valid", "validate on (--valid names some)"),
        ("test", "test on"),
    ):
        if part in corpus.parts or part == "valid":
            counts = encode_part(split(part), encoder, folder / part, max_length)
            if not counts["pairs"]:
                raise UserError(
                    f"{corpus.name}: no sentence pair to {purpose} "
                    f"({counts['empty']:,} with an empty side, "
                    f"{counts['too_long']:,} longer than --max-length {max_length})"
                )
            meta["parts"][part] = counts
    (folder / "meta.json").write_text(json.dumps(meta, indent=1))


def count_pairs(corpus, part: str) -> int:
    """Reads a whole part, so that what is wrong with it is said before anything is made of it."""
    count = sum(1 for _ in corpus.parts[part]())
    if not count:
        files = ", ".join(map(str, corpus.files))
        raise UserError(f"the {part} part of {corpus.name} is empty: {files}")
    return count


def encode_part(
    pairs: Iterator[tuple[str, str]], bpe: BPE, path: Path, max_length: int
) -> dict:
    """Writes PATH.src.ids, PATH.src.offsets and the same for tgt: flat arrays.

    It takes 20,000 pairs at a time. The parts that are translated and scored later, all but the
    training part, are kept as text too.
    """
    dtype = np.uint16 if bpe.vocab_size <= 1 << 16 else np.uint32
    counts = {"pairs": 0, "too_long": 0, "empty": 0, "tokens": 0, "dtype": np.dtype(dtype).name}
    ends = {"src": 0, "tgt": 0}
    kinds = ("ids", "offsets") if path.name == "train" else ("ids", "offsets", "txt")
    names = [f"{side}.{kind}" for side in ends for kind in kinds]
    files = {name: open(f"{path}.{name}", "wb") for name in names}
    for side in ends:
        files[f"{side}.offsets"].write(np.zeros(1, np.int64).tobytes())
    while block := list(islice(pairs, 20_000)):
        sides = [bpe.encode([pair[i] for pair in block]) for i in (0, 1)]
        kept = []
        for pair in zip(*sides):
            shortest, longest = sorted(map(len, pair))
            counts["empty"] += shortest == 0
            counts["too_long"] += shortest > 0 and longest >= max_length  # one is the end mark
            if shortest > 0 and longest < max_length:
                kept.append(pair)
        for side, sentences in zip(ends, zip(*kept)):
            lengths = np.array([len(ids) for ids in sentences], dtype=np.int64)
            flat = np.concatenate([np.array(ids, dtype=dtype) for ids in sentences])
            files[f"{side}.ids"].write(flat.tobytes())
            files[f"{side}.offsets"].write((ends[side] + lengths.cumsum()).tobytes())
            ends[side] += int(lengths.sum())
        counts["pairs"] += len(kept)
        for i, side in enumerate(ends if "txt" in kinds else ()):
            files[f"{side}.txt"].write("".join(pair[i] + "\n" for pair in block).encode())
    for file in files.values():
        file.close()
    return counts | {"tokens": sum(ends.values()) + 2 * counts["pairs"]}


def read_bpe(folder: Path) -> str:
    """The serialized BPE of an encoded corpus."""
    return (folder / "bpe.json").read_text(encoding="utf-8")


def read_text(folder: Path, part: str, side: str) -> list[str]:
    """The lines of a part that was kept as text; `side` is src or tgt.

    Read as bytes: in text mode a lone carriage return would end a line as well.
    """
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
        """Source and target lengths of the pairs `rows`, (rows,) each, in tokens with end mark."""
        return [offsets[rows + 1] - offsets[rows] + 1 for _, offsets in self.sides]

    def targets(self, rows: np.ndarray) -> int:
        """Target tokens of the pairs `rows`, without padding."""
        return int(self.lengths(rows)[1].sum())

    def batch(
        self, rows: np.ndarray, src_width: int = 0, tgt_width: int = 0
    ) -> tuple[torch.Tensor, ...]:
        """(src, tgt_in, tgt_out): (rows, src_width) and twice (rows, tgt_width), int64, padded.

        A width of 0: the longest sentence's. Without rows it returns one row of padding, so
        that a process with nothing to do still takes the step.
        """
        padded, widths = [], (src_width, tgt_width)
        for (ids, offsets), width, lengths in zip(self.sides, widths, self.lengths(rows)):
            width = width or int(lengths.max(initial=1))
            out = np.full((max(len(rows), 1), width + 1), PAD, dtype=np.int64)
            if len(rows):
                column, length = np.arange(width)[None], lengths[:, None] - 1
                at = np.minimum(offsets[rows][:, None] + column, len(ids) - 1)
                out[:, 1:] = np.where(column < length, ids[at], PAD)
                out[np.arange(len(rows)), lengths] = EOS
                out[:, 0] = BOS
            padded.append(torch.from_numpy(out))
        src, tgt = padded
        tgt_in = tgt[:, :-1].masked_fill(tgt[:, :-1] == EOS, PAD)
        return src[:, 1:].contiguous(), tgt_in, tgt[:, 1:].contiguous()


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
