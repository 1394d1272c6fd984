"""Reading and writing small files, and waiting until files are on the disk."""

import csv
import errno
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# What is written does not reach the disk. Other errors come from file systems that cannot sync:
# some of networks, and FUSE.
LOST = {errno.EIO, errno.ENOSPC, errno.EDQUOT}
READERS_TIMEOUT = 10  # seconds: how long a reader may keep a file from being replaced


def read_json(path: Path) -> Any:
    """Returns what a JSON file holds. Raises OSError and ValueError."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, content: dict | list) -> None:
    """Writes a JSON file, as `write_text` does."""
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Writes a text as `replacing` does."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


def write_csv(path: Path, rows: Iterable[Iterable[Any]]) -> None:
    """Writes a table as `replacing` does."""
    with (
        replacing(path) as partial,
        partial.open("w", encoding="utf-8", newline="") as file,
    ):
        csv.writer(file, lineterminator="\n").writerows(rows)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields another name for the block to write to, then renames it to `path`.

    A reader finds the whole file or none. If `path` is a link, it is replaced, and what it
    leads to stays as it is.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # of this process alone
    partial.unlink(missing_ok=True)  # it may be a link, too
    try:
        yield partial
        replace(partial, path)
    except BaseException:  # the disk may be full, or the run be stopped
        partial.unlink(missing_ok=True)
        raise


def sync(descriptor: int) -> None:
    """Waits until an open file is on the disk, if its file system can do that."""
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno in LOST:
            raise


def sync_folder(path: Path) -> None:
    """Waits until the names in a folder are on the disk, if its file system can do that."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:  # Windows opens no folders, nor do some file systems
        return
    try:
        sync(descriptor)
    finally:
        os.close(descriptor)


def replace(partial: Path, path: Path) -> None:
    """Renames a file or folder to `path`.

    Windows refuses while another process has one of them open: some time is waited for that.
    """
    end = time.monotonic() + READERS_TIMEOUT
    while True:
        try:
            partial.replace(path)
            return
        except PermissionError as problem:
            if sys.platform != "win32":
                raise
            if time.monotonic() > end:
                reason = "another program has it open, which has to close it"
                raise PermissionError(problem.errno, reason, str(path)) from problem
        time.sleep(0.1)
