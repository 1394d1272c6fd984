"""Labelled corpora: texts and images are read right, or refused in one line."""

import gzip
import hashlib
import json
import os
import sys
import tarfile
import zipfile
from functools import partial

import numpy as np
import pytest
from conftest import make_link
from test_data import Quiet, Server

from support.classification import named
from support.classification.corpus import classes_of
from support.classification.encoding import hash_example, prepare_labelled
from support.classification.images import ImageTransform, read_image
from support.classification.labelled import find_labelled
from support.common.errors import UserError
from support.corpora import download, phrasebook
from support.corpora.class_folders import find_class_folders
from support.corpora.download import sha256
from support.corpora.pairs import find_corpus
from support.corpora.task_type import task_type
from support.training.config_file import CONFIGS

NEWS = (
    '"3","Oil, up","Prices ""rise"""\n"1","","A vote\\nin\\Rome\nnow"\n"4","Chips","Faster"\n'
)
NEWS_READ = [
    ('Oil, up Prices "rise"', "Business"),
    ("A vote nin Rome now", "World"),
    ("Chips Faster", "Sci/Tech"),
]


def is_labelled(data: str, label: str = "") -> bool:
    return task_type(data, label) == "classification"


def read(corpus, part="train"):
    return list(corpus.parts[part]())


def read_images(corpus):
    return [(read_image(image, corpus.transform), name) for image, name in read(corpus)]


def refusal(call, *args, **how):
    """The one line in which a call is refused."""
    with pytest.raises(UserError) as problem:
        call(*args, **how)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def read_all(data, **how):
    """Finds the corpus, reads all of it, and asks for its classes, as training does."""
    corpus = find_labelled(str(data), **how)
    for part in corpus.parts:
        read(corpus, part)
    return classes_of(corpus)


def read_table(path, content, label="label", **how):
    """What is read of a table with this content."""
    path.write_text(content, encoding="utf-8")
    return read(find_labelled(str(path), label=label, **how))


def refusal_of_table(path, content, label="label", **how):
    """The one line in which a table with this content is refused."""
    path.write_text(content)
    return refusal(read_all, path, label=label, **how)


