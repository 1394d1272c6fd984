"""Finds labelled examples: in corpora with names, the phrasebook, and users' files.

Example:
    corpus = find_labelled("agnews")  # or another name, a folder, a table
"""

import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from support.classification import named
from support.classification.corpus import Labelled, Reader
from support.classification.images import (
    ImageTransform,
    idx_shape,
    read_idx_labels,
    read_idx_pair,
    read_image,
)
from support.classification.labelled_tables import read_labelled_table, read_numbered
from support.common.errors import UserError
from support.corpora import phrasebook
from support.corpora.archives import File, TarMember
from support.corpora.class_folders import (
    files_beside,
    find_class_folders,
    find_examples,
    inner_folders,
    visible,
)
from support.corpora.download import sha256
from support.corpora.pairs import PARTS, find_file, find_part_tables, own_name
from support.corpora.tables import (
    UTF_16,
    class_name,
    column_name,
    column_names,
    find_table,
    one_line,
    read_lines,
)
from support.corpora.task_type import CLASSIFICATION_CORPORA, find_idx, find_numbered


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

    data: one of CLASSIFICATION_CORPORA, a table (.csv, JSON, or lines with tabs; perhaps in a
    .zip), or a folder: with IDX files, with AG News's files, with tables named train, valid and
    test, or with a folder for each class, perhaps within train, valid and test. valid, test: a
    table or a folder of class folders. transform: how images are read. Without it they get
    `size` pixels per side; if that is 0, IDX images keep their size, and others get 32 pixels
    per side. Raises UserError.
    """
    corpus = find_data(data, text, label, size, transform)
    for part, path in (("valid", valid), ("test", test)):
        if path:
            add_part(corpus, part, Path(path), text, label)
    has_table = any(find_table(Path(path)) for path in (data, valid, test))
    if (text or label) and not has_table and not find_part_tables(Path(data)):
        raise UserError(
            f"--text and --label name columns of a table, but {data} is not a table"
        )
    return corpus


def find_data(
    data: str, text: str, label: str, size: int, transform: ImageTransform | None
) -> Labelled:
    """Returns the corpus that --data names, without what --valid and --test add."""
    if data == "kinds":
        return find_kinds()
    folder = Path(data)
    name = data if data in CLASSIFICATION_CORPORA else own_name(folder, CLASSIFICATION_CORPORA)
    if data in named.FILES:
        folder = named.fetch(data)
    corpus = Labelled(name, transform=transform)
    if data == "imdb":
        add_imdb(corpus, folder / named.IMDB_ARCHIVE)
    elif data == "amazon-polarity":
        add_amazon_reviews(corpus, folder / named.AMAZON_ARCHIVE)
    elif find_idx(folder):
        add_idx(corpus, folder, size)
    elif not label and find_numbered(folder):
        if text:
            raise UserError("--text names columns of a table; add --label, which names another")
        add_numbered(corpus, folder)
    else:
        if size and not transform:
            corpus.transform = ImageTransform(size)
        add_parts(corpus, folder, text, label)
    return corpus


# --- The forms of corpora ---------------------------------------------------------------------


def find_kinds() -> Labelled:
    """Returns the German sentences of the phrasebook's grammar, labelled by their kind."""
    corpus = Labelled("kinds", classes=phrasebook.KINDS, files=[phrasebook.DATA])
    for part in PARTS:
        corpus.add(part, "text", partial(phrasebook.labelled, part), [])
    return corpus


def add_imdb(corpus: Labelled, archive: Path) -> None:
    """Adds the texts in IMDB's archive."""
    for part in ("train", "test"):
        corpus.add(part, "text", partial(named.read_imdb, archive, part), [archive])


def add_amazon_reviews(corpus: Labelled, archive: Path) -> None:
    """Adds the two tables in the archive of Amazon's reviews."""
    corpus.classes = named.CLASSES["amazon-polarity"]
    for part in ("train", "test"):
        table = TarMember(archive, f"amazon_review_polarity_csv/{part}.csv")
        read = partial(read_numbered, table, corpus.classes, line_end="\\n")
        corpus.add(part, "text", read, [archive])


def add_idx(corpus: Labelled, folder: Path, size: int) -> None:
    """Adds IDX files. Raises UserError."""
    # One small file shows whether the folder holds Fashion-MNIST.
    test_labels = find_file(f"{folder}/t10k-labels-idx1-ubyte")
    _, checksum = named.FILES["fashion-mnist"]["t10k-labels-idx1-ubyte.gz"]
    is_fashion_mnist = test_labels and sha256(test_labels, unpacked=True) == checksum
    if is_fashion_mnist:
        corpus.name = "fashion-mnist"
        corpus.classes = named.CLASSES["fashion-mnist"]
    for part, (images, labels) in find_idx(folder).items():
        if not images or not labels:
            raise UserError(
                f"{folder}: the {part} set has only {images or labels}; both images and "
                f"labels are needed"
            )
        if not corpus.transform:
            corpus.transform = ImageTransform(size or idx_shape(images, 3)[1], channels=1)
            if is_fashion_mnist:
                corpus.transform.mean = [named.FASHION_MEAN]
                corpus.transform.std = [named.FASHION_STD]
        corpus.add(
            part,
            "image",
            partial(read_idx_pair, images, labels, corpus.classes, corpus.transform),
            [images, labels],
            labels=partial(read_idx_labels, labels, corpus.classes),
        )


