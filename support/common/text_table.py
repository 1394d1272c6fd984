"""Tables in the terminal.

Example:
    print(*aligned([["run", "BLEU"], ["a", "41.7"]]), sep="\\n")
"""

from itertools import zip_longest


def aligned(rows: list[list[str]]) -> list[str]:
    """Returns the lines of a table: its first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for name, *cells in rows
    ]