def write_tree(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


# --- Tables


def test_columns_by_name_several_are_joined(tmp_path):
    table = 'Stars,Title,Review\r\n5,"Good, ""cheap""","Two\nlines"\r\n1,,Bad\r\n'
    (tmp_path / "a.csv").write_text(table, newline="")
    corpus = find_labelled(str(tmp_path / "a.csv"), text="title, review", label="stars")
    assert (corpus.name, corpus.modality) == ("a", "text")
    assert read(corpus) == [('Good, "cheap" Two lines', "5"), ("Bad", "1")]
    assert read(corpus) == read(corpus)  # it can be read again


def test_texts_that_are_all_empty_are_refused(tmp_path):
    write_tree(tmp_path, {f"all/{name}/{i}.txt": "" for name in "ab" for i in range(3)})
    with pytest.raises(UserError, match="the texts of the train set are all empty"):
        corpus = find_labelled(str(tmp_path / "all"))
        prepare_labelled(corpus, tmp_path, "", 16, 100)


def test_a_table_may_be_packed_or_named_in_capitals(tmp_path):
    rows = "text,label\nA film,pos\nA bore,neg\n"
    expected = [("A film", "pos"), ("A bore", "neg")]
    (tmp_path / "B.CSV").write_text(rows)
    (tmp_path / "C.CSV.GZ").write_bytes(gzip.compress(rows.encode()))
    for name in ("B.CSV", "C.CSV.GZ"):
        assert read(find_labelled(str(tmp_path / name), label="label")) == expected
        assert read(find_corpus(str(tmp_path / name), src="text", tgt="label")) == expected


def test_columns_by_position_and_by_name(tmp_path):
    rows = "pos\tA film\neg\tA bore\n"
    expected = [("A film", "pos"), ("A bore", "eg")]
    assert read_table(tmp_path / "a.tsv", rows, text="2", label="1") == expected
    # Names and positions may be mixed: then there is a header.
    (tmp_path / "b.tsv").write_text("label\tsentence\n" + rows)
    corpus = find_labelled(str(tmp_path / "b.tsv"), label="1")
    assert read(corpus) == [("A film", "pos"), ("A bore", "eg")]


def test_a_header_is_not_a_class(tmp_path):
    """By positions, a header would be an example of a class of its own."""
    rows = "intent,utterance\nham,hi\nspam,buy\nham,you\n"
    answer = refusal_of_table(tmp_path / "a.csv", rows, text="2", label="1")
    assert "a: the class 'intent' occurs in the first row only" in answer
    assert read_all(tmp_path / "a.csv", text="utterance", label="intent") == ["ham", "spam"]
    (tmp_path / "b.csv").write_text("spam,buy\nham,hi\nspam,now\n")
    assert read_all(tmp_path / "b.csv", text="2", label="1") == ["ham", "spam"]
    answer = refusal(read_all, tmp_path / "b.csv", text="2", label="0")
    assert "column 0 (--text, --label): positions count from 1" in answer
    # With names there is a header, and the first class may be rare, even called as a column.
    (tmp_path / "d.csv").write_text("text,spam,label\nhi,1,spam\na,2,ham\nb,3,ham\n")
    assert read_all(tmp_path / "d.csv", label="label") == ["ham", "spam"]
    # Where there is one, a class may be rare.
    (tmp_path / "c.csv").write_text("text,label\nhi,rare\na,ham\nb,ham\n")
    assert read_all(tmp_path / "c.csv", label="2") == ["ham", "rare"]
    (tmp_path / "d.jsonl").write_text(
        "".join(f'{{"0": "hi", "1": "{name}"}}\n' for name in ("rare", "ham", "ham"))
    )
    assert read_all(tmp_path / "d.jsonl", text="0", label="1") == ["ham", "rare"]


def test_a_file_with_the_name_of_a_corpus_is_not_that_corpus(tmp_path, monkeypatch):
    """Its configuration is that of any table; a built-in name goes before a folder."""
    (tmp_path / "agnews.csv").write_text("text,label\na,1\nb,2\n")
    assert find_labelled(str(tmp_path / "agnews.csv"), label="label").name == "agnews-file"
    assert (CONFIGS / "agnews.yaml").exists() and not (CONFIGS / "agnews-file.yaml").exists()
    (tmp_path / "kinds" / "a").mkdir(parents=True)
    (tmp_path / "kinds" / "a" / "1.txt").write_text("one")
    monkeypatch.chdir(tmp_path)
    assert find_labelled("kinds").classes == list(phrasebook.KINDS)
    for wrong in (dict(label="stars"), dict(text="body")):
        assert "./kinds is not a table" in refusal(find_labelled, "./kinds", **wrong)
    (tmp_path / "phrasebook.tsv").write_text("Ja.\tYes.\n")
    corpus = find_corpus(str(tmp_path / "phrasebook.tsv"), src="1", tgt="2")
    assert corpus.name == "phrasebook-file"
    assert not (CONFIGS / "phrasebook-file.yaml").exists()
    assert [name for _, name in read(find_labelled("./kinds"))] == ["a"]


@pytest.mark.parametrize("name, mark", [("a.csv", ","), ("a.tsv", "\t")])
def test_a_row_with_more_columns_than_the_header_is_refused(tmp_path, name, mark):
    """A comma in a text without quotes would make a class of what follows it."""
    rows = [("text", "label"), ("good", "pos"), ("well", "I liked it", "pos")]
    lines = [mark.join(row) + "\n" for row in rows]
    answer = refusal_of_table(tmp_path / name, "".join(lines))
    assert "row 3: 3 columns, but the first row has 2" in answer
    lines[2] = mark.join(["bad", "neg", " "]) + "\n"
    found = read_table(tmp_path / name, "".join(lines))
    assert found == [("good", "pos"), ("bad", "neg")]


def test_columns_are_of_tables(tmp_path):
    assert "is not a table" in refusal(find_labelled, "kinds", label="topic")


def test_a_file_whose_lines_have_tabs_is_a_table_of_texts(tmp_path):
    rows = 'ham\tHi!\nspam\tWin!\nham\t"Me\n'
    write_tree(tmp_path, {"SMSSpamCollection": rows, "readme": "SMS"})
    with zipfile.ZipFile(tmp_path / "sms.zip", "w") as archive:
        for name in ("SMSSpamCollection", "readme"):
            archive.write(tmp_path / name, name)
    expected = [("Hi!", "ham"), ("Win!", "spam"), ('"Me', "ham")]
    for name in ("SMSSpamCollection", "sms.zip"):
        corpus = find_labelled(str(tmp_path / name), text="2", label="1")
        assert read(corpus) == expected and classes_of(corpus) == ["ham", "spam"]
    assert "neither a table" in refusal(find_labelled, str(tmp_path / "readme"), label="1")


def test_the_text_column_is_found_in_each_table_on_its_own(tmp_path):
    """As in GLUE's SST-2, whose parts name it otherwise."""
    (tmp_path / "train.tsv").write_text("label\tsentence\n0\tA bore\n1\tA joy\n")
    (tmp_path / "dev.tsv").write_text("content\tlabel\nA film\t1\n")
    corpus = find_labelled(
        str(tmp_path / "train.tsv"), str(tmp_path / "dev.tsv"), label="label"
    )
    assert read(corpus, "valid") == [("A film", "1")]
    assert classes_of(corpus) == ["0", "1"]


def test_json_lines(tmp_path):
    rows = [
        {"Text": "Ein\nHund", "label": 2, "x": []},
        {"text": "Ö", "label": True},
        {"text": None, "label": "a b"},
    ]
    found = read_table(tmp_path / "a.jsonl", "\n\n".join(map(json.dumps, rows)))
    assert found == [("Ein Hund", "2"), ("Ö", "true"), ("", "a b")]


def test_json_of_other_forms(tmp_path):
    """A list of objects, and objects within objects, as Hugging Face's scripts have them."""
    rows = [{"text": "A", "Label": 1}, {"text": "B", "Label": 2}]
    lines = [json.dumps({"id": 1, "data": row}) + "\n" for row in rows]
    for content in (json.dumps(rows, indent=1), "".join(lines)):
        assert read_table(tmp_path / "a.json", content) == [("A", "1"), ("B", "2")]


def test_an_inner_object_does_not_replace_the_outer_ones_columns(tmp_path):
    """As in what social networks give out: a message that quotes another."""
    row = {
        "text": "mine",
        "label": "a",
        "quoted": {"text": "theirs", "stars": 5},
        "other": {"stars": 1},
    }
    assert read_table(tmp_path / "a.jsonl", json.dumps(row) + "\n") == [("mine", "a")]
    corpus = find_labelled(str(tmp_path / "a.jsonl"), text="quoted.text", label="other.stars")
    assert read(corpus) == [("theirs", "1")]
    assert "row 1: no 'stars'" in refusal(read_all, tmp_path / "a.jsonl", label="stars")


def test_half_a_character_in_json_becomes_a_question_mark(tmp_path):
    """A text that was cut within an emoji cannot be encoded."""
    row = '{"text": "cut \\ud83d", "label": 1}\n'
    assert read_table(tmp_path / "a.jsonl", row) == [("cut ?", "1")]


def test_a_text_with_a_comma_and_without_quotes_is_refused_by_position_too(tmp_path):
    """It would lose what follows the comma."""
    rows = "pos,Good\nneg,Slow, and dear\npos,Fine,\n"
    answer = refusal_of_table(tmp_path / "a.csv", rows, text="2", label="1")
    assert "row 2: 3 columns, but the first row has 2" in answer


def test_a_column_is_not_text_and_class_at_once(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nGood,pos\nBad,neg\n")
    assert "name the same column twice" in refusal(read_all, tmp_path / "a.csv", label="1")
    (tmp_path / "b.csv").write_text(",text,label\n0,Good,pos\n1,Bad,neg\n")  # by pandas
    for name in ("a.csv", "b.csv"):
        assert "is missing" in refusal(read_all, tmp_path / name, text="text,", label="label")


def test_rows_and_lines_without_anything_are_skipped(tmp_path):
    """Excel ends a table with such rows, and an editor a file with such lines."""
    (tmp_path / "a.csv").write_text("text,label\nGood,pos\nBad,neg\n,\n,\n")
    assert read_all(tmp_path / "a.csv", label="label") == ["neg", "pos"]
    (tmp_path / "b.txt").write_bytes(b"Good\tpos\r\n\r\nBad\tneg\r\n")
    assert read_all(tmp_path / "b.txt", text="1", label="2") == ["neg", "pos"]


def test_a_row_that_ends_within_quotes_is_refused_with_advice(tmp_path):
    rows = 'text\tlabel\n"Good\nfilm"\tpos\n'
    assert "line ends as .csv" in refusal_of_table(tmp_path / "a.tsv", rows)


def test_a_table_may_be_packed_within_an_archive(tmp_path):
    content = gzip.compress(b"text,label\nGood,pos\nBad,neg\n")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("train.csv.gz", content)
    assert read_all(tmp_path / "a.zip", label="label") == ["neg", "pos"]


def test_a_column_that_differs_in_each_row_has_no_classes(tmp_path):
    rows = "".join(f"text {i},{i % 2}\n" for i in range(50))
    write_tree(tmp_path, {"a.csv": f"text,label\n{rows}"})
    answer = refusal(read_all, tmp_path / "a.csv", text="label", label="text")
    assert "50 classes in 50 examples; does --label name the right column?" in answer
    # With folders it is what was asked for.
    write_tree(tmp_path, {f"all/{i}/1.txt": "x" for i in range(50)})
    assert len(read_all(tmp_path / "all")) == 50


def test_a_table_may_replace_the_test_set_of_a_folder(tmp_path):
    folders = ("train/a", "train/b", "test/a", "test/b")
    write_tree(tmp_path, {f"all/{folder}/1.txt": "x" for folder in folders})
    write_tree(tmp_path, {"test.csv": "text,label\nx,a\nx,z\n"})
    assert read_all(tmp_path / "all", test=str(tmp_path / "test.csv"), label="label") == [
        *"abz"
    ]


def test_a_test_set_without_labels_is_refused_with_advice(tmp_path):
    """As competitions give it out."""
    write_tree(tmp_path, {"train.csv": "id,text,target\n1,a,0\n2,b,1\n"})
    write_tree(tmp_path, {"test.csv": "id,text\n1,a\n"})
    answer = refusal(find_labelled, str(tmp_path), label="target")
    assert "test.csv: no column 'target'" in answer and "move it away" in answer


def test_columns_are_asked_for_in_a_folder_with_classes_txt_too(tmp_path):
    rows = "1,Title A,Text A\n2,Title B,Text B\n"
    write_tree(tmp_path, {"train.csv": rows, "test.csv": rows, "classes.txt": "x\ny\n"})
    corpus = find_labelled(str(tmp_path), text="3", label="1")
    assert read(corpus, "test") == [("Text A", "1"), ("Text B", "2")]
    assert read(find_labelled(str(tmp_path))) == [
        ("Title A Text A", "x"),
        ("Title B Text B", "y"),
    ]
    assert "add --label" in refusal(find_labelled, str(tmp_path), text="3")


def test_a_folder_of_tables(tmp_path):
    files = {f"all/{part}.tsv": f"text\tlabel\n{part}\t1\nb\t2\n" for part in ("train", "dev")}
    write_tree(tmp_path, files)
    corpus = find_labelled(str(tmp_path / "all"), label="label")
    assert read(corpus) == [("train", "1"), ("b", "2")]
    assert read(corpus, "valid") == [("dev", "1"), ("b", "2")]
    header = {"news/Train.csv": "text,label\na,1\n", "news/TEST.CSV": "text,label\nb,1\n"}
    write_tree(tmp_path, header)
    corpus = find_labelled(str(tmp_path / "news"), label="label")
    assert (corpus.name, read(corpus, "test")) == ("news", [("b", "1")])
    assert not is_labelled(str(tmp_path / "news"))  # they may have sentence pairs


def test_a_sentence_that_begins_with_a_number_is_no_class(tmp_path):
    write_tree(tmp_path, {"train.csv": "2 Hunde spielen.,2 dogs play.\nJa.,Yes.\n"})
    assert task_type(str(tmp_path)) == "translation"
    for cell in ('"2"', "12"):
        write_tree(tmp_path, {"train.csv": f"{cell},Two dogs play.\n1,Yes.\n"})
        assert task_type(str(tmp_path)) == "classification"


def test_what_is_no_text_is_no_table(tmp_path):
    """Although each of its lines has a byte that is a tab's."""
    write_tree(tmp_path, {"a.parquet": b"PAR1\t\0\xff\n\t\0"})
    answer = refusal(find_labelled, str(tmp_path / "a.parquet"), label="label")
    assert "neither a table" in answer and "save other tables as .csv" in answer


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_table_in_utf_16_is_read(tmp_path, encoding):
    """Excel saves it as "Unicode text"."""
    # The bytes of U+4E0A hold a line feed's.
    mark = "\ufeff" if encoding.endswith("be") else ""
    content = (mark + "text\tlabel\r\nJa \u4e0a\rsch\u00f6n\tx\r\nb\ty\r\n").encode(encoding)
    path = tmp_path / "unicode.txt"
    path.write_bytes(content)
    corpus = find_labelled(str(path), label="label")
    assert read(corpus) == [("Ja \u4e0a sch\u00f6n", "x"), ("b", "y")]
    path.write_bytes(content[:-1])
    assert "begins like a file in UTF-16, but is damaged" in refusal(read_all, path, label="1")


def test_objects_a_line_have_three_endings(tmp_path):
    for ending in ("json", "jsonl", "ndjson"):
        rows = '{"text": "a", "label": 1}\n{"text": "b", "label": 2}\n'
        assert read_table(tmp_path / f"a.{ending}", rows) == [("a", "1"), ("b", "2")]


def test_a_long_text_is_read(tmp_path):
    [(text, _)] = read_table(tmp_path / "a.csv", f"text,label\n{'long ' * 200_000},1\n")
    assert len(text) == 999_999


def test_what_pandas_calls_missing_is_an_empty_text(tmp_path):
    rows = '{"text": NaN, "label": 1}\n{"text": "b", "label": 2}\n'
    assert read_table(tmp_path / "a.jsonl", rows) == [("", "1"), ("b", "2")]


def test_folders_of_languages_are_warned_of(tmp_path, capsys):
    write_tree(tmp_path, {"de/train.txt": "Ja.\n", "en/train.txt": "Yes.\n"})
    read(find_labelled(str(tmp_path)))
    assert "its folders de, en are taken for classes; parallel" in capsys.readouterr().err
    write_tree(tmp_path, {"news/train.txt": "No.\n"})
    read(find_labelled(str(tmp_path)))
    assert capsys.readouterr().err == ""


TABLES = {  # name: (content, what the answer says)
    "label.csv": ("text,x\na,b\n", "no column 'label'", "--text, --label", "1 'text', 2 'x'"),
    "text.csv": ("phrase,label\na,b\n", "no column text, content", "--text", "phrase, label"),
    "named.jsonl": ('{"phrase": "a", "label": 1}', "no column text", "phrase, label"),
    "none.csv": ("text,label\n", "the training set has no example"),
    "nolabel.csv": ("text,label\na,1\nb,\n", "row 3: it has no label"),
    "one.csv": ("text,label\na,1\nb,1\n", "only the class '1'"),
    "short.tsv": ("text\tlabel\na\tb\nc\n", "row 3: 1 columns, but the first row has 2"),
    "broken.jsonl": ('{"text": "a", "label": 1}\n{"text": \n', "line 2: broken JSON"),
    "deep.jsonl": ("[" * 100_000, "broken JSON"),
    "pretty.json": ('{\n "text": "a"}\n', "an object a line, or is one list of objects"),
    "list.jsonl": ('{"text": "a", "label": 1}\n["a", 1]\n', "row 2: no JSON object"),
    "commas.tsv": ("text,label\na,b\n", "no tab divides the first row"),
    "bars.csv": ("text|label\na|b\n", "no comma, tab or semicolon divides the first row"),
    "lacks.jsonl": (
        '{"text": "a", "label": 1}\n{"text": "b"}\n',
        "row 2",
        "'label'",
        "has text",
    ),
    "nested.jsonl": ('{"text": ["a"], "label": 1}\n', "row 1: 'text' is a list or an object"),
    "latin.csv": (b"text,label\nsch\xf6n,1\n", "line 2: not UTF-8"),
    "quote.csv": ('text,label\n"a,1\n', "quote.csv, line"),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_read_is_refused(tmp_path, name):
    content, *expected = TABLES[name]
    write_tree(tmp_path, {name: content})
    answer = refusal(read_all, tmp_path / name, label="label")
    assert all(text in answer for text in [name.split(".")[0], *expected]), answer


def test_a_table_needs_a_label_and_must_be_there(tmp_path):
    assert "--label" in refusal(
        find_labelled, str(write_tree(tmp_path, {"a.csv": "x"}) / "a.csv")
    )
    assert "no such file" in refusal(find_labelled, str(tmp_path / "b.csv"), label="1")
    assert "no such file or folder" in refusal(find_labelled, "phrasebook", label="1")


def test_classes_are_sorted_numbers_by_value(tmp_path):
    for labels, expected in (
        (["10", "9", "-1", "2.5"], ["-1", "2.5", "9", "10"]),
        (["10", "9", "b"], ["10", "9", "b"]),
    ):
        (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"a,{x}\n" for x in labels))
        assert classes_of(find_labelled(str(tmp_path / "a.csv"), label="label")) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are Unicode there")
def test_a_folder_whose_name_is_not_utf_8_is_a_class_that_can_be_written(tmp_path):
    """As archives from elsewhere are unpacked on Linux."""
    for name in (b"kr\xff", b"ok"):
        folder = tmp_path / os.fsdecode(name)
        folder.mkdir()
        (folder / "1.txt").write_text("a")
    assert classes_of(find_labelled(str(tmp_path))) == ["kr\\udcff", "ok"]


def test_a_class_has_one_name_whatever_its_bytes_are(tmp_path):
    """A Mac writes accents as characters of their own in the names of folders."""
    composed, decomposed = "Gemüse", "Gemu\u0308se"
    write_tree(
        tmp_path,
        {
            "a.csv": f"text,label\na,{composed}\nb,{decomposed}\nc,Obst\n",
            f"folders/train/{decomposed}/1.txt": "a",
            "folders/train/Obst/2.txt": "c",
            f"folders/test/{composed}/3.txt": "b",
        },
    )
    table = find_labelled(str(tmp_path / "a.csv"), label="label")
    assert read(table) == [("a", composed), ("b", composed), ("c", "Obst")]
    named = f"text,{decomposed}\na,1\n"
    assert read_table(tmp_path / "b.csv", named, label=composed) == [("a", "1")]
    folders = find_labelled(str(tmp_path / "folders"))
    assert classes_of(folders) == [composed, "Obst"]
    assert read(folders) == [("a", composed), ("c", "Obst")]
    assert read(folders, "test") == [("b", composed)]


def test_classes_are_those_of_all_parts(tmp_path):
    write_tree(tmp_path, {"a.csv": "text,label\na,1\nb,3\n", "t.csv": "text,label\na,1\nb,2\n"})
    corpus = find_labelled(str(tmp_path / "a.csv"), test=str(tmp_path / "t.csv"), label="label")
    assert classes_of(corpus) == ["1", "2", "3"]


def test_the_checksum_is_of_what_is_read_and_how(tmp_path):
    write_tree(
        tmp_path, {"a.csv": "text,body,label\na,b,1\n", "x/b.csv": "text,body,label\na,b,1\n"}
    )
    sums = [
        find_labelled(str(tmp_path / name), text=text, label="label").checksum
        for name, text in (("a.csv", "text"), ("x/b.csv", "text"), ("a.csv", "body"))
    ]
    assert sums[0] == sums[1] != sums[2]
    (tmp_path / "a.csv").write_text("text,body,label\nb,b,1\n")
    assert (
        find_labelled(str(tmp_path / "a.csv"), text="text", label="label").checksum != sums[0]
    )


def test_the_checksum_tells_which_version_has_held_examples_out(tmp_path, monkeypatch):
    """Else a resumed run would be validated on what it was trained on."""
    write_tree(tmp_path, {f"{name}.csv": "text,label\na,1\nb,2\n" for name in "ab"})
    for valid in ("", str(tmp_path / "b.csv")):

        def checksum(valid=valid):
            return find_labelled(str(tmp_path / "a.csv"), valid, label="label").checksum

        before = checksum()
        with monkeypatch.context() as patch:
            patch.setattr("support.classification.corpus.HOLD_OUT_VERSION", 99)
            assert (checksum() == before) == bool(valid)


# --- AG News


def test_a_folder_with_the_files_of_agnews(tmp_path):
    folder = write_tree(
        tmp_path / "news",
        {
            "train.csv": NEWS,
            "test.csv": '"2","Cup","won"\n',
            "classes.txt": "World\nSports\nBusiness\nSci/Tech\n",
        },
    )
    corpus = find_labelled(str(folder))
    assert is_labelled(str(folder)) and corpus.name == "agnews"
    assert corpus.classes == ["World", "Sports", "Business", "Sci/Tech"]
    assert read(corpus) == NEWS_READ and read(corpus, "test") == [("Cup won", "Sports")]
    (folder / "train.csv").write_text(NEWS, encoding="utf-8-sig")  # as Excel saves it
    assert is_labelled(str(folder)) and read(find_labelled(str(folder))) == NEWS_READ


def test_other_corpora_of_that_form_have_their_own_classes(tmp_path):
    folder = write_tree(
        tmp_path / "poems", {"train.csv": "2,a\n1,b\n", "classes.txt": "ode\nelegy"}
    )
    corpus = find_labelled(str(folder))
    assert (corpus.name, classes_of(corpus)) == ("poems", ["ode", "elegy"])
    (folder / "train.csv").write_text(
        '1,"Bad.\\n\\nNever."\n2,b\n'
    )  # line ends as in Yelp's reviews
    assert read(corpus) == [("Bad.  Never.", "ode"), ("b", "elegy")]
    for row in ("0,a", "3,a", "label,text", "1", "x"):
        (folder / "train.csv").write_text(f"1,a\n{row}\n")
        assert "row 2" in refusal(read_all, folder)


def test_agnews_is_fetched_checked_and_kept(tmp_path, monkeypatch):
    served = write_tree(tmp_path / "served", {"train.csv": NEWS, "test.csv": NEWS})
    sums = {name: sha256(served / name) for name in named.FILES["agnews"]}
    assert set(sums) == {"train.csv", "test.csv"}
    monkeypatch.setitem(named.FILES, "agnews", sums)
    monkeypatch.setattr(download, "CACHE", tmp_path / "cache")
    with Server(("127.0.0.1", 0), partial(Quiet, directory=served)) as url:
        monkeypatch.setenv("AGNEWS_URL", url)
        corpus = find_labelled("agnews")
        assert corpus.name == "agnews" and read(corpus, "test") == NEWS_READ
        (tmp_path / "cache/agnews/test.csv").unlink()
        (served / "test.csv").write_text(NEWS.replace("Oil", "Gas"))
        assert "not the expected file" in refusal(find_labelled, "agnews")
        assert not (tmp_path / "cache/agnews/test.csv").exists()
    assert "agnews cannot be fetched" in refusal(find_labelled, "agnews")


# --- IDX


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim])
        + b"".join(n.to_bytes(4, "big") for n in array.shape)
        + (array.tobytes())
    )


