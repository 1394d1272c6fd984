"""Downloads corpora once, checks their files, and keeps them."""

import gzip
import hashlib
import http.client
import os
import shutil
import sys
import tempfile
import urllib.request
import zlib
from pathlib import Path

from support.common.errors import UserError
from support.common.files import replace
from support.common.paths import CACHE


def sha256(path: Path, unpacked: bool = False) -> str:
    """Returns a file's SHA-256 in hexadecimal, or "" if no whole file is there.

    unpacked: of what a .gz file holds, because the same content can be packed differently.
    """
    is_packed = unpacked and path.suffix.lower() == ".gz"
    open_file = gzip.open if is_packed else open
    try:
        with open_file(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, EOFError, zlib.error, gzip.BadGzipFile):
        return ""


def content_checksum(path: Path) -> str:
    """Returns the SHA-256 of what a file holds: of a .gz file unpacked, but not of a .tar.gz.

    So the same corpus, packed or unpacked, has the same checksum. A .gz file that cannot be
    unpacked counts as it is.
    """
    is_archive = path.name.lower().endswith(".tar.gz")  # long to unpack
    return sha256(path, unpacked=not is_archive) or sha256(path)


def parse_checksums(lines: str) -> dict[str, str]:
    """Returns {file: SHA-256} of lines such as `sha256sum` prints."""
    return {file: checksum for checksum, file in map(str.split, lines.strip().splitlines())}


def download(name: str, files: dict[str, str], url: str, unpacked: bool = False) -> Path:
    """Returns the folder with a corpus's files, which are fetched if they are not there.

    files: {file: SHA-256}, which is checked each time; unpacked: see `sha256`. The environment
    variable NAME_URL replaces `url`. Raises UserError.
    """
    folder = CACHE / name
    variable = name.upper().replace("-", "_") + "_URL"
    base = os.environ.get(variable, url).rstrip("/")
    for file, checksum in files.items():
        if sha256(folder / file, unpacked) == checksum:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            fetch(f"{base}/{file}", folder / file, checksum, unpacked)
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise UserError(
                f"{name} cannot be fetched ({problem}); if you have its files (archives "
                f"unpacked), name their folder: --data ./FOLDER"
            ) from problem
    return folder


def fetch(url: str, path: Path, checksum: str, unpacked: bool) -> None:
    """Fetches a file. It gets its name only when it is whole and as expected."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        partial = Path(folder) / path.name
        with urllib.request.urlopen(url, timeout=30) as response, partial.open("wb") as file:
            size = int(response.headers["Content-Length"] or 0)
            print(f"fetching {url}, {size / 1e6:,.1f} MB", file=sys.stderr)
            shutil.copyfileobj(response, file)
        if sha256(partial, unpacked) != checksum:
            raise UserError(f"{url}: not the expected file (another SHA-256); nothing was kept")
        replace(partial, path)
