"""Corpora read right or refused in one line, BPE, the encoded corpus, and which sentences make a step."""

import gzip
import http.server
import os
import threading
from functools import partial

import numpy as np
import pytest

import corpora
import data
from conftest import write_pairs
from corpora import BadInput, find_corpus
from data import BPE, Batches, Pairs, prepare, available_cores

PAIRS = [("Ein Hund läuft.", "A dog runs."), ("Zwei Katzen schlafen.", "Two cats sleep."), ("Ja!", "Yes!")]


def read(path, **how):
    return list(find_corpus(str(path), **how).parts["train"]())


# --- Corpora


def test_parallel_files_plain_and_gz_with_bom_and_crlf(tmp_path):
    write_pairs(tmp_path / "a", PAIRS)
    assert read(tmp_path / "a") == PAIRS
    (tmp_path / "b.de.gz").write_bytes(gzip.compress("\r\n".join(p[0] for p in PAIRS).encode("utf-8-sig")))
    (tmp_path / "b.en").write_text("\n".join(p[1] for p in PAIRS), encoding="utf-8")
    assert read(tmp_path / "b") == PAIRS


def test_a_line_ends_at_a_line_feed_only(tmp_path):
    odd = [("a\rb", "c\rd"), ("eins\u2028zwei\x0bdrei\x85vier", "one\x0ctwo\x1cthree\u2029four"), ("fünf", "five")]
    write_pairs(tmp_path / "a", odd)
    assert read(tmp_path / "a") == odd


TABLES = {
    "header.csv": 'id,DE,en\r\n1,"Ein ""Hund"", hier",A dog\r\n2,"Zwei\nZeilen",Two lines\r\n',
    "header.tsv": 'en\tde\nA dog\t"Ein ""Hund"", hier"\n\nTwo lines\tZwei Zeilen\n\n',
}


@pytest.mark.parametrize("name", TABLES)
def test_tables_by_header(tmp_path, name):
    (tmp_path / name).write_text(TABLES[name], encoding="utf-8", newline="")
    assert read(tmp_path / name) == [('Ein "Hund", hier', "A dog"), ("Zwei Zeilen", "Two lines")]


def test_tables_by_position_with_and_without_a_header(tmp_path):
    (tmp_path / "a.tsv").write_text("Ein Hund\tA dog\nZwei\tTwo\n")
    assert read(tmp_path / "a.tsv", src="1", tgt="2") == [("Ein Hund", "A dog"), ("Zwei", "Two")]
    (tmp_path / "b.tsv").write_text('German\tEnglish\n"Nein" sagt er\tHe says "no"\n')
    assert read(tmp_path / "b.tsv", src="1", tgt="2") == [('"Nein" sagt er', 'He says "no"')]


