"""Where labelled examples come from: corpora with names, the phrasebook, users' files.

Example:
    corpus = find_labelled("agnews")  # or another name, a folder, a table
    classes = classes_of(corpus)
    for text, name in corpus.parts["train"](): ...      # of images: (array, name)
"""

import hashlib
import json
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from support.classification.images import (
    ImageTransform,
    idx_image_size,
    read_idx_labels,
    read_idx_pair,
    read_image,
)
from support.classification.labelled_tables import read_labelled_table, read_numbered
from support.classification.named import (
    AMAZON_ARCHIVE,
    CLASSES,
    FASHION_MEAN,
    FASHION_STD,
    FILES,
    IMDB_ARCHIVE,
    fetch,
    read_imdb,
)
from support.classification.text_files import read_text_files
from support.common.errors import UserError
from support.corpora import phrasebook
from support.corpora.archives import File, TarMember
from support.corpora.class_folders import (
    find_class_folders,
    find_examples,
    inner_folders,
    visible,
)
from support.corpora.download import sha256
from support.corpora.pairs import PARTS, find_file, find_part_tables, own_name
from support.corpora.tables import class_name, column_name, column_names, find_table, read_lines
from support.corpora.task_type import CLASSIFICATION_CORPORA, find_idx, find_numbered

MAX_CLASSES = 5000
LARGE_CORPUS = 4 << 30  # bytes of images, above which their files are not read for a checksum

Reader = Callable[[], Iterable[tuple[Any, str]]]  # yields (text or array, class name)


