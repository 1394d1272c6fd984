"""Lines of text files, and rows of tables: .tsv, .csv, and .jsonl with a JSON object a line.

Example:
    for number, (german, english) in read_columns(Path("pairs.tsv"), ["de", "en"]): ...
"""

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from support.common.errors import UserError

TABLES = (".tsv", ".csv", ".jsonl")
# Where columns are given by position, the first row is a header if it has only these names.
HEADER = {
    *("de", "en", "src", "tgt", "source", "target"),
    *("german", "english", "deutsch", "englisch"),
    *("text", "content", "sentence", "review", "body", "title", "description"),
    *("label", "class", "class index", "category", "topic", "sentiment", "stars", "rating"),
}
QUOTED = re.compile(r'\A"((?:[^"]|"")*)"\Z')


def read_lines(path: Path | zipfile.Path) -> Iterator[str]:
    """Yields the lines of a text file (.gz too), without line ends. Raises UserError."""
    try:
        is_packed = path.suffix.lower() == ".gz"
        with gzip.open(str(path)) if is_packed else path.open("rb") as file:
            yield from decode_lines(file, str(path))
    except (EOFError, zlib.error, OSError, zipfile.BadZipFile, RuntimeError) as problem:
        # RuntimeError: the archive is encrypted.
        raise UserError(f"{path}: cannot be read ({problem})") from problem


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Yields lines of an open binary file as text, without line ends. Raises UserError.

    A line ends at a line feed and nowhere else, not at other characters that Unicode calls line
    separators, so that line N stays line N. name: of the file, for messages.
    """
    for number, line in enumerate(lines, 1):
        try:
            # A file may begin with a byte order mark.
            yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as problem:
            byte = problem.object[problem.start]
            raise UserError(f"{name}, line {number}: not UTF-8 (byte {byte:#04x})") from problem


def blocks(items: Iterable, size: int) -> Iterator[list]:
    """Yields lists of `size` items, the last one shorter.

    If `items` raises UserError, the items before it are yielded first, so that the lines above
    a bad line of a file are still processed.
    """
    block = []
    try:
        for item in items:
            block.append(item)
            if len(block) == size:
                yield block
                block = []
    except UserError:
        if block:
            yield block
        raise
    if block:
        yield block


def ending(path: Path) -> str:
    """Returns .csv of rows.csv, of ROWS.CSV, and of rows.csv.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def one_line(text: str) -> str:
    """Returns the text with a space for each line end, and none around it."""
    return " ".join(text.splitlines()).strip()


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields the number, from 1, and the cells of each row of a .tsv or .csv file.

    Empty rows are skipped. A cell may stand in double quotes, with its own quotes doubled; in a
    .csv file it may then hold commas and line ends, which become spaces. Raises UserError.
    """
    if ending(path) == ".tsv":
        for number, line in enumerate(read_lines(path), 1):
            if line:
                yield number, [unquoted(cell) for cell in line.split("\t")]
        return
    csv.field_size_limit(1 << 30)  # a text may be long
    rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        for number, row in enumerate(rows, 1):
            if row:
                yield number, [cell.replace("\n", " ") for cell in row]
    except csv.Error as problem:
        raise UserError(f"{path}, line {rows.line_num}: {problem}") from problem


def unquoted(cell: str) -> str:
    """Returns a cell of a .tsv file without the quotes around it, if there are any."""
    match = QUOTED.match(cell)
    return match[1].replace('""', '"') if match else cell


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a .jsonl file, each with its line's number, without empty lines."""
    for number, line in enumerate(read_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise UserError(f"{path}, line {number}: broken JSON ({problem})") from problem
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {number}: no JSON object, as {{"text": ...}}')
        yield number, {name.strip().lower(): value for name, value in row.items()}


def column_names(path: Path) -> list[str]:
    """Returns what a table's first row or JSON object calls its columns, in lower case."""
    rows = read_objects(path) if ending(path) == ".jsonl" else read_rows(path)
    for _, first_row in rows:
        return [name.strip().lower() for name in first_row]
    return []


def read_columns(
    path: Path, columns: list[str], flags: str = "--src, --tgt; classes: --label"
) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of each row and the cells of some columns. Raises UserError.

    columns: names in the first row or in the JSON objects, or positions from 1. If all are
    positions, the first row is a header if HEADER has all that it says there. flags: the flags
    that name columns, for error messages.
    """
    if ending(path) == ".jsonl":
        yield from read_columns_of_objects(path, columns, flags)
        return
    positions: list[int] | None = None
    width: int | None = None  # of all rows, if there is a header of names
    for number, row in read_rows(path):
        if positions is None:
            positions = find_columns(path, columns, row, flags)
            if is_header(row, columns, positions):
                if not all_positions(columns):
                    width = len(row)
                continue
        if width is not None and any(cell.strip() for cell in row[width:]):
            # Perhaps a text without quotes has a comma.
            raise UserError(
                f"{path}, row {number}: {len(row)} columns, but the header has {width}"
            )
        for position in positions:
            if not 0 <= position < len(row):
                raise UserError(
                    f"{path}, row {number}: {len(row)} columns, "
                    f"column {position + 1} was asked for"
                )
        yield number, [row[position] for position in positions]


def read_columns_of_objects(
    path: Path, columns: list[str], flags: str
) -> Iterator[tuple[int, list[str]]]:
    """Does what `read_columns` does, for a .jsonl file."""
    for number, row in read_objects(path):
        cells = []
        for name in columns:
            value = row.get(name.lower(), [])
            if isinstance(value, list | dict):
                raise UserError(
                    f"{path}, line {number}: no text or number named {name!r} ({flags}); "
                    f"it has {', '.join(row)[:120]}"
                )
            cells.append(text_of(value))
        yield number, cells


def text_of(value: str | float | bool | None) -> str:
    """Returns a JSON value as the text of a cell."""
    if value is None:
        return ""
    if isinstance(value, str):
        return one_line(value)
    return json.dumps(value)


def all_positions(columns: list[str]) -> bool:
    """Returns whether all columns are given by position."""
    return all(name.isdecimal() for name in columns)


def find_columns(path: Path, columns: list[str], row: list[str], flags: str) -> list[int]:
    """Returns the positions of columns, from 0. row: the table's first. Raises UserError."""
    names = [cell.strip().lower() for cell in row]
    positions = []
    for name in columns:
        if name.lower() in names and not all_positions(columns):
            positions.append(names.index(name.lower()))
        elif name.isdecimal():
            positions.append(int(name) - 1)
        else:
            raise UserError(
                f"{path}: no column {name!r} ({flags}: a name in the first row, or a position "
                f"from 1); its columns: {', '.join(row)[:120]}"
            )
    return positions


def is_header(row: list[str], columns: list[str], positions: list[int]) -> bool:
    """Returns whether a table's first row names its columns."""
    if not all_positions(columns):
        return True
    names = [row[i].strip().lower() for i in positions if 0 <= i < len(row)]
    return set(names) <= HEADER