def add_numbered(corpus: Labelled, folder: Path) -> None:
    """Adds AG News's files, or others with numbered classes. Raises UserError."""
    class_names = folder / "classes.txt"
    if class_names.is_file():
        lines = read_lines(class_names)
        corpus.classes = [class_name(line) for line in lines if line.strip()]
    elif sha256(folder / "test.csv") == named.FILES["agnews"]["test.csv"][1]:
        corpus.classes = named.CLASSES["agnews"]
    elif folder.resolve().name == "amazon_review_polarity_csv":  # the archive, unpacked
        corpus.name = "amazon-polarity"
        corpus.classes = named.CLASSES["amazon-polarity"]
    else:
        raise UserError(
            f"{folder}: no classes.txt, which names class 1, class 2, ..., a line each. For a "
            f"table with a header pass its path: --data FILE --label COLUMN"
        )
    line_end = "\\n"  # how the texts write line ends
    if corpus.classes == named.CLASSES["agnews"]:
        corpus.name = "agnews"
        line_end = "\\"
    for part, path in find_numbered(folder).items():
        corpus.add(part, "text", partial(read_numbered, path, corpus.classes, line_end), [path])


def add_parts(corpus: Labelled, path: Path, text: str, label: str) -> None:
    """Adds a table, or the tables or class folders in a folder. Raises UserError."""
    tables = find_part_tables(path) if label else {}
    class_folders = {} if tables else find_class_folders(path)
    for part, inner in (tables or class_folders or {"train": path}).items():
        add_part(corpus, part, inner, text, label)
    if class_folders and path not in class_folders.values():
        corpus.left_out += files_beside(path, class_folders.values())
    if (path / "imdb.vocab").is_file():  # IMDB's archive, unpacked; configs/imdb.yaml applies
        corpus.name = "imdb"


def add_part(corpus: Labelled, part: str, path: Path, text: str, label: str) -> None:
    """Adds a table, or a folder of class folders. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    table = find_table(path)
    if table:
        add_table(corpus, part, path, table, text, label)
    else:
        add_class_folders(corpus, part, path)


def add_table(
    corpus: Labelled, part: str, path: Path, table: File, text: str, label: str
) -> None:
    """Adds a table. path: its file, or the archive that it is in. Raises UserError."""
    if not label:
        raise UserError(f"{path}: --label must name the column that has the classes")
    if part == "train":
        columns = [label, *text.split(",")]
        by_position = all(column.strip().isdigit() for column in columns)
        corpus.without_header = table if by_position else None
    elif (
        part == "test"
        and not label.isdecimal()
        and column_name(label) not in column_names(table)
    ):
        raise UserError(
            f"{path}: no column {label!r}; a test set without labels cannot be scored: move it "
            f"away, and use classify.py for it after training"
        )
    read = partial(read_labelled_table, table, text, label)
    corpus.add(part, "text", read, [path], layout=[text, label])


def add_class_folders(corpus: Labelled, part: str, path: Path) -> None:
    """Adds a folder with a folder for each class. Raises UserError."""
    modality, files, left_out = find_examples(path)
    if not files:
        raise UserError(
            f"{path}: neither a table (.csv, .jsonl, or each line with tabs) nor a folder of "
            f"class folders; save other tables as .csv, unpack archives, and pass the folder "
            f"that the class folders are in"
        )
    names = [class_name(file.parent.name) for file in files]
    if part == "train":
        with_examples = set(names)
        for folder in inner_folders(path):
            if class_name(folder.name) not in with_examples and visible(folder):
                raise UserError(f"{folder}: a class without any {modality}")
    corpus.left_out += left_out
    read: Reader
    if modality == "image":
        corpus.transform = corpus.transform or ImageTransform()
        read = partial(read_image_files, files, corpus.transform)
    else:
        read = partial(read_text_files, files)
    corpus.add(part, modality, read, files, layout=Counter(names).items(), labels=lambda: names)


def read_image_files(
    paths: list[Path], transform: ImageTransform
) -> Iterator[tuple[np.ndarray, str]]:
    """Yields (image, class name) of each file; its folder names the class."""
    for path in paths:
        yield read_image(path, transform), class_name(path.parent.name)


def read_text_files(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yields (text, class name) of each file; its folder names the class."""
    other = []  # files in another encoding
    for path in paths:
        content = path.read_bytes()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:  # perhaps from Windows, where UTF-16 begins with a mark
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
    """Prints a warning once, although a corpus is read several times."""
    print(f"warning: {message}", file=sys.stderr)
