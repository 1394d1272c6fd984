"""Named corpora: where they are downloaded from, their classes, and how they are read."""

import re
import tarfile
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import IO, cast

from support.common.errors import UserError
from support.corpora.download import parse_checksums
from support.corpora.tables import decode_lines, one_line, read_csv_rows

GITHUB = "https://raw.githubusercontent.com"
URLS = {
    # Zhang et al., 2015, for non-commercial use.
    "agnews": f"{GITHUB}/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/",
    # Zhang et al., 2015, from reviews that McAuley and Leskovec, 2013, collected.
    "amazon-polarity": "https://s3.amazonaws.com/fast-ai-nlp/",
    # Xiao et al., 2017, under the MIT licence.
    "fashion-mnist": f"{GITHUB}/zalandoresearch/fashion-mnist/master/data/fashion/",
    # Maas et al., 2011.
    "imdb": "https://ai.stanford.edu/~amaas/data/sentiment/",
}
AMAZON_ARCHIVE = "amazon_review_polarity_csv.tgz"
IMDB_ARCHIVE = "aclImdb_v1.tar.gz"
# The SHA-256 of each file; for Fashion-MNIST, of the unpacked file.
FILES = {
    "agnews": parse_checksums("""
    76a0a2d2f92b286371fe4d4044640910a04a803fdd2538e0f3f29a5c6f6b672e  train.csv
    521465c2428ed7f02f8d6db6ffdd4b5447c1c701962353eb2c40d548c3c85699  test.csv
    """),
    "amazon-polarity": parse_checksums(f"""
    d2a3ee7a214497a5d1b8eaed7c8d7ba2737de00ada3b0ec46243983efa100361  {AMAZON_ARCHIVE}
    """),
    "fashion-mnist": parse_checksums("""
    0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34  t10k-labels-idx1-ubyte.gz
    bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9  train-labels-idx1-ubyte.gz
    5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b  t10k-images-idx3-ubyte.gz
    c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888  train-images-idx3-ubyte.gz
    """),
    "imdb": parse_checksums(f"""
    c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe  {IMDB_ARCHIVE}
    """),
}
CLASSES = {
    "agnews": ["World", "Sports", "Business", "Sci/Tech"],
    "amazon-polarity": ["negative", "positive"],
    "fashion-mnist": [
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ],
}
FASHION_PIXELS = {"mean": [0.28604], "std": [0.35302]}  # of the training set, from 0 to 1
IMDB_TEXT = re.compile(r"aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")  # others have no class


def read_numbered(
    rows: Iterable[tuple[int, list[str]]], name: str, classes: list[str], line_end: str
) -> Iterator[tuple[str, str]]:
    """Yields (title and description, class) of each row of a file like AG News's.

    rows: numbered, of the file `name`; line_end: what the texts write for a line end, "\\" or
    "\\n". Raises UserError.
    """
    class_of = {str(number): class_name for number, class_name in enumerate(classes, 1)}
    for number, (label, *texts) in rows:
        if label not in class_of or not texts:
            raise UserError(
                f"{name}, row {number}: {label[:40]!r} is no class from 1 to {len(classes)} "
                f"with a text after it; of a table with a header: --data FILE --label COLUMN"
            )
        text = " ".join(texts).replace(line_end, " ").replace("\\", " ")
        yield one_line(text), class_of[label]


def read_amazon(archive: Path, part: str) -> Iterator[tuple[str, str]]:
    """Yields (title and text, class) of the "train" or "test" reviews in Amazon's archive."""
    table = f"amazon_review_polarity_csv/{part}.csv"
    with tarfile.open(archive, "r|gz") as tar:
        member = next(member for member in tar if member.name == table)
        file = cast(IO[bytes], tar.extractfile(member))
        rows = read_csv_rows(decode_lines(file, table), table)
        yield from read_numbered(rows, table, CLASSES["amazon-polarity"], line_end="\\n")


def read_imdb(archive: Path, part: str) -> Iterator[tuple[str, str]]:
    """Yields (text, class) of "train" or "test", in the order of the unpacked folder."""
    for name, text in imdb_texts(archive).items():
        _, part_of_text, class_name, _ = name.split("/")
        if part_of_text == part:
            yield text, class_name


@lru_cache(maxsize=1)
def imdb_texts(archive: Path) -> dict[str, str]:
    """Returns IMDB's texts by their names in the archive, sorted.

    They stay in memory, 70 MB, because reading an archive of 100,000 files takes seconds.
    """
    texts = {}
    with tarfile.open(archive, "r|gz") as tar:
        for member in tar:
            if IMDB_TEXT.fullmatch(member.name):
                file = cast(IO[bytes], tar.extractfile(member))
                texts[member.name] = one_line(file.read().decode())
    return dict(sorted(texts.items()))


ARCHIVE_READERS = {"amazon-polarity": read_amazon, "imdb": read_imdb}
