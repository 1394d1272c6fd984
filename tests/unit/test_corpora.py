"""Sentence pairs from files as they come: archives, tables of any name, one file of two."""

import gzip
import json
import re
import zipfile
from pathlib import Path

import pytest

from support.common.errors import UserError
from support.corpora.pairs import find_corpus, own_name


def write_zip(path, files, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return str(path)


def read(data, part="train", **how):
    return list(find_corpus(str(data), **how).parts[part]())


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
    assert back.checksum != find_corpus(data).checksum
    names = [path.name for path in tmp_path.iterdir()]
    assert names == ["de-en.txt.zip"]  # nothing is unpacked


def test_what_macos_puts_into_a_zip_is_no_data(tmp_path):
    mac = {f"__MACOSX/._{name}": b"\0\5\x16\7" for name in MOSES}
    hidden = {f".cache/{name}": "" for name in MOSES}
    data = write_zip(tmp_path / "de-en.zip", mac | MOSES | hidden)
    assert read(data) == PAIRS


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
    assert corpus.checksum != turned.checksum  # they are encoded in two folders
    with pytest.raises(UserError, match="^--src en --tgt fr: the phrasebook has de and en$"):
        find_corpus(src="en", tgt="fr")


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
    assert "one pair of files NAME.fr and NAME.en" in refusal(MOSES, src="fr")
    assert "but holds a.de, b.en" in refusal({"a.de": "", "b.en": ""})
    two_pairs = MOSES | {"b.de": "", "b.en": ""}
    assert "one pair of files NAME.de and NAME.en" in refusal(two_pairs)
    write_zip(tmp_path / "lzma.zip", {"a.de": "Ja.\n" * 99, "a.en": "x\n"}, zipfile.ZIP_LZMA)
    content = bytearray((tmp_path / "lzma.zip").read_bytes())
    content[50:60] = bytes(10)
    assert "cannot be read (" in refusal(bytes(content))
    shorter = MOSES | {"MultiUN.de-en.en": "Yes.\n"}
    assert "a.zip/MultiUN.de-en.en has 1" in refusal(shorter)
    latin = refusal(MOSES | {"MultiUN.de-en.de": b"gut\nsch\xf6n\n"})
    assert "a.zip/MultiUN.de-en.de, line 2: not UTF-8" in latin
    for content in (b"", b"PK\x03\x04 and no more", b"<html>"):
        assert "cannot be read as a .zip archive" in refusal(content)
    whole = Path(write_zip(tmp_path / "b.zip", MOSES)).read_bytes()
    at = whole.index(b"MultiUN.de-en.en") + 18  # within the packed text
    assert "cannot be read (" in refusal(whole[:at] + b"?????" + whole[at + 5 :])


SENTENCES = "Go.\tGeh.\tCC-BY 2.0\nStop!\tHalt!\tCC-BY 2.0\n"  # as manythings.org has them


def test_a_file_whose_lines_have_tabs_is_a_table(tmp_path):
    pairs = [("Geh.", "Go."), ("Halt!", "Stop!")]
    for name in ("deu.txt", "deu", "deu.dat"):
        (tmp_path / name).write_text(SENTENCES)
        assert read(tmp_path / name, src="2", tgt="1") == pairs
    (tmp_path / "deu.txt.gz").write_bytes(gzip.compress(SENTENCES.encode()))
    assert read(tmp_path / "deu.txt.gz", src="2", tgt="1") == pairs
    data = write_zip(tmp_path / "deu-eng.zip", {"_about.txt": "Tatoeba", "deu.txt": SENTENCES})
    assert read(data, src="2", tgt="1") == pairs
    for content in ("Go. Geh.\n", "Go.\tGeh.\nHalt!\n", "", "\n\n"):
        (tmp_path / "deu.txt").write_text(content)
        with pytest.raises(UserError, match="deu.txt: neither a table .* nor one of two files"):
            find_corpus(str(tmp_path / "deu.txt"), src="2", tgt="1")


def test_one_of_two_files_stands_for_both(tmp_path):
    for name, content in (("p.de", "Ja.\n"), ("p.en", "Yes.\n"), ("alone.de", "Ja.\n")):
        (tmp_path / name).write_text(content)
    for name in ("p", "p.de", "p.en"):
        assert read(tmp_path / name) == [("Ja.", "Yes.")]
        assert read("phrasebook", "valid", valid=str(tmp_path / name)) == [("Ja.", "Yes.")]
        assert find_corpus(str(tmp_path / name)).name == "p"
    (tmp_path / "p.de").rename(tmp_path / "p")  # a PREFIX goes before a file of its name
    (tmp_path / "p.de.gz").write_bytes(gzip.compress(b"Ja.\n"))
    for name in ("p", "p.de.gz"):
        assert read(tmp_path / name) == [("Ja.", "Yes.")]
    with pytest.raises(UserError, match="alone.en: no such file"):
        find_corpus(str(tmp_path / "alone.de"))


def test_quotes_around_a_cell_stay_if_they_are_text(tmp_path):
    """Unless the whole column has them, or quotes within are doubled: then a program did it."""

    def written(*rows):
        (tmp_path / "a.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
        return read(tmp_path / "a.tsv", src="1", tgt="2")

    quotation, plain = ('"Komm her!"', "Come here!"), ("Ja", "Yes")
    assert written(quotation, plain) == [quotation, plain]
    assert written(quotation, ("Ja", '"Yes"')) == [quotation, ("Ja", '"Yes"')]
    assert written(quotation, ('"Ja"', "Yes")) == [("Komm her!", "Come here!"), plain]
    assert written(('"""Komm her!"""', '"Say ""yes""!"'), plain) == [
        ('"Komm her!"', 'Say "yes"!'),
        plain,
    ]


@pytest.mark.parametrize("name, mark", [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t")])
def test_a_table_as_excel_writes_it(tmp_path, name, mark):
    """With carriage returns for line ends, and semicolons for commas."""
    rows = [f"de{mark}en", f"Ja{mark}Yes", f"Nein{mark}No", ""]
    for line_end in ("\n", "\r\n", "\r"):
        (tmp_path / name).write_bytes(line_end.join(rows).encode())
        assert read(tmp_path / name) == [("Ja", "Yes"), ("Nein", "No")]
    (tmp_path / name).write_bytes(f"de{mark}en\nJa{mark}Yes,\rSir\n".encode())
    if mark != ",":
        assert [target.split() for _, target in read(tmp_path / name)] == [["Yes,", "Sir"]]


@pytest.mark.parametrize("header", ["de, spoken;en, written", "2. de, spoken;en"])
def test_commas_in_a_header_do_not_divide_it(tmp_path, header):
    """Here semicolons do, as they divide all rows into two."""
    src, tgt = header.split(";")
    rows = [header, "Ja, ja;Yes, yes", "Nein;No", '"So;\noder so";Like, this']
    (tmp_path / "a.csv").write_text("\n".join(rows) + "\n")
    corpus = find_corpus(str(tmp_path / "a.csv"), src=src, tgt=tgt)
    assert list(corpus.parts["train"]()) == [
        ("Ja, ja", "Yes, yes"),
        ("Nein", "No"),
        ("So; oder so", "Like, this"),
    ]


def test_a_corpus_in_a_file_named_train_has_its_folders_name(tmp_path):
    (tmp_path / "news").mkdir()
    for name in ("train.tsv", "deu.tsv"):
        (tmp_path / "news" / name).write_text("de\ten\nJa.\tYes.\n")
    for data, expected in (("train.tsv", "news"), ("train", "news"), ("deu.tsv", "deu")):
        assert own_name(tmp_path / "news" / data, ()) == expected
    assert own_name(tmp_path / "news" / "train.tsv", ("news",)) == "news-file"


def test_pairs_in_inner_objects_and_in_a_folder_of_tables(tmp_path):
    for name in ("train", "validation"):
        row = {"id": "1", "translation": {"de": "Ja.", "en": f"Yes, {name}."}}
        (tmp_path / f"{name}.json").write_text(json.dumps(row) + "\n")
    corpus = find_corpus(str(tmp_path))
    assert list(corpus.parts["train"]()) == [("Ja.", "Yes, train.")]
    assert list(corpus.parts["valid"]()) == [("Ja.", "Yes, validation.")]


def test_tables_beside_parallel_files_are_the_other_parts(tmp_path):
    for side in ("de", "en"):
        (tmp_path / f"train.{side}").write_text("Ja.\n")
    (tmp_path / "Valid.tsv").write_text("de\ten\nNein.\tNo.\n")
    corpus = find_corpus(str(tmp_path))
    assert list(corpus.parts["train"]()) == [("Ja.", "Ja.")]
    assert list(corpus.parts["valid"]()) == [("Nein.", "No.")]


def test_a_part_in_anothers_place_is_another_corpus(tmp_path):
    """The same files as --valid and as --test: what is made of one does not serve the other."""
    for name in ("train", "val", "test", "other"):
        for side in ("de", "en"):
            (tmp_path / f"{name}.{side}").write_text(f"{name}\n")
    other = str(tmp_path / "other")
    one, two = find_corpus(str(tmp_path), valid=other), find_corpus(str(tmp_path), test=other)
    assert len({corpus.checksum for corpus in (one, two, find_corpus(str(tmp_path)))}) == 3
    assert list(one.parts["valid"]()) == list(two.parts["test"]()) == [("other", "other")]


def test_a_part_with_one_of_its_two_sides_is_refused(tmp_path):
    for name in ("train.de", "train.en", "test.en"):
        (tmp_path / name).write_text("Ja.\n")
    with pytest.raises(UserError, match="test.de: no such file"):
        find_corpus(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("cat/1.heic", "no class folders of texts or images (FOLDER/CLASS/FILE; --test"),
        ("photos/cat/1.jpg", "no class folders of texts or images (FOLDER/CLASS/FILE;"),
        ("a.fr", "name parallel files by their PREFIX"),
    ],
)
def test_a_folder_without_a_corpus(tmp_path, name, advice):
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"\0")
    with pytest.raises(UserError, match=re.escape(advice)):
        find_corpus(str(tmp_path))
