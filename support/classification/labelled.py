"""Finds labelled examples: in corpora with names, the phrasebook, and users' files."""

import codecs
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from support.classification import images, named
from support.classification.corpus import Labelled
from support.classification.images import ImageTransform
from support.common.errors import UserError
from support.corpora import class_folders, phrasebook, tables
from support.corpora.archives import PARTS, File
from support.corpora.download import download, sha256
from support.corpora.pairs import find_file, find_part_tables, own_name
from support.corpora.task_type import CLASSIFICATION_CORPORA, find_idx, find_numbered

MAX_DAMAGED = 0.01  # of the texts
MAX_ODD_BYTES = 0.4  # of the bytes of texts in Windows-1252: those that are not PLAIN
PLAIN = bytes(range(1, 128))  # ASCII without NUL
TEXT_COLUMNS = ("text", "content", "sentence", "review", "body")  # the first found has the text


def find_labelled(
    data: str,
    valid: str = "",
    test: str = "",
    text: str = "",
    label: str = "",
    size: int = 0,
    transform: ImageTransform | None = None,
) -> Labelled:
    """Returns the corpus that --data, --valid, --test, --text and --label name.

    data: one of CLASSIFICATION_CORPORA, a table (perhaps in a .zip), or a folder with IDX
    files, AG News's files, tables, or class folders. valid, test: a table or a folder of class
    folders. transform: how images are read. Without it they get `size` pixels per side; if that
    is 0, IDX images keep their size, and others get 32 pixels. Raises UserError.
    """
    folder = Path(data)
    name = data if data in CLASSIFICATION_CORPORA else own_name(folder, CLASSIFICATION_CORPORA)
    corpus = Labelled(name, text, label, size, transform)
    if data in named.FILES:
        unpacked = data == "fashion-mnist"
        folder = download(data, named.FILES[data], named.URLS[data], unpacked)
    if data == "kinds":
        corpus.classes = phrasebook.KINDS
        for part in PARTS:
            corpus.add(part, "text", partial(phrasebook.labelled, part), [phrasebook.DATA])
    elif data in named.ARCHIVE_READERS:
        add_archive(corpus, folder)
    elif find_idx(folder):
        add_idx(corpus, folder)
    elif not label and find_numbered(folder):
        add_numbered(corpus, folder)
    else:
        add_parts(corpus, folder)
    for part, path in (("valid", valid), ("test", test)):
        if path:
            add_part(corpus, part, Path(path))
    if (text or label) and not corpus.tables:
        raise UserError(
            f"--text and --label name columns of a table, but {data} is not a table; if it is "
            f"a folder with tables, add --label"
        )
    return corpus


# --- The forms of corpora ---------------------------------------------------------------------


def add_archive(corpus: Labelled, folder: Path) -> None:
    """Adds the training and test texts in the archive of a corpus with a name."""
    corpus.classes = named.CLASSES.get(corpus.name, [])
    (file,) = named.FILES[corpus.name]
    for part in ("train", "test"):
        read = partial(named.ARCHIVE_READERS[corpus.name], folder / file, part)
        corpus.add(part, "text", read, [folder / file])


def add_idx(corpus: Labelled, folder: Path) -> None:
    """Adds IDX files. Raises UserError."""
    normalization: dict[str, Any] = {}
    # One small file shows whether the folder holds Fashion-MNIST.
    test_labels = find_file(f"{folder}/t10k-labels-idx1-ubyte")
    checksum = named.FILES["fashion-mnist"]["t10k-labels-idx1-ubyte.gz"]
    if test_labels and sha256(test_labels, unpacked=True) == checksum:
        corpus.name = "fashion-mnist"
        corpus.classes = named.CLASSES["fashion-mnist"]
        normalization = named.FASHION_PIXELS
    for part, (pixels, labels) in find_idx(folder).items():
        if not pixels or not labels:
            found = pixels or labels
            raise UserError(f"{found}: both images and labels are needed of the {part} set")
        if not corpus.transform:
            side = corpus.size or images.idx_shape(pixels, 3)[1]
            corpus.transform = ImageTransform(side, channels=1, **normalization)
        read = partial(images.read_idx_pair, pixels, labels, corpus.classes)
        corpus.add(part, "image", read, [pixels, labels])


