"""Where sentence pairs come from: the phrasebook, Multi30k, parallel files, tables, archives.

Example:
    corpus = find_corpus("multi30k")  # or "phrasebook", a PREFIX, a folder, a table, a .zip
    for german, english in corpus.parts["train"](): ...
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any

from support.common.errors import UserError
from support.corpora import phrasebook
from support.corpora.archives import PACKED, PARTS, File, zip_members
from support.corpora.class_folders import LANGUAGE, visible
from support.corpora.download import content_checksum, download, parse_checksums
from support.corpora.held_out import HOLD_OUT_VERSION
from support.corpora.tables import TABLES, is_table, read_columns, read_lines, suffix_of

# Elliott et al., 2016, for non-commercial research.
MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)
MULTI30K = parse_checksums("""
    726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6  train.de.gz
    d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f  train.en.gz
    f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a  val.de.gz
    14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28  val.en.gz
    9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8  test_2016_flickr.de.gz
    611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9  test_2016_flickr.en.gz
""")

Pair = tuple[str, str]
Reader = Callable[[], Iterator[Pair]]


@dataclass
class Corpus:
    """A corpus that was found but not read."""

    name: str
    parts: dict[str, Reader]  # of train, valid, test
    languages: tuple[str, str]  # of the source and of the target
    files: dict[str, list[Path]] = field(default_factory=dict)  # of each part

    @cached_property
    def checksum(self) -> str:
        """A checksum of what the files hold, and of how they are read."""
        content = {
            part: list(map(content_checksum, files)) for part, files in self.files.items()
        }
        description: list[Any] = [self.languages, sorted(content.items())]
        if "valid" not in self.parts:
            description.append(HOLD_OUT_VERSION)
        return hashlib.sha256(json.dumps(description).encode()).hexdigest()


def find_corpus(
    data: str = "phrasebook", valid: str = "", test: str = "", src: str = "de", tgt: str = "en"
) -> Corpus:
    """Returns the corpus that --data, --valid, --test, --src and --tgt name. Raises UserError.

    data: `phrasebook`, `multi30k`, a folder of parallel files or tables (train, val, test), a
    PREFIX with PREFIX.de and PREFIX.en (.gz too) or one of these two files, a table (.csv,
    JSON, or lines with tabs), or a .zip with a table or with two files, as OPUS's Moses format
    has. valid and test: a PREFIX, a table or a .zip.
    """
    if data == "phrasebook":
        if {src, tgt} != {"de", "en"}:
            raise UserError(f"--src {src} --tgt {tgt}: the phrasebook has de and en")
        corpus = Corpus(data, {}, (src, tgt))
        for part in PARTS:
            corpus.parts[part] = partial(phrasebook.pairs, part, src)
            corpus.files[part] = [phrasebook.DATA]
    elif data == "multi30k":
        corpus = folder_corpus(download(data, MULTI30K, MULTI30K_URL), src, tgt)
    elif Path(data).is_dir():
        corpus = folder_corpus(Path(data), src, tgt)
    else:
        corpus = Corpus(own_name(Path(data), ("phrasebook",)), {}, (src, tgt))
        add_part(corpus, "train", data, src, tgt)
    for part, source in (("valid", valid), ("test", test)):
        if source:
            add_part(corpus, part, source, src, tgt)
    return corpus


def folder_corpus(folder: Path, src: str, tgt: str) -> Corpus:
    """Returns the corpus of a folder with train.de, train.en and more parts. Raises UserError.

    Multi30k is known by the name of its test set, so a copy of it has the same settings.
    """
    corpus = Corpus(own_name(folder, ("phrasebook",)), {}, (src, tgt))
    for part, names in PARTS.items():
        for name in names:
            if any(find_file(f"{folder / name}.{language}") for language in (src, tgt)):
                add_part(corpus, part, str(folder / name), src, tgt)
                break
    for part, table in find_part_tables(folder).items():
        if part not in corpus.parts:
            add_part(corpus, part, str(table), src, tgt)
    if "train" not in corpus.parts:
        hint = ""
        if len([path for path in visible(folder) if path.stem == "train"]) == 2:
            hint = similar_files(folder / "train")
        if any(LANGUAGE.fullmatch(path.suffix) for path in visible(folder)):
            hint += f"; name parallel files by their PREFIX: {folder}/NAME for NAME.{src}"
        raise UserError(
            f"{folder}: no train.{src} and train.{tgt}, no train.tsv, and no class folders of "
            f"texts or images (FOLDER/CLASS/FILE; --test names another FOLDER){hint}"
        )
    if find_file(f"{folder}/test_2016_flickr.{src}"):
        corpus.name = "multi30k"
    return corpus


def find_part_tables(folder: Path) -> dict[str, Path]:
    """Returns the table of each part in a folder, such as train.tsv or Test.csv.gz."""
    files = {path.name.lower(): path for path in visible(folder) if path.is_file()}
    tables: dict[str, Path] = {}
    for part, names in PARTS.items():
        for name, suffix, packed in product(names, TABLES, ("", ".gz")):
            table = files.get(f"{name}{suffix}{packed}")
            if table:
                tables.setdefault(part, table)
    return tables


def own_name(path: Path, built_in: tuple[str, ...]) -> str:
    """Returns the name of a user's corpus: its file's, or its folder's if that is train.csv.

    It is never one of `built_in`, which have settings of their own.
    """
    path = path.resolve()
    name, _, _ = path.name.partition(".")
    if name.lower() in PARTS["train"]:
        name = path.parent.name or name
    if name in built_in:
        name += "-file"
    return name


def add_part(corpus: Corpus, part: str, data: str, src: str, tgt: str) -> None:
    """Adds a PREFIX, a table or a .zip to the corpus. Raises UserError."""
    path = Path(data)
    corpus.files[part] = [path]
    prefix = find_prefix(data, src, tgt)
    src_file = find_file(f"{prefix}.{src}")
    tgt_file = find_file(f"{prefix}.{tgt}")
    if src_file and tgt_file:
        corpus.files[part] = [src_file, tgt_file]
        corpus.parts[part] = partial(read_parallel, src_file, tgt_file)
    elif suffix_of(path) == ".zip" and path.is_file():
        corpus.parts[part] = find_in_zip(path, src, tgt)
    elif is_table(path):
        corpus.parts[part] = partial(read_table, path, src, tgt)
    elif path.is_file() and prefix == data:
        raise UserError(
            f"{data}: neither a table (.csv, .json, .jsonl, or lines with tabs) nor one of "
            f"two files NAME.{src} and NAME.{tgt} (--src, --tgt); save other tables as .csv"
        )
    elif src_file or tgt_file:
        raise UserError(f"{prefix}.{tgt if src_file else src}: no such file")
    elif path.is_dir():
        raise UserError(f"{data}: a folder; pass a PREFIX, a table or a .zip in it")
    else:
        also = "" if suffix_of(path) in (*TABLES, ".zip") else f", and no {data}.{src}"
        raise UserError(f"{data}: no such file or folder{also}{similar_files(path)}")


def similar_files(path: Path) -> str:
    """Returns the files that are named as `path`, with other endings, for an error message."""
    if not path.parent.is_dir():
        return ""
    names = [other.name for other in sorted(path.parent.iterdir())]
    similar = [name for name in names if name.startswith(f"{path.name}.")]
    if not similar:
        return ""
    packed = [name for name in similar if name.endswith(PACKED)]
    if packed:
        return f"; unpack {', '.join(packed)[:120]}, as only .gz and .zip files are read packed"
    return f"; there is {', '.join(similar)[:120]}, and --src and --tgt name the endings"


def find_prefix(data: str, src: str, tgt: str) -> str:
    """Returns the PREFIX that `data` is, or whose PREFIX.de or PREFIX.en (.gz too) it is."""
    name = data.removesuffix(".gz")
    for ending in (f".{src}", f".{tgt}"):
        if name.endswith(ending) and Path(data).is_file():
            return name.removesuffix(ending)
    return data


def find_file(path: str) -> Path | None:
    """Returns PATH or PATH.gz, whichever is there."""
    for candidate in (Path(path), Path(path + ".gz")):
        if candidate.is_file():
            return candidate
    return None


def find_in_zip(path: Path, src: str, tgt: str) -> Reader:
    """Returns the reader of the pairs in a .zip archive, which is read in place.

    It has the two sides, NAME.de and NAME.en, or one table. Raises UserError.
    """
    members = {member.at: member for member in zip_members(path)}
    sides = []
    for name, member in members.items():
        prefix = name.removesuffix(f".{src}")
        other = members.get(f"{prefix}.{tgt}")
        if prefix != name and other:
            sides.append((member, other))
    if len(sides) == 1:
        return partial(read_parallel, *sides[0])
    tables = [member for member in members.values() if is_table(member)]
    if not sides and len(tables) == 1:
        return partial(read_table, tables[0], src, tgt)
    raise UserError(
        f"{path}: it should hold one pair of files NAME.{src} and NAME.{tgt} (--src, --tgt), "
        f"or one table, but holds {', '.join(members)[:120]}; unpack class folders"
    )


def read_table(table: File, src: str, tgt: str) -> Iterator[Pair]:
    """Yields two columns of each row of a table."""
    for _, (source, target) in read_columns(table, [src, tgt]):
        yield source, target


def read_parallel(src: File, tgt: File) -> Iterator[Pair]:
    """Yields line N of one file with line N of the other. Raises UserError."""
    sides = read_lines(src), read_lines(tgt)
    for number, (source, target) in enumerate(zip_longest(*sides)):
        if source is None or target is None:
            longer = number + 1 + sum(1 for _ in chain(*sides))  # one of them has no more
            src_lines, tgt_lines = (number, longer) if source is None else (longer, number)
            raise UserError(f"{src} has {src_lines:,} lines, but {tgt} has {tgt_lines:,}")
        yield source, target