WRONG = {
    "missing": ({}, "missing.de: no such file"),
    "short": ({"short.de": b"a\nb\nc\nd\n", "short.en": b"a\nb\n"}, "short.de has 4 lines", "short.en has 2", "differ by 2"),
    "longer": ({"longer.de": b"a\n", "longer.en": b"a\nb\nc"}, "longer.de has 1 lines", "longer.en has 3"),
    "latin": ({"latin.de": b"gut\nsch\xf6n\n", "latin.en": b"good\nnice\n"}, "latin.de, line 2: not UTF-8"),
    "cutgz": ({"cutgz.de.gz": gzip.compress(b"ein Satz\n" * 99)[:20], "cutgz.en": b"a\n"}, "cutgz.de.gz: cannot be read"),
    "empty": ({"empty.de": b"", "empty.en": b""}, "empty", "is empty"),
    "blank": ({"blank.de": b" \n\n", "blank.en": b"a\nb\n"}, "no sentence pair to train on", "with an empty side"),
    "long": ({"long.de": b"ein " * 500, "long.en": b"a"}, "1 longer than --max-length"),
    "cols.csv": ({"cols.csv": b"german,french\na,b\n"}, "no column 'de'", "german, french"),
    "rows.csv": ({"rows.csv": b"de,en\na\n"}, "rows.csv, row 2: 1 columns"),
    "quote.csv": ({"quote.csv": b'de,en\n"a,b\n'}, "quote.csv", "line"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_read_is_refused_in_one_line_and_leaves_nothing(tmp_path, name, monkeypatch):
    files, *expected = WRONG[name]
    monkeypatch.setattr(data, "CACHE", tmp_path / "cache")
    for file, content in files.items():
        (tmp_path / file).write_bytes(content)
    with pytest.raises(BadInput) as problem:
        prepare(find_corpus(str(tmp_path / name)), 300)
    assert all(text in str(problem.value) for text in expected), problem.value
    assert "\n" not in str(problem.value)
    assert not list(tmp_path.glob("cache/translator/encoded/*"))


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
        sums[name] = (len((served / name).read_bytes()), corpora.sha256(served / name))
    monkeypatch.setattr(corpora, "MULTI30K", sums)
    monkeypatch.setattr(corpora, "CACHE", cache)
    with Server(("127.0.0.1", 0), partial(Quiet, directory=served)) as url:
        monkeypatch.setenv("MULTI30K_URL", url)
        assert len(list(find_corpus("multi30k").parts["train"]())) == 3
        (cache / "multi30k" / "val.de.gz").write_bytes(b"half")             # spoilt on disk: fetched again
        assert len(list(find_corpus("multi30k").parts["valid"]())) == 3
        good = (served / "val.en.gz").read_bytes()
        for wrong in (good[:-3], good + b"x", b"x" * len(good)):            # cut short, too long, another file
            (served / "val.en.gz").write_bytes(wrong)
            (cache / "multi30k" / "val.en.gz").unlink(missing_ok=True)
            with pytest.raises(BadInput, match="val.en.gz: not the file that was expected"):
                find_corpus("multi30k")
            assert sorted(os.listdir(cache / "multi30k")) == sorted(set(sums) - {"val.en.gz"})
        (served / "val.en.gz").unlink()
        with pytest.raises(BadInput, match="404.*--data FOLDER"):
            find_corpus("multi30k")
    with pytest.raises(BadInput, match="cannot be fetched.*--data FOLDER"):  # nobody answers
        find_corpus("multi30k")
    (served / "val.en.gz").write_bytes(good)
    assert find_corpus(str(served)).name == "multi30k"                      # known by its content
    (served / "val.en.gz").write_bytes(gzip.compress(b"another\n" * 3))
    assert find_corpus(str(served)).name == "served"


# --- BPE


@pytest.fixture(scope="module")
def bpe(pairs):
    return BPE.train((text for pair in pairs["train"][:2000] for text in pair), 500)


@pytest.mark.parametrize("text", ["Ein Hund läuft.", "😀 你好", "a\x00b", "\x07\x1b[0m", "<eos> <pad>", "q", "ﬁ ß ẞ"])
def test_any_text_survives_bpe(bpe, text):
    ids = bpe.encode([text])[0]
    assert bpe.decode(ids) == text
    assert min(ids) > data.EOS                             # nothing that is typed becomes a mark


def test_bpe_is_the_same_every_time_and_keeps_its_size(pairs):
    texts = [text for pair in pairs["train"][:3000] for text in pair]
    one, two = BPE.train(iter(texts), 700), BPE.train(iter(texts), 700)
    assert one.serialized == two.serialized
    assert one.vocab_size == 700
    assert BPE(one.serialized).encode(texts[:50]) == one.encode(texts[:50])


# --- The encoded corpus


def test_the_encoded_corpus_is_the_text(small_corpus, pairs):
    folder = prepare(find_corpus(str(small_corpus), valid=f"{small_corpus}-valid"), 300, 256)
    bpe, train = BPE((folder / "bpe.json").read_text(encoding="utf-8")), Pairs(folder, "train")
    src, tgt_in, tgt_out = train.batch(np.arange(len(train)))
    assert len(train) == 600
    for row, (german, english) in enumerate(pairs["train"][:600]):
        assert bpe.decode([i for i in src[row].tolist() if i > data.EOS]) == " ".join(german.split())
        target = [i for i in tgt_out[row].tolist() if i != data.PAD]
        assert target[-1] == data.EOS and bpe.decode(target[:-1]) == " ".join(english.split())
        assert tgt_in[row].tolist()[: len(target)] == [data.BOS] + target[:-1]
        assert not tgt_in[row, len(target) :].any()
    assert prepare(find_corpus(str(small_corpus), valid=f"{small_corpus}-valid"), 300, 256) == folder     # found again
    assert prepare(find_corpus(str(small_corpus), valid=f"{small_corpus}-valid"), 310, 256) != folder
    assert not list(folder.parent.glob("partial-*"))


def test_pairs_left_out_are_counted(tmp_path):
    write_pairs(tmp_path / "a", PAIRS * 30 + [("", "empty"), ("lang " * 300, "long"), ("  ", "\t")])
    write_pairs(tmp_path / "v", PAIRS)
    folder = prepare(find_corpus(str(tmp_path / "a"), valid=str(tmp_path / "v")), 300, max_length=64)
    counts = Pairs(folder, "train").counts
    assert (counts["pairs"], counts["empty"], counts["too_long"]) == (90, 2, 1)


def test_without_a_validation_part_one_is_held_out_by_source(tmp_path, pairs):
    corpus = pairs["train"][:2000] + [(german, "again") for german, _ in pairs["train"][:2000]]
    write_pairs(tmp_path / "a", corpus)
    folder = prepare(find_corpus(str(tmp_path / "a")), 300, 256)
    sizes = len(Pairs(folder, "train")), len(Pairs(folder, "valid"))
    assert sum(sizes) == 4000 and 100 < sizes[1] < 300
    held = (folder / "valid.src.txt").read_text(encoding="utf-8").split("\n")[:-1]
    bpe, train = BPE((folder / "bpe.json").read_text(encoding="utf-8")), Pairs(folder, "train")
    trained = {bpe.decode([i for i in row if i > data.EOS]) for row in train.batch(np.arange(len(train)))[0].tolist()}
    assert not trained & {" ".join(line.split()) for line in held}


# --- Batches


@pytest.fixture(scope="module")
def batches(pairs, tmp_path_factory):
    prefix = tmp_path_factory.mktemp("batches") / "all"
    write_pairs(prefix, pairs["train"])
    write_pairs(f"{prefix}-valid", pairs["valid"])
    folder = prepare(find_corpus(str(prefix), valid=f"{prefix}-valid"), 8000)
    return Batches(Pairs(folder, "train"), 4096, seed=1)


def test_an_epoch_has_every_sentence_once_little_padding_and_few_shapes(batches):
    real = padded = 0
    seen, shapes = [], set()
    for step in range(len(batches)):
        (src, _, tgt_out), = batches.share(step, 0, 1, 1)
        seen.append(batches.rows(step))
        real += int((src > 0).sum() + (tgt_out > 0).sum())
        padded += src.numel() + tgt_out.numel()
        shapes.add((*src.shape, tgt_out.shape[1]))
        assert max(src.numel(), tgt_out.numel()) <= 4096
    assert sorted(np.concatenate(seen)) == list(range(len(batches.pairs)))
    # Even widths would make 58 shapes, but 92.9 % real tokens: 2.5 % slower.
    assert real / padded >= (0.95 if os.environ.get("MULTI30K") else 0.92)
    assert len(shapes) <= 90


def test_order_is_a_function_of_seed_and_epoch(batches):
    again, other = Batches(batches.pairs, 4096, seed=1), Batches(batches.pairs, 4096, seed=2)
    epoch = len(batches)
    for step in (0, 5, epoch, 2 * epoch + 3, 1):           # also going back, as a resumed run may
        assert np.array_equal(batches.rows(step), again.rows(step))
    assert not np.array_equal(batches.rows(0), other.rows(0))
    assert not np.array_equal(batches.rows(0), batches.rows(epoch))


def test_a_large_corpus_is_planned_block_by_block(batches, monkeypatch):
    """As much at a time as fits into memory; still every sentence once an epoch, each block a sample of the whole."""
    monkeypatch.setattr("data.AT_ONCE", 1000)
    blocks = Batches(batches.pairs, 4096, seed=1)
    assert blocks.blocks == -(-len(batches.pairs) // 1000) > 1
    for epoch in (1, 0):
        seen = np.concatenate([blocks.rows(epoch * len(blocks) + step) for step in range(len(blocks))])
        assert sorted(seen) == list(range(len(batches.pairs)))
        first = seen[: len(blocks.pairs) // blocks.blocks]
        assert first.max() - first.min() > 0.9 * len(blocks.pairs)
    assert not np.array_equal(blocks.rows(0), blocks.rows(len(blocks)))


@pytest.mark.parametrize("world_size, accumulate", [(2, 1), (1, 4), (3, 2), (4, 4), (700, 1)])
def test_any_number_of_processes_shares_the_same_step(batches, world_size, accumulate):
    """Also more processes than sentences: some get one row of padding."""
    for step in (0, 7):
        whole, = batches.share(step, 0, 1, 1)
        shares = [batches.share(step, rank, world_size, accumulate) for rank in range(world_size)]
        assert {len(share) for share in shares} == {accumulate}
        rows = [tuple(row.tolist()) for share in shares for src, _, _ in share for row in src if row.any()]
        assert sorted(rows) == sorted(tuple(row.tolist()) for row in whole[0])
        assert {src.shape[1] for share in shares for src, _, _ in share} == {whole[0].shape[1]}


def test_ten_million_pairs_are_planned_in_seconds():
    import time

    rng = np.random.default_rng(0)
    src = rng.integers(4, 40, 10_000_000, dtype=np.int32)
    tgt = (src + rng.integers(-3, 4, len(src))).astype(np.int32)
    began = time.perf_counter()
    steps = data.group_by_length(src, tgt, 4096, rng)
    assert time.perf_counter() - began < 60                # some 2 s here: bounded against minutes, not timed
    assert sum(map(len, steps)) == len(src)


def test_no_more_cores_than_slurm_has_granted(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    cores = available_cores()
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    assert available_cores() == 1
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", str(cores + 7))
    assert available_cores() == cores