def write_idx(folder, size=4, **changed):
    """A folder of IDX files, some packed: 6 images to train on, 3 to test; labels 0, 1, 10."""
    rng = np.random.default_rng(1)
    files = {}
    for part, n in (("train", 6), ("t10k", 3)):
        images = rng.integers(0, 256, (n, size, size), dtype=np.uint8)
        labels = np.array([1, 10, 0] * 2, dtype=np.uint8)[:n]
        files[f"{part}-images-idx3-ubyte"] = idx(images)
        files[f"{part}-labels-idx1-ubyte.gz"] = gzip.compress(idx(labels))
    return write_tree(folder, files | changed)


def test_idx_files_stay_as_they_are(tmp_path):
    folder = write_idx(tmp_path / "mnist")
    corpus = find_labelled(str(folder))
    assert is_labelled(str(folder)) and (corpus.name, corpus.modality) == ("mnist", "image")
    assert (corpus.transform.size, corpus.transform.channels) == (4, 1)
    assert classes_of(corpus) == ["0", "1", "10"]
    content = (folder / "train-images-idx3-ubyte").read_bytes()[16:]
    examples = read_images(corpus)
    assert [name for _, name in examples] == ["1", "10", "0"] * 2
    assert b"".join(x.tobytes() for x, _ in examples) == content
    assert examples[0][0].shape == (1, 4, 4) and examples[0][0].dtype == np.uint8
    assert len(read(corpus, "test")) == 3