@dataclass
class Labelled:
    """A labelled corpus that was found but not read."""

    name: str
    modality: str = ""  # "text" or "image"
    parts: dict[str, Reader] = field(default_factory=dict)  # train, valid and test
    # Of each part a reader of the class names alone, where that is quicker.
    labels: dict[str, Callable[[], Iterable[str]] | None] = field(default_factory=dict)
    classes: list[str] = field(default_factory=list)  # in their order; [] if that is unknown
    files: list[Path] = field(default_factory=list)
    layout: list = field(default_factory=list)  # of each part: columns of a table, or folders
    headless: File | None = None  # the training set's table, if perhaps it has no header
    left_out: Counter[str] = field(default_factory=Counter)  # files in class folders, by ending
    transform: ImageTransform | None = None  # how images are read

    def add(
        self,
        part: str,
        modality: str,
        read: Reader,
        files: list[Path],
        layout: Iterable = (),
        labels: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """Adds a part. Raises UserError if its modality is not that of the other parts."""
        if self.modality not in ("", modality):
            raise UserError(
                f"{files[0]}: {modality}s for the {part} set, but {self.name} has "
                f"{self.modality}s"
            )
        self.modality = modality
        self.parts[part] = read
        self.files += files
        self.layout += [part, *layout]
        self.labels[part] = labels

    def read_labels(self, part: str) -> Iterable[str]:
        """Returns the class of each example of a part, if possible without reading the rest."""
        read_labels = self.labels.get(part)
        if read_labels:
            return read_labels()
        return (name for _, name in self.parts[part]())

    def left_out_line(self) -> str:
        """Returns a line that says which files are no examples; "" if all are."""
        if not self.left_out:
            return ""
        counts = [f"{count:,} {kind}" for kind, count in self.left_out.most_common()]
        return f"{self.name}: left out: {', '.join(counts)}"

    def checksum(self) -> str:
        """Returns a SHA-256 of the contents of the files, and of how they are read."""
        is_large = False
        transform: dict[str, Any] = {}
        if self.modality == "image" and self.transform:
            is_large = sum(file.stat().st_size for file in self.files) > LARGE_CORPUS
            # Normalization comes later: what is stored does not depend on it.
            transform = vars(self.transform) | {"mean": 0, "std": 0}
        contents: list[Any]
        if is_large:
            contents = [[file.name, file.stat().st_size] for file in self.files]
        else:
            contents = [sha256(file) for file in dict.fromkeys(self.files)]
        description = [sorted(self.parts), self.classes, self.layout, transform, contents]
        return hashlib.sha256(json.dumps(description).encode()).hexdigest()


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
    table or a folder of class folders. transform: how images are read. Without it they become
    `size` pixels a side; if that is 0, IDX images keep their size and others become 32 pixels a
    side. Raises UserError.
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
    if data in FILES:
        folder = fetch(data)
    corpus = Labelled(name, transform=transform)
    if data == "imdb":
        add_imdb(corpus, folder / IMDB_ARCHIVE)
    elif data == "amazon-polarity":
        add_amazon_reviews(corpus, folder / AMAZON_ARCHIVE)
    elif find_idx(folder):
        add_idx(corpus, folder, size)
    elif find_numbered(folder):
        add_numbered(corpus, folder)
    else:
        if size and not transform:
            corpus.transform = ImageTransform(size)
        tables = find_part_tables(folder) if label else {}
        parts = tables or find_class_folders(folder) or {"train": folder}
        for part, path in parts.items():
            add_part(corpus, part, path, text, label)
        if (folder / "imdb.vocab").is_file():
            corpus.name = "imdb"
    return corpus


def classes_of(corpus: Labelled) -> list[str]:
    """Returns the classes of all parts: in the corpus's order, or sorted.

    Names that are all numbers are sorted by value. Reads the labels of all parts. Raises
    UserError for a single class, for too many, for a part with other classes only, and for what
    seems to be a header.
    """
    if "train" not in corpus.parts:
        raise UserError(f"{corpus.name}: no training set, only {', '.join(corpus.parts)}")
    counts = Counter(corpus.read_labels("train"))
    check_classes(corpus, counts)
    check_header(corpus, counts)
    names = set(counts)
    for part in corpus.parts.keys() - {"train"}:
        names_of_part = set(corpus.read_labels(part))
        if names_of_part and names_of_part.isdisjoint(counts):
            raise UserError(
                f"{corpus.name}: the {part} set has no class that the training set has, but "
                f"such as {min(names_of_part)!r}"
            )
        names |= names_of_part
    if corpus.classes:
        return corpus.classes
    if all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in names):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def check_classes(corpus: Labelled, counts: Counter) -> None:
    """Raises UserError for too few or too many classes.

    counts: the examples of each class in the training set.
    """
    if not counts:
        raise UserError(f"{corpus.name}: the training set has no example")
    if len(counts) == 1:
        raise UserError(
            f"{corpus.name}: the training set has only the class {min(counts)!r}; at least "
            f"two classes are needed"
        )
    if len(counts) > MAX_CLASSES:
        raise UserError(
            f"{corpus.name}: {len(counts):,} classes; does --label name the right column?"
        )


def check_header(corpus: Labelled, counts: Counter) -> None:
    """Raises UserError if the first row of a table seems to be a header, not an example.

    Its class occurs only once then, other classes more often. counts: the examples of each
    class in the training set.
    """
    if not corpus.headless:
        return
    first = next(iter(counts))  # the class of the first example
    only_first_is_unique = counts[first] == 1 and max(counts.values()) > 1
    if not only_first_is_unique:
        return
    if column_name(first) in column_names(corpus.headless):  # else a header was passed over
        raise UserError(
            f"{corpus.name}: the class {first!r} occurs in the first row only. If that row is "
            f"a header, pass --label {shlex.quote(first)}; if not, put a header above it"
        )


# --- The forms of corpora ---------------------------------------------------------------------


def find_kinds() -> Labelled:
    """Returns the German sentences of the phrasebook's grammar, labelled by what they do."""
    corpus = Labelled("kinds", classes=phrasebook.KINDS, files=[phrasebook.DATA])
    for part in PARTS:
        corpus.add(part, "text", partial(phrasebook.labelled, part), [])
    return corpus


