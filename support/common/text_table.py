"""Tables in the terminal, and how wide text is there.

Example:
    print(*aligned([["run", "BLEU"], ["a", "41.7"]]), sep="\\n")
"""

import unicodedata
from itertools import zip_longest


def text_width(text: str) -> int:
    """Returns the columns that a text takes: a Chinese character two, an accent none."""
    columns = 0
    for character in text:
        is_wide = unicodedata.east_asian_width(character) in ("W", "F")
        is_mark = unicodedata.category(character) in ("Mn", "Me", "Cf")
        if is_wide:
            columns += 2
        elif not is_mark:
            columns += 1
    return columns


def pad_right(text: str, columns: int) -> str:
    """Returns a text with spaces after it, so that it takes so many columns."""
    return text + " " * (columns - text_width(text))


def pad_left(text: str, columns: int) -> str:
    """Returns a text with spaces before it, so that it takes so many columns."""
    return " " * (columns - text_width(text)) + text


def aligned(rows: list[list[str]]) -> list[str]:
    """Returns the lines of a table: its first column to the left, the others to the right."""
    widths = [max(map(text_width, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        "  ".join([pad_right(name, widths[0]), *map(pad_left, cells, widths[1:])]).rstrip()
        for name, *cells in rows
    ]
