"""Where sentence pairs come from: the built-in phrasebook, Multi30k, parallel files, tables.

    corpus = find_corpus("multi30k")    # or "phrasebook", a PREFIX, a folder, a .tsv or .csv file
    for german, english in corpus.parts["train"](): ...
"""

import csv
import gzip
import hashlib
import http.client
import json
import os
import re
import sys
import tempfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import zip_longest
from pathlib import Path

from support.errors import BadInput

# The names of files that hold each part, without their endings.
PARTS = {"train": ["train"], "valid": ["val", "valid", "dev"], "test": ["test_2016_flickr", "test"]}
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "translator"

# Elliott et al., 2016, for non-commercial research. Of each file: its size in bytes, its SHA-256.
MULTI30K_URL = ("https://raw.githubusercontent.com/multi30k/dataset/"
                "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw/")
MULTI30K = {
    "train.de.gz":
        (637044, "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6"),
    "train.en.gz":
        (568929, "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f"),
    "val.de.gz":
        (24681, "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a"),
    "val.en.gz":
        (21650, "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28"),
    "test_2016_flickr.de.gz":
        (22890, "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8"),
    "test_2016_flickr.en.gz":
        (21077, "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9"),
}


@dataclass
class Corpus:
    """A corpus that was found but not read; `parts` maps train, valid, test to readers of pairs."""

    name: str
    parts: dict[str, Callable[[], Iterator[tuple[str, str]]]]
    columns: tuple[str, str]
    files: list[Path] = field(default_factory=list)        # what it is made from

    def checksum(self) -> str:
        """Of what the files hold, and of how they are read."""
        parts = [sorted(self.parts), self.columns, [sha256(file) for file in self.files]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def find_corpus(data="phrasebook", valid="", test="", src="de", tgt="en") -> Corpus:
    """The corpus that --data, --valid, --test, --src and --tgt name.

    data: `phrasebook`, `multi30k`, a folder of parallel files (train, val, test), a PREFIX with
    PREFIX.de and PREFIX.en (.gz too), or a .tsv or .csv file. valid and test: a PREFIX or a table.
    Raises BadInput if it is not there.
    """
    if data == "phrasebook":
        from support import phrasebook                     # only here: translating does not need it

        book = cache(phrasebook.corpus)
        readers = {part: (lambda part=part: iter(book()[part])) for part in PARTS}
        corpus = Corpus(data, readers, (src, tgt))
        corpus.files = [Path(phrasebook.__file__)]
    elif data == "multi30k" or Path(data).is_dir():
        folder = download_multi30k() if data == "multi30k" else Path(data)
        corpus = Corpus(folder.resolve().name, {}, (src, tgt))
        for part, names in PARTS.items():
            prefix = next((folder / n for n in names if find_file(f"{folder / n}.{src}")), None)
            if prefix:
                add_part(corpus, part, str(prefix), src, tgt)
        if "train" not in corpus.parts:
            raise BadInput(f"{folder}: no train.{src} and train.{tgt} in this folder")
        if all(sha256(folder / name) == check for name, (_, check) in MULTI30K.items()):
            corpus.name = "multi30k"
    else:
        corpus = Corpus(Path(data).name.split(".")[0], {}, (src, tgt))
        add_part(corpus, "train", data, src, tgt)
    for part, spec in (("valid", valid), ("test", test)):
        if spec:
            add_part(corpus, part, spec, src, tgt)
    return corpus


def add_part(corpus: Corpus, part: str, spec: str, src: str, tgt: str) -> None:
    """Adds the PREFIX or table `spec` to the corpus."""
    if spec.endswith((".tsv", ".csv")):
        if not Path(spec).is_file():
            raise BadInput(f"{spec}: no such file")
        files, read = [Path(spec)], lambda: read_table(Path(spec), src, tgt)
    else:
        files = [find_file(f"{spec}.{side}") for side in (src, tgt)]
        for side, file in zip((src, tgt), files):
            if not file:
                raise BadInput(f"{spec}.{side}: no such file, nor {spec}.{side}.gz")
        read = lambda: read_parallel(*files)
    corpus.parts[part] = read
    corpus.files += files


def find_file(path: str) -> Path | None:
    return next((Path(p) for p in (path, path + ".gz") if Path(p).is_file()), None)


def sha256(path: Path) -> str:
    """In hexadecimal; empty where there is no file."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        return ""
    except OSError as problem:
        raise BadInput(f"{path}: cannot be read ({problem.strerror})")


def download_multi30k() -> Path:
    """The folder with Multi30k's files, which are fetched where missing and checked each time."""
    folder = CACHE / "multi30k"
    base = os.environ.get("MULTI30K_URL", MULTI30K_URL).rstrip("/")
    for name, (size, check) in MULTI30K.items():
        path = folder / name
        if sha256(path) == check:
            continue
        try:
            folder.mkdir(parents=True, exist_ok=True)
            print(f"fetching {base}/{name}", file=sys.stderr)
            with urllib.request.urlopen(f"{base}/{name}", timeout=30) as answer:
                content = answer.read(size + 1)
            if len(content) != size or hashlib.sha256(content).hexdigest() != check:
                raise BadInput(f"{base}/{name}: not the file that was expected "
                               f"({len(content)} of {size} bytes, or another SHA-256); "
                               f"nothing was kept")
            with tempfile.TemporaryDirectory(dir=folder) as partial:
                (Path(partial) / name).write_bytes(content)
                (Path(partial) / name).rename(path)    # so a half-written file never has the name
        except (OSError, http.client.HTTPException, ValueError) as problem:
            raise BadInput(f"Multi30k cannot be fetched ({problem}); "
                           f"with its files at hand, name their folder: --data FOLDER")
    return folder


def read_lines(path: Path | str, file=None) -> Iterator[str]:
    """The lines of a text file (.gz too), or of an open binary `file` that `path` only names.

    Without line ends; a line ends at a line feed and nowhere else, not at other characters that
    Unicode calls line separators, so that line N stays line N. Raises BadInput.
    """
    number = 0
    try:
        with file or (gzip.open(path) if str(path).endswith(".gz") else open(path, "rb")) as file:
            for number, line in enumerate(file, 1):
                yield line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as problem:
        byte = problem.object[problem.start]
        raise BadInput(f"{path}, line {number}: not UTF-8 (byte {byte:#04x})")
    except (EOFError, zlib.error, OSError) as problem:
        raise BadInput(f"{path}: cannot be read ({problem})")


def read_parallel(src: Path, tgt: Path) -> Iterator[tuple[str, str]]:
    """Line N of one file with line N of the other."""
    lines, others = read_lines(src), read_lines(tgt)
    for number, (a, b) in enumerate(zip_longest(lines, others)):
        if a is None or b is None:
            n, m = (number + (x is not None) + sum(1 for _ in rest)
                    for x, rest in ((a, lines), (b, others)))
            raise BadInput(f"{src} has {n:,} lines, {tgt} has {m:,}: "
                           f"the sides differ by {abs(n - m):,}")
        yield a, b


def read_table(path: Path, src: str, tgt: str) -> Iterator[tuple[str, str]]:
    """Two columns of a .tsv or .csv file, each given by its header's name or by position, from 1.

    A field may stand in double quotes, with its own quotes doubled; in .csv it may then hold commas
    and line ends, which become spaces. The first row is a header if it has the names, or, with
    positions, names of languages. Empty rows are passed over.
    """
    if path.suffix == ".csv":
        rows = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    else:
        def unquote(cell: str) -> str:
            quoted = re.fullmatch(r'"(?:[^"]|"")*"', cell)
            return cell[1:-1].replace('""', '"') if quoted else cell

        rows = ([unquote(cell) for cell in line.split("\t")] if line else []
                for line in read_lines(path))
    columns = None
    try:
        for number, row in enumerate(rows, 1):
            if row and columns is None:
                names = [cell.strip().lower() for cell in row]
                if src.isdigit() and tgt.isdigit():
                    columns = int(src) - 1, int(tgt) - 1
                elif src.lower() in names and tgt.lower() in names:
                    columns = names.index(src.lower()), names.index(tgt.lower())
                else:
                    missing = next(name for name in (src, tgt) if name.lower() not in names)
                    raise BadInput(f"{path}: no column {missing!r} (--src, --tgt: a name in the "
                                   f"first row, or a position from 1); its columns: "
                                   f"{', '.join(row)[:120]}")
                header = {"de", "en", "src", "tgt", "source", "target", "german", "english",
                          "deutsch", "englisch"}
                asked_for = [names[column] for column in columns if 0 <= column < len(names)]
                if not src.isdigit() or all(name in header for name in asked_for):
                    continue
            if row and not 0 <= min(columns) <= max(columns) < len(row):
                raise BadInput(f"{path}, row {number}: {len(row)} columns, "
                               f"column {max(columns) + 1} was asked for")
            if row:
                yield tuple(" ".join(row[column].split("\n")) for column in columns)
    except csv.Error as problem:
        raise BadInput(f"{path}, line {rows.line_num}: {problem}")
