"""Lines of text files, and rows of tables: .csv, JSON, and all files whose lines have tabs.

Example:
    for number, (german, english) in read_columns(Path("pairs.tsv"), ["de", "en"]): ...
"""

import codecs
import csv
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator
from gzip import GzipFile
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from support.common.errors import UserError, as_user_error
from support.corpora.archives import File, open_bytes, read_bytes, zip_members

JSON = (".jsonl", ".ndjson", ".json")  # endings: an object a line, or one list of them
TABLES = (".tsv", ".csv", *JSON)  # endings; other files are looked into: see `is_table`
FIRST_BYTES = 1 << 16  # of a file, which tell whether it is a table
FIRST_LINES = 100  # of a .csv file, which tell its delimiter
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # how such a file begins
# The first line of some .csv files, for Excel.
SEPARATOR = re.compile(r'("?)sep=([,;\t|])\1[,;|\s]*', re.IGNORECASE)
NOT_UTF_8 = (
    "not UTF-8; convert it by iconv -f ENCODING -t UTF-8, with the encoding that it was saved "
    "in: CP1252, UTF-16, GBK, SHIFT-JIS or CP1251"
)
JSON_FORMS = "a table in JSON has an object a line, or is one list of objects"
QUOTED = re.compile(r'\A"((?:[^"]|"")*)"\Z')


def read_lines(path: File) -> Iterator[str]:
    """Yields the lines of a text file (.gz too), without line ends. Raises UserError."""
    with as_user_error(f"{path}: cannot be read"), open_bytes(path) as file:
        yield from lines_of(file, str(path))


def lines_of(file: GzipFile | IO[bytes], name: str) -> Iterator[str]:
    """Yields the lines of an open binary file, without line ends. Raises UserError.

    Two formats that Excel offers are read, too: UTF-16, which it calls Unicode text, and the
    Macintosh's, without line feeds, where carriage returns end the lines. name: of the file,
    for messages.
    """
    lines = list(islice(file, 1))
    if lines and is_utf_16(lines[0]):
        content = lines[0] + file.read()
        with as_user_error(f"{name}: begins like a file in UTF-16, but is damaged"):
            text = content.decode("utf-16")
        lines = text.encode().removesuffix(b"\n").split(b"\n")
    elif lines and b"\r" in lines[0] and not lines[0].endswith(b"\n"):  # the whole file
        lines = lines[0].removesuffix(b"\r").split(b"\r")
    yield from decode_lines(chain(lines, file), name)


def is_utf_16(content: bytes) -> bool:
    """Returns whether content begins as a file in UTF-16 does, and not as one in UTF-32."""
    return content.startswith(UTF_16) and not content.startswith(codecs.BOM_UTF32_LE)


def decode_lines(lines: Iterable[bytes], name: str) -> Iterator[str]:
    """Yields lines as text, without line ends. Raises UserError.

    A line ends at a line feed and nowhere else, not at other characters that Unicode calls line
    separators, so that line N stays line N. name: of the file, for messages.
    """
    for number, line in enumerate(lines, 1):
        try:
            # A file may begin with a byte order mark, and so may each of several joined ones.
            yield line.decode().removeprefix("\ufeff").rstrip("\r\n")
        except UnicodeDecodeError as problem:
            raise UserError(f"{name}, line {number}: {NOT_UTF_8}") from problem


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


