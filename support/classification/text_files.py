"""Texts in files of their own, whose folders are named by their classes."""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from support.corpora.tables import UTF_16, class_name, one_line


def read_text_files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yields the text of each file with the name of its folder."""
    other = []  # files in another encoding
    for path in paths:
        content = path.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:  # perhaps of Windows, where UTF-16 begins with a mark
            other.append(path)
            encoding = "utf-16" if content.startswith(UTF_16) else "cp1252"
            text = content.decode(encoding, errors="replace")
        yield one_line(text), class_name(path.parent.name)
    if other:
        warn_once(
            f"{len(other):,} of {len(paths):,} texts, such as {other[0]}, are not UTF-8; they "
            f"are read as UTF-16 or Windows-1252"
        )


@cache
def warn_once(message: str) -> None:
    """Prints a warning, once: a corpus is read several times."""
    print(f"warning: {message}", file=sys.stderr)
