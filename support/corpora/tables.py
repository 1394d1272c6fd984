"""Lines of text files, and rows of tables: .tsv, .csv, and .jsonl with a JSON object a line.

for number, (german, english) in read_table(Path("pairs.tsv"), ["de", "en"]): ...
print(*aligned([["run", "BLEU"], ["a", "41.7"]]), sep="\n")
"""

import csv
import gzip
import json
import re
import sys
import zipfile
import zlib
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from support.common.errors import UserError

TABLES = (".tsv", ".csv", ".jsonl")
# Where columns are given by position, the first row is a header if it has these names.
HEADER = {
    *[
        "de",
        "en",
        "src",
        "tgt",
        "source",
        "target",
        "german",
        "english",
        "deutsch",
        "englisch",
        "text",
        "content",
        "sentence",
        "review",
        "body",
        "title",
        "description",
        "label",
        "class",
        "category",
        "topic",
        "sentiment",
        "stars",
        "rating",
    ],
    "class index",
}
TEXT = [
    "text",
    "content",
    "sentence",
    "review",
    "body",
]  # the columns of a text, the first found


def read_lines(path: Path | zipfile.Path | str, file=None) -> Iterator[str]:
    """The lines of a text file (.gz too), or of an open binary `file` that `path` only names.

    Without line ends; a line ends at a line feed and nowhere else, not at other characters that
    Unicode calls line separators, so that line N stays line N. Raises UserError.
    """
    number = 0
    try:
        with file or (
            gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")
        ) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as problem:
        byte = problem.object[problem.start]
        raise UserError(f"{path}, line {number}: not UTF-8 (byte {byte:#04x})") from problem
    except (EOFError, zlib.error, OSError, zipfile.BadZipFile, RuntimeError) as problem:
        # RuntimeError: encrypted
        raise UserError(f"{path}: cannot be read ({problem})") from problem


def blocks(items: Iterator, size: int) -> Iterator[list]:
    """Lists of `size` items, at last a shorter one; of a UserError's block what was read before it.

    So one bad line in a file costs the answers to none of those above it.
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
    """.csv of rows.csv, of ROWS.CSV, and of rows.csv.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def one_line(text: str) -> str:
    """The text with a space for each line end, and none around it."""
    return " ".join(text.splitlines()).strip()


def read_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The rows of a .tsv or .csv file, each with its number, from 1; empty ones are passed over.

    A field may stand in double quotes, with its own quotes doubled; in .csv it may then hold commas
    and line ends, which become spaces. Raises UserError.
    """
    csv.field_size_limit(1 << 30)  # a text may be long
    if ending(path) == ".csv":
        rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    else:
        quoted = re.compile(r'\A"((?:[^"]|"")*)"\Z')
        rows = (
            [
                quoted.sub(lambda cell: cell[1].replace('""', '"'), cell)
                for cell in line.split("\t")
            ]
            if line
            else []
            for line in read_lines(path)
        )
    try:
        for number, row in enumerate(rows, 1):
            if row:
                yield number, [cell.replace("\n", " ") for cell in row]
    except csv.Error as problem:
        raise UserError(f"{path}, line {rows.line_num}: {problem}") from problem


def read_objects(path: Path) -> Iterator[tuple[int, dict]]:
    """The objects of a .jsonl file, each with its line's number; empty lines are passed over."""
    for number, line in enumerate(read_lines(path), 1):
        try:
            row = json.loads(line) if line.strip() else {}
            json.dumps(row, ensure_ascii=False).encode()  # half a surrogate pair is no text
        except (ValueError, RecursionError) as problem:
            raise UserError(f"{path}, line {number}: broken JSON ({problem})") from problem
        if not isinstance(row, dict):
            raise UserError(f'{path}, line {number}: no JSON object, as {{"text": ...}}')
        if line.strip():
            yield number, {name.strip().lower(): value for name, value in row.items()}


def column_names(path: Path) -> list[str]:
    """What the first row or JSON object of a table calls its columns, in small letters."""
    rows = read_objects(path) if ending(path) == ".jsonl" else read_rows(path)
    return [name.strip().lower() for name in next(rows, (0, []))[1]]


