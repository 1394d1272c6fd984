"""Where labelled examples come from: texts (AG News, tables, folders, the phrasebook) and pictures.

corpus = find_labelled("agnews")    # or fashion-mnist, kinds, a folder, a .csv, .tsv or .jsonl
classes = classes_of(corpus)
for text, name in corpus.parts["train"](): ...          # of pictures: (array, name)
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from support.classification.images import (
    FASHION_CLASSES,
    FASHION_MNIST,
    FASHION_MNIST_URL,
    Picture,
    find_idx,
    is_fashion_mnist,
    read_idx,
    read_idx_labels,
    read_idx_pair,
    read_picture,
)
from support.common.errors import UserError
from support.common.paths import LOGS
from support.corpora import phrasebook
from support.corpora.pairs import PARTS, download, own_name, sha256
from support.corpora.tables import (
    TABLES,
    column_names,
    ending,
    one_line,
    read_labelled_table,
    read_lines,
    read_numbered,
)

NAMES = ("agnews", "fashion-mnist", "kinds")
# Zhang et al., 2015, for non-commercial use. Of each file: its size in bytes, its SHA-256.
AGNEWS_URL = (
    "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
)
AGNEWS = {
    "train.csv": (29470338, "76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e"),
    "test.csv": (1857427, "521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699"),
}
AGNEWS_CLASSES = ["World", "Sports", "Business", "Sci/Tech"]
SUFFIXES = {".txt": "text"} | dict.fromkeys(
    [".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"], "picture"
)


@dataclass
class Labelled:
    """A labelled corpus that was found but not read.

    parts: of train, valid and test a reader of (text, class name), or of (picture, class name),
    with bytes of (channels, n, n). classes: in their order if that is known; see classes_of.
    """

    name: str
    kind: str  # "text" or "picture"
    parts: dict[str, Callable[[], Iterator[tuple[str | np.ndarray, str]]]]
    classes: list[str]
    files: list[Path]
    columns: tuple  # of tables; of folders, what is where
    labels: dict[str, Callable | None] = field(default_factory=dict)  # names alone, if quicker
    picture: Picture | None = None  # how pictures are read

    def add(
        self,
        part: str,
        kind: str,
        read: Callable,
        files: list[Path],
        columns=(),
        labels: Callable | None = None,
    ) -> None:
        """Adds a part. Raises UserError if it is of another kind than what is there."""
        if self.kind not in ("", kind):
            raise UserError(
                f"{files[0]}: {kind}s for the {part} part, but {self.name} has {self.kind}s"
            )
        self.kind, self.parts[part], self.labels[part] = kind, read, labels
        self.files, self.columns = [*self.files, *files], (*self.columns, part, *columns)

    def checksum(self) -> str:
        """Of what the files hold, and of how they are read."""
        how, many = {}, False
        if self.kind == "picture":
            how = vars(self.picture) | {"mean": 0, "std": 0}
            if not self.picture.square:  # runs are older than this field
                del how["square"]
            many = (
                sum(file.stat().st_size for file in self.files) > 4 << 30
            )  # bytes: long to read
        files = [
            [file.name, file.stat().st_size] if many else sha256(file) for file in self.files
        ]
        made_of = [sorted(self.parts), self.classes, self.columns, how, *files]
        return hashlib.sha256(json.dumps(made_of).encode()).hexdigest()


def is_labelled(data: str, label: str = "") -> bool:
    """Whether --data names a labelled corpus: by names of files, without opening any."""
    folder = Path(data)
    return (
        bool(label)
        or data in NAMES
        or data not in ("phrasebook", "multi30k")
        and bool(find_idx(folder) or find_numbered(folder) or find_folders(folder))
    )


def find_labelled(
    data: str,
    valid: str = "",
    test: str = "",
    text: str = "",
    label: str = "",
    size: int = 0,
    picture: Picture | None = None,
) -> Labelled:
    """The corpus that --data, --valid, --test, --text and --label name.

    data: one of NAMES, a table (.csv, .tsv, .jsonl), or a folder with IDX files, with AG News's
    files, or with a folder for each class, perhaps within train, valid and test. valid, test: a
    table or a folder of class folders. picture: how pictures are read; without it they get `size`
    pixels a side, or if that is 0, 32; of IDX files they keep their own. Raises UserError.
    """
    folder, name = Path(data), data if data in NAMES else own_name(Path(data), NAMES)
    corpus = Labelled(name, "", {}, [], [], (), picture=picture)
    if data == "agnews":
        folder = download(data, AGNEWS, AGNEWS_URL)
    elif data == "fashion-mnist":
        folder = download(data, FASHION_MNIST, FASHION_MNIST_URL, unpacked=True)
    if data == "kinds":
        corpus.classes = list(phrasebook.KINDS)
        for part in PARTS:
            corpus.add(part, "text", partial(phrasebook.labelled, part), [])
        corpus.files.append(phrasebook.DATA)
    elif find_idx(folder):
        add_idx(corpus, folder, size)
    elif find_numbered(folder):
        add_numbered(corpus, folder)
    else:
        corpus.picture = picture or (Picture(size) if size else None)
        for part, inner in (find_folders(folder) or {"train": folder}).items():
            add_part(corpus, part, inner, text, label)
    for part, spec in (("valid", valid), ("test", test)):
        if spec:
            add_part(corpus, part, Path(spec), text, label)
    if (text or label) and not any(
        ending(Path(spec)) in TABLES for spec in (data, valid, test)
    ):
        raise UserError(f"--text, --label: {data} is no table, so it has no columns")
    return corpus


def classes_of(corpus: Labelled) -> list[str]:
    """The classes of the training part: in the corpus's order, else sorted, numbers by value.

    Reads the labels of all parts. Raises UserError for a single class, for one that occurs in
    another part only, and for what seems to be a header.
    """
    if "train" not in corpus.parts:
        raise UserError(f"{corpus.name}: no training part, only {', '.join(corpus.parts)}")
    found = {
        part: Counter(
            corpus.labels[part]() if corpus.labels.get(part) else (name for _, name in read())
        )
        for part, read in corpus.parts.items()
    }
    trained = found["train"]
    if len(trained) < 2:
        raise UserError(
            f"{corpus.name}: the training part has "
            f"{f'one class only, {min(trained)!r}' if trained else 'no example'}; "
            f"at least two classes are needed"
        )
    for part, names in found.items():
        if new := names.keys() - trained.keys():
            raise UserError(
                f"{corpus.name}: the class {min(new)!r} occurs in the {part} part, but "
                f"not in the training part"
            )
    if len(trained) > 5000:
        raise UserError(
            f"{corpus.name}: {len(trained):,} classes: is --label the right column?"
        )
    asked = "".join(map(str, corpus.columns[1:3]))  # of a table: --text and --label
    by_position, first = asked.replace(",", "").replace(" ", "").isdigit(), next(iter(trained))
    if (
        by_position
        and trained[first] == 1 < max(trained.values())
        and first.lower() in column_names(corpus.files[0])
    ):  # no header was passed over
        raise UserError(
            f"{corpus.name}: {first!r} is the class of the first row alone. A header? "
            f"Name the columns: --label {first}. If not, put one above it"
        )
    numbers = all(re.fullmatch(r"-?\d+(\.\d+)?", name) for name in trained)
    return corpus.classes or sorted(
        trained, key=lambda name: (float(name) if numbers else 0, name)
    )


# --- Folders and tables ---------------------------------------------------------------------------


def add_idx(corpus: Labelled, folder: Path, size: int) -> None:
    """Adds IDX files; those of Fashion-MNIST are known by what they hold."""
    seen = {}
    if is_fashion_mnist(folder):
        corpus.name, corpus.classes = "fashion-mnist", FASHION_CLASSES
        seen = dict(mean=[0.28604], std=[0.35302])
    for part, pair in find_idx(folder).items():
        if None in pair:
            raise UserError(
                f"{folder}: of the {part} part there are only {pair[0] or pair[1]}; "
                f"both pictures and labels are needed"
            )
        own = read_idx(pair[0], 3, whole=False)[1]
        corpus.picture = corpus.picture or Picture(size or own, 1, **seen)
        corpus.add(
            part,
            "picture",
            partial(read_idx_pair, *pair, corpus.classes, corpus.picture),
            pair,
            labels=partial(read_idx_labels, pair[1], corpus.classes),
        )


def find_numbered(folder: Path) -> dict[str, Path]:
    """Of each part, a .csv as AG News has them: without a header, a class's number comes first."""
    names = {"train_part.csv": "train", "train.csv": "train", "test.csv": "test"}
    found = {part: folder / name for name, part in names.items() if (folder / name).is_file()}
    is_named = (folder / "classes.txt").is_file()  # else a table beside class folders
    return found if "train" in found and (is_named or not find_folders(folder)) else {}


