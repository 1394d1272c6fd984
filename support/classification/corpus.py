"""A labelled corpus: its parts, its files, and its classes.

Example:
    corpus = find_labelled("agnews")  # in support/classification/labelled.py
    classes = classes_of(corpus)
    for text, name in corpus.parts["train"](): ...      # of images: (path or array, name)
"""

import hashlib
import json
import re
import shlex
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from support.classification.images import ImageTransform
from support.common.errors import UserError
from support.corpora.archives import File
from support.corpora.class_folders import IMAGES
from support.corpora.download import content_checksum
from support.corpora.held_out import HOLD_OUT_VERSION
from support.corpora.tables import has_column

MAX_CLASSES = 5000
FEW_CLASSES = 20  # up to so many may have one example each
EXAMPLES_OF_CLASS = 10  # of training, on average: with fewer there is a warning
MISSING = {"nan", "none", "null", "n/a", "na", "-"}  # labels that may stand for none
NUMBER = re.compile(r"-?\d+(\.\d+)?")
LARGE_CORPUS = 4 << 30  # bytes of images; above it the checksum is of names and sizes

# Yields (example, class name): an example is a text, an image file, or an image's bytes.
Reader = Callable[[], Iterable[tuple[Any, str]]]


@dataclass
class Labelled:
    """A labelled corpus that is found but not yet read."""

    name: str
    text: str = ""  # columns of a table: --text
    label: str = ""  # column of a table: --label
    size: int = 0  # pixels per side of images: --image-size; 0: as stored, or 32
    transform: ImageTransform | None = None  # how images are read: see `read_image`
    modality: str = ""  # "text" or "image"
    parts: dict[str, Reader] = field(default_factory=dict)  # train, valid and test
    classes: list[str] = field(default_factory=list)  # in their order; [] if that is unknown
    files: list[Path] = field(default_factory=list)
    layout: list = field(default_factory=list)  # for each part: columns of a table, or folders
    # The class of each example of a part, if its folder tells it, so that no file is read.
    names: dict[str, list[str]] = field(default_factory=dict)
    tables: dict[str, File] = field(default_factory=dict)  # of the parts that are tables
    left_out: Counter[str] = field(default_factory=Counter)  # files, by ending or by folder

    def add(
        self, part: str, modality: str, read: Reader, files: list[Path], layout: Iterable = ()
    ) -> None:
        """Adds a part. Raises UserError if its modality is not that of the other parts."""
        if self.modality not in ("", modality):
            own = f"{self.name} has {self.modality}s"
            raise UserError(f"{files[0]}: {modality}s for the {part} set, but {own}")
        self.modality = modality
        self.parts[part] = read
        self.names.pop(part, None)  # of what was this part before
        self.files += files
        self.layout += [part, *layout]

    def names_of(self, part: str) -> Iterable[str]:
        """Returns the class of each example of a part, in their order."""
        if part in self.names:
            return self.names[part]
        return (name for _, name in self.parts[part]())

    @cached_property
    def class_counts(self) -> Counter[str]:
        """The number of training examples of each class, in the order of their first ones."""
        return Counter(self.names_of("train"))

    def left_out_line(self) -> str:
        """Returns a line that counts the files that are not examples; "" if there are none."""
        if not self.left_out:
            return ""
        counts = [f"{count:,} {kind}" for kind, count in self.left_out.most_common()]
        return f"{self.name}: left out: {', '.join(counts)}"

    @cached_property
    def checksum(self) -> str:
        """A SHA-256 of the contents of the files, and of how they are read."""
        is_large = False
        transform: dict[str, Any] = {}
        if self.modality == "image" and self.transform:
            is_large = sum(file.stat().st_size for file in self.files) > LARGE_CORPUS
            # Normalization comes later: what is stored does not depend on it.
            transform = vars(self.transform) | {"mean": 0, "std": 0}
            if not self.transform.grey_bits:
                del transform["grey_bits"]
        contents: list[Any]
        if is_large:
            contents = [[file.name, file.stat().st_size] for file in self.files]
        else:
            contents = [content_checksum(file) for file in dict.fromkeys(self.files)]
        parts: list[Any] = sorted(self.parts)
        if "valid" not in parts:
            parts.append(HOLD_OUT_VERSION)
        description = [parts, self.classes, self.layout, transform, contents]
        return hashlib.sha256(json.dumps(description).encode()).hexdigest()