def suffix_of(path: File) -> str:
    """Returns .csv of rows.csv, of ROWS.CSV, and of rows.csv.gz."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_table(path: File) -> bool:
    """Returns whether a file is a table: its ending says so, or nearly all lines have tabs.

    Raises UserError for a pipe.
    """
    if not path.is_file():
        if path.exists() and not path.is_dir():
            raise UserError(f"{path}: a pipe or a device; save a corpus as a file")
        return False
    if suffix_of(path) in TABLES:
        return True
    first_bytes = read_bytes(path, FIRST_BYTES)
    if is_utf_16(first_bytes):
        first_bytes = first_bytes.decode("utf-16", errors="ignore").encode()
    if b"\0" in first_bytes:
        return False  # not a text
    lines = first_bytes.split(b"\n")
    if len(lines) > 1:
        lines.pop()  # it may be cut
    lines = [line for line in lines if line.strip()]
    # With few lines that lack a tab it is a table, too: an error will give their numbers.
    return len(lines) > 0 and sum(b"\t" in line for line in lines) > 0.9 * len(lines)


def find_table(path: Path) -> File | None:
    """Returns the table that a path names, if any: the file, or the one table in a .zip."""
    if suffix_of(path) != ".zip" or not path.is_file():
        return path if is_table(path) else None
    tables = [member for member in zip_members(path) if is_table(member)]
    return tables[0] if len(tables) == 1 else None


def one_line(text: str) -> str:
    """Returns the text with a space for each line end, and none around it."""
    return " ".join(text.splitlines()).strip()


def class_name(text: str) -> str:
    """Returns a label as the name of its class: equal for equal text in unequal bytes (NFC).

    It can be written as UTF-8: other bytes in the name of a folder become text like \\udcff.
    """
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return unicodedata.normalize("NFC", " ".join(text.split()))


def column_name(text: str) -> str:
    """Returns what a header or a flag says as the name of a column, by which they compare."""
    return class_name(text).lower()


def read_rows(path: File) -> Iterator[tuple[int, list[str]]]:
    """Yields the number, from 1, and the cells of each row of a table with commas or tabs.

    Empty rows are skipped. In a .csv file a cell may stand in double quotes, with its own
    quotes doubled, and may then hold commas and line ends, which become spaces. In other tables
    quotes are text: see `unquoted`. Raises UserError.
    """
    if suffix_of(path) == ".csv":
        yield from read_csv_rows(read_lines(path), str(path))
        return
    quoted = quoted_columns(read_lines(path))
    for number, line in enumerate(read_lines(path), 1):
        if line:
            cells = line.split("\t")
            yield number, [unquoted(cell, i in quoted) for i, cell in enumerate(cells)]


def read_csv_rows(lines: Iterator[str], name: str) -> Iterator[tuple[int, list[str]]]:
    """Does what `read_rows` does, for the lines of a .csv file. name: its name, for errors."""
    csv.field_size_limit(1 << 30)  # a text may be long
    # Carriage returns within a line would end the row.
    lines = (line.replace("\r", " ") + "\n" for line in lines)
    first_lines = list(islice(lines, FIRST_LINES))
    declared = SEPARATOR.fullmatch("".join(first_lines[:1]))
    delimiter = declared[2] if declared else find_delimiter(first_lines)
    rows = csv.reader(chain(first_lines, lines), strict=True, delimiter=delimiter)
    try:
        for number, row in enumerate(rows, 1):
            is_declaration = declared and number == 1
            if any(row) and not is_declaration:
                yield number, [cell.replace("\n", " ") for cell in row]
    except csv.Error as problem:
        raise UserError(f"{name}, line {rows.line_num}: {problem}") from problem


def find_delimiter(lines: list[str]) -> str:
    """Returns what stands between the cells of a .csv file: a comma, tab or semicolon.

    Excel writes semicolons in many languages. Of those in the first line it is the one that
    cuts most rows into as many cells as that line. lines: the first ones of the file.
    """

    def num_alike(delimiter: str) -> int:
        rows = list(csv.reader(lines, delimiter=delimiter))
        return sum(len(row) == len(rows[0]) for row in rows)

    in_first_line = [each for each in ",\t;" if each in "".join(lines[:1])]
    return max(in_first_line, key=num_alike, default=",")


def quoted_columns(lines: Iterable[str]) -> set[int]:
    """Returns the columns, from 0, of which every cell stands in quotes, the first row's too.

    lines: of a table with tabs. They are read as long as there is such a column.
    """
    columns: set[int] | None = None
    for line in filter(None, lines):
        quoted = {i for i, cell in enumerate(line.split("\t")) if QUOTED.match(cell)}
        columns = quoted if columns is None else columns & quoted
        if not columns:
            break
    return columns or set()


def unquoted(cell: str, is_quoted_column: bool) -> str:
    """Returns a cell of a table with tabs, without quotes that a program has put around it.

    A program has quoted the cell if the whole column is quoted, or if the quotes inside the
    cell are doubled. Otherwise the quotes are part of the text.
    """
    match = QUOTED.match(cell)
    if match and (is_quoted_column or '""' in match[1]):
        return match[1].replace('""', '"')
    return cell


def read_objects(path: File) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields the objects of a JSON file by their columns, each with its number.

    The file has an object a line, with the number of the line, or is a list of objects.
    """
    lines = read_lines(path)
    first_line = next(lines, "")
    lines = chain([first_line], lines)
    rows: Iterable[tuple[int, Any]]
    if first_line.lstrip().startswith("["):
        rows = enumerate(parse_json("\n".join(lines), str(path)), 1)
    else:
        rows = (
            (number, parse_json(line, f"{path}, line {number}"))
            for number, line in enumerate(lines, 1)
            if line.strip()
        )
    for number, row in rows:
        if not isinstance(row, dict):
            raise UserError(f"{path}, row {number}: no JSON object; {JSON_FORMS}")
        yield number, columns_of(row)


