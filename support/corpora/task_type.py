"""Finds out which task a corpus is for, from its files, most of which are not read for that."""

import codecs
import re
from pathlib import Path

from support.common.errors import UserError
from support.corpora.archives import read_bytes
from support.corpora.class_folders import find_class_folders
from support.corpora.pairs import find_file

CLASSIFICATION_CORPORA = ("agnews", "amazon-polarity", "fashion-mnist", "imdb", "kinds")
TRANSLATION_CORPORA = ("phrasebook", "multi30k")


def task_type(data: str, label: str = "") -> str:
    """Returns "translation" or "classification". Raises UserError.

    data, label: what --data and --label say.
    """
    if not data:  # as a path it would be the current folder
        raise UserError("--data needs a name, a file or a folder")
    if label or data in CLASSIFICATION_CORPORA:
        return "classification"
    if data in TRANSLATION_CORPORA:
        return "translation"
    folder = Path(data)
    if find_idx(folder) or find_numbered(folder) or find_class_folders(folder):
        return "classification"
    return "translation"


def find_idx(folder: Path) -> dict[str, tuple[Path | None, Path | None]]:
    """Returns the IDX files of each part: its images and its labels, if they are there."""
    parts = {}
    for part, name in (("train", "train"), ("test", "t10k")):
        images = find_file(f"{folder}/{name}-images-idx3-ubyte")
        labels = find_file(f"{folder}/{name}-labels-idx1-ubyte")
        if images or labels:
            parts[part] = (images, labels)
    return parts


def find_numbered(folder: Path) -> dict[str, Path]:
    """Returns the .csv file of each part, as in AG News: the class's number comes first."""
    paths = {part: folder / f"{part}.csv" for part in ("train", "test")}
    parts = {part: path for part, path in paths.items() if path.is_file()}
    if "train" not in parts:
        return {}
    beginning = read_bytes(parts["train"], 15).removeprefix(codecs.BOM_UTF8)[:12]
    # It has no header: the first cell is a number, perhaps in quotes, but not a long one.
    if not re.match(rb'"?\d+(\.0+)?"?\s*[,;\t]', beginning):
        return {}
    has_names = (folder / "classes.txt").is_file()
    if not has_names and find_class_folders(folder):  # a table beside class folders
        return {}
    return parts
