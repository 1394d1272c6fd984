"""The folder of a run, logs/NAME: its name, its lock, and nothing in it overwritten."""

import contextlib
import os
import re
import sys
import time
from pathlib import Path
from typing import IO

from support.common.errors import UserError, as_user_error
from support.common.files import read_json
from support.common.paths import LOGS

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

LOCK = ".lock"
# Names that stand for devices in Windows, and the last dot, which it leaves out.
RESERVED = re.compile(r"(?i)((con|prn|aux|nul|com\d|lpt\d)(\..*)?|.*\.)")
LOCK_TIMEOUT = 20  # seconds: a run that was just stopped may still be saving


def check_name(name: str) -> str:
    """Returns the name of a run, which has to stay within logs/. Raises UserError."""
    name = name.replace(os.sep, "/").removeprefix(f"{LOGS}/")
    if not name:
        return name
    if sys.platform == "win32" and any(map(RESERVED.fullmatch, name.split("/"))):
        raise UserError(f"--name {name!r}: Windows has no folder of this name; choose another")
    is_valid = re.fullmatch(r"[\w.+=,@-]+(/[\w.+=,@-]+)*", name) and ".." not in name.split("/")
    if not is_valid:
        raise UserError(
            f"--name {name!r}: letters, digits and ._-+=,@ only; / for folders in logs/"
        )
    return name


def make_folder(folder: Path, corpus: str) -> str:
    """Makes the folder of a new run; a run without a name gets the next free logs/CORPUS-N."""
    LOGS.mkdir(exist_ok=True)
    if folder == LOGS:
        return make_numbered_folder(corpus)
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "config.json"
    with as_user_error(f"{config}: damaged; choose another --name"):
        was_saved = config.is_file() and read_json(config)["saved"]
    if was_saved or (folder / "summary.json").is_file():
        raise UserError(
            f"{folder} is a run whose checkpoint last.pt is missing. It cannot be resumed, "
            f"and is not overwritten: choose another --name"
        )
    return str(folder)


def make_numbered_folder(corpus: str) -> str:
    """Makes logs/CORPUS-1, or with the first number that is free, and returns it."""
    prefix = re.sub(r"[^\w.+=,@-]", "-", corpus) or "run"  # easy to type after --resume
    number = 1
    while True:
        folder = LOGS / f"{prefix}-{number}"
        try:
            folder.mkdir()
            return str(folder)
        except FileExistsError:
            number += 1


def lock_folder(folder: Path, is_new: bool) -> IO[str]:
    """Locks a run's folder until the returned file is closed: no other run writes to it.

    The lock also ends when the process is killed. On a file system without locks nothing is
    locked.

    is_new: whether there was no checkpoint when the flags were read. Raises UserError if
    another run is writing, or if there is a checkpoint by now.
    """
    # Open as long as the run. Nothing is written to it, nor to what it is perhaps a link to.
    file = open(folder / LOCK, "a", encoding="utf-8")  # noqa: SIM115
    end = time.monotonic() + LOCK_TIMEOUT
    while not try_to_lock(file):
        if time.monotonic() > end:
            raise UserError(f"{folder}: another run is writing to it")
        time.sleep(0.1)
    if is_new and (folder / "last.pt").is_file():
        raise UserError(f"{folder}: a run that was ending has just saved it; start again")
    return file


def try_to_lock(file: IO) -> bool:
    """Locks an open file, and returns False if another process has the lock."""
    try:
        if sys.platform == "win32":
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # of one byte, the first
        else:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError as problem:  # others: a file system without locks
        return not isinstance(problem, BlockingIOError | PermissionError)


def remove_if_empty(folder: str) -> None:
    """Removes a run's folder if it has nothing but a lock, and then its parent if empty."""
    if not folder:
        return
    path = Path(folder)
    with contextlib.suppress(OSError), open(path / LOCK, "rb") as file:
        if try_to_lock(file) and os.listdir(path) == [LOCK]:
            if sys.platform == "win32":
                file.close()  # Windows removes no file that a process has open
            (path / LOCK).unlink()
    for empty in (path, path.parent):
        with contextlib.suppress(OSError):
            empty.rmdir()