@pytest.mark.optional
def test_idx_files_in_another_size(tmp_path):
    pytest.importorskip("PIL")
    write_idx(tmp_path)
    corpus = find_labelled(str(tmp_path), transform=ImageTransform(size=8, channels=3))
    pixels = read_images(corpus)[0][0]
    assert pixels.shape == (3, 8, 8) and (pixels[0] == pixels[2]).all()
    assert corpus.checksum != find_labelled(str(tmp_path)).checksum


@pytest.mark.optional
def test_idx_files_made_smaller_stay_grey(tmp_path):
    pytest.importorskip("PIL")
    write_idx(tmp_path)
    corpus = find_labelled(str(tmp_path), size=2)
    assert (corpus.transform.size, corpus.transform.channels) == (2, 1)
    assert read_images(corpus)[0][0].shape == (1, 2, 2)


def test_fashion_mnist_is_known_by_what_it_holds_packed_anew_or_not(tmp_path, monkeypatch):
    served, cache = write_idx(tmp_path / "served"), tmp_path / "cache"
    for path in list(served.iterdir()):
        if path.suffix == ".gz":
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
    sums = {}
    for name in named.FILES["fashion-mnist"]:
        content = (served / name.removesuffix(".gz")).read_bytes()
        sums[name] = sha256(served / name.removesuffix(".gz"))
        (served / name).write_bytes(gzip.compress(content, 1))
    monkeypatch.setitem(named.FILES, "fashion-mnist", sums)
    monkeypatch.setitem(named.CLASSES, "fashion-mnist", [f"class {i}" for i in range(11)])
    monkeypatch.setattr(download, "CACHE", cache)
    with Server(("127.0.0.1", 0), partial(Quiet, directory=served)) as url:
        monkeypatch.setenv("FASHION_MNIST_URL", url + "/")
        corpus = find_labelled("fashion-mnist")
        assert read(corpus)[0][1] == "class 1" and corpus.transform.mean == [0.28604]
        for wrong in (b"half", gzip.compress(b"another"), gzip.compress(content)[:-9]):
            (cache / "fashion-mnist" / name).unlink(missing_ok=True)
            (served / name).write_bytes(wrong)
            assert "not the expected file" in refusal(find_labelled, "fashion-mnist")
        (served / name).write_bytes(gzip.compress(content, 9))
        (cache / "fashion-mnist" / name).write_bytes(b"spoilt")  # fetched again
        assert find_labelled("fashion-mnist").name == "fashion-mnist"
    assert find_labelled(str(served)).name == "fashion-mnist"
    (served / name).unlink()  # plain ones are left
    assert find_labelled(str(served)).classes == corpus.classes
    labels = served / "t10k-labels-idx1-ubyte"  # which tell
    (served / "t10k-labels-idx1-ubyte.gz").unlink()
    labels.write_bytes(labels.read_bytes()[:-1] + b"?")
    assert find_labelled(str(served)).name == "served"


FOUR = np.zeros((6, 4, 4), np.uint8)
WRONG_IDX = {
    "cut": ("train-images-idx3-ubyte", idx(FOUR)[:-5], "array of size 91 into shape (6,4,4)"),
    "long": ("train-images-idx3-ubyte", idx(FOUR) + b"x", "array of size 97"),
    "head": (
        "train-images-idx3-ubyte",
        idx(FOUR)[:9],
        "not an IDX file of bytes in 3 dimensions",
    ),
    "magic": ("train-images-idx3-ubyte", b"\x89PNG" + idx(FOUR), "not an IDX file of bytes"),
    "empty": ("train-images-idx3-ubyte", b"", "not an IDX file of bytes"),
    "cutgz": (
        "train-labels-idx1-ubyte.gz",
        gzip.compress(idx(FOUR[0, 0]))[:-9],
        "cannot be read",
    ),
    "notgz": ("train-labels-idx1-ubyte.gz", b"plain", "cannot be read"),
    "counts": (
        "train-labels-idx1-ubyte.gz",
        gzip.compress(idx(FOUR[0, 0])),
        "has 6 images",
        "has 4 labels",
    ),
    "one": (
        "train-labels-idx1-ubyte.gz",
        gzip.compress(idx(FOUR[:, 0, 0])),
        "only the class '0'",
    ),
}


@pytest.mark.parametrize("name", WRONG_IDX)
def test_idx_files_that_are_wrong_are_refused(tmp_path, name):
    file, content, *expected = WRONG_IDX[name]
    answer = refusal(read_all, write_idx(tmp_path, **{file: content}))
    assert all(text in answer for text in expected), answer


