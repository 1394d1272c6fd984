"""Folders with a folder for each class: where they are, and which files in them are examples.

Example:
    parts = find_class_folders(Path("photos"))  # {"train": photos/train, "test": photos/test}
    modality, examples, left_out = find_examples(parts["train"])
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from support.common.errors import UserError
from support.common.paths import LOGS
from support.corpora.archives import PARTS, is_hidden
from support.corpora.tables import TABLES, UTF_16, suffix_of

IMAGES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
MODALITY = {".txt": "text"} | dict.fromkeys(IMAGES, "image")  # by the ending of a file
# How images begin: those of IMAGES, in any file.
IMAGE_BEGINNING = re.compile(
    rb"\x89PNG\r\n\x1a\n|\xff\xd8\xff|RIFF.{4}WEBP|BM.{4}\0{4}|GIF8[79]a", re.DOTALL
)
TEST_SET = re.compile(r"(.*[-_.])?test(ing)?([-_.].*|\d*)")  # what a folder with one is called
LANGUAGE = re.compile(r"\.[a-z]{2}")  # perhaps the ending of a side of a parallel corpus
FIRST_BYTES = 8192  # of a file, which tell whether it is a text
UNLABELLED = "unsup"  # beside IMDB's classes, pos and neg


def visible(folder: Path) -> list[Path]:
    """Returns what is in a folder, if it is one, sorted, without hidden files and folders."""
    if not folder.is_dir():
        return []
    # Unlike `glob`, `iterdir` raises for a folder that may not be read.
    return [path for path in sorted(folder.iterdir()) if not is_hidden(path.name)]


def inner_folders(folder: Path) -> list[Path]:
    """Returns the folders in a folder, except hidden ones, IMDB's `unsup`, and logs/."""
    folders = [path for path in visible(folder) if path.is_dir()]
    is_imdb = {"pos", "neg"} <= {path.name for path in folders}
    return [
        path
        for path in folders
        if path.resolve() != LOGS.resolve() and not (is_imdb and path.name == UNLABELLED)
    ]


def modality_of(path: Path) -> str:
    """Returns "text" or "image", by a file's ending or beginning; of tables and folders ""."""
    if not path.is_file():  # a folder, or a link to nothing
        return ""
    if path.suffix.lower() in MODALITY:
        return MODALITY[path.suffix.lower()]
    if suffix_of(path) in TABLES:
        return ""
    with path.open("rb") as file:
        beginning = file.read(FIRST_BYTES)
    if IMAGE_BEGINNING.match(beginning):
        return "image"
    is_text = beginning.startswith(UTF_16) or (beginning and b"\0" not in beginning)
    return "text" if is_text else ""


def modalities(folder: Path) -> Iterator[tuple[Path, str]]:
    """Yields what is in the folders of a folder, each with its modality (see `modality_of`).

    Files such as train.de and train.en beside each other are a corpus to translate: "".
    """
    for inner in inner_folders(folder):
        paths = visible(inner)
        stems = Counter(path.stem for path in paths if LANGUAGE.fullmatch(path.suffix))
        for path in paths:
            is_side = stems[path.stem] > 1
            yield path, "" if is_side else modality_of(path)


def has_examples(folder: Path) -> bool:
    """Returns whether a folder has folders with texts or images."""
    return any(modality for _, modality in modalities(folder))


def find_examples(folder: Path) -> tuple[str, list[Path], Counter[str]]:
    """Returns the examples in the folders of a folder: "text" or "image", and their files.

    Also returns how much is left out: files by their endings, and folders. If there are images,
    all other files are left out. But if more files are named .txt than are images, the images
    are left out.
    """
    found = dict(modalities(folder))
    num_images = sum(modality == "image" for modality in found.values())
    num_txt = sum(path.suffix.lower() == ".txt" for path in found)
    modality = "image" if num_images and num_images >= num_txt else "text"
    examples = [path for path in found if found[path] == modality]
    others = [path for path in found if found[path] != modality]
    left_out = Counter("folder(s)" if path.is_dir() else ending_of(path) for path in others)
    unlabelled = folder / UNLABELLED
    if unlabelled not in inner_folders(folder):
        left_out[f"in {UNLABELLED}/"] = len(visible(unlabelled))
    left_out["in no class folder"] = sum(path.is_file() for path in visible(folder))
    left_out["empty folder(s)"] = sum(not visible(inner) for inner in inner_folders(folder))
    return modality, examples, +left_out


def find_class_folders(folder: Path) -> dict[str, Path]:
    """Returns the folder of each part that has a folder for each class.

    The parts are folders named train, valid and test, or SOMETHING-train and so on. Without
    them the folder itself is the training set, but if it has train.de and train.en, too, it is
    a corpus to translate. Raises UserError for a test set without class folders.
    """
    parts: dict[str, Path] = {}
    for part, names in PARTS.items():
        for name in names:
            inner = find_part(folder, name)
            if inner:
                parts[part] = inner
                break
    if parts:
        return parts
    train_files = [path for path in folder.glob("train.*") if suffix_of(path) not in TABLES]
    if len(train_files) > 1 or not has_examples(folder):
        return {}
    # A class may be called train, as the vehicle. But a test set has no class of its own.
    for inner in inner_folders(folder):
        if TEST_SET.fullmatch(inner.name.lower()):
            raise UserError(
                f"{inner}: its files are in no class folder; make a folder for each class, or "
                f"move it away if its classes are unknown"
            )
    return {"train": folder}


def find_part(folder: Path, name: str) -> Path | None:
    """Returns the folder `name` in a folder, or else the only one named SOMETHING-name.

    Folders without a folder for each class do not count.
    """
    longer = []
    for path in inner_folders(folder):
        if path.name.lower() == name and has_examples(path):
            return path
        if re.fullmatch(f".+[-_.]{name}", path.name.lower()) and has_examples(path):
            longer.append(path)
    return longer[0] if len(longer) == 1 else None


def files_beside(folder: Path, parts: Iterable[Path]) -> Counter[str]:
    """Returns how many files are in other folders than the parts of a corpus, by folder."""
    others = [inner for inner in inner_folders(folder) if inner not in parts]
    return +Counter({f"in {inner.name}/": count_files(inner) for inner in others})


def count_files(folder: Path) -> int:
    """Returns how many files are in a folder and the folders in it, without hidden ones."""
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not is_hidden(name)]  # it enters these alone
        count += sum(not is_hidden(name) for name in files)
    return count


def ending_of(path: Path) -> str:
    """Returns a file's ending, as it is counted."""
    return path.suffix.lower() or "without ending"