def add_numbered(corpus: Labelled, folder: Path) -> None:
    """Adds AG News's files, or others with numbered classes. Raises UserError."""
    class_names = folder / "classes.txt"
    if class_names.is_file():
        lines = tables.read_lines(class_names)
        corpus.classes = [tables.class_name(line) for line in lines if line.strip()]
    elif sha256(folder / "test.csv") == named.FILES["agnews"]["test.csv"]:
        corpus.classes = named.CLASSES["agnews"]
    elif folder.resolve().name == "amazon_review_polarity_csv":  # the archive, unpacked
        corpus.name = "amazon-polarity"
        corpus.classes = named.CLASSES["amazon-polarity"]
    else:
        raise UserError(
            f"{folder}: no classes.txt, which names class 1, class 2, ..., a line each; of a "
            f"table with a header: --data FILE --label COLUMN"
        )
    line_end = "\\n"  # how the texts write line ends
    if corpus.classes == named.CLASSES["agnews"]:  # also from a classes.txt
        corpus.name = "agnews"
        line_end = "\\"

    def read(path: Path) -> Iterator[tuple[str, str]]:
        return named.read_numbered(tables.read_rows(path), str(path), corpus.classes, line_end)

    for part, path in find_numbered(folder).items():
        corpus.add(part, "text", partial(read, path), [path])


def add_parts(corpus: Labelled, path: Path) -> None:
    """Adds a table, or the tables or class folders in a folder. Raises UserError."""
    parts = find_part_tables(path) if corpus.label else {}
    if not parts:
        parts = class_folders.find_class_folders(path)
        if parts and path not in parts.values():
            corpus.left_out += class_folders.files_beside(path, parts.values())
    if not parts:
        parts = {"train": path}
    for part, inner in parts.items():
        add_part(corpus, part, inner)
    if (path / "imdb.vocab").is_file():  # IMDB's archive, unpacked; configs/imdb.yaml applies
        corpus.name = "imdb"