def test_idx_images_without_labels_are_refused(tmp_path):
    (write_idx(tmp_path) / "train-labels-idx1-ubyte.gz").unlink()
    assert "both images and labels" in refusal(find_labelled, str(tmp_path))


# --- Folders with a folder for each class


REVIEWS = {
    "train/pos/0_9.txt": "Good\nfilm.",
    "train/neg/1_2.txt": "Bad.",
    "train/neg/0_1.txt": "Worse.\n",
    "train/unsup/0_0.txt": "?",
    "train/urls_pos.txt": "http",
    "train/.cache/x.txt": "?",
    "test/neg/0_3.txt": "So so.",
    "test/pos/labels.csv": "?",
    "imdb.vocab": "the",
}


def test_class_folders_of_texts_as_imdb_has_them(tmp_path):
    folder = write_tree(tmp_path / "aclImdb", REVIEWS)
    corpus = find_labelled(str(folder))
    assert is_labelled(str(folder)) and (corpus.name, corpus.modality) == ("imdb", "text")
    assert read(corpus) == [("Worse.", "neg"), ("Bad.", "neg"), ("Good film.", "pos")]
    assert read(corpus, "test") == [("So so.", "neg")]
    assert classes_of(corpus) == ["neg", "pos"]
    # A text that moves to another class is another corpus, though its content is the same.
    before = corpus.checksum
    (folder / "train/pos/0_9.txt").rename(folder / "train/neg/9.txt")
    assert find_labelled(str(folder)).checksum != before


@pytest.mark.parametrize("train, test", [("train", "test1"), ("train_images", "test_images")])
def test_files_that_are_in_no_class_folder_make_no_class_of_their_part(tmp_path, train, test):
    """As in Kaggle's dogs and cats: all files of train/ would be of the class train."""
    files = {f"{train}/cat.0.txt": "c", f"{train}/dog.0.txt": "d", f"{test}/1.txt": "?"}
    folder = write_tree(tmp_path / "a", files)
    answer = refusal(find_labelled, str(folder))
    assert f"{test}: its files are in no class folder" in answer
    vehicles = write_tree(tmp_path / "b", {"train/1.txt": "t", "car/1.txt": "c"})
    assert classes_of(find_labelled(str(vehicles))) == ["car", "train"]


def test_files_beside_the_parts_are_counted(tmp_path):
    files = {"train/cat/0.txt": "c", "train/dog/0.txt": "d", "test/1.txt": "?", "a/1.txt": "?"}
    corpus = find_labelled(str(write_tree(tmp_path, files)))
    assert corpus.left_out_line().endswith("left out: 1 in a/, 1 in test/")


def test_whole_folders_of_classes_beside_the_parts_are_counted(tmp_path):
    parts = ("train", "val", "dev", "eval")
    files = {f"{part}/{name}/1.txt": name for part in parts for name in ("cat", "dog")}
    (tmp_path / "empty").mkdir()
    corpus = find_labelled(str(write_tree(tmp_path, files)))
    assert corpus.left_out_line().endswith("left out: 2 in dev/, 2 in eval/")


@pytest.mark.parametrize(
    ("files", "parts"),
    [
        (
            ["my-train/cat/1", "my-train/dog/1", "my-test/cat/1", "train-info/1"],
            ["test", "train"],
        ),
        (["my-train/cat/1", "my-test/cat/1", "train-old/cat/1"], ["test", "train"]),
        (["train2017/cat/1", "test2017/cat/1"], []),
        (["train/cat/1", "my-val/cat/1", "val-notes/a.json"], ["train", "valid"]),
        (["train/cat/1", "train/dog/1", "test-results/run1/1"], ["train"]),
        (["train/cat/1", "test/cat/1", "dev-kit/data/1"], ["test", "train"]),
        (["a-train/cat/1", "b-train/cat/1", "a-test/cat/1"], ["test"]),
        (["car/1", "plane/1", "train-station/1", "train-station/night/1"], ["train"]),
        (["train.de", "train.en", "test-results/run1/1"], []),
    ],
)
def test_other_folders_are_no_parts(tmp_path, files, parts):
    write_tree(tmp_path, dict.fromkeys(files, "x"))
    assert sorted(find_class_folders(tmp_path)) == parts


def test_a_class_called_unsup_is_left_out_beside_those_of_imdb_alone(tmp_path):
    files = {"sup/1.txt": "s", "unsup/1.txt": "u"}
    assert len(read(find_labelled(str(write_tree(tmp_path / "own", files))))) == 2
    files = {"pos/1.txt": "p", "neg/1.txt": "n", "unsup/1.txt": "?"}
    corpus = find_labelled(str(write_tree(tmp_path / "imdb", files)))
    assert len(read(corpus)) == 2
    assert corpus.left_out_line().endswith("left out: 1 in unsup/")
    (tmp_path / "imdb" / "unsup" / "1.txt").unlink()
    (tmp_path / "imdb" / "unsup").rmdir()
    make_link(tmp_path / "imdb" / "unsup", "pos")
    assert len(read(find_labelled(str(tmp_path / "imdb")))) == 2


def test_a_link_to_nothing_and_a_folder_called_like_an_image_are_counted(tmp_path):
    files = {"a/1.txt": "x", "b/1.txt": "y", "b/d.txt/1.txt": "z"}
    write_tree(tmp_path, files)
    make_link(tmp_path / "a" / "broken.txt", "nowhere")
    corpus = find_labelled(str(tmp_path))
    assert read(corpus) == [("x", "a"), ("y", "b")]
    assert corpus.left_out_line().endswith("left out: 1 .txt, 1 folder(s)")


def serve_archive(monkeypatch, tmp_path, name, file, files):
    """Makes a .tar.gz of `files` what is fetched for the corpus `name`, without other parts."""
    served = tmp_path / "served"
    served.mkdir()
    with tarfile.open(served / file, "w:gz") as archive:
        archive.add(write_tree(tmp_path / "unpacked", files), "")
    content = (served / file).read_bytes()
    sums = {file: hashlib.sha256(content).hexdigest()}
    monkeypatch.setitem(named.FILES, name, sums)
    monkeypatch.setattr(download, "CACHE", tmp_path / "cache")
    return Server(("127.0.0.1", 0), partial(Quiet, directory=served))


def test_imdb_is_fetched_checked_and_read_in_its_archive(tmp_path, monkeypatch, capfd):
    assert set(named.FILES["imdb"]) == {"aclImdb_v1.tar.gz"}
    files = {f"aclImdb/{name}": content for name, content in REVIEWS.items()}
    with serve_archive(monkeypatch, tmp_path, "imdb", "aclImdb_v1.tar.gz", files) as url:
        monkeypatch.setenv("IMDB_URL", url)
        corpus = find_labelled("imdb")
    assert "fetching" in capfd.readouterr().err
    corpus = find_labelled("imdb")  # the server is gone
    assert is_labelled("imdb") and (corpus.name, corpus.modality) == ("imdb", "text")
    unpacked = find_labelled(f"{tmp_path}/unpacked/aclImdb")
    for part in ("train", "test"):
        assert read(corpus, part) == read(unpacked, part)
    kept = list((tmp_path / "cache/imdb").iterdir())
    assert [path.name for path in kept] == ["aclImdb_v1.tar.gz"]  # nothing is unpacked
    kept[0].write_bytes(kept[0].read_bytes()[:-9])
    assert "imdb cannot be fetched" in refusal(find_labelled, "imdb")


def test_amazon_polarity_is_fetched_checked_and_read_in_its_archive(tmp_path, monkeypatch):
    name = "amazon-polarity"
    (file,) = named.FILES["amazon-polarity"]
    folder = file.removesuffix(".tgz")
    files = {
        f"{folder}/readme.txt": "?",
        f"{folder}/test.csv": '"2","Fine","It ""works""."\n',
        f"{folder}/train.csv": '"1","Bad","Broke.\\nTwice."\n"2","","Good"\n',
    }
    with serve_archive(monkeypatch, tmp_path, name, file, files) as url:
        monkeypatch.setenv("AMAZON_POLARITY_URL", url)
        corpus = find_labelled(name)
    assert is_labelled(name) and corpus.name == name
    assert classes_of(corpus) == ["negative", "positive"]
    for _ in range(2):
        assert read(corpus) == [("Bad Broke. Twice.", "negative"), ("Good", "positive")]
        assert read(corpus, "test") == [('Fine It "works".', "positive")]
    unpacked = find_labelled(f"{tmp_path}/unpacked/{folder}")
    assert unpacked.name == name and read(unpacked) == read(corpus)


