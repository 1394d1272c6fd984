"""Folders of encoded corpora in the cache: each is made once, and is complete or not there."""

import hashlib
import json
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from support.common.errors import UserError
from support.common.files import replace
from support.common.streams import note
from support.corpora.archives import PARTS

T = TypeVar("T")
ABANDONED = 86_400  # seconds after which no run still writes an unfinished folder
CHARACTERS_PER_TOKEN = 100  # more than in any text; longer texts are cut before encoding


def encoded_folder(cache: Path, name: str, description: list, tokenizer: str) -> Path:
    """Returns the folder in `cache` that a corpus is encoded in, now or earlier.

    description: what decides the content of the files, besides the tokenizer. tokenizer:
    serialized, or "" if one is to be trained.
    """
    # A new run passes no tokenizer, and its folder is named without one. When the run is
    # resumed, it passes the one that was trained then, and finds the same folder.
    own = name_folder(cache, name, [*description, ""])
    if tokenizer and is_encoded(own) and read_tokenizer(own) == tokenizer:
        return own
    return name_folder(cache, name, [*description, tokenizer])


def name_folder(cache: Path, name: str, description: list) -> Path:
    """Returns the folder of an encoded corpus; a hash of its description is in the name."""
    digest = hashlib.sha256(json.dumps(description).encode()).hexdigest()
    return cache / f"{name}-{digest[:16]}"


def is_encoded(folder: Path) -> bool:
    """Returns whether a folder is complete: its files have the sizes in meta.json."""
    try:
        sizes = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["sizes"]
        return all((folder / name).stat().st_size == sizes[name] for name in sizes)
    # A file is missing, or meta.json was cut short or has other content.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def make_once(folder: Path, write: Callable[[Path], dict[str, Any]]) -> Path:
    """Returns a folder that `write` fills now, or has filled earlier. Raises UserError.

    write: writes the files of a folder, and returns the content of its meta.json, to which
    their sizes in bytes are added. The folder gets its name when it is complete, so that no
    process sees it before. A folder that has been damaged since is made again.
    """
    existed = folder.exists()  # if not, another run may be making it now
    if is_encoded(folder):
        return folder
    if folder.is_symlink():
        folder.unlink()
    elif existed:
        shutil.rmtree(folder, ignore_errors=True)
    unfinished = folder.with_name(f"partial-{uuid.uuid4().hex}")
    try:
        unfinished.mkdir(parents=True)
        remove_abandoned(folder.parent)
        meta = write(unfinished)
        meta["sizes"] = {file.name: file.stat().st_size for file in unfinished.iterdir()}
        (unfinished / "meta.json").write_text(json.dumps(meta, indent=1), encoding="utf-8")
        if not is_encoded(folder):  # by another run, meanwhile
            replace(unfinished, folder)
    except OSError as problem:
        if is_encoded(folder):  # another run has made it meanwhile
            return folder
        if problem.filename and not Path(problem.filename).is_relative_to(folder.parent):
            raise  # a file of the corpus cannot be read
        raise UserError(
            f"the encoded corpus cannot be written to {folder.parent} ({problem}); "
            f"XDG_CACHE_HOME names another place"
        ) from problem
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def remove_abandoned(cache: Path) -> None:
    """Removes unfinished folders of processes that were killed."""
    for unfinished in cache.glob("partial-" + 32 * "[0-9a-f]"):
        with suppress(OSError):  # another process removes it, too
            written = max(path.stat().st_mtime for path in [unfinished, *unfinished.iterdir()])
            if time.time() - written > ABANDONED:
                shutil.rmtree(unfinished, ignore_errors=True)


def with_progress(items: Iterable[T], text: str, every: float = 30.0) -> Iterator[T]:
    """Yields the items, and prints to standard error how many, every so many seconds.

    text: what is done with them.
    """
    due = time.monotonic() + every
    for number, item in enumerate(items, start=1):
        yield item
        if time.monotonic() >= due:
            note(f"{text}: {number:,}")
            due = time.monotonic() + every


def read_tokenizer(folder: Path) -> str:
    """Returns the serialized tokenizer of an encoded corpus of texts."""
    return (folder / "tokenizer.json").read_text(encoding="utf-8")


def in_order(parts: Iterable[str]) -> list[str]:
    """Returns the parts of a corpus in the order train, valid, test."""
    return [part for part in PARTS if part in parts]