def columns_of(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a JSON object by their columns.

    The entries of an object within it are columns, too: {"translation": {"de": ..., "en": ...}}
    has `translation.de`, and `de` as well, unless another entry is called so.
    """
    columns: dict[str, Any] = {}
    inner: list[tuple[str, Any]] = []
    for name, value in row.items():
        if isinstance(value, dict):
            inner += [(column_name(key), entry) for key, entry in value.items()]
            columns |= {column_name(f"{name}.{key}"): value[key] for key in value}
        else:
            columns[column_name(name)] = value
    names = Counter([*columns, *(name for name, _ in inner)])
    return columns | {name: entry for name, entry in inner if names[name] == 1}


def parse_json(text: str, place: str) -> Any:
    """Returns what JSON text stands for. place: where it is. Raises UserError."""
    try:
        # NaN and the like are no JSON; pandas writes them for what is missing.
        return json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{place}: broken JSON ({problem}); {JSON_FORMS}") from problem


def column_names(path: File) -> list[str]:
    """Returns what a table's first row or JSON object calls its columns, in lower case."""
    rows = read_objects(path) if suffix_of(path) in JSON else read_rows(path)
    for _, first_row in rows:
        return [column_name(name) for name in first_row]
    return []


def has_column(path: File, name: str) -> bool:
    """Returns whether a table has a column of this name."""
    return column_name(name) in column_names(path)


def read_columns(
    path: File, columns: list[str], flags: str = "--src, --tgt; classes: --label"
) -> Iterator[tuple[int, list[str]]]:
    """Yields the number of each row and the cells of some columns. Raises UserError.

    columns: names in the first row or in the JSON objects or, except in JSON, positions from 1.
    If all are positions, the first row is an example, too. flags: the flags that name columns,
    for error messages.
    """
    if suffix_of(path) in JSON:
        yield from read_columns_of_objects(path, columns, flags)
        return
    rows = read_rows(path)
    first = next(rows, None)
    if first is None:
        return
    _, first_row = first
    width = len(first_row)
    by_position = all(name.isdecimal() for name in columns)
    positions = find_columns(path, columns, [] if by_position else first_row, flags)
    if by_position:
        rows = chain([first], rows)
    # A longer row may have a text with a comma and without quotes. By position, the rows of a
    # table with tabs may differ.
    has_equal_rows = not by_position or suffix_of(path) == ".csv"
    last = max(positions)
    for number, row in rows:
        is_longer = has_equal_rows and any(cell.strip() for cell in row[width:])
        if len(row) == width <= last:  # not the row is wrong, but the flag
            raise UserError(f"{path}: no column {last + 1} ({flags}); it has {width} columns")
        if is_longer or len(row) <= last:
            hint = ""
            if is_longer or suffix_of(path) != ".csv":
                hint = "; save texts with commas or line ends as .csv, with quotes around them"
            raise UserError(
                f"{path}, row {number}: {len(row)} columns, but the first row has {width}{hint}"
            )
        yield number, [row[position] for position in positions]


def read_columns_of_objects(
    path: File, columns: list[str], flags: str
) -> Iterator[tuple[int, list[str]]]:
    """Does what `read_columns` does, for a JSON file."""
    for number, row in read_objects(path):
        cells = []
        for name in columns:
            if column_name(name) not in row:
                found = ", ".join(row)[:120]
                raise UserError(f"{path}, row {number}: no {name!r} ({flags}); it has {found}")
            value = row[column_name(name)]
            if isinstance(value, list | dict):
                raise UserError(
                    f"{path}, row {number}: {name!r} is a list or an object, not text "
                    f"({flags}); {JSON_FORMS}"
                )
            if value is None:
                value = ""
            text = value if isinstance(value, str) else json.dumps(value)
            # Half a character, as of a text that was cut, becomes "?".
            text = text.encode("utf-8", errors="replace").decode("utf-8")
            cells.append(one_line(text))
        yield number, cells


def find_columns(path: File, columns: list[str], header: list[str], flags: str) -> list[int]:
    """Returns the positions of columns, from 0, by their names or positions from 1."""
    names = [column_name(cell) for cell in header]
    positions = []
    for name in columns:
        if names.count(column_name(name)) > 1:
            raise UserError(
                f"{path}: two columns are called {name!r} ({flags}); give a position, from 1"
            )
        if column_name(name) in names:
            positions.append(names.index(column_name(name)))
        elif name.isdecimal():
            if not int(name):
                raise UserError(f"{path}: column {name} ({flags}): positions count from 1")
            positions.append(int(name) - 1)
        else:
            found = [f"{i} {cell[:30]!r}" for i, cell in enumerate(header, 1)]
            raise UserError(
                f"{path}: no column {name!r} ({flags}: a name in the first row, or a position "
                f"from 1); its first row: {', '.join(found)[:120]}{undivided(path, header)}"
            )
    if len(set(positions)) < len(positions):
        raise UserError(f"{path}: {', '.join(columns)} ({flags}) name the same column twice")
    return positions


def undivided(path: File, header: list[str]) -> str:
    """Returns the end of an error message if a table seems to have a single column."""
    if len(header) > 1 or suffix_of(path) in JSON:
        return ""
    marks = "comma, tab or semicolon" if suffix_of(path) == ".csv" else "tab"
    return f"; no {marks} divides the first row"