def add_part(corpus: Labelled, part: str, path: Path) -> None:
    """Adds a table, or a folder of class folders. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    table = tables.find_table(path)
    if table:
        add_table(corpus, part, path, table)
    else:
        add_class_folders(corpus, part, path)


def add_table(corpus: Labelled, part: str, path: Path, table: File) -> None:
    """Adds a table. path: its file, or the archive that it is in. Raises UserError."""
    label = corpus.label
    if not label:
        raise UserError(f"{path}: --label must name the column that has the classes")
    if part == "test" and not label.isdecimal() and not tables.has_column(table, label):
        raise UserError(
            f"{path}: no column {label!r}; a test set without labels cannot be scored: move it "
            f"away, and use classify.py for it after training"
        )
    corpus.tables[part] = table
    read = partial(read_labelled_table, table, corpus.text, label)
    corpus.add(part, "text", read, [path], layout=[corpus.text, label])


def read_labelled_table(path: File, text: str, label: str) -> Iterator[tuple[str, str]]:
    """Yields (text, class) of each row. Raises UserError.

    text: the columns with the text, separated by commas; "": the first of TEXT_COLUMNS that
    exists. label: the column with the class.
    """
    columns = text.split(",") if text else [find_text_column(path, label)]
    columns = [name.strip() for name in [*columns, label]]
    if "" in columns:  # pandas writes a column without a name
        raise UserError(f"--text {text}: a name between two commas is missing")
    for number, (*texts, name) in tables.read_columns(path, columns, "--text, --label"):
        if not name.strip():
            raise UserError(f"{path}, row {number}: it has no label; remove such rows")
        yield tables.one_line(" ".join(texts)), tables.class_name(name)


def find_text_column(path: File, label: str) -> str:
    """Returns the name of the column with the text. Raises UserError."""
    names = tables.column_names(path)
    for name in TEXT_COLUMNS:
        if name in names and name != tables.column_name(label):
            return name
    raise UserError(
        f"{path}: no column {', '.join(TEXT_COLUMNS)}: --text says which it is; its columns: "
        f"{', '.join(names)[:120]}{tables.undivided(path, names)}"
    )


def add_class_folders(corpus: Labelled, part: str, path: Path) -> None:
    """Adds a folder with a folder for each class. Raises UserError."""
    modality, files, left_out = class_folders.find_examples(path)
    if not files:
        raise UserError(
            f"{path}: neither a table (.csv, .json, .jsonl, or lines with tabs) nor a folder "
            f"of class folders (FOLDER/CLASS/FILE); unpack archives, and save other tables as "
            f".csv"
        )
    names = [tables.class_name(file.parent.name) for file in files]
    with_examples = {file.parent for file in files}
    for folder in class_folders.inner_folders(path):
        if part == "train" and folder not in with_examples and class_folders.visible(folder):
            raise UserError(f"{folder}: a class without any {modality}")
    corpus.left_out += left_out
    codes = sorted(set(names))
    are_languages = len(codes) > 1 and all(re.fullmatch("[a-z]{2}", code) for code in codes)
    if modality == "text" and are_languages:
        warn_once(
            f"{path}: its folders {', '.join(codes)[:120]} are taken for classes; parallel "
            f"texts are two files, such as NAME.{codes[0]} and NAME.{codes[-1]}"
        )
    if modality == "image":
        transform = corpus.transform or ImageTransform(corpus.size or ImageTransform.size)
        # A model that was trained on such images keeps its number.
        grey_bits = transform.grey_bits or images.bits_in_use(files)
        corpus.transform = replace(transform, grey_bits=grey_bits)

    def read() -> Iterator[tuple[Any, str]]:
        examples: Iterable = files if modality == "image" else read_texts(files)
        return zip(examples, names)

    corpus.add(part, modality, read, files, layout=Counter(names).items())
    corpus.names[part] = names


def read_texts(paths: list[Path]) -> Iterator[str]:
    """Yields the text of each file.

    Raises UserError at the end if they are neither UTF-8 nor UTF-16 nor Windows-1252, except
    for a few, which may be damaged.
    """
    other = []  # files in another encoding than UTF-8
    num_bytes = num_odd_bytes = 0  # of those that are not UTF-16, either
    for path in paths:
        content = path.read_bytes()
        text, encoding = decode_text(content)
        if encoding != "utf-8":
            other.append(path)
        if encoding == "cp1252":
            num_bytes += len(content)
            num_odd_bytes += len(content.translate(None, delete=PLAIN))
        yield tables.one_line(text)
    # In Windows-1252 most letters are those of ASCII.
    if len(other) > MAX_DAMAGED * len(paths) and num_odd_bytes > MAX_ODD_BYTES * num_bytes:
        raise UserError(f"{other[0]}: {tables.NOT_UTF_8}")
    if other:
        warn_once(
            f"{len(other):,} of {len(paths):,} texts, such as {other[0]}, are not UTF-8; they "
            f"are read as UTF-16, UTF-32 or Windows-1252"
        )


def decode_text(content: bytes) -> tuple[str, str]:
    """Returns what a file holds, and its encoding: utf-8, utf-16, utf-32 or else cp1252."""
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return content.decode("utf-32", errors="replace"), "utf-32"
    if content.startswith(tables.UTF_16):  # as Windows begins such files
        return content.decode("utf-16", errors="replace"), "utf-16"
    # UTF-16 without a mark at its beginning would be valid UTF-8, with a NUL in each letter. In
    # Windows-1252 NULs are odd bytes, for which `read_texts` refuses the corpus.
    has_many_nuls = content.count(0) > len(content) / 4
    if not has_many_nuls:
        with suppress(UnicodeDecodeError):
            return content.decode("utf-8-sig"), "utf-8"
    return content.decode("cp1252", errors="replace"), "cp1252"


@cache
def warn_once(message: str) -> None:
    """Prints a warning once, although a corpus is read several times."""
    print(f"warning: {message}", file=sys.stderr)
