"""Corpora, read right or refused in one line; BPE; encoded corpora; the sentences of a step."""

import errno
import gzip
import http.server
import json
import os
import re
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unicodedata import normalize

import numpy as np
import pytest
import torch
from conftest import POSIX, make_link, write_pairs

import data
from data import BPE, EOS, NFC, Batches, Pairs
from support.classification.labelled import find_labelled
from support.classification.text_tokenizers import LOWER_CASE
from support.common.errors import UserError
from support.common.hardware import available_cores
from support.corpora import download, encoded
from support.corpora import pairs as corpora
from support.corpora.download import sha256
from support.corpora.encoded import make_once, read_tokenizer
from support.corpora.held_out import (
    choose_held_out,
    count_shared,
    hash_pair,
    hash_text,
    hold_out_pairs,
    warnings_of_parts,
)
from support.corpora.pairs import find_corpus
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings
from support.training.tasks import prepare_task
from support.translation.encoding import encode_part, prepare, read_text

PAIRS = [
    ("Ein Hund läuft.", "A dog runs."),
    ("Zwei Katzen schlafen.", "Two cats sleep."),
    ("Ja!", "Yes!"),
]


def read(path, **how):
    return list(find_corpus(str(path), **how).parts["train"]())


# --- Corpora


def test_a_tokenizer_of_lower_case_knows_a_word_however_it_is_written():
    texts = ["Oil OIL oil"] * 9
    for normalizer in (LOWER_CASE, NFC):
        oil, capital = BPE.train(iter(texts), 300, normalizer).encode(["oil", "OIL"])
        assert (oil == capital) == (normalizer == LOWER_CASE)


def test_parallel_files_plain_and_gz_with_bom_and_crlf(tmp_path):
    write_pairs(tmp_path / "a", PAIRS)
    assert read(tmp_path / "a") == PAIRS
    german = "\r\n".join(p[0] for p in PAIRS).encode("utf-8-sig")
    (tmp_path / "b.de.gz").write_bytes(gzip.compress(german))
    (tmp_path / "b.en").write_text("\n".join(p[1] for p in PAIRS), encoding="utf-8")
    assert read(tmp_path / "b") == PAIRS


def test_a_line_ends_at_a_line_feed_only(tmp_path):
    odd = [
        ("a\rb", "c\rd"),
        ("fünf", "five"),
        ("eins\u2028zwei\x0bdrei\x85vier", "one\x0ctwo\x1cthree\u2029four"),
    ]
    write_pairs(tmp_path / "a", odd)
    assert read(tmp_path / "a") == odd


