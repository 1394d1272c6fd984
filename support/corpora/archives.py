"""Files as they lie on the disk: plain, packed, or in a .zip archive, read in place."""

import gzip
import zipfile
from pathlib import Path, PurePosixPath
from typing import IO

from support.common.errors import as_user_error

# The names of the files (without their endings) and folders that hold each part.
PARTS = {
    "train": ["train", "training"],
    "valid": ["val", "valid", "validation", "dev"],
    "test": ["test_2016_flickr", "test", "testing"],
}

# Of macOS, Windows, Linux, network disks and Python, in lower case; then of editors.
SYSTEM_FILES = (
    *("__macosx", "thumbs.db", "ehthumbs.db", "desktop.ini", "$recycle.bin"),
    *("system volume information", "lost+found", "@eadir", "__pycache__"),
)
BACKUPS = ("~", ".swp")
PACKED = (".bz2", ".xz", ".zst", ".7z", ".rar")  # endings of files that are not read

File = Path | zipfile.Path


def open_bytes(path: File) -> gzip.GzipFile | IO[bytes]:
    """Returns a file that is open to be read as bytes; a .gz file is unpacked."""
    if path.name.lower().endswith(".gz"):
        return gzip.GzipFile(fileobj=path.open("rb"))
    return path.open("rb")


def read_bytes(path: File, count: int = -1) -> bytes:
    """Returns the first `count` bytes of a file (.gz too), or all of them. Raises UserError."""
    with as_user_error(f"{path}: cannot be read"), open_bytes(path) as file:
        return file.read(count)


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder is never data: it is hidden, or the system's own."""
    return name.startswith(".") or name.lower() in SYSTEM_FILES or name.endswith(BACKUPS)


def zip_members(path: Path) -> list[zipfile.Path]:
    """Returns the files in a .zip archive, without hidden ones. Raises UserError."""
    with as_user_error(f"{path}: cannot be read as a .zip archive"):
        archive = zipfile.ZipFile(path)
    return [
        zipfile.Path(archive, name)
        for name in archive.namelist()
        if not name.endswith("/") and not any(map(is_hidden, PurePosixPath(name).parts))
    ]
