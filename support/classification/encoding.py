"""Labelled examples, texts or images: held out of training, and encoded on disk once."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from data import append_ids
from support.classification.corpus import Labelled, Reader, classes_of
from support.classification.images import ImageTransform, read_image
from support.classification.text_tokenizers import train_tokenizer
from support.common.errors import UserError
from support.common.files import write_json
from support.corpora.encoded import (
    CHARACTERS_PER_TOKEN,
    encoded_folder,
    in_order,
    make_once,
    with_progress,
)
from support.corpora.held_out import (
    choose_held_out,
    count_shared,
    hash_bytes,
    hash_text,
    hold_out,
)

FORMAT = 20  # version of the files; increase it when examples are read or stored differently
BLOCK = 1000  # windows encoded at once, each of at most about 5 KiB per token of max_length
VALID_EXAMPLES = 2000  # held out if there is no validation set,
ONE_IN = 20  # but at most one of so many examples, and at least one in all
MAX_SHOWN = 20  # of the images that cannot be read


def prepare_labelled(
    corpus: Labelled,
    cache: Path,
    tokenizer: str,
    max_length: int,
    vocab_size: int,
    kind: str = "bpe",
    windows: int = 1,
) -> Path:
    """Encodes a labelled corpus into a folder that any number of processes can map.

    Returns the folder. tokenizer: serialized, or "": then one of at most `vocab_size` tokens is
    trained, of this kind: see `train_tokenizer`. max_length, windows: see `encode_texts`.
    Raises UserError.
    """
    sizes = (max_length, windows, vocab_size)
    description = [FORMAT, corpus.name, corpus.checksum, *sizes, kind]
    folder = encoded_folder(cache, corpus.name, description, tokenizer)
    write = partial(encode, corpus, tokenizer, *sizes, kind)
    return make_once(folder, write)


def encode(
    corpus: Labelled,
    serialized: str,
    max_length: int,
    windows: int,
    vocab_size: int,
    kind: str,
    folder: Path,
) -> dict[str, Any]:
    """Writes flat files of each part, and a tokenizer of texts; returns meta.json's content."""
    classes = classes_of(corpus)
    numbers = {name: i for i, name in enumerate(classes)}
    is_held_out = "valid" not in corpus.parts
    parts = hold_out_labelled(corpus)
    write: Callable[[Iterator, Path], dict]
    if corpus.modality == "image" and corpus.transform:
        write = partial(write_images, transform=corpus.transform)
    else:
        count = corpus.class_counts.total()
        serialized = serialized or train_tokenizer(parts["train"], count, kind, vocab_size)
        (folder / "tokenizer.json").write_text(serialized, encoding="utf-8")
        tokenizer = Tokenizer.from_str(serialized)
        encode_block = partial(encode_texts, tokenizer, max_length=max_length, windows=windows)
        block_size = max(1, BLOCK // windows)
        write = partial(write_texts, encode_block=encode_block, block_size=block_size)
    counts_of_parts = {}
    shared = {}
    if corpus.modality == "text":  # the files of images would have to be read once more
        # A validation set that was held out is not compared: it has nothing in common.
        compared = corpus.parts | {"train": parts["train"]}
        shared = count_shared(compared, lambda labelled: hash_example(labelled[0]))
    for part in in_order(parts):
        examples = with_progress(parts[part](), f"{corpus.name}, {part}: examples encoded")
        numbered = with_numbers(examples, numbers, f"{corpus.name}: the {part} set")
        counts = write(numbered, folder / part)
        if not counts["examples"]:
            hint = ""
            if is_held_out and part == "valid":
                hint = ": too few differ to hold some out of training; pass one with --valid"
            raise UserError(f"{corpus.name}: the {part} set has no example{hint}")
        counts_of_parts[part] = counts | {"in_training": shared.get(part, 0)}
    return {
        "name": corpus.name,
        "modality": corpus.modality,
        "classes": classes,
        "held_out": is_held_out,
        "parts": counts_of_parts,
    }


def with_numbers(
    examples: Iterable[tuple[Any, str]], numbers: dict[str, int], source: str
) -> Iterator[tuple[Any, int]]:
    """Yields each example with the number of its class. Raises UserError for another class."""
    for example, name in examples:
        if name not in numbers:
            raise UserError(
                f"{source} has the class {name!r}, which is none of {', '.join(numbers)[:120]}"
            )
        yield example, numbers[name]


def hold_out_labelled(corpus: Labelled) -> dict[str, Reader]:
    """Returns the readers of all parts, with some training examples held out for validation.

    If there is a validation set, none are. A hash of the example chooses them, so that equal
    examples stay together (`choose_held_out` in support/corpora/held_out.py).
    """
    if "train" not in corpus.parts or "valid" in corpus.parts:
        return corpus.parts
    read = corpus.parts["train"]
    first_of_class: dict[str, int] = {}

    def read_hashes() -> Iterator[int]:
        for example, name in read():
            code = hash_example(example)
            first_of_class.setdefault(name, code)
            yield code

    hashes = np.fromiter(read_hashes(), np.uint32)
    # The first example of each class is trained on, so that every class is known. An empty text
    # would be chosen before others, since its hash is 0.
    trained = [hash_text(""), *first_of_class.values()]
    others = hashes[~np.isin(hashes, trained)]
    chosen = choose_held_out(others, min(VALID_EXAMPLES, len(hashes) // ONE_IN))
    return corpus.parts | hold_out(read, hashes, chosen)


def hash_example(example: str | Path | np.ndarray) -> int:
    """Returns a number of 32 bits for a text or an image; case does not count in a text."""
    if isinstance(example, str):
        return hash_text(example.lower())
    if isinstance(example, Path):
        return hash_bytes(example.read_bytes())
    return hash_bytes(example.tobytes())


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, windows: int = 1
) -> tuple[list[list[int]], int]:
    """Returns the token ids of each text, and how many texts lost their middle.

    A text has as many windows of `max_length` tokens as it needs, at most `windows`, one after
    another. Each has the tokenizer's special tokens, of which there must be fewer. With
    `windows` > 1, each begins with the same first tokens of the text, often a title. The rest
    of the text is divided among the windows (`divide`). A text that does not fit keeps its
    first and last tokens, which often tell more than those in the middle.
    """
    tokenizer.encode_special_tokens = True  # a "[PAD]" in a text is text
    before, after = special_tokens(tokenizer)
    size = max_length - len(before) - len(after)  # of a window, without special tokens
    num_first = size // 4 if windows > 1 else 0
    num_new = size - num_first
    max_tokens = num_first + windows * num_new
    num_last = max_tokens // 2
    half = CHARACTERS_PER_TOKEN * math.ceil(max_tokens / 2)
    # Without the middle of a long text, which is cut out below, encoding takes less time.
    short_texts = [text[:half] + text[half:][-half:] for text in map(str.strip, texts)]
    num_cut = 0
    ids_of_texts = []
    for encoding in tokenizer.encode_batch(short_texts, add_special_tokens=False):
        ids = encoding.ids
        if len(ids) > max_tokens:
            num_cut += 1
            ids = ids[: max_tokens - num_last] + ids[len(ids) - num_last :]
        first, rest = ids[:num_first], ids[num_first:]
        ids_of_windows = []
        for piece in divide(rest, num_new):
            ids_of_windows += [*before, *first, *piece, *after]
        ids_of_texts.append(ids_of_windows)
    return ids_of_texts, num_cut


def divide(ids: list[int], size: int) -> list[list[int]]:
    """Returns consecutive pieces of `size` ids, or one shorter piece if there are fewer.

    The last piece overlaps the one before, so that it is full.
    """
    last_start = max(0, len(ids) - size)
    starts = [*range(0, last_start, size), last_start]
    return [ids[start : start + size] for start in starts]


def longest_text(max_length: int, windows: int) -> str:
    """Returns in words how much of a text `encode_texts` keeps."""
    tokens = f"{max_length} tokens"
    return tokens if windows == 1 else f"{windows} windows of {tokens}"


def special_tokens(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Returns the ids of the tokens that a tokenizer puts before a text, and after it."""
    encoding = tokenizer.encode("a")
    first = encoding.special_tokens_mask.index(0)  # of the text itself
    num_after = encoding.special_tokens_mask[::-1].index(0)
    return encoding.ids[:first], encoding.ids[len(encoding.ids) - num_after :]


def write_texts(
    examples: Iterator[tuple[str, int]],
    path: Path,
    encode_block: Callable[[Sequence[str]], tuple[list[list[int]], int]],
    block_size: int,
) -> dict:
    """Writes PATH.ids, PATH.labels, (texts,), both int32, and PATH.offsets, (texts + 1,) int64.

    Returns what it counted. Raises UserError if all texts are empty.
    """
    counts = {"examples": 0, "empty": 0, "cut": 0, "tokens": 0}
    with open(f"{path}.labels", "wb") as file:
        while block := list(islice(examples, block_size)):
            texts, labels = zip(*block)
            encoded, cut = encode_block(texts)
            counts["examples"] += len(block)
            counts["empty"] += texts.count("")
            counts["cut"] += cut
            counts["tokens"] += append_ids(str(path), encoded, np.dtype(np.int32))
            file.write(np.array(labels, np.int32).tobytes())
    if counts["examples"] and not counts["tokens"]:
        raise UserError(f"the texts of the {path.name} set are all empty")
    return counts


def write_images(
    examples: Iterator[tuple[Path | np.ndarray, int]], path: Path, transform: ImageTransform
) -> dict:
    """Writes PATH.pixels, (images, channels, height, width) bytes, and PATH.labels, int32.

    Of image files it also writes PATH.files.json: their names, each with its folder's. Raises
    UserError that names all images which cannot be read.
    """
    n = transform.output_size
    count = 0
    files: list[str] = []
    problems: dict[str, str] = {}  # by the names of the files
    with open(f"{path}.pixels", "wb") as pixels, open(f"{path}.labels", "wb") as labels:
        for source, label in examples:
            try:
                pixels.write(read_image(source, transform).tobytes())
            except UserError as problem:
                problems[str(source)] = str(problem)
            labels.write(np.int32(label).tobytes())
            count += 1
            if isinstance(source, Path):
                name = f"{source.parent.name}/{source.name}"  # perhaps not UTF-8
                files.append(name.encode("utf-8", "backslashreplace").decode("utf-8"))
    if problems:
        first = next(iter(problems.values()))
        if len(problems) == 1:
            raise UserError(first)
        names = ", ".join(islice(problems, MAX_SHOWN))
        raise UserError(f"{len(problems):,} images cannot be read: {names}; {first}")
    if files:
        write_json(path.with_name(f"{path.name}.files.json"), files)
    return {"examples": count, "shape": (transform.channels, n, n)}
