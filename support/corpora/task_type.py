"""Finds out which task a corpus is for, from the names of its files alone."""

from pathlib import Path

from support.common.paths import LOGS
from support.corpora.pairs import PARTS, find_file
from support.corpora.tables import TABLES, ending

CLASSIFICATION_CORPORA = ("agnews", "fashion-mnist", "kinds")
TRANSLATION_CORPORA = ("phrasebook", "multi30k")
IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
MODALITY = {".txt": "text"} | dict.fromkeys(IMAGES, "image")  # by the ending of a file


def task_type(data: str, label: str = "") -> str:
    """Returns "translation" or "classification". data, label: what --data and --label say."""
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
    parts = {}
    for name, part in (
        ("train_part.csv", "train"),
        ("train.csv", "train"),
        ("test.csv", "test"),
    ):
        if (folder / name).is_file():
            parts[part] = folder / name
    if "train" not in parts:
        return {}
    has_names = (folder / "classes.txt").is_file()
    if not has_names and find_class_folders(folder):  # a table beside class folders
        return {}
    return parts


def inner_folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder, except hidden ones, IMDB's `unsup`, and logs/."""
    if not folder.is_dir():
        return []
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_dir()
        and not path.name.startswith(".")
        and path.name != "unsup"
        and path.resolve() != LOGS.resolve()
    ]


def folders_with_examples(folder: Path) -> list[Path]:
    """Returns those folders in a folder that have texts or images."""
    return [
        inner
        for inner in inner_folders(folder)
        if any(path.suffix.lower() in MODALITY for path in inner.iterdir())
    ]


def find_class_folders(folder: Path) -> dict[str, Path]:
    """Returns the folder of each part that has a folder for each class.

    A folder that also has train.de and train.en is a corpus to translate.
    """
    by_name = {path.name.lower(): path for path in inner_folders(folder)}
    parts = {}
    for part, names in PARTS.items():
        for name in names:
            if name in by_name and folders_with_examples(by_name[name]):
                parts[part] = by_name[name]
                break
    if parts:
        return parts
    train_files = [path for path in folder.glob("train.*") if ending(path) not in TABLES]
    if len(train_files) > 1 or not folders_with_examples(folder):
        return {}
    return {"train": folder}