def test_texts_without_ending_as_newsgroups_have_them(tmp_path):
    """Parts named SOMETHING-train and SOMETHING-test; old texts are not UTF-8."""
    folder = write_tree(
        tmp_path / "news",
        {
            "bydate-train/sci.space/53068": "Subject: orbit\n\nUp.",
            "bydate-train/rec.autos/101": b"A caf\xe9 for cars.",
            "bydate-train/rec.autos/102.eml": "\u201cFast\u201d".encode("utf-16"),
            "bydate-train/rec.autos/103.doc": b"\xd0\xcf\0\0",
            "bydate-test/sci.space/53069": "Down.",
        },
    )
    corpus = find_labelled(str(folder))
    assert is_labelled(str(folder)) and corpus.modality == "text"
    assert read(corpus) == [
        ("A café for cars.", "rec.autos"),
        ("“Fast”", "rec.autos"),
        ("Subject: orbit  Up.", "sci.space"),
    ]
    assert read(corpus, "test") == [("Down.", "sci.space")]
    assert corpus.left_out_line() == "news: left out: 1 .doc"


def test_texts_that_are_not_utf_8_are_read_and_counted(tmp_path, capfd):
    write_tree(
        tmp_path,
        {
            "all/a/1.txt": b"caf\xe9 \x96 bar",
            "all/a/2.txt": "\u201cJa\u201d".encode("utf-16"),
            "all/b/1.txt": "\ufeffcafé",
            "all/b/2.txt": "Ja".encode("utf-32"),
        },
    )
    corpus = find_labelled(f"{tmp_path}/all")
    for _ in range(2):
        assert [text for text, _ in read(corpus)] == ["café – bar", "“Ja”", "café", "Ja"]
    warning = capfd.readouterr().err
    assert warning.count("\n") == 1 and "3 of 4 texts, such as" in warning


@pytest.mark.parametrize(
    ("encoding", "text"),
    [("cp1251", "Это хороший фильм"), ("gbk", "这部电影很好看"), ("utf-16-le", "A good film")],
)
def test_texts_in_other_encodings_are_refused(tmp_path, encoding, text):
    """As rows of a table are. A few among many are let pass: they may be damaged."""
    write_tree(tmp_path, {"all/a/1.txt": text.encode(encoding), "all/b/1.txt": "Gut."})
    corpus = find_labelled(f"{tmp_path}/all")
    assert corpus.class_counts == {"a": 1, "b": 1}  # without reading them
    assert "all/a/1.txt: not UTF-8; convert it by iconv" in refusal(read, corpus)
    write_tree(tmp_path, {f"all/b/{i}.txt": "Gut." for i in range(2, 101)})
    assert len(read(find_labelled(f"{tmp_path}/all"))) == 101


def test_short_texts_in_windows_1252_are_read(tmp_path):
    """In one word half of the letters may be umlauts."""
    words = ["Öl", "Tür", "für", "Käse", "Größe", "Baum"]
    files = {f"{i % 2}/{i}.txt": word.encode("cp1252") for i, word in enumerate(words)}
    write_tree(tmp_path, files | {"0/nul.txt": "one\0 is no reason"})
    texts = [text for text, _ in read(find_labelled(str(tmp_path)))]
    assert sorted(texts) == sorted([*words, "one\0 is no reason"])


def test_a_picture_among_texts_does_not_make_them_images(tmp_path):
    files = {f"{name}/{i}.txt": "x" for name in "ab" for i in range(2)}
    write_tree(tmp_path, files | {"a/logo.png": "?", "b/logo.png": "?"})
    corpus = find_labelled(str(tmp_path))
    assert (corpus.modality, len(read(corpus))) == ("text", 4)
    assert corpus.left_out_line() == f"{tmp_path.name}: left out: 2 .png"


def test_hidden_files_and_those_of_a_mac_are_no_examples(tmp_path):
    files = {"a/1.txt": "x", "b/1.txt": "y"}
    mac = {
        "a/._1.txt": b"\0\5\x16\7",
        "a/.DS_Store": b"\0\0\0\1Bud1",
        "b/Thumbs.db": "?",
        "a/thumbs.db": "?",
        "a/1.txt~": "?",
        "@eaDir/1.txt": "?",
        "$RECYCLE.BIN/1.txt": "?",
        "lost+found/1.txt": "?",
        "__MACOSX/a/._1.txt": "?",
        "__MACOSX/b/1.txt": "?",
        ".git/1.txt": "?",
    }
    write_tree(tmp_path, files | mac)
    corpus = find_labelled(str(tmp_path))
    assert read(corpus) == [("x", "a"), ("y", "b")] and not corpus.left_out


def test_parallel_files_in_folders_are_no_classes(tmp_path):
    write_tree(
        tmp_path, {f"{pair}/train.{side}": "x" for pair in "ab" for side in ("de", "en")}
    )
    assert not is_labelled(str(tmp_path))
    write_tree(tmp_path, {"a/1.py": "x", "b/1.go": "y"})
    assert read(find_labelled(str(tmp_path))) == [("x", "a"), ("y", "b")]


def test_a_named_corpus_has_no_other_classes(tmp_path):
    (tmp_path / "valid.csv").write_text("text,kind\nHallo!,greeting\n")
    corpus = find_labelled("kinds", valid=f"{tmp_path}/valid.csv", label="kind")
    assert refusal(prepare_labelled, corpus, tmp_path, "", 16, 300).startswith(
        "kinds: the valid set has the class 'greeting', which is none of statement, inversion, "
    )


def test_class_folders_without_parts_and_others_to_validate_on(tmp_path):
    write_tree(
        tmp_path,
        {
            "all/a/1.txt": "x",
            "all/b/1.txt": "y",
            "dev/b/2.txt": "z",
            "t/c/1.txt": "",
            "p/a/1.png": b"",
            "both/a/1.txt": "",
            "both/b/1.jpg": b"",
        },
    )
    corpus = find_labelled(f"{tmp_path}/all", valid=f"{tmp_path}/dev")
    assert read(corpus) == [("x", "a"), ("y", "b")] and read(corpus, "valid") == [("z", "b")]
    assert (
        "the test set shares no class with the training set; it has 'c', the training set 'a'"
        in refusal(read_all, tmp_path / "all", test=f"{tmp_path}/t")
    )
    answer = refusal(find_labelled, f"{tmp_path}/all", valid=f"{tmp_path}/p")
    assert "images for the valid set, but all has texts" in answer
    assert "both/a: a class without any image" in refusal(find_labelled, f"{tmp_path}/both")
    assert "neither a table" in refusal(find_labelled, f"{tmp_path}/all/a")
    assert "no such file or folder" in refusal(find_labelled, f"{tmp_path}/none", label="label")


def test_a_class_folder_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    write_tree(tmp_path, {f"{name}/1.txt": "x" for name in "abc"})

    def refuse_c(call):
        def read(path):
            if str(path) == str(tmp_path / "c"):
                raise PermissionError(13, "Permission denied", str(path))
            return call(path)

        return read

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, refuse_c(getattr(os, name)))
    with pytest.raises(PermissionError) as problem:
        find_labelled(str(tmp_path))
    assert problem.value.filename == str(tmp_path / "c")


def test_a_folder_with_a_test_part_alone_is_found_but_nothing_to_train_on(tmp_path):
    write_tree(tmp_path, {"test/a/1.txt": "x", "test/b/1.txt": "y"})
    corpus = find_labelled(str(tmp_path))
    assert read(corpus, "test") == [("x", "a"), ("y", "b")]
    assert "no training set" in refusal(classes_of, corpus)


def test_the_runs_of_this_project_are_no_class(tmp_path, monkeypatch):
    write_tree(
        tmp_path,
        {"a/1.txt": "x", "b/1.txt": "y", "logs/r/metrics.csv": "", "logs/notes.txt": ""},
    )
    monkeypatch.chdir(tmp_path)
    assert read(find_labelled(".")) == [("x", "a"), ("y", "b")]


def test_other_files_named_train_do_not_hide_class_folders(tmp_path):
    write_tree(
        tmp_path,
        {"a/1.txt": "x", "b/1.txt": "y", "train.csv": "file,label\n1,a\n", "train.py": ""},
    )
    assert is_labelled(str(tmp_path)) and read(find_labelled(str(tmp_path))) == [
        ("x", "a"),
        ("y", "b"),
    ]
    write_tree(tmp_path, {"train/c/1.txt": "z"})
    assert read(find_labelled(str(tmp_path))) == [("z", "c")]


