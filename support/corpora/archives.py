"""Archives that are read where they are, and files that are never data.

Example:
    for file in zip_members(Path("deu-eng.zip")): ...  # zipfile.Path, without __MACOSX
"""

import zipfile
from pathlib import Path, PurePosixPath

from support.common.errors import UserError
from support.corpora.tables import File, ending, is_table

SYSTEM_FILES = ("__MACOSX", "Thumbs.db", "desktop.ini")  # of macOS and Windows


def is_hidden(name: str) -> bool:
    """Returns whether a file or folder is never data: it is hidden, or the system's own."""
    return name.startswith(".") or name in SYSTEM_FILES


def zip_members(path: Path) -> list[zipfile.Path]:
    """Returns the files in a .zip archive, without hidden ones. Raises UserError."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as problem:
        raise UserError(f"{path}: cannot be read as a .zip archive ({problem})") from problem
    return [
        zipfile.Path(archive, name)
        for name in archive.namelist()
        if not name.endswith("/") and not any(map(is_hidden, PurePosixPath(name).parts))
    ]


def find_table(path: Path) -> File | None:
    """Returns the table that a path names, if any: the file, or the one table in a .zip."""
    if ending(path) != ".zip":
        return path if is_table(path) else None
    tables = [member for member in zip_members(path) if is_table(member)]
    return tables[0] if len(tables) == 1 else None
