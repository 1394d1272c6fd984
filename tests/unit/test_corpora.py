"""Sentence pairs from archives as OPUS gives them, and from .jsonl."""

import gzip
import re
import zipfile
from pathlib import Path

import pytest

from support.common.errors import UserError
from support.corpora.pairs import find_corpus


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


MOSES = {
    "README": "x",
    "LICENSE": "y",
    "MultiUN.de-en.de": "Ja.\r\nNein,\u2028danke.\n",
    "MultiUN.de-en.en": "Yes.\nNo, thanks.\n",
    "MultiUN.de-en.xml": "<a/>",
}
PAIRS = [("Ja.", "Yes."), ("Nein,\u2028danke.", "No, thanks.")]


def test_a_zip_in_moses_format_is_read_where_it_is(tmp_path):
    data = write_zip(tmp_path / "de-en.txt.zip", MOSES)
    corpus = find_corpus(data, valid=data)
    assert corpus.name == "de-en"
    for _ in range(2):  # a corpus is read more than once
        assert list(corpus.parts["train"]()) == list(corpus.parts["valid"]()) == PAIRS
    back = find_corpus(data, src="en", tgt="de")
    assert list(back.parts["train"]()) == [pair[::-1] for pair in PAIRS]
    assert back.checksum() != find_corpus(data).checksum()
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["de-en.txt.zip"]  # nothing is unpacked


def test_the_phrasebook_goes_both_ways():
    corpus = find_corpus(src="de", tgt="en")
    turned = find_corpus(src="en", tgt="de")
    pairs = list(corpus.parts["test"]())
    turned_pairs = [(german, english) for english, german in turned.parts["test"]()]
    assert turned_pairs == [
        pair for pair in pairs if re.fullmatch(r"[^a-zäöü].*[.?!]", pair[0])
    ]
    assert len(pairs) > len(turned_pairs) > 0.8 * len(pairs)  # without carelessly typed German
    german = {source for source, _ in pairs}
    english = {target for _, target in pairs}
    assert len(german & english) < len(pairs) / 10
    assert corpus.checksum() != turned.checksum()  # they are encoded in two folders
    with pytest.raises(UserError, match="^--src en --tgt fr: the phrasebook has de and en$"):
        find_corpus(src="en", tgt="fr")


def test_a_packed_file_may_end_in_capitals(tmp_path):
    (tmp_path / "ROWS.TSV.GZ").write_bytes(gzip.compress(b"de\ten\nJa.\tYes.\n"))
    assert list(find_corpus(str(tmp_path / "ROWS.TSV.GZ")).parts["train"]()) == [
        ("Ja.", "Yes.")
    ]


def test_a_zip_that_cannot_be_read_is_refused_in_one_line(tmp_path):
    def refusal(files, src="de", tgt="en"):
        path = tmp_path / "a.zip"
        if isinstance(files, bytes):
            path.write_bytes(files)
        elif files is not None:
            write_zip(path, files)
        with pytest.raises(UserError) as problem:
            list(find_corpus(str(path), src=src, tgt=tgt).parts["train"]())
        assert "\n" not in str(problem.value)
        return str(problem.value)

    assert "a.zip: no such file" in refusal(None)
    assert "one pair of files NAME.fr and NAME.en, but has 0" in refusal(MOSES, src="fr")
    assert "but has 0" in refusal({"a.de": "", "b.en": ""})
    two_pairs = MOSES | {"b.de": "", "b.en": ""}
    assert "one pair of files NAME.de and NAME.en, but has 2" in refusal(two_pairs)
    shorter = MOSES | {"MultiUN.de-en.en": "Yes.\n"}
    assert "a.zip/MultiUN.de-en.en has 1: the sides differ" in refusal(shorter)
    latin = refusal(MOSES | {"MultiUN.de-en.de": b"gut\nsch\xf6n\n"})
    assert "a.zip/MultiUN.de-en.de, line 2: not UTF-8" in latin
    for content in (b"", b"PK\x03\x04 and no more", b"<html>"):
        assert "cannot be read as a .zip archive" in refusal(content)
    whole = Path(write_zip(tmp_path / "b.zip", MOSES)).read_bytes()
    at = whole.index(b"MultiUN.de-en.en") + 18  # within the packed text
    assert "cannot be read" in refusal(whole[:at] + b"?????" + whole[at + 5 :])


def test_pairs_from_json_lines(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"de": "Ja.", "en": "Yes.\\nSir."}\n')
    assert list(find_corpus(str(tmp_path / "a.jsonl")).parts["train"]()) == [
        ("Ja.", "Yes. Sir.")
    ]


def test_a_part_in_anothers_place_is_another_corpus(tmp_path):
    """The same files as --valid and as --test: what is made of one does not serve the other."""
    for name in ("train", "val", "test", "other"):
        for side in ("de", "en"):
            (tmp_path / f"{name}.{side}").write_text(f"{name}\n")
    other = str(tmp_path / "other")
    one, two = find_corpus(str(tmp_path), valid=other), find_corpus(str(tmp_path), test=other)
    assert len({corpus.checksum() for corpus in (one, two, find_corpus(str(tmp_path)))}) == 3
    assert list(one.parts["valid"]()) == list(two.parts["test"]()) == [("other", "other")]