TABLES = {
    "header.csv": 'id,DE,en\r\n1,"Ein ""Hund"", hier",A dog\r\n2,"Zwei\nZeilen",Two lines\r\n',
    "header.tsv": 'en\tde\nA dog\t"Ein ""Hund"", hier"\n\nTwo lines\tZwei Zeilen\n\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_by_header(tmp_path, name):
    (tmp_path / name).write_text(TABLES[name], encoding="utf-8", newline="")
    expected = [('Ein "Hund", hier', "A dog"), ("Zwei Zeilen", "Two lines")]
    assert read(tmp_path / name) == expected


def test_by_position_the_first_row_is_an_example_too(tmp_path):
    (tmp_path / "a.tsv").write_text("Ein Hund\tA dog\nZwei\tTwo\n")
    expected = [("Ein Hund", "A dog"), ("Zwei", "Two")]
    assert read(tmp_path / "a.tsv", src="1", tgt="2") == expected


@pytest.mark.parametrize("packed", [False, True])
def test_carriage_returns_end_the_lines_of_a_file_without_line_feeds(tmp_path, packed):
    for language, text in (("de", b"Ja.\rNein.\r\r"), ("en", b"Yes.\rNo.\r\r")):
        path = tmp_path / f"a.{language}{'.gz' if packed else ''}"
        path.write_bytes(gzip.compress(text) if packed else text)
    assert read(tmp_path / "a") == [("Ja.", "Yes."), ("Nein.", "No."), ("", "")]


def test_a_corpus_that_was_packed_is_the_same(tmp_path):
    """So its runs can be resumed."""
    write_pairs(tmp_path / "a", [("Ja.", "Yes.")])
    before = find_corpus(str(tmp_path / "a")).checksum
    for language in ("de", "en"):
        path = tmp_path / f"a.{language}"
        Path(f"{path}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert find_corpus(str(tmp_path / "a")).checksum == before


@pytest.mark.parametrize("position", ["3", "9"])
def test_a_position_beyond_the_columns_is_refused(tmp_path, position):
    (tmp_path / "a.tsv").write_text("Ja.\tYes.\n")
    with pytest.raises(UserError, match=f"no column {position} .*; it has 2 columns"):
        read(tmp_path / "a.tsv", src="1", tgt=position)


@pytest.mark.parametrize("declared", ["sep=;", '"sep=;"', "SEP=;;"])
def test_a_table_may_declare_its_separator(tmp_path, declared):
    """As Excel reads it in every language."""
    (tmp_path / "a.csv").write_text(f"{declared}\nde;en\nJa, ja, ja.;Yes.\n")
    assert read(tmp_path / "a.csv") == [("Ja, ja, ja.", "Yes.")]


WRONG = {  # name: (files, what the answer says)
    "missing": ({}, "missing: no such file or folder, and no ", "missing.de"),
    "missing.csv": ({}, "missing.csv: no such file or folder"),
    "utf32": (
        {"utf32.de": "\ufeffJa.\n".encode("utf-32-le"), "utf32.en": b"Yes.\n"},
        "utf32.de, line 1: not UTF-8",
    ),
    "zh": ({"zh.ar": b"a", "zh.zh": b"a"}, "there is zh.ar, zh.zh, and --src and --tgt name"),
    "xz": ({"xz.de.xz": b"", "xz.en.xz": b""}, "unpack xz.de.xz, xz.en.xz, as only .gz and"),
    "": (
        {"train.src": b"a\n", "train.tgt": b"a\n"},
        "there is train.src, train.tgt, and --src",
    ),
    "**": ({}, "**: no such file or folder"),
    "short": (
        {"short.de": b"a\nb\nc\nd\n", "short.en": b"a\nb\n"},
        "short.de has 4 lines",
        "short.en has 2",
    ),
    "longer": (
        {"longer.de": b"a\n", "longer.en": b"a\nb\nc"},
        "longer.de has 1 lines",
        "longer.en has 3",
    ),
    "latin": (
        {"latin.de": b"gut\nsch\xf6n\n", "latin.en": b"good\nnice\n"},
        "latin.de, line 2: not UTF-8",
    ),
    "cutgz": (
        {"cutgz.de.gz": gzip.compress(b"ein Satz\n" * 99)[:20], "cutgz.en": b"a\n"},
        "cutgz.de.gz: cannot be read",
    ),
    "empty": ({"empty.de": b"", "empty.en": b""}, "no sentence pair", "(0 with an empty side"),
    "blank": (
        {"blank.de": b" \n\n", "blank.en": b"a\nb\n"},
        "no sentence pair in the train set",
        "with an empty side",
    ),
    "long": ({"long.de": b"ein " * 500, "long.en": b"a"}, "1 longer than --max-length"),
    "cols.csv": (
        {"cols.csv": b"german,french\na,b\n"},
        "no column 'de'",
        "1 'german', 2 'french'",
    ),
    "rows.csv": ({"rows.csv": b"de,en\na\n"}, "rows.csv, row 2: 1 columns"),
    "twice.csv": ({"twice.csv": b"de,en,de\na,b,c\n"}, "two columns are called 'de'"),
    # One of many lines has no tab: the file is a table all the same.
    "rows.txt": ({"rows.txt": b"de\ten\n" + 50 * b"a\tb\n" + b"c\n"}, "row 52: 1 columns"),
    "quote.csv": ({"quote.csv": b'de,en\n"a,b\n'}, "quote.csv, line 2:"),
    "sep.csv": ({"sep.csv": b'sep=;\nde;en\n"a;b\n'}, "sep.csv, line 3:"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_refused_in_one_line_and_leaves_nothing(tmp_path, name):
    files, *expected = WRONG[name]
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(UserError) as problem:
        prepare(find_corpus(str(tmp_path / name)), tmp_path / "cache", 300)
    assert all(text in str(problem.value) for text in expected), problem.value
    assert "\n" not in str(problem.value)
    assert not list(tmp_path.glob("cache/*"))


@pytest.mark.parametrize("share, is_warned", [(0.9, True), (0.3, False)])
def test_pairs_with_equal_sides_are_warned_of(tmp_path, monkeypatch, share, is_warned):
    """As where one file was copied to both names."""
    rows = [(f"Satz {i}", f"Satz {i}" if i < 200 * share else f"Line {i}") for i in range(200)]
    write_pairs(tmp_path / "a", rows)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train_cpu.py", "--data", "a", "--vocab-size", "300"])
    lines = str(prepare_task(parse_arguments("", CpuSettings).complete()))
    assert ("pairs of the valid set have equal sides" in lines) == is_warned


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no such files")
def test_a_pipe_is_no_corpus(tmp_path):
    os.mkfifo(tmp_path / "pipe.tsv")
    for find in (find_corpus, partial(find_labelled, label="label")):
        with pytest.raises(UserError, match="pipe.tsv: a pipe or a device; save a corpus"):
            find(str(tmp_path / "pipe.tsv"))


def test_a_folder_is_no_part_of_a_corpus(tmp_path):
    write_pairs(tmp_path / "a", PAIRS)
    with pytest.raises(
        UserError, match=f"{re.escape(str(tmp_path))}: a folder; pass a PREFIX, a table or"
    ):
        find_corpus(str(tmp_path / "a"), valid=str(tmp_path))


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder on a free port of loopback while the test runs."""

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server_port}"

    def __exit__(self, *_):
        self.shutdown()
        self.server_close()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_multi30k_is_fetched_checked_and_kept(tmp_path, monkeypatch, capfd):
    """From a server on loopback, with small files in place of the real ones."""
    served, cache = tmp_path / "served", tmp_path / "cache"
    served.mkdir()
    sums = {}
    for name in corpora.MULTI30K:
        (served / name).write_bytes(gzip.compress(b"ein Satz\n" * 3))
        sums[name] = sha256(served / name)
    monkeypatch.setattr(corpora, "MULTI30K", sums)
    monkeypatch.setattr(download, "CACHE", cache)
    with Server(("127.0.0.1", 0), partial(Quiet, directory=served)) as url:
        monkeypatch.setenv("MULTI30K_URL", url)
        assert len(list(find_corpus("multi30k").parts["train"]())) == 3
        (cache / "multi30k" / "val.de.gz").write_bytes(b"half")  # spoilt: fetched again
        assert len(list(find_corpus("multi30k").parts["valid"]())) == 3
        good = (served / "val.en.gz").read_bytes()
        for wrong in (good[:-3], good + b"x", b"x" * len(good)):  # cut, too long, another file
            (served / "val.en.gz").write_bytes(wrong)
            (cache / "multi30k" / "val.en.gz").unlink(missing_ok=True)
            with pytest.raises(UserError, match="val.en.gz: not the expected file"):
                find_corpus("multi30k")
            assert set(os.listdir(cache / "multi30k")) == set(sums) - {"val.en.gz"}
        (served / "val.en.gz").unlink()
        with pytest.raises(UserError, match=r"404.*--data \./FOLDER"):
            find_corpus("multi30k")
    # The server is gone.
    with pytest.raises(UserError, match=r"cannot be fetched.*--data \./FOLDER"):
        find_corpus("multi30k")


def test_a_folder_with_multi30k_has_its_name(tmp_path):
    for name in ("train.de.gz", "train.en.gz", "test_2016_flickr.de", "test_2016_flickr.en"):
        (tmp_path / name).write_bytes(gzip.compress(b"ein Satz\n"))
    assert find_corpus(str(tmp_path)).name == "multi30k"
    for side in ("de", "en"):
        (tmp_path / f"test_2016_flickr.{side}").rename(tmp_path / f"test.{side}")
    assert find_corpus(str(tmp_path)).name == tmp_path.name


# --- BPE


@pytest.fixture(scope="module")
def bpe(pairs):
    return BPE.train((text for pair in pairs["train"][:2000] for text in pair), 500)


@pytest.mark.parametrize(
    "text", ["Ein Hund läuft.", "😀 你好", "a\x00b", "\x07\x1b[0m", "<eos> <pad>", "q", "ﬁ ß ẞ"]
)
def test_any_text_survives_bpe(bpe, text):
    ids = bpe.encode([text])[0]
    assert bpe.decode(ids) == text
    assert min(ids) > data.EOS  # nothing that is typed becomes a mark


def test_bpe_is_the_same_every_time_and_keeps_its_size(pairs):
    texts = [text for pair in pairs["train"][:3000] for text in pair]
    one, two = BPE.train(iter(texts), 700), BPE.train(iter(texts), 700)
    assert one.serialized == two.serialized
    assert one.vocab_size == 700
    assert BPE(one.serialized).encode(texts[:50]) == one.encode(texts[:50])


@pytest.mark.parametrize("normalizer", [NFC, LOWER_CASE])
def test_equal_text_has_equal_tokens_however_its_accents_are_encoded(normalizer):
    composed = normalize("NFC", "Ein schönes Café, ÄÖÜ, Å")
    decomposed = normalize("NFD", composed)
    bpe = BPE.train(iter([composed]), 300, normalizer)
    bpe = BPE(bpe.serialized)  # as a checkpoint brings it
    assert decomposed != composed
    assert bpe.encode([decomposed]) == bpe.encode([composed])


# --- The encoded corpus


def sentences(bpe: BPE, rows) -> list[str]:
    return [bpe.decode([i for i in row if i > data.EOS]) for row in rows.tolist()]


def test_the_encoded_corpus_is_the_text(small_corpus, pairs, tmp_path):
    corpus = find_corpus(str(small_corpus), valid=f"{small_corpus}-valid")
    folder = prepare(corpus, tmp_path, 300, 256)
    bpe = BPE(read_tokenizer(folder))
    train = Pairs(folder, "train")
    src, tgt_in, tgt_out, token_indices = train.batch(np.arange(len(train)))
    assert len(train) == 600
    assert sentences(bpe, src) == [
        " ".join(german.split()) for german, _ in pairs["train"][:600]
    ]
    for row, (_, english) in enumerate(pairs["train"][:600]):
        target = [i for i in tgt_out[row].tolist() if i != data.PAD]
        assert target[-1] == data.EOS and bpe.decode(target[:-1]) == " ".join(english.split())
        assert tgt_in[row].tolist()[: len(target)] == [data.BOS] + target[:-1]
        assert not tgt_in[row, len(target) :].any()
    assert torch.equal(tgt_out.flatten()[token_indices], tgt_out[tgt_out != data.PAD])
    validation = Path(f"{small_corpus}-valid.en").read_text(encoding="utf-8").splitlines()
    assert read_text(folder, "valid", "tgt") == validation
    assert prepare(corpus, tmp_path, 300, 256) == folder
    assert prepare(corpus, tmp_path, 310, 256) != folder
    assert not list(tmp_path.glob("partial-*"))


def test_what_is_encoded_is_found_again(tmp_path):
    assert make_once(tmp_path / "a", lambda folder: {}) == tmp_path / "a"
    assert make_once(tmp_path / "a", None) == tmp_path / "a"  # nothing is written again


def test_a_resumed_run_encodes_with_its_own_bpe(small_corpus, tmp_path, monkeypatch, capsys):
    """That may be the one that was trained here, or another, as of a run from elsewhere."""
    monkeypatch.setattr("support.translation.encoding.MANY_PAIRS", 1)
    corpus = find_corpus(str(small_corpus))
    folder = prepare(corpus, tmp_path, 300)
    assert "first a BPE is trained" in capsys.readouterr().err
    assert prepare(corpus, tmp_path, 300, bpe=read_tokenizer(folder)) == folder
    other = BPE.train(iter(["ein anderer Text"]), 270)
    again = prepare(corpus, tmp_path, 300, bpe=other.serialized)
    assert "a BPE is trained" not in capsys.readouterr().err
    assert again != folder and read_tokenizer(again) == other.serialized
    assert prepare(corpus, tmp_path, 300, bpe=other.serialized) == again


def test_pairs_left_out_are_counted(tmp_path):
    left_out = [("", "empty"), ("lang " * 300, "long"), ("  ", "\t")]
    write_pairs(tmp_path / "a", PAIRS * 30 + left_out)
    write_pairs(tmp_path / "v", PAIRS)
    corpus = find_corpus(str(tmp_path / "a"), valid=str(tmp_path / "v"))
    folder = prepare(corpus, tmp_path, 300, max_length=64)
    counts = json.loads((folder / "meta.json").read_text())["parts"]["train"]
    assert (counts["examples"], counts["empty"], counts["too_long"]) == (90, 2, 1)


def test_of_a_document_no_more_is_encoded_than_shows_that_it_is_too_long(tmp_path, monkeypatch):
    spaces = 10_000 * " "  # they are few tokens, but to cut them would cut the sentence
    documents = [("wort " * 10_000, "word"), (f"ein{spaces}Haus", "a house")]
    write_pairs(tmp_path / "a", [*PAIRS * 30, *documents, (f"{spaces}ein Hund", "a dog")])
    write_pairs(tmp_path / "v", PAIRS)
    lengths = []
    encode_batch = BPE.encode

    def encode(bpe, texts):
        lengths.extend(map(len, texts))
        return encode_batch(bpe, texts)

    monkeypatch.setattr(BPE, "encode", encode)
    corpus = find_corpus(str(tmp_path / "a"), valid=str(tmp_path / "v"))
    folder = prepare(corpus, tmp_path, 300, max_length=64)
    counts = json.loads((folder / "meta.json").read_text())["parts"]["train"]
    assert (counts["examples"], counts["too_long"], max(lengths)) == (91, 2, 6401)


def test_the_longest_sentence_is_kept_with_its_end_mark(tmp_path):
    """Of as many tokens as the model takes, the end mark counted; one more is too many."""
    write_pairs(tmp_path / "a", [("x" * n, "a") for n in range(1, 40)])
    write_pairs(tmp_path / "v", PAIRS)
    corpus = find_corpus(str(tmp_path / "a"), valid=str(tmp_path / "v"))
    folder = prepare(corpus, tmp_path, 259, max_length=32)  # bytes alone
    train = Pairs(folder, "train")
    counts = json.loads((folder / "meta.json").read_text())["parts"]["train"]
    assert train.lengths(np.arange(len(train)))[0].max() == 32
    assert (len(train), counts["too_long"]) == (30, 9)  # a space is a token, too


def test_without_a_validation_part_one_is_held_out_by_source(tmp_path, pairs):
    corpus = pairs["train"][:2000] + [(german, "again") for german, _ in pairs["train"][:2000]]
    write_pairs(tmp_path / "a", corpus)
    folder = prepare(find_corpus(str(tmp_path / "a")), tmp_path, 300, 256)
    train = Pairs(folder, "train")
    valid = Pairs(folder, "valid")
    assert len(train) + len(valid) == 4000
    assert 100 < len(valid) < 300
    held = {" ".join(line.split()) for line in read_text(folder, "valid", "src")}
    src = train.batch(np.arange(len(train)))[0]
    assert not held & set(sentences(BPE(read_tokenizer(folder)), src))


def test_no_single_text_decides_what_is_held_out(tmp_path, pairs):
    """Not even one whose hash is small, as that of an empty text is."""
    texts = [german for german, _ in pairs["train"]]
    smallest = min(texts, key=hash_text)
    rows = [(text, "once") for text in dict.fromkeys(texts) if text != smallest][:300]
    rows += [("", "empty"), (smallest, "often")] * 50
    write_pairs(tmp_path / "a", rows)
    folder = prepare(find_corpus(str(tmp_path / "a")), tmp_path, 300, 256)
    parts = json.loads((folder / "meta.json").read_text())["parts"]
    assert set(read_text(folder, "valid", "tgt")) == {"once"}
    assert (len(Pairs(folder, "valid")), parts["valid"]["empty"]) == (17, 0)
    assert parts["train"]["empty"] == 50


def test_the_checksum_tells_which_version_has_held_pairs_out(tmp_path, monkeypatch):
    """Else a resumed run would be validated on what it was trained on."""
    for name in "ab":
        write_pairs(tmp_path / name, PAIRS)
    for valid in ("", str(tmp_path / "b")):
        before = find_corpus(str(tmp_path / "a"), valid).checksum
        with monkeypatch.context() as patch:
            patch.setattr(corpora, "HOLD_OUT_VERSION", 99)
            assert (find_corpus(str(tmp_path / "a"), valid).checksum == before) == bool(valid)


def test_a_pair_with_an_empty_side_is_shared_with_none():
    pairs = [("a", "b"), ("c", ""), ("", "d"), (" ", " ")]
    parts = {"train": lambda: iter(pairs), "test": lambda: iter(pairs)}
    assert count_shared(parts, hash_pair) == {"test": 1}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_a_long_job_says_how_far_it_is(capsys, monkeypatch):
    assert list(encoded.with_progress("abc", "letters read", every=0)) == ["a", "b", "c"]
    assert capsys.readouterr().err.splitlines() == [f"letters read: {i}" for i in (1, 2, 3)]
    assert list(encoded.with_progress("abc", "letters read")) == ["a", "b", "c"]
    assert not capsys.readouterr().err
    monkeypatch.setattr("sys.stderr", open("/dev/full", "w"))  # noqa: SIM115
    assert list(encoded.with_progress("abc", "letters read", every=0)) == ["a", "b", "c"]


def test_what_a_killed_process_has_left_is_removed_after_a_day(tmp_path):
    old, new, corpus = f"partial-{'0' * 32}", f"partial-{'1' * 32}", f"partial-{'0' * 16}"
    for name, age in ((old, 100_000), (new, 1000), (corpus, 100_000)):
        (tmp_path / name).mkdir()
        for path in (tmp_path / name / "train.src.ids", tmp_path / name):
            path.touch()
            os.utime(path, (time.time() - age,) * 2)
    encoded.make_once(tmp_path / "corpus", lambda folder: {})
    assert {path.name for path in tmp_path.iterdir()} == {"corpus", new, corpus}


def test_of_texts_that_follow_a_pattern_a_random_choice_is_held_out():
    """By CRC-32, 226 of the even numbers and 774 of the odd ones would be."""
    hashes = np.array([hash_text(f"Ich habe {i} Äpfel.") for i in range(20_000)])
    held_out = np.isin(hashes, list(choose_held_out(hashes, size=1000)))
    assert held_out.sum() == 1000
    assert 450 < held_out[::2].sum() < 550  # three standard deviations from 500


def test_a_text_in_two_encodings_is_held_out_as_one(tmp_path):
    words = [f"schön {i}" for i in range(200)]
    rows = [(normalize(form, word), "a") for word in words for form in ("NFC", "NFD")]
    write_pairs(tmp_path / "a", rows)
    folder = prepare(find_corpus(str(tmp_path / "a")), tmp_path, 300)
    held_out = read_text(folder, "valid", "src")
    assert len(held_out) == 2 * len({normalize("NFC", text) for text in held_out}) == 20


def test_a_source_is_held_out_with_all_its_targets_even_an_empty_one():
    pairs = [(f"source {i}", target) for i in range(100) for target in ("one", " ", "two")]
    pairs += [(" ", f"target {i}") for i in range(40)]  # not counted
    parts = hold_out_pairs({"train": lambda: iter(pairs)})
    held_out = list(parts["valid"]())
    sources = {source for source, _ in held_out}
    assert len(sources) == 5 and held_out == [pair for pair in pairs if pair[0] in sources]
    assert list(parts["train"]()) == [pair for pair in pairs if pair[0] not in sources]


def test_few_texts_that_are_all_frequent_are_held_out_one_by_one():
    hashes = np.repeat([11, 22, 33, 44], 10)
    assert choose_held_out(hashes, size=2) == {11}
    assert choose_held_out(hashes, size=11) == {11, 22}
    assert choose_held_out(hashes[:10], size=2) == set()  # nothing were left
    assert choose_held_out(hashes[:0], size=0) == set()
    frequent = np.repeat([1, 2, 3], [10, 20, 30])
    assert choose_held_out(frequent, size=3) == {1}  # the least frequent


@pytest.mark.parametrize("size", [20, 29])
def test_a_text_that_is_a_tenth_of_those_held_out_may_be_one_of_them(size):
    hashes = np.repeat(np.arange(100), [2, 3] * 50)
    chosen = choose_held_out(hashes, size)
    assert chosen == set(range(0, size, 2))  # two examples of each


def test_pairs_of_the_training_set_that_are_scored_are_warned_of(tmp_path):
    pairs = [(f"Satz {i}", f"sentence {i}") for i in range(50)]
    write_pairs(tmp_path / "a", [*pairs, ("", "")])
    unseen = [(f"neu {i}", "new") for i in range(44)]
    write_pairs(tmp_path / "v", [*pairs[:6], *unseen, *100 * [("", "")]])
    write_pairs(tmp_path / "t", [(source, "other") for source, _ in pairs])
    how = {"valid": str(tmp_path / "v"), "test": str(tmp_path / "t")}
    folder = prepare(find_corpus(str(tmp_path / "a"), **how), tmp_path, 300)
    parts = json.loads((folder / "meta.json").read_text())["parts"]
    assert [counts["in_training"] for counts in parts.values()] == [0, 6, 0]
    _, warning = warnings_of_parts(parts, "pairs")
    assert warning.startswith("warning: 6 of the 50 pairs of the valid set are in the training")


def test_equal_pairs_are_said_to_be_too_few_to_hold_some_out(tmp_path):
    write_pairs(tmp_path / "a", 100 * PAIRS[:1])
    with pytest.raises(UserError, match="too few sources differ to hold some out"):
        prepare(find_corpus(str(tmp_path / "a")), tmp_path, 300)


@pytest.mark.parametrize("word", ["x" * 1001, "x" * 1_000_000, "7" * 1001, "_-" * 501])
def test_a_bpe_is_not_learnt_from_endless_words(word):
    """It would take minutes, and the vocabulary would hold parts of them."""
    texts = 100 * ["ein Satz mit langen Wörtern", "xx 77 _-"]
    bpe = BPE.train(iter([f"Am Anfang {word} am Ende", *texts]), 400)
    assert bpe.serialized == BPE.train(iter(["Am Anfang   am Ende", *texts]), 400).serialized
    assert len(bpe.encode([word])[0]) >= len(word) / 2


def test_a_bpe_is_learnt_from_long_texts_without_spaces():
    text = "一二三四五六七八九十。" * 2000
    assert len(BPE.train(iter([text]), 300).encode([text])[0]) < len(text)


@pytest.mark.parametrize("size", [0, 1])
def test_at_least_one_text_is_held_out(size):
    assert choose_held_out(np.arange(30), size) == {0}


def test_a_text_is_the_same_with_spaces_around_it():
    assert hash_text(" ein Satz\n") == hash_text("ein Satz") != hash_text("ein  Satz")


def test_pairs_left_out_are_empty_lines_where_the_others_keep_their_numbers(tmp_path):
    write_pairs(tmp_path / "a", PAIRS * 30)
    write_pairs(tmp_path / "t", [PAIRS[0], ("", "empty"), PAIRS[1], ("lang " * 300, "long")])
    corpus = find_corpus(str(tmp_path / "a"), test=str(tmp_path / "t"))
    folder = prepare(corpus, tmp_path, 300)
    assert read_text(folder, "test", "src") == [PAIRS[0][0], "", PAIRS[1][0], ""]
    assert read_text(folder, "test", "tgt") == [PAIRS[0][1], "", PAIRS[1][1], ""]


def damage(path):
    """Cuts, empties and removes each file of a folder, and yields its name each time."""
    for file in sorted(path.iterdir()):
        file.write_bytes(file.read_bytes()[:-1])
        yield file.name
        file.write_bytes(b"")
        yield file.name
        file.unlink()
        yield file.name


def content_of(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_a_corpus_with_a_damaged_file_is_encoded_again(tmp_path):
    write_pairs(tmp_path / "a", PAIRS * 30)
    corpus = find_corpus(str(tmp_path / "a"))
    cache = tmp_path / "cache"
    folder = prepare(corpus, cache, 300)
    whole = content_of(folder)
    for file in damage(folder):
        assert prepare(corpus, cache, 300) == folder
        assert content_of(folder) == whole, file
    for other_json in ("null", "[]", "{}"):
        (folder / "meta.json").write_text(other_json)
        assert prepare(corpus, cache, 300) == folder
        assert content_of(folder) == whole
    assert list(cache.iterdir()) == [folder]
    folder.rename(tmp_path / "moved")
    make_link(folder, tmp_path / "nowhere")
    assert content_of(prepare(corpus, cache, 300)) == whole


def test_a_corpus_that_another_run_encodes_meanwhile_is_kept(tmp_path):
    """It may be in use."""
    write_pairs(tmp_path / "a", PAIRS * 30)
    corpus = find_corpus(str(tmp_path / "a"))
    others = prepare(corpus, tmp_path / "others", 300)
    folder = tmp_path / "cache" / others.name
    inodes = {file.name: file.stat().st_ino for file in others.iterdir()}

    def write_as_the_other_run_does(_):
        others.rename(folder)
        return {}

    folder.parent.mkdir()
    make_once(folder, write_as_the_other_run_does)
    assert {file.name: file.stat().st_ino for file in folder.iterdir()} == inodes


def test_a_file_of_the_corpus_that_may_not_be_read_is_named(tmp_path):
    def write(_):
        raise PermissionError(errno.EACCES, "Permission denied", "photos/3.png")

    with pytest.raises(PermissionError, match="photos/3.png"):
        make_once(tmp_path / "cache" / "a", write)
    assert not list(tmp_path.glob("cache/*"))


def test_a_file_that_cannot_be_mapped_is_read(tmp_path, monkeypatch):
    write_pairs(tmp_path / "a", PAIRS * 30)
    folder = prepare(find_corpus(str(tmp_path / "a")), tmp_path, 300)
    rows = np.arange(5)
    mapped = Pairs(folder, "train").batch(rows)

    def refuse(*_, **__):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(np, "memmap", refuse)
    for one, other in zip(mapped, Pairs(folder, "train").batch(rows), strict=True):
        assert torch.equal(one, other)


@POSIX
def test_others_may_use_the_cache_as_far_as_the_umask_lets_them(tmp_path):
    write_pairs(tmp_path / "a", PAIRS * 30)
    corpus = find_corpus(str(tmp_path / "a"))
    before = os.umask(0o002)
    try:
        folder = prepare(corpus, tmp_path / "cache", 300)
    finally:
        os.umask(before)
    for path in (folder.parent, folder):
        assert path.stat().st_mode & 0o777 == 0o775


# --- Batches


@pytest.fixture(scope="module")
def batches(pairs, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("batches") / "all"
    write_pairs(prefix, pairs["train"])
    write_pairs(f"{prefix}-valid", pairs["valid"])
    folder = prepare(find_corpus(str(prefix), valid=f"{prefix}-valid"), prefix.parent, 8000)
    return Batches(Pairs(folder, "train"), 4096, seed=1)


CPU = torch.device("cpu")


def micro_batches_of(
    batches, step: int, world_size: int = 1, accumulate: int = 1
) -> list[list]:
    """The micro-batches of a step that each rank takes."""
    number = world_size * accumulate
    return [
        [
            batches.micro_batch(step, index, number, CPU)
            for index in range(rank, number, world_size)
        ]
        for rank in range(world_size)
    ]


def test_an_epoch_has_every_sentence_once_little_padding_and_few_shapes(batches):
    real = padded = 0
    seen, shapes = [], set()
    for step in range(len(batches)):
        src, _, tgt_out, _ = batches.micro_batch(step, 0, 1, CPU)
        seen.append(batches.rows(step))
        real += int((src > 0).sum() + (tgt_out > 0).sum())
        padded += src.numel() + tgt_out.numel()
        shapes.add((*src.shape, tgt_out.shape[1]))
        assert max(src.numel(), tgt_out.numel()) <= 4096
    assert sorted(np.concatenate(seen)) == list(range(len(batches.examples)))
    # Even widths would make 58 shapes, but 92.9 % real tokens: 2.5 % slower.
    assert real / padded >= (0.95 if os.environ.get("MULTI30K") else 0.92)
    assert len(shapes) <= 90


def test_steps_are_as_full_as_may_be_of_pairs_that_fit_together():
    rng = np.random.default_rng(0)
    src, tgt = (np.repeat(side, 40) for side in ([9, 5, 7, 2], [3, 7, 5, 6]))
    steps = data.group_by_length([src, tgt], 70, rng)
    # 70 // 9; then the rest with sevens.
    assert [len(step) for step in steps[:7]] == [*[7] * 6, 10]
    assert {(src[i], tgt[i]) for i in steps[0]} == {(9, 3)}
    sevens = np.concatenate(steps)[40:120]  # 5:7 and 7:5 are not mixed
    assert (src[sevens[:40]] == 7).all() and (src[sevens[40:]] == 5).all()
    longer = data.group_by_length([src, tgt], 5, rng)  # than a step
    assert [len(step) for step in longer] == [1] * 160
    assert len(data.group_by_length([src, tgt], 9 * 39, rng)[0]) == 32  # in eights, from 32
    assert len(data.group_by_length([src, tgt], 9 * 31, rng)[0]) == 31


def test_order_is_a_function_of_seed_and_epoch(batches):
    again, other = (Batches(batches.examples, 4096, seed=seed) for seed in (1, 2))
    epoch = len(batches)
    for step in (0, 5, epoch, 2 * epoch + 3, 1):  # also going back, as a resumed run may
        assert np.array_equal(batches.rows(step), again.rows(step))
    assert not np.array_equal(batches.rows(0), other.rows(0))
    assert not np.array_equal(batches.rows(0), batches.rows(epoch))


def test_a_large_corpus_is_planned_block_by_block(batches, monkeypatch):
    """Still every sentence is taken once an epoch, and each block is a sample of the whole."""
    monkeypatch.setattr("data.BLOCK_SIZE", 1000)
    blocks = Batches(batches.examples, 4096, seed=1)
    assert blocks.num_blocks == -(-len(batches.examples) // 1000) > 1
    for epoch in (1, 0):
        first = epoch * len(blocks)
        seen = np.concatenate([blocks.rows(first + step) for step in range(len(blocks))])
        assert sorted(seen) == list(range(len(batches.examples)))
        first = seen[: len(blocks.examples) // blocks.num_blocks]
        assert first.max() - first.min() > 0.9 * len(blocks.examples)
    assert not np.array_equal(blocks.rows(0), blocks.rows(len(blocks)))


SHARES = [(1, 1), (2, 1), (1, 4), (3, 2), (4, 4), (700, 1)]  # (processes, micro-batches)


@pytest.mark.parametrize("world_size, accumulate", SHARES)
def test_any_number_of_processes_shares_the_same_step(batches, world_size, accumulate):
    """Also more processes than sentences: some get one row of padding."""
    for step in (0, 7):
        whole = batches.micro_batch(step, 0, 1, CPU)
        shares = micro_batches_of(batches, step, world_size, accumulate)
        assert {len(share) for share in shares} == {accumulate}
        rows = [
            tuple(row.tolist())
            for share in shares
            for src, *_ in share
            for row in src
            if row.any()
        ]
        assert sorted(rows) == sorted(tuple(row.tolist()) for row in whole[0])
        assert {src.shape[1] for share in shares for src, *_ in share} == {whole[0].shape[1]}


@pytest.mark.parametrize("world_size, accumulate", SHARES)
def test_the_targets_of_a_step_are_those_of_all_its_shares(batches, world_size, accumulate):
    """Every process knows them from the plan: what is no padding, end marks counted."""
    for step in (0, 7, len(batches) + 3):
        shares = micro_batches_of(batches, step, world_size, accumulate)
        real = sum(
            int((tgt_out != data.PAD).sum()) for share in shares for _, _, tgt_out, _ in share
        )
        assert batches.num_targets(step) == real > 0
        inputs = sum(
            int((tgt_in != data.PAD).sum()) for share in shares for _, tgt_in, *_ in share
        )
        assert inputs == real  # a row of padding has neither


def test_no_rows_make_one_of_padding(batches):
    for widths, expected in (((), (1, 1, 1)), ((7, 9), (7, 9, 9))):
        found = batches.examples.batch(np.arange(0), *widths)
        *sentences, token_indices = found
        assert [tuple(part.shape) for part in sentences] == [(1, width) for width in expected]
        assert not any(part.any() for part in sentences)
        assert token_indices.shape == (0,)


def test_batches_for_a_gpu_are_made_a_step_ahead(batches, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda part: part)  # here without a GPU
    monkeypatch.setattr(torch.Tensor, "to", lambda part, *_, **__: part)
    made = []
    make = Batches.make_micro_batch

    def noted(self, step, *args, **kwargs):
        made.append(step)
        return make(self, step, *args, **kwargs)

    expected = {step: batches.micro_batch(step, 1, 6, CPU) for step in (3, 4, 9)}
    monkeypatch.setattr(Batches, "make_micro_batch", noted)
    for step in expected:  # one after the other, then after a jump
        batch = batches.micro_batch(step, 1, 6, torch.device("cuda"))
        assert all(torch.equal(a, b) for a, b in zip(batch, expected[step], strict=True))
    batches.prefetched.pop((10, 1)).result()
    batches.prefetched.pop((5, 1)).result()
    assert sorted(made) == [3, 4, 5, 9, 10] and not batches.prefetched


def test_a_batch_is_told_its_epoch(batches, monkeypatch):
    monkeypatch.setattr(batches, "collate", lambda rows, widths, epoch: [torch.tensor(epoch)])
    epoch = len(batches)
    steps = (epoch - 1, epoch, 3 * epoch + 2)
    assert [int(*batches.micro_batch(step, 0, 1, CPU)) for step in steps] == [0, 1, 3]


def test_the_time_that_a_step_waits_for_its_batch_is_counted(batches, monkeypatch):
    def collate(rows, widths, epoch):
        time.sleep(0.02)
        return (torch.from_numpy(rows),)

    monkeypatch.setattr(batches, "collate", collate)
    monkeypatch.setattr(batches, "seconds_waited", 0.0)
    for index in range(2):
        batches.micro_batch(0, index, 2, CPU)
    assert 0.04 <= batches.seconds_waited < 2


@pytest.mark.slow
def test_ten_million_pairs_are_planned_in_seconds():
    rng = np.random.default_rng(0)
    src = rng.integers(4, 40, 10_000_000, dtype=np.int32)
    tgt = (src + rng.integers(-3, 4, len(src))).astype(np.int32)
    began = time.perf_counter()
    steps = data.group_by_length([src, tgt], 4096, rng)
    assert time.perf_counter() - began < 60  # some 2 s: bounded against minutes
    assert sum(map(len, steps)) == len(src)


def test_no_more_cores_than_slurm_has_granted(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    cores = available_cores()
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert available_cores() == 1
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(cores + 7))
    assert available_cores() == cores
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "0")
    assert available_cores() == 1
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "abc")
    with pytest.raises(UserError, match="SLURM_CPUS_PER_TASK=abc: .* must be a whole number"):
        available_cores()


@pytest.mark.parametrize(
    "files, cores",
    [
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "max 100000"}, 64),
        ({"cpu.max": ""}, 64),
        ({}, 64),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 64),
    ],
)
def test_a_containers_quota_limits_the_cores(monkeypatch, tmp_path, files, cores):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(64)), raising=False)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert available_cores(tmp_path) == cores


def test_what_a_slow_process_still_writes_is_kept(tmp_path):
    """Its folder is as old as the newest name in it; its files grow."""
    folder = tmp_path / f"partial-{'0' * 32}"
    folder.mkdir()
    (folder / "train.src.ids").touch()
    os.utime(folder, (time.time() - 100_000,) * 2)
    make_once(tmp_path / "corpus", lambda folder: {})
    assert (folder / "train.src.ids").exists()


@pytest.mark.parametrize("groups, expected", [(1, 7), (3, 3), (4, 2), (9, 1)])
def test_an_evaluation_has_every_example_once_and_equally_many_batches(groups, expected):
    """FSDP would wait for ever for a rank that has no batch left."""

    class Seven:
        def __len__(self):
            return 7

        def lengths(self, rows):
            return [np.full(len(rows), 10)]

        def batch(self, rows):
            return (torch.tensor(rows.copy()),)

    shares = [
        list(data.evaluation_batches(Seven(), 10, group, groups, CPU))
        for group in range(groups)
    ]
    assert {len(share) for share in shares} == {expected}
    seen = np.concatenate([rows for share in shares for rows, _ in share])
    assert sorted(seen) == list(range(7))


def test_a_full_disk_of_the_cache_is_answered_with_how_to_choose_another(tmp_path):
    def write(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(UserError, match="cannot be written to .*; XDG_CACHE_HOME names"):
        make_once(tmp_path / "cache" / "a", write)
    assert not list(tmp_path.glob("cache/*"))


@pytest.mark.parametrize("vocab_size, dtype", [(65_536, "uint16"), (65_537, "uint32")])
def test_ids_have_as_many_bytes_as_the_vocabulary_needs(tmp_path, vocab_size, dtype):
    largest = vocab_size - 1
    bpe = SimpleNamespace(vocab_size=vocab_size, encode=lambda texts: len(texts) * [[largest]])
    counts = encode_part(iter([("a", "b")]), bpe, tmp_path / "train", max_length=4)
    assert (counts["dtype"], counts["tokens"]) == (dtype, 4)  # with eos
    assert np.fromfile(tmp_path / "train.src.ids", dtype).tolist() == [largest, EOS]
