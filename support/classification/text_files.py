"""Texts in files of their own, whose folders are named by their classes."""

import codecs
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.corpora.tables import class_name, one_line


def read_text_files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yields the text of each file with the name of its folder."""
    other = []  # files in another encoding
    for path in paths:
        content = path.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            other.append(path)
            text = decode_other(content)
        yield one_line(text), class_name(path.parent.name)
    if other:
        warn_once(
            f"{len(other):,} of {len(paths):,} texts, such as {other[0]}, are not UTF-8; they "
            f"are read as UTF-16 or Windows-1252"
        )


def decode_other(content: bytes) -> str:
    """Returns a text that is not UTF-8, but perhaps from Windows: UTF-16 has a mark."""
    has_mark = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if has_mark else "cp1252", errors="replace")


@cache
def warn_once(message: str) -> None:
    """Prints a warning, once: a corpus is read several times."""
    print(f"warning: {message}", file=sys.stderr)