@pytest.mark.parametrize(
    "train, name", [("train", "val"), ("train", "valid"), ("Train", "Dev")]
)
def test_the_validation_part_has_several_names(tmp_path, train, name):
    write_tree(tmp_path, {f"{part}/{c}/1.txt": part for part in (train, name) for c in "ab"})
    assert read(find_labelled(str(tmp_path)), "valid") == [(name, "a"), (name, "b")]


def test_what_is_labelled_is_known_without_reading(tmp_path, monkeypatch):
    for data in ("agnews", "fashion-mnist", "kinds"):
        assert is_labelled(data, "")
    write_tree(
        tmp_path,
        {
            "train.de": "a",
            "train.en": "b",
            "old/x/1.txt": "",
            "notes/1.txt": "",
            "pairs.tsv": "a\tb",
        },
    )
    for data in (
        "phrasebook",
        "multi30k",
        str(tmp_path),
        f"{tmp_path}/train",
        f"{tmp_path}/pairs.tsv",
        f"{tmp_path}/nothing",
    ):
        assert not is_labelled(data, "")
    assert is_labelled(f"{tmp_path}/pairs.tsv", "2")
    write_tree(tmp_path, {"phrasebook/notes/1.txt": "", "own/notes/1.txt": ""})
    monkeypatch.chdir(tmp_path)  # a built-in name goes before a folder's
    assert is_labelled("own") and not is_labelled("phrasebook") and is_labelled("./phrasebook")


# --- Images


@pytest.fixture
def image():
    """The module of Pillow."""
    return pytest.importorskip("PIL.Image")


@pytest.mark.optional
def test_images_of_any_mode_become_bytes(tmp_path, image, recwarn):
    rgb = np.random.default_rng(1).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    image.fromarray(rgb).save(tmp_path / "a.png")
    same = read_image(tmp_path / "a.png", ImageTransform(size=6))
    assert same.dtype == np.uint8 and (same == rgb.transpose(2, 0, 1)).all()
    assert read_image(tmp_path / "a.png", ImageTransform(size=6, channels=1)).shape == (1, 6, 6)
    deep = (np.arange(36, dtype=np.uint16) * 1820).reshape(6, 6)
    image.fromarray(deep).save(tmp_path / "deep.png")
    assert (read_image(tmp_path / "deep.png", ImageTransform(6, 1))[0] == deep >> 8).all()
    for mode in ("RGBA", "P", "1", "LA", "CMYK"):
        path = tmp_path / ("a.jpg" if mode == "CMYK" else f"{mode}.png")
        image.fromarray(rgb).convert(mode).save(path)
        assert read_image(path, ImageTransform(size=9)).shape == (3, 9, 9)
    image.fromarray(rgb).convert("P").save(tmp_path / "P.png", transparency=bytes(256))
    assert read_image(tmp_path / "P.png", ImageTransform(size=6)).any()
    assert not recwarn.list  # of that Pillow would warn


@pytest.mark.optional
@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_what_is_transparent_is_white(tmp_path, image, mode):
    """Black drawings on nothing: every pixel is black, and its opacity tells."""
    alpha = np.zeros((4, 4), np.uint8)
    alpha[1, 2], alpha[2, 2] = 255, 128
    black = np.zeros((4, 4, 3), np.uint8)
    drawing = image.fromarray(np.concatenate([black, alpha[:, :, None]], 2))
    how = {}
    if mode == "P":  # a colour is transparent
        drawing = image.fromarray((alpha < 99).astype(np.uint8)).convert("P")
        how["transparency"] = 1
    drawing.convert(mode).save(tmp_path / "a.png", **how)
    pixels = read_image(tmp_path / "a.png", ImageTransform(4))
    expected = 255 - (alpha > 99) * 255 if mode == "P" else 255 - alpha
    assert (abs(pixels - expected.astype(int)) <= 1).all()


@pytest.mark.optional
def test_a_transparent_grey_of_16_bits_is_white(tmp_path, image):
    grey = np.array([[1000, 40_000], [65_535, 1000]], np.uint16)
    image.fromarray(grey).save(tmp_path / "a.png", transparency=1000)
    pixels = read_image(tmp_path / "a.png", ImageTransform(2, 1))
    assert pixels[0].tolist() == [[255, 156], [255, 255]]
    grey = np.array([[65_535, 4000], [2000, 1000]], np.uint16)  # of 12 bits
    image.fromarray(grey).save(tmp_path / "b.png", transparency=65_535)
    assert read_image(tmp_path / "b.png", ImageTransform(2, 1))[0].tolist() == [
        [255, 250],
        [125, 62],
    ]


