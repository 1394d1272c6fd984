"""Rows of labelled tables: texts with their classes."""

from collections.abc import Iterable, Iterator

from support.common.errors import UserError
from support.corpora.archives import File
from support.corpora.tables import (
    class_name,
    column_name,
    column_names,
    one_line,
    read_columns,
)

TEXT_COLUMNS = ("text", "content", "sentence", "review", "body")  # the first found has the text


def read_labelled_table(path: File, text: str, label: str) -> Iterator[tuple[str, str]]:
    """Yields (text, class) of each row. Raises UserError.

    text: the columns with the text, separated by commas; "": the first of TEXT_COLUMNS that
    exists. label: the column with the class.
    """
    columns = text.split(",") if text else [find_text_column(path, label)]
    columns = [name.strip() for name in [*columns, label]]
    for number, (*texts, name) in read_columns(path, columns, "--text, --label"):
        if not name.strip():
            raise UserError(f"{path}, row {number}: it has no label")
        yield one_line(" ".join(texts)), class_name(name)


def find_text_column(path: File, label: str) -> str:
    """Returns the name of the column with the text. Raises UserError."""
    names = column_names(path)
    for name in TEXT_COLUMNS:
        if name in names and name != column_name(label):
            return name
    raise UserError(
        f"{path}: no column {', '.join(TEXT_COLUMNS)}: --text says which it is; its columns: "
        f"{', '.join(names)[:120]}"
    )


def read_numbered(
    rows: Iterable[tuple[int, list[str]]], name: str, classes: list[str], line_end: str
) -> Iterator[tuple[str, str]]:
    """Yields (title and description, class) of each row of a file like AG News's.

    rows: numbered, of the file `name`; line_end: what the texts write for a line end, "\\" or
    "\\n". Raises UserError.
    """
    class_of = {str(number): class_name for number, class_name in enumerate(classes, 1)}
    for number, (label, *texts) in rows:
        if label not in class_of or not texts:
            raise UserError(
                f"{name}, row {number}: {label[:40]!r} is no class from 1 to {len(classes)} "
                f"with a text after it; to use a table with a header: "
                f"--data FILE --label COLUMN"
            )
        text = " ".join(texts).replace(line_end, " ").replace("\\", " ")
        yield one_line(text), class_of[label]
