"""The built-in corpus: 28,000 everyday sentences in German, in English, and what each one does.

They come from a grammar and a list of phrases, of which tests/phrasebook/generate.py writes
phrasebook.tsv.gz.
"""

import gzip
from collections.abc import Iterator
from functools import cache
from pathlib import Path

DATA = Path(__file__).with_name("phrasebook.tsv.gz")
PARTS = {"train": slice(26_000), "valid": slice(26_000, 27_000), "test": slice(27_000, 28_000)}
KINDS = [  # what a sentence of the grammar does: the classes of the corpus "kinds"
    "statement",  # the subject comes first
    "inversion",  # something else comes first
    "request",  # wants an answer or a deed
    "description",  # how, or where, something is
    "relative",  # tells whom or what it is about
    "reason",  # why, although what, on which condition
    "events",  # two that go together
    "opinion",  # what somebody thinks, knows or says
]


@cache
def read_part(part: str) -> list[list[str]]:
    """Returns [German, English, kind] of each sentence of train, valid or test.

    A phrase has no kind: "". The English is a whole sentence, the German of a phrase may be as
    people type it: without a capital, without a mark. No German sentence occurs twice.
    """
    text = gzip.decompress(DATA.read_bytes()).decode()
    return [line.split("\t") for line in text.splitlines()[PARTS[part]]]


def pairs(part: str, src: str = "de") -> Iterator[tuple[str, str]]:
    """Yields the (German, English) pairs of a part.

    If `src` is "en", it yields (English, German) of only those whose German is well written.
    """
    for german, english, _ in read_part(part):
        if src == "de":
            yield german, english
        elif not german[0].islower() and german[-1] in ".?!":
            yield english, german


def labelled(part: str) -> list[tuple[str, str]]:
    """Returns (German, kind) of each sentence of a part that comes from the grammar."""
    return [(german, kind) for german, _, kind in read_part(part) if kind]