def read_table(
    path: Path, asked: list[str], flags: str = "--src, --tgt; classes: --label"
) -> Iterator[tuple[int, list[str]]]:
    """The columns asked for of each row, which comes with its number. Raises UserError.

    asked: names in the first row or of JSON's values, or positions from 1; with positions alone,
    the first row is a header if HEADER has what it says there. flags: what the user can change.
    """
    if ending(path) == ".jsonl":
        for number, row in read_objects(path):
            for name in asked:
                if isinstance(row.get(name.lower(), []), (list, dict)):
                    raise UserError(
                        f"{path}, line {number}: no text or number named {name!r} "
                        f"({flags}); it has {', '.join(row)[:120]}"
                    )
            cells = [row[name.lower()] for name in asked]
            yield (
                number,
                [
                    one_line(cell)
                    if isinstance(cell, str)
                    else ""
                    if cell is None
                    else json.dumps(cell)
                    for cell in cells
                ],
            )
        return
    columns, width, by_name = None, sys.maxsize, not all(name.isdecimal() for name in asked)
    for number, row in read_rows(path):
        if columns is None:
            names = [cell.strip().lower() for cell in row]
            for name in asked:
                if name.lower() not in names and not name.isdecimal():
                    raise UserError(
                        f"{path}: no column {name!r} ({flags}: a name in the first row, "
                        f"or a position from 1); its columns: {', '.join(row)[:120]}"
                    )
            columns = [
                names.index(name.lower())
                if by_name and name.lower() in names
                else int(name) - 1
                for name in asked
            ]
            if (
                by_name
                or {names[column] for column in columns if 0 <= column < len(names)} <= HEADER
            ):
                width = len(row) if by_name else width
                continue
        if any(cell.strip() for cell in row[width:]):  # a comma in a text without quotes?
            raise UserError(
                f"{path}, row {number}: {len(row)} columns, but the header has {width}"
            )
        if not 0 <= min(columns) <= max(columns) < len(row):
            raise UserError(
                f"{path}, row {number}: {len(row)} columns, "
                f"column {max(columns, key=lambda c: (c < 0, c)) + 1} was asked for"
            )
        yield number, [row[column] for column in columns]


def read_labelled_table(path: Path, text: str, label: str) -> Iterator[tuple[str, str]]:
    """(text, class) of each row. Raises UserError."""
    columns = [name.strip() for name in text.split(",")]
    if not text:
        names = column_names(path)
        columns = [name for name in TEXT if name in names and name != label.lower()][:1]
        if not columns:
            raise UserError(
                f"{path}: no column {', '.join(TEXT)}: --text says which it is; its "
                f"columns: {', '.join(names)[:120]}"
            )
    is_empty = True
    for number, (*texts, name) in read_table(path, [*columns, label], "--text, --label"):
        example, name = one_line(" ".join(texts)), " ".join(name.split())
        if not name:
            raise UserError(f"{path}, row {number}: it has no label")
        is_empty = is_empty and not example
        yield example, name
    if is_empty:
        raise UserError(f"{path}: the text column ({', '.join(columns)}) is empty")


def read_numbered(path: Path, classes: list[str], line_end: str) -> Iterator[tuple[str, str]]:
    """(title and description, class) of each row. line_end: what stands for one, "\\" or "\\n"."""
    numbered = {str(number): name for number, name in enumerate(classes, 1)}
    for number, (label, *texts) in read_rows(path):
        if label not in numbered or not texts:
            raise UserError(
                f"{path}, row {number}: {label[:40]!r} is no class from 1 to "
                f"{len(classes)} with a text after it; a table with a header is named "
                f"itself: --data FILE --label COLUMN"
            )
        yield (
            one_line(" ".join(texts).replace(line_end, " ").replace("\\", " ")),
            numbered[label],
        )


def aligned(rows: list[list[str]]) -> list[str]:
    """The lines of a table: its first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        "  ".join([name.ljust(widths[0]), *map(str.rjust, cells, widths[1:])]).rstrip()
        for name, *cells in rows
    ]