def add_imdb(corpus: Labelled, archive: Path) -> None:
    """Adds the texts in IMDB's archive."""
    for part in ("train", "test"):
        corpus.add(part, "text", partial(read_imdb, archive, part), [archive])


def add_amazon_reviews(corpus: Labelled, archive: Path) -> None:
    """Adds the two tables in the archive of Amazon's reviews."""
    corpus.classes = CLASSES["amazon-polarity"]
    for part in ("train", "test"):
        table = TarMember(archive, f"amazon_review_polarity_csv/{part}.csv")
        read = partial(read_numbered, table, corpus.classes, line_end="\\n")
        corpus.add(part, "text", read, [archive])


def add_idx(corpus: Labelled, folder: Path, size: int) -> None:
    """Adds IDX files. Raises UserError."""
    # One small file tells whether a folder holds Fashion-MNIST.
    test_labels = find_file(f"{folder}/t10k-labels-idx1-ubyte")
    _, checksum = FILES["fashion-mnist"]["t10k-labels-idx1-ubyte.gz"]
    is_fashion_mnist = test_labels and sha256(test_labels, unpacked=True) == checksum
    if is_fashion_mnist:
        corpus.name = "fashion-mnist"
        corpus.classes = CLASSES["fashion-mnist"]
    for part, (images, labels) in find_idx(folder).items():
        if not images or not labels:
            raise UserError(
                f"{folder}: the {part} set has only {images or labels}; both images and "
                f"labels are needed"
            )
        if not corpus.transform:
            corpus.transform = ImageTransform(size or idx_image_size(images), channels=1)
            if is_fashion_mnist:
                corpus.transform.mean = [FASHION_MEAN]
                corpus.transform.std = [FASHION_STD]
        corpus.add(
            part,
            "image",
            partial(read_idx_pair, images, labels, corpus.classes, corpus.transform),
            [images, labels],
            labels=partial(read_idx_labels, labels, corpus.classes),
        )


def add_numbered(corpus: Labelled, folder: Path) -> None:
    """Adds AG News's files, or others of their form whose classes.txt names the classes."""
    class_names = folder / "classes.txt"
    if class_names.is_file():
        lines = read_lines(class_names)
        corpus.classes = [class_name(line) for line in lines if line.strip()]
    elif sha256(folder / "test.csv") == FILES["agnews"]["test.csv"][1]:
        corpus.classes = CLASSES["agnews"]
    elif folder.resolve().name == "amazon_review_polarity_csv":  # the archive, unpacked
        corpus.name = "amazon-polarity"
        corpus.classes = CLASSES["amazon-polarity"]
    else:
        raise UserError(
            f"{folder}: no classes.txt, which names class 1, class 2, ..., a line each. For a "
            f"table with a header pass its path: --data FILE --label COLUMN"
        )
    line_end = "\\n"  # how a text's line ends are written
    if corpus.classes == CLASSES["agnews"]:
        corpus.name = "agnews"
        line_end = "\\"
    for part, path in find_numbered(folder).items():
        corpus.add(part, "text", partial(read_numbered, path, corpus.classes, line_end), [path])


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
        corpus.headless = table if by_position else None
    read = partial(read_labelled_table, table, text, label)
    corpus.add(part, "text", read, [path], layout=[text, label])


def add_class_folders(corpus: Labelled, part: str, path: Path) -> None:
    """Adds a folder that has a folder for each class. Raises UserError."""
    modality, files, left_out = find_examples(path)
    if not files:
        raise UserError(
            f"{path}: neither a table (.csv, .jsonl, or each line with tabs) nor a folder of "
            f"class folders; save other tables as .csv, and unpack archives"
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
    corpus.add(
        part,
        modality,
        read,
        files,
        layout=Counter(names).items(),
        labels=lambda: names,
    )


def read_image_files(
    paths: list[Path], transform: ImageTransform
) -> Iterator[tuple[np.ndarray, str]]:
    """Yields the image of each file with the name of its folder."""
    for path in paths:
        yield read_image(path, transform), class_name(path.parent.name)
