"""Where sentence pairs come from: the built-in phrasebook, Multi30k, parallel files, tables.

corpus = find_corpus("multi30k")    # or "phrasebook", a PREFIX, a folder, a table, a .zip
for german, english in corpus.parts["train"](): ...
"""

import gzip
import hashlib
import http.client
import json
import os
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path

from support.common.errors import UserError
from support.common.paths import CACHE
from support.corpora import phrasebook
from support.corpora.tables import TABLES, ending, read_lines, read_table

# The names of files that hold each part, without their endings.
PARTS = {
    "train": ["train"],
    "valid": ["val", "valid", "validation", "dev"],
    "test": ["test_2016_flickr", "test"],
}

# Elliott et al., 2016, for non-commercial research. Of each file: its size in bytes, its SHA-256.
MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/"
)
MULTI30K = {
    "train.de.gz": (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz": (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "val.de.gz": (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz": (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "test_2016_flickr.de.gz": (
        22890,
        "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    ),
    "test_2016_flickr.en.gz": (
        21077,
        "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
    ),
}


@dataclass
class Corpus:
    """A corpus that was found but not read; `parts` maps train, valid, test to readers of pairs."""

    name: str
    parts: dict[str, Callable[[], Iterator[tuple[str, str]]]]
    columns: tuple[str, ...]  # the languages; then the parts that another file replaced
    files: list[Path] = field(default_factory=list)  # what it is made from

    def checksum(self) -> str:
        """Of what the files hold, and of how they are read."""
        parts = [sorted(self.parts), self.columns, [sha256(file) for file in self.files]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def find_corpus(data="phrasebook", valid="", test="", src="de", tgt="en") -> Corpus:
    """The corpus that --data, --valid, --test, --src and --tgt name.

    data: `phrasebook`, `multi30k`, a folder of parallel files (train, val, test), a PREFIX with
    PREFIX.de and PREFIX.en (.gz too), a table (.tsv, .csv, .jsonl), or a .zip in OPUS's Moses
    format. valid and test: a PREFIX, a table or a .zip. Raises UserError if it is not there.
    """
    if data == "phrasebook":
        if {src, tgt} != {"de", "en"}:
            raise UserError(f"--src {src} --tgt {tgt}: the phrasebook has de and en")
        readers = {part: partial(read_phrasebook, part, src) for part in PARTS}
        corpus = Corpus(data, readers, (src, tgt), [phrasebook.DATA])
    elif data == "multi30k" or Path(data).is_dir():
        folder = download(data, MULTI30K, MULTI30K_URL) if data == "multi30k" else Path(data)
        corpus = Corpus(own_name(folder, ("phrasebook",)), {}, (src, tgt))
        for part, names in PARTS.items():
            prefix = next((folder / n for n in names if find_file(f"{folder / n}.{src}")), None)
            if prefix:
                add_part(corpus, part, str(prefix), src, tgt)
        if "train" not in corpus.parts:
            raise UserError(
                f"{folder}: no train.{src} and train.{tgt} in this folder; "
                f"of other files name the PREFIX: {folder}/NAME for NAME.{src}"
            )
        if all(sha256(folder / name) == check for name, (_, check) in MULTI30K.items()):
            corpus.name = "multi30k"
    else:
        corpus = Corpus(own_name(Path(data), ("phrasebook",)), {}, (src, tgt))
        add_part(corpus, "train", data, src, tgt)
    for part, spec in (("valid", valid), ("test", test)):
        if spec:
            add_part(corpus, part, spec, src, tgt)
    return corpus


def read_phrasebook(part: str, src: str) -> Iterator[tuple[str, str]]:
    """Yields the pairs of a part of the phrasebook, from the language `src` to the other."""
    for german, english in phrasebook.pairs(part):
        yield (german, english) if src == "de" else (english, german)


def own_name(path: Path, built_in: tuple) -> str:
    """The name of a user's corpus: none of `built_in`, which would select that one's PRESETS."""
    name = path.resolve().name.split(".")[0]
    return name + "-file" * (name in built_in)


def add_part(corpus: Corpus, part: str, spec: str, src: str, tgt: str) -> None:
    """Adds the PREFIX, table or .zip `spec` to the corpus."""
    path = Path(spec)
    if part in corpus.parts:  # in another's place: see checksum
        corpus.columns = (*corpus.columns, part)
    if ending(path) in (*TABLES, ".zip"):
        if not path.is_file():
            raise UserError(f"{spec}: no such file")
        files = [path]
        if ending(path) == ".zip":
            sides = find_in_zip(path, src, tgt)
            corpus.parts[part] = lambda: read_parallel(*sides)
        else:
            corpus.parts[part] = lambda: (tuple(row) for _, row in read_table(path, [src, tgt]))
    else:
        files = [find_file(f"{spec}.{side}") for side in (src, tgt)]
        for side, file in zip((src, tgt), files):
            if not file:
                raise UserError(f"{spec}.{side}: no such file, nor {spec}.{side}.gz")
        corpus.parts[part] = lambda: read_parallel(*files)
    corpus.files += files


def find_file(path: str) -> Path | None:
    """PATH or PATH.gz, whichever is there."""
    return next((Path(p) for p in (path, path + ".gz") if Path(p).is_file()), None)


def find_in_zip(path: Path, src: str, tgt: str) -> list[zipfile.Path]:
    """The two sides, NAME.de and NAME.en, in an archive; they are read where they are."""
    try:
        archive = zipfile.ZipFile(path)
    except (OSError, zipfile.BadZipFile) as problem:
        raise UserError(f"{path}: cannot be read as a .zip archive ({problem})") from problem
    names = archive.namelist()
    found = [
        name.removesuffix(src)
        for name in names
        if name.endswith(f".{src}") and name.removesuffix(src) + tgt in names
    ]
    if len(found) != 1:
        raise UserError(
            f"{path}: {len(found) or 'no'} pairs NAME.{src} and NAME.{tgt} inside, one "
            f"is expected (--src, --tgt); it holds {', '.join(names)[:120]}"
        )
    return [zipfile.Path(archive, found[0] + side) for side in (src, tgt)]


def sha256(path: Path, unpacked: bool = False) -> str:
    """In hexadecimal, of what a .gz file holds if `unpacked`; empty where no whole file is."""
    try:
        with (gzip.open if unpacked and path.suffix.lower() == ".gz" else open)(
            path, "rb"
        ) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, EOFError, zlib.error, gzip.BadGzipFile):
        return ""
    except OSError as problem:
        raise UserError(f"{path}: cannot be read ({problem.strerror})") from problem


def download(name: str, table: dict[str, tuple[int, str]], url: str, unpacked=False) -> Path:
    """The folder with a corpus's files, which are fetched where missing and checked each time.

    table: of each file its size in bytes and its SHA-256, if `unpacked` of what it holds, since the
    same content can be packed anew. The environment variable NAME_URL goes before `url`.
    """
    folder = CACHE / name
    base = os.environ.get(f"{name.upper().replace('-', '_')}_URL", url).rstrip("/")
    for file, (size, check) in table.items():
        if sha256(folder / file, unpacked) == check:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            print(f"fetching {base}/{file}", file=sys.stderr)
            with urllib.request.urlopen(f"{base}/{file}", timeout=30) as answer:
                content = answer.read(size + 1)
            with tempfile.TemporaryDirectory(dir=folder) as partial:
                (path := Path(partial) / file).write_bytes(content)
                if sha256(path, unpacked) != check:
                    raise UserError(
                        f"{base}/{file}: not the file that was expected (another "
                        f"SHA-256, of {len(content)} bytes); nothing was kept"
                    )
                path.rename(folder / file)  # so a half-written file never has the name
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise UserError(
                f"{name} cannot be fetched ({problem}); "
                f"with its files at hand, name their folder: --data ./FOLDER"
            ) from problem
    return folder


def read_parallel(src: Path | zipfile.Path, tgt: Path | zipfile.Path) -> Iterator[tuple]:
    """Line N of one file with line N of the other."""
    lines, others = read_lines(src), read_lines(tgt)
    for number, (a, b) in enumerate(zip_longest(lines, others)):
        if a is None or b is None:
            n, m = (
                number + (x is not None) + sum(1 for _ in rest)
                for x, rest in ((a, lines), (b, others))
            )
            raise UserError(
                f"{src} has {n:,} lines, {tgt} has {m:,}: the sides differ by {abs(n - m):,}"
            )
        yield a, b