@pytest.mark.optional
@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_pixels_of_16_bits_are_scaled_by_those_they_use(tmp_path, image, bits):
    """As many in the whole corpus: classes may differ by how bright their images are."""
    slope = np.arange(64).reshape(8, 8) << bits - 6
    write_tree(tmp_path, {"bright/note.txt": "", "dark/note.txt": ""})
    for i in range(2):
        image.fromarray(slope.astype(np.uint16)).save(tmp_path / f"bright/{i}.png")
        image.fromarray((slope // 4).astype(np.uint16)).save(tmp_path / f"dark/{i}.png")
    corpus = find_labelled(str(tmp_path), size=8)
    assert corpus.transform.grey_bits == bits
    bright, dark = (read_image(read(corpus)[i][0], corpus.transform)[0] for i in (0, 2))
    assert (bright == np.arange(64).reshape(8, 8) * 4).all()
    assert (dark == np.arange(64).reshape(8, 8)).all()
    # A model keeps the number that it was trained with, also where another corpus is scored.
    trained = ImageTransform(8, grey_bits=12)
    assert find_labelled(str(tmp_path), transform=trained).transform == trained
    # Without one, as after a training on 8-bit images, each image is scaled by its own.
    alone = read_image(tmp_path / "dark/0.png", ImageTransform(8))
    assert alone.max() == min(252, (63 << bits - 6) // 4)


@pytest.mark.optional
def test_images_are_known_by_what_they_hold_and_the_rest_is_counted(tmp_path, image):
    black = image.new("RGB", (4, 4))
    for name in "ab":
        (tmp_path / name).mkdir()
        for number, kind in enumerate(("png", "jpeg", "webp", "bmp", "gif")):
            black.save(tmp_path / name / str(number), kind)
    left_out = {"a/1.heic": "\0", "b/1.heic": "\0", "a/1.txt": "?", "b/notes": "?"}
    write_tree(tmp_path, left_out | {"a/old/1.png": "?", "loose.png": "?"})
    (tmp_path / "c").mkdir()
    corpus = find_labelled(str(tmp_path))
    assert (corpus.modality, len(read(corpus))) == ("image", 10)
    expected = (
        "left out: 2 .heic, 1 .txt, 1 folder(s), 1 without ending, 1 in no class folder, "
        "1 empty folder(s)"
    )
    assert corpus.left_out_line() == f"{tmp_path.name}: {expected}"


@pytest.mark.optional
def test_a_photo_is_turned_as_its_camera_was_held(tmp_path, image):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[0] = 255  # the top edge, as the sensor saw it
    exif = image.Exif()
    exif[0x0112] = 6  # the camera was turned: to be shown a quarter to the right
    image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    shown = read_image(tmp_path / "photo.png", ImageTransform(8, 1))[0]
    assert (shown[:, 7] == 255).all() and not shown[:, :7].any()
    image.fromarray(pixels).save(
        tmp_path / "odd.png", exif=b"Exif\0\0nonsense"
    )  # then as the sensor saw it
    assert (read_image(tmp_path / "odd.png", ImageTransform(8, 1))[0, 0] == 255).all()
    large = np.random.default_rng(1).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    image.fromarray(large).save(tmp_path / "cut.jpg", exif=exif)
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:2000])
    with pytest.raises(UserError, match="cut.jpg: not a readable image"):
        read_image(tmp_path / "cut.jpg", ImageTransform(8, 1))


@pytest.mark.optional
def test_the_shorter_edge_is_resized_and_the_centre_cut_out(tmp_path, image):
    wide = np.zeros((10, 40), np.uint8)
    wide[:, 15:25] = 200  # the centre square
    image.fromarray(wide).save(tmp_path / "wide.png")
    cropped = read_image(tmp_path / "wide.png", ImageTransform(10, 1, crop=8))
    assert cropped.shape == (1, 8, 8) and (cropped == 200).all()
    squeezed = read_image(tmp_path / "wide.png", ImageTransform(10, 1))
    assert squeezed.shape == (1, 10, 10) and (squeezed[0, :, 0] == 0).all()
    assert squeezed[0, :, 5].min() > 150


@pytest.mark.optional
def test_of_a_long_thin_image_only_the_middle_is_enlarged(tmp_path, image):
    """All of it would be 224 x 224 million pixels."""
    line = image.new("L", (1_000_000, 1))
    line.paste(200, (499_000, 0, 501_000, 1))
    line.save(tmp_path / "line.png")
    pixels = read_image(tmp_path / "line.png", ImageTransform(224, 1, crop=192))
    assert pixels.shape == (1, 192, 192) and (pixels == 200).all()


@pytest.mark.optional
def test_class_folders_of_images(tmp_path, image):
    for name, value in (("cat/1.png", 10), ("cat/2.JPG", 20), ("dog/1.jpeg", 200)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        image.new("RGB", (40, 30), (value,) * 3).save(tmp_path / name)
    corpus = find_labelled(str(tmp_path))
    assert is_labelled(str(tmp_path)) and corpus.modality == "image"
    assert (corpus.transform.size, corpus.transform.channels) == (32, 3)
    assert [(x.shape, round(x.mean() / 10), name) for x, name in read_images(corpus)] == [
        ((3, 32, 32), 1, "cat"),
        ((3, 32, 32), 2, "cat"),
        ((3, 32, 32), 20, "dog"),
    ]
    for name in ("4.webp", "5.bmp", "6.gif"):
        image.new("RGB", (40, 30), (90,) * 3).save(tmp_path / "dog" / name)
    assert [
        (x.shape, round(x.mean() / 10))
        for x, _ in read_images(find_labelled(str(tmp_path)))[3:]
    ] == [((3, 32, 32), 9)] * 3
    before = find_labelled(str(tmp_path)).checksum  # two of one size change places
    image.new("RGB", (40, 30), (20,) * 3).save(tmp_path / "cat/1.png")
    assert find_labelled(str(tmp_path)).checksum != before
    (tmp_path / "dog/1.jpeg").write_bytes((tmp_path / "dog/1.jpeg").read_bytes()[:-200])
    assert classes_of(corpus) == ["cat", "dog"]  # no image is read for that
    assert "dog/1.jpeg: not a readable image of type PNG, JPEG, WEBP, BMP, GIF (" in refusal(
        read_images, corpus
    )


@pytest.mark.optional
def test_images_are_hashed_once_and_decoded_once(tmp_path, image, monkeypatch):
    """Although some are held out to validate on."""
    decoded = []
    hashed = []

    def hash_and_note(example):
        hashed.append(example.name)
        return hash_example(example)

    monkeypatch.setattr("support.classification.encoding.hash_example", hash_and_note)

    def read_and_note(path, transform):
        decoded.append(path.name)
        return read_image(path, transform)

    monkeypatch.setattr("support.classification.encoding.read_image", read_and_note)
    for number in range(40):
        folder = tmp_path / "all" / ("cat" if number % 2 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        image.new("RGB", (9, 9), (6 * number,) * 3).save(folder / f"{number}.png")
    corpus = find_labelled(f"{tmp_path}/all")
    folder = prepare_labelled(corpus, tmp_path, "", 64, 300)
    assert len(decoded) == len(hashed) == 40
    found = {
        part: np.fromfile(folder / f"{part}.pixels", np.uint8).reshape(-1, 3, 32, 32)
        for part in ("train", "valid")
    }
    assert len(found["train"]) == 38 and len(found["valid"]) == 2
    values = sorted(pixels[0, 0, 0] for part in found.values() for pixels in part)
    assert values == [6 * number for number in range(40)]


@pytest.mark.optional
def test_all_images_that_cannot_be_read_are_named_at_once(tmp_path, image):
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        (tmp_path / "all" / name).parent.mkdir(parents=True, exist_ok=True)
        image.new("1", (8, 8)).save(tmp_path / "all" / name)
    (tmp_path / "all/a/2.png").write_bytes(b"")
    (tmp_path / "all/b/2.png").write_bytes(b"text")
    corpus = find_labelled(str(tmp_path / "all"), valid=str(tmp_path / "all"))
    answer = refusal(prepare_labelled, corpus, tmp_path, "", max_length=1, vocab_size=1)
    names, reason = answer.split("; ")
    assert names == f"2 images cannot be read: {tmp_path}/all/a/2.png, {tmp_path}/all/b/2.png"
    assert reason.startswith(f"{tmp_path}/all/a/2.png: not a readable image")


def test_a_table_of_names_of_images_is_refused(tmp_path):
    """Classifying the names as texts would learn the folders in them."""
    rows = "".join(f"shapes/{'ab'[i % 2]}/{i}.PNG,{'ab'[i % 2]}\n" for i in range(30))
    write_tree(tmp_path, {"a.csv": f"file,label\n{rows}"})
    answer = refusal(read_all, tmp_path / "a.csv", text="file", label="label")
    assert "its texts are names of images" in answer


@pytest.mark.optional
def test_images_that_are_broken_or_huge_are_refused(tmp_path, image, recwarn):
    image.fromarray(np.random.default_rng(1).integers(0, 256, (30, 30)).astype(np.uint8)).save(
        tmp_path / "a.png"
    )
    good = (tmp_path / "a.png").read_bytes()
    for wrong in (b"", b"text", good[:20], good[:-300], good.replace(b"IDAT", b"????")):
        (tmp_path / "a.png").write_bytes(wrong)
        answer = refusal(read_image, tmp_path / "a.png", ImageTransform())
        assert "a.png: not a readable image of type PNG, JPEG, WEBP, BMP, GIF (" in answer
    assert "no such file" in refusal(read_image, tmp_path / "b.png", ImageTransform())
    for size in ((7100, 7100), (20_000, 20_000)):
        image.new("1", size).save(tmp_path / "huge.png")
        answer = refusal(read_image, tmp_path / "huge.png", ImageTransform())
        assert "exceeds limit of 50000000 pixels" in answer
    image.new("1", (7000, 7000)).save(tmp_path / "large.png")
    assert read_image(tmp_path / "large.png", ImageTransform()).shape == (3, 32, 32)
    assert not recwarn.list


def test_a_image_that_cannot_be():
    assert (
        ImageTransform(channels=1).mean == [0.5]
        and ImageTransform(mean=[0.1, 0.2, 0.3]).mean[2] == 0.3
    )
    for how in (dict(size=5000), dict(size=8, crop=9), dict(channels=2)):
        refusal(ImageTransform, **how)


# --- Kinds


def test_kinds_are_those_of_the_phrasebook():
    """The grammar's German sentences in the same parts; of each kind enough."""
    corpus = find_labelled("kinds")
    for part in phrasebook.PARTS:
        sentences = [german for german, _, kind in phrasebook.read_part(part) if kind]
        assert [text for text, _ in read(corpus, part)] == sentences
    assert classes_of(corpus) == phrasebook.KINDS == corpus.classes
    counts = [sum(name == kind for _, name in read(corpus)) for kind in corpus.classes]
    assert 4 <= len(counts) <= 8 and max(counts) <= 4.5 * min(counts)
    assert set(corpus.files) == {phrasebook.DATA}


def test_a_class_that_would_vanish_is_named(tmp_path):
    write_tree(tmp_path, {"all/a/1.txt": "x", "all/b/1.txt": "y", "all/c/1.docx": "PK\0"})
    assert "all/c: a class without any text" in refusal(find_labelled, f"{tmp_path}/all")


def test_a_numbered_table_without_names_is_not_taken_for_ag_news(tmp_path):
    write_tree(tmp_path, {"yelp/train.csv": "1,bad\n2,good\n"})
    answer = refusal(find_labelled, f"{tmp_path}/yelp")
    assert "no classes.txt" in answer and "--data FILE --label COLUMN" in answer


def test_an_empty_data_flag_is_not_the_current_folder():
    with pytest.raises(UserError, match="--data needs a name, a file or a folder"):
        task_type("")


def test_other_names_of_the_classes_make_another_corpus(tmp_path):
    """Else the names in the cache would outlive a correction of classes.txt."""
    sums = set()
    for names in ("ode\nelegy\n", "elegy\node\n"):
        write_tree(tmp_path, {"train.csv": "2,a\n1,b\n", "classes.txt": names})
        sums.add(find_labelled(str(tmp_path)).checksum)
    assert len(sums) == 2