def classes_of(corpus: Labelled) -> list[str]:
    """Returns the classes of all parts: in the corpus's order, or sorted.

    If all names are numbers, they are sorted by value. Raises UserError for a single class, for
    too many classes, for what seems to be a header, and for a part that shares no class with
    the training set.
    """
    if "train" not in corpus.parts:
        found = ", ".join(corpus.parts)
        raise UserError(f"{corpus.name}: no training set, train.csv or train/, only {found}")
    check_classes(corpus)
    if corpus.classes:
        return corpus.classes
    names = set(corpus.class_counts)
    for part in corpus.parts.keys() - {"train"}:
        names_of_part = set(corpus.names_of(part))
        if names_of_part and names_of_part.isdisjoint(corpus.class_counts):
            raise UserError(
                f"{corpus.name}: the {part} set shares no class with the training set; it has "
                f"{min(names_of_part)!r}, the training set {min(names)!r}; if it has no "
                f"labels, move it away, and use classify.py for it after training"
            )
        names |= names_of_part
    if all(map(NUMBER.fullmatch, names)):
        return sorted(names, key=lambda name: (float(name), name))
    return sorted(names)


def check_classes(corpus: Labelled) -> None:
    """Raises UserError if the classes of the training set show a mistake."""
    counts = corpus.class_counts
    if not counts:
        raise UserError(f"{corpus.name}: the training set has no example")
    first = next(iter(counts))  # the class of the first example
    texts = (text for text, _ in islice(corpus.parts["train"](), 20))
    if corpus.tables and all(text.lower().endswith(IMAGES) for text in texts):
        raise UserError(
            f"{corpus.name}: its texts are names of images; a table of these is not read, so "
            f"put the images of each class in a folder of its own"
        )
    if len(counts) == 1:
        raise UserError(
            f"{corpus.name}: the training set has only the class {first!r}; at least two "
            f"classes are needed"
        )
    differs_in_each_row = corpus.tables and counts.total() < 1.1 * len(counts)
    if len(counts) > MAX_CLASSES or (len(counts) > FEW_CLASSES and differs_in_each_row):
        raise UserError(
            f"{corpus.name}: {len(counts):,} classes in {counts.total():,} examples; does "
            f"--label name the right column?"
        )
    only_first_is_unique = counts[first] == 1 and max(counts.values()) > 1
    columns = [corpus.label, *corpus.text.split(",")]
    by_position = all(name.strip().isdecimal() for name in columns)  # perhaps without a header
    table = corpus.tables.get("train")
    if table and by_position and only_first_is_unique and has_column(table, first):
        raise UserError(
            f"{corpus.name}: the class {first!r} occurs in the first row only. If that row is "
            f"a header, pass --label {shlex.quote(first)}; if not, put a header above it"
        )


def normalize_name(name: str) -> str:
    """Returns what names of classes have in common if they look alike or are equal numbers."""
    if NUMBER.fullmatch(name):  # pandas writes 1 as 1.0 if a value of the column is missing
        return str(Decimal(name).normalize())
    shown = [character for character in name if unicodedata.category(character) != "Cf"]
    return "".join(shown).casefold().strip(" .")


def warnings_of_classes(classes: list[str], examples: int) -> list[str]:
    """Returns warnings of names that are perhaps no classes. examples: of the training set."""
    warnings = []
    missing = [name for name in classes if name.lower() in MISSING]
    # Beside a class "+", a class "-" is its opposite.
    if missing and "+" not in classes:
        warnings.append(f"{', '.join(missing)}: if that means no label, remove the examples")
    spellings: dict[str, list[str]] = {}
    for name in classes:
        spellings.setdefault(normalize_name(name), []).append(name)
    doubles = [", ".join(names) for names in spellings.values() if len(names) > 1]
    if doubles:
        warnings.append(f"{'; '.join(doubles)[:120]}: each spelling is a class of its own")
    are_numbers = all(map(NUMBER.fullmatch, classes)) and "." in "".join(classes)
    if len(classes) > FEW_CLASSES and are_numbers:
        warnings.append(f"{classes[0]} to {classes[-1]}: each number is a class of its own")
    lines = [f"warning: classes named {warning}" for warning in warnings]
    if examples < EXAMPLES_OF_CLASS * len(classes):
        average = examples / len(classes)
        lines.append(f"warning: a class has {average:.1f} training examples on average: few")
    return lines