def add_numbered(corpus: Labelled, folder: Path) -> None:
    """Adds AG News's files, or others of their form whose classes.txt names other classes."""
    named = folder / "classes.txt"
    if not named.is_file() and sha256(folder / "test.csv") != AGNEWS["test.csv"][1]:
        raise UserError(
            f"{folder}: no classes.txt, which names class 1, class 2, ..., a line each; "
            f"a table with a header is named itself: --data FILE --label COLUMN"
        )
    names = [line.strip() for line in read_lines(named)] if named.is_file() else AGNEWS_CLASSES
    corpus.classes = [name for name in names if name]
    corpus.name = "agnews" if corpus.classes == AGNEWS_CLASSES else corpus.name
    line_end = "\\" if corpus.name == "agnews" else "\\n"  # as Zhang et al. write them
    for part, path in find_numbered(folder).items():
        corpus.add(part, "text", partial(read_numbered, path, corpus.classes, line_end), [path])


def inner_folders(folder: Path) -> list[Path]:
    """Its folders, but for hidden ones, IMDB's `unsup`, and logs/ of this project."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [
        inner
        for inner in found
        if inner.is_dir()
        and inner.name[0] != "."
        and inner.name != "unsup"
        and inner.resolve() != LOGS.resolve()
    ]


def class_folders(folder: Path) -> list[Path]:
    """Those of its folders that have texts or pictures."""
    return [
        inner
        for inner in inner_folders(folder)
        if any(path.suffix.lower() in SUFFIXES for path in inner.iterdir())
    ]


def find_folders(folder: Path) -> dict[str, Path]:
    """Of each part, the folder with its class folders; none beside train.de and train.en."""
    inner = {path.name.lower(): path for path in inner_folders(folder)}
    found = {
        part: inner[name]
        for part, names in PARTS.items()
        for name in reversed(names)
        if name in inner and class_folders(inner[name])
    }
    is_parallel = sum(ending(path) not in TABLES for path in folder.glob("train.*")) > 1
    return found or ({} if is_parallel or not class_folders(folder) else {"train": folder})


def read_class_files(files: list[tuple[Path, str]], picture: Picture) -> Iterator[tuple]:
    """Each file with its class."""
    for path, name in files:
        is_text = SUFFIXES[path.suffix.lower()] == "text"
        yield (
            one_line(" ".join(read_lines(path))) if is_text else read_picture(path, picture),
            name,
        )


def add_part(corpus: Labelled, part: str, path: Path, text: str, label: str) -> None:
    """Adds a table, or a folder of class folders. Raises UserError."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if ending(path) in TABLES:
        if not label:
            raise UserError(f"{path}: --label says which of its columns has the classes")
        read = partial(read_labelled_table, path, text, label)
        return corpus.add(part, "text", read, [path], (text, label))
    folders = class_folders(path)
    for inner in inner_folders(path) if folders and part == "train" else ():
        if inner not in folders and any(inner.iterdir()):
            raise UserError(f"{inner}: a class without any file of {', '.join(SUFFIXES)}")
    # A name that is not UTF-8 could not be written down later.
    files = [
        (file, inner.name.encode("utf-8", "replace").decode())
        for inner in folders
        for file in sorted(inner.iterdir())
        if file.suffix.lower() in SUFFIXES
    ]
    kinds = {SUFFIXES[file.suffix.lower()] for file, _ in files}
    if len(kinds) != 1:
        wrong = "both .txt files and pictures" if kinds else "neither a table nor class folders"
        raise UserError(f"{path}: {wrong}")
    corpus.picture = corpus.picture or (Picture() if "picture" in kinds else None)
    names = [name for _, name in files]
    corpus.add(
        part,
        *kinds,
        partial(read_class_files, files, corpus.picture),
        [f for f, _ in files],
        Counter(names).items(),
        labels=lambda: names,
    )
