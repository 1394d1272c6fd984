"""Classifiers of texts and images: the training scripts give the same curve and metrics."""

import csv
import gzip
import json
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import asdict
from functools import partial
from itertools import product
from types import SimpleNamespace

import kill
import numpy as np
import parity
import pytest
import torch
from conftest import ROOT, mathematics, read_metrics, run_script
from test_data import content_of, damage
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from classify import Predictor
from data import append_ids
from model import initialize, scaled_dot_product
from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.corpus import classes_of
from support.classification.encoding import (
    encode_texts,
    hold_out_labelled,
    longest_text,
    prepare_labelled,
)
from support.classification.examples import ExampleBatches, Images, Texts
from support.classification.images import ImageTransform, shift_and_mirror
from support.classification.labelled import find_labelled
from support.classification.starting_weights import adapt
from support.classification.task import Classification
from support.classification.text_tokenizers import train_phrases, train_tokenizer, train_words
from support.common.checkpoint import find_checkpoint
from support.common.errors import UserError
from support.common.kernels import speed_up
from support.pretrained.export import export
from support.pretrained.load import load_pretrained
from support.training.command_line import parse_arguments
from support.training.config_file import base_config, read_config
from support.training.settings import CpuSettings
from support.training.tasks import prepare_task

SHAPE = shlex.split(
    "--layers 1 --d-model 32 --heads 2 --d-ff 64 --vocab-size 300 "
    "--dropout 0 --precision fp32 --log-every 1 --batch-size 24 "
    "--warmup 5 --lr 3e-3"
)
WORDS = {
    "animal": ["dog", "cat", "horse", "bird", "cow"],
    "colour": ["red", "green", "blue", "black", "white"],
    "food": ["bread", "apple", "cheese", "soup", "rice"],
}


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Flags for two tables, to train and to test: texts of unequal lengths, three classes."""
    folder = tmp_path_factory.mktemp("labelled")
    rng = random.Random(1)
    for name, rows in (("train", 400), ("test", 61)):
        with open(folder / f"{name}.csv", "w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["title", "text", "topic"])
            for _ in range(rows):
                topic = rng.choice(["animal", "animal", "colour", "food"])
                words = [
                    rng.choice(WORDS[topic if rng.random() < 0.8 else rng.choice(list(WORDS))])
                    for _ in range(rng.randint(1, 9))
                ]
                out.writerow([words[0], " ".join(words), topic])
    return [
        "--data",
        str(folder / "train.csv"),
        "--test",
        str(folder / "test.csv"),
        *shlex.split("--label topic --text title,text --epochs 2 --token-dropout 0.2"),
        *shlex.split("--max-length 6 --windows 3"),  # the longest have about 30 tokens
    ]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Flags for IDX files of 8 x 8 pixels, of which the class names the bright quarter.

    In training, one label in eight is wrong. Otherwise the loss would end near 0.001, which
    fp32 gives to three digits only.
    """
    folder = tmp_path_factory.mktemp("idx")
    rng = np.random.default_rng(1)
    for part, n in (("train", 300), ("t10k", 50)):
        labels = rng.integers(0, 4, n, dtype=np.uint8)
        pixels = rng.integers(0, 60, (n, 8, 8), dtype=np.uint8)
        for i, label in enumerate(labels):
            if part == "train" and i % 8 == 0:
                label = (label + 1) % 4
            pixels[i, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 180
        for name, magic, content in (
            (f"{part}-images-idx3-ubyte", 2051, pixels),
            (f"{part}-labels-idx1-ubyte", 2049, labels),
        ):
            header = struct.pack(f">{1 + content.ndim}I", magic, *content.shape)
            with gzip.open(folder / f"{name}.gz", "wb") as file:
                file.write(header + content.tobytes())
    return [
        "--data",
        str(folder),
        *shlex.split("--crop 1 --flip no --patch 4 --stem-channels 4 --epochs 4 --lr 1e-2"),
    ]


def write_rows(path, rows):
    """Writes a table of texts and their labels."""
    path.write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")


def held_out_of(tmp_path, rows):
    """The parts of such a table, without those that are held out and with them."""
    write_rows(tmp_path / "a.csv", rows)
    return hold_out_labelled(find_labelled(str(tmp_path / "a.csv"), label="label"))


def train(folder, mode, procs, *flags):
    done = subprocess.run(
        parity.command(mode, procs, *flags),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def weights_of(run) -> dict:
    return torch.load(run / "last.pt", weights_only=True)["model"]


def compare(folder, flags, cases):
    """Asserts that all `cases` train to the same result as train_cpu.py on one process."""
    flags = [*SHAPE, *flags]
    train(folder, "cpu", 1, "--name", "one", *flags)
    one = folder / "logs" / "one"
    summary = json.loads((one / "summary.json").read_text())
    for mode, procs, accumulate in cases:
        name = f"{mode}-{procs}-{accumulate}"
        train(folder, mode, procs, "--name", name, "--accumulate", str(accumulate), *flags)
        other = folder / "logs" / name
        for a, b in zip(read_metrics(one), read_metrics(other), strict=True):
            assert float(b["train_loss"]) == pytest.approx(float(a["train_loss"]), rel=1e-4)
            assert (b["valid_accuracy"], b["valid_f1"]) == (a["valid_accuracy"], a["valid_f1"])
        weights, expected = weights_of(other), weights_of(one)
        assert all((weights[key] - expected[key]).abs().max() < 1e-4 for key in expected)
        found = json.loads((other / "summary.json").read_text())
        for figure in ("confusion", "test_accuracy"):
            assert found[figure] == summary[figure]
    return summary


@pytest.fixture(scope="module")
def learnt(tmp_path_factory, table):
    """A folder with logs/one by train_cpu.py. train_ddp.py on two processes has equalled it."""
    folder = tmp_path_factory.mktemp("learnt")
    other = "cpu" if sys.platform == "win32" else "ddp"  # torchrun needs libuv
    compare(folder, [*table, "--class-weights"], [(other, 2, 2)])
    return folder / "logs" / "one"


def test_texts_are_learnt_alike_by_all_pages(learnt):
    summary = json.loads((learnt / "summary.json").read_text())
    assert summary["test_accuracy"] > 0.7 and sum(map(sum, summary["confusion"])) == 61
    assert summary["classes"] == ["animal", "colour", "food"]


@pytest.mark.slow
def test_images_are_learnt_alike_by_all_pages(tmp_path, images):
    summary = compare(tmp_path, images, [("ddp", 3, 1), ("fsdp", 2, 2)])
    assert summary["test_accuracy"] > 0.9 and sum(map(sum, summary["confusion"])) == 50


@pytest.mark.slow
def test_more_processes_and_micro_batches(tmp_path, table):
    compare(tmp_path, table, [("cpu", 3, 2), ("fsdp", 3, 1)])


def test_a_run_leaves_predictions_that_agree_with_its_figures(table, learnt):
    run = learnt
    with open(run / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    summary = json.loads((run / "summary.json").read_text())
    assert [int(row["row"]) for row in rows] == list(range(61))
    right = sum(row["label"] == row["prediction"] for row in rows)
    assert right / 61 == pytest.approx(summary["test_accuracy"], abs=1e-6)
    columns = [f"p({name})" for name in summary["classes"]]  # a class may be called "label"
    assert all(
        sum(float(row[column]) for column in columns) == pytest.approx(1, abs=1e-4)
        for row in rows
    )
    with open(table[3], newline="") as file:
        texts = [f"{row['title']} {row['text']}" for row in csv.DictReader(file)]
    probabilities = Predictor(*find_checkpoint(run / "best.pt", "classification"), "cpu")(texts)
    shown = torch.tensor([[float(row[column]) for column in columns] for row in rows])
    assert (probabilities - shown).abs().max() < 1e-4
    assert {"epoch", "samples_per_second", "valid_accuracy", "memory_mib"} <= summary["epochs"][
        0
    ].keys()


@pytest.mark.slow
def test_a_runs_record_starts_the_same_run(tmp_path, learnt):
    again = run_script(
        "train_cpu.py",
        "--config",
        learnt / "config.json",
        *shlex.split("--name again --steps 2 --procs 1"),
        cwd=tmp_path,
    )
    assert again.returncode == 0, again.stderr
    runs = (learnt, tmp_path / "logs" / "again")
    first, second = (mathematics(read_metrics(run))[0] for run in runs)
    assert first == second


@pytest.mark.slow
def test_a_resumed_run_equals_a_whole_one_and_early_stopping_holds(tmp_path, table):
    flags = [
        *table,
        *SHAPE,
        *shlex.split("--epochs 6 --dropout 0.1 --procs 2 --patience 2 --lr 0.0 --head-lr 0"),
    ]
    whole = run_script("train_cpu.py", *flags, "--name", "whole", cwd=tmp_path)
    assert whole.returncode == 0 and "no better for 2 evaluations" in whole.stdout, whole.stderr
    flags = [*table, *SHAPE, "--dropout", "0.1", "--procs", "2"]
    for name, last in (("a", 20), ("b", 9), ("b", 20)):
        own = f"--name {name} --steps {last} --schedule noam"
        done = run_script("train_cpu.py", *flags, *shlex.split(own), cwd=tmp_path)
        assert done.returncode == 0
    a, b = (tmp_path / "logs" / name for name in "ab")
    assert mathematics(read_metrics(a))[9:] == mathematics(read_metrics(b))[9:]
    weights = weights_of(a), weights_of(b)
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


@pytest.mark.optional
def test_predictions_name_the_files_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for part, numbers in (("train", "12"), ("valid", "34")):
        for name, number in zip("ab", numbers):
            (tmp_path / "all" / part / name).mkdir(parents=True)
            image.new("1", (4, 4)).save(tmp_path / "all" / part / name / f"{number}.png")
    corpus = find_labelled(str(tmp_path / "all"))
    encoded = prepare_labelled(corpus, tmp_path / "cache", "", 1, 1)
    task = SimpleNamespace(
        folder=encoded,
        classes=["a", "b"],
        examples_of=lambda part: Images(encoded, part, 1),
    )
    probabilities = np.array([[0.75, 0.25], [0.5, 0.5]])
    path = tmp_path / "predictions.csv"
    Classification.write_predictions(task, path, "valid", probabilities)
    assert (tmp_path / "predictions.csv").read_text().splitlines() == [
        "file,label,prediction,p(a),p(b)",
        "a/3.png,a,a,0.750000,0.250000",
        "b/4.png,b,a,0.500000,0.500000",
    ]


def test_images_move_and_are_mirrored():
    pixels = np.arange(1, 2 * 9 + 1, dtype=np.uint8).reshape(2, 1, 3, 3)
    stay, right, up = (
        shift_and_mirror(pixels, np.array([how, [0, 0, 0]]))[0, 0].tolist()
        for how in ([0, 0, 0], [0, 1, 0], [-2, 0, 1])
    )
    assert stay == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert right == [[0, 1, 2], [0, 4, 5], [0, 7, 8]]
    assert up == [[9, 8, 7], [0, 0, 0], [0, 0, 0]]
    assert not shift_and_mirror(pixels, np.array([[5, 0, 0], [0, -9, 1]])).any()


def test_images_are_shifted_and_mirrored_anew_in_each_epoch(tmp_path):
    rng = np.random.default_rng(1)
    pixels = rng.integers(1, 256, (400, 1, 8, 8), dtype=np.uint8)
    pixels.tofile(tmp_path / "train.pixels")
    np.zeros(400, np.int32).tofile(tmp_path / "train.labels")
    (tmp_path / "meta.json").write_text('{"parts": {"train": {"shape": [1, 8, 8]}}}')
    examples = Images(tmp_path, "train", tokens=1)
    rows = np.arange(400)

    def shown(seed=1, epoch=0, **how):
        batches = ExampleBatches(examples, 400, seed, 0, np.ones(1), **how)
        x, _, _ = batches.collate(rows, [1], epoch)
        return x.numpy()

    def count(images, down=0, right=0, mirrored=0):
        """How many images are changed like this."""
        changed = shift_and_mirror(pixels, np.array([[down, right, mirrored]] * 400))
        return (images == changed).all((1, 2, 3)).sum()

    assert count(shown()) == 400
    flipped = shown(flip=True)
    assert 160 < count(flipped, mirrored=1) < 240
    assert count(flipped) + count(flipped, mirrored=1) == 400
    moved = shown(crop=1)
    counts = [count(moved, down, right) for down, right in product((-1, 0, 1), repeat=2)]
    assert min(counts) > 20 and sum(counts) == 400
    both = shown(crop=1, flip=True)
    assert (both == shown(crop=1, flip=True)).all()
    assert (both != shown(crop=1, flip=True, epoch=1)).any()
    assert (both != shown(crop=1, flip=True, seed=2)).any()


def test_class_weights_balance_the_classes(tmp_path, monkeypatch):
    """All classes count alike, and the weights of all examples have the mean 1."""
    rows = [f"text {i},{'rare' if i % 8 == 0 else 'often'}" for i in range(64)]
    for part in ("train", "valid"):
        write_rows(tmp_path / f"{part}.csv", rows)
    monkeypatch.chdir(tmp_path)
    command = ["train_cpu.py", "--data", str(tmp_path), "--label", "label"]
    monkeypatch.setattr("sys.argv", [*command, "--class-weights", "--batch-size", "64"])
    task = prepare_task(parse_arguments("", CpuSettings).complete())
    _, label, weight = task.batches.micro_batch(0, 0, 1, torch.device("cpu"))
    assert len(label) == 64 and task.classes == ["often", "rare"]
    torch.testing.assert_close(weight[label == 1], torch.full((8,), 4.0))
    torch.testing.assert_close(weight[label == 0], torch.full((56,), 4 / 7), rtol=4e-3, atol=0)


def test_images_are_bytes_until_the_model_normalizes_them(tmp_path):
    images = np.random.default_rng(1).integers(0, 256, (5, 3, 4, 4), dtype=np.uint8)
    images.tofile(tmp_path / "train.pixels")
    np.zeros(5, np.int32).tofile(tmp_path / "train.labels")
    (tmp_path / "meta.json").write_text('{"parts": {"train": {"shape": [3, 4, 4]}}}')
    transform = ImageTransform(4, mean=[0.1, 0.2, 0.3], std=[0.5, 0.6, 0.7])
    examples = Images(tmp_path, "train", tokens=1)
    batches = ExampleBatches(examples, 5, 1, 0, np.ones(1), crop=1, flip=True)
    pixels = batches.micro_batch(0, 0, 1, torch.device("cpu"))[0]
    assert pixels.dtype == torch.uint8 and examples.batch(np.arange(0))[0].dtype == torch.uint8
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (transform.mean, transform.std))
    config = ClassifierConfig(2, patch=4, image_size=4, d_model=8, heads=2, d_ff=8, layers=1)
    initialize(model := Classifier(config, transform), seed=1)
    torch.testing.assert_close(model.eval()(pixels), model((pixels / 255 - mean) / std))


def test_texts_are_cut_and_counted():
    """A text keeps as many tokens of its beginning as of its end, or one more."""
    tokenizer = Tokenizer(
        models.WordPiece({"[UNK]": 0, "good": 1, "bad": 2}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    texts = [
        "good bad",
        "good x bad x good bad",
        "good " + 99 * "bad " + 10_000 * "word " + "bad bad good",  # much of it is never read
        "  good" + " " * 400,
    ]
    ids, num_cut = encode_texts(tokenizer, texts, 4)
    assert (ids, num_cut) == ([[1, 2], [1, 0, 1, 2], [1, 2, 2, 1], [1]], 2)
    assert encode_texts(tokenizer, texts[1:2], 3) == ([[1, 0, 2]], 1)
    assert encode_texts(tokenizer, texts[1:2], 1) == ([[1]], 1)


def test_a_long_text_is_divided_into_windows():
    """Each has the special tokens, and the beginning of the text; the middle may be lost."""
    vocabulary = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *map(str, range(10))]
    ids_of_tokens = {token: i for i, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.WordPiece(ids_of_tokens, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    texts = ["", "0", "0 1 2 3", "0 1 2 3 4", "0 1 2 3 4 5 6 7 8 9", "0 1 2 3 4 5 6 7 8 9 x"]
    ids, num_cut = encode_texts(tokenizer, texts, max_length=6, windows=3)
    shown = ["".join(tokenizer.id_to_token(id)[:2] for id in row) for row in ids]
    assert shown == [
        "[C[S",
        "[C0[S",
        "[C0123[S",
        "[C0123[S[C0234[S",
        "[C0123[S[C0456[S[C0789[S",
        "[C0123[S[C0467[S[C089[U[S",  # without 5
    ]
    assert num_cut == 1
    assert longest_text(6, windows=3) == "3 windows of 6 tokens"
    assert longest_text(6, windows=1) == "6 tokens"
    assert encode_texts(tokenizer, texts[3:4], max_length=6)[0] == [[1, 4, 5, 7, 8, 2]]


@pytest.mark.parametrize("is_fast", [False, True])
def test_the_logits_of_a_texts_windows_are_averaged(is_fast):
    config = ClassifierConfig(
        3, vocab_size=20, d_model=8, heads=2, d_ff=8, layers=2, max_length=4
    )
    initialize(model := Classifier(config).eval(), seed=1)
    if is_fast:
        speed_up(model, "cpu")
    ids = torch.randint(1, 20, (4, 12), generator=torch.Generator().manual_seed(1))
    ids[1, 8:] = ids[2, 3:] = ids[3] = 0  # texts of three windows, of two, of one; no text
    logits = model(ids)
    first, second, third = ids[:, :4], ids[:, 4:8], ids[:, 8:]
    expected = torch.stack(
        [
            (model(first[:1]) + model(second[:1]) + model(third[:1]))[0] / 3,
            (model(first[1:2]) + model(second[1:2]))[0] / 2,
            model(first[2:3])[0],
            model(first[3:])[0],
        ]
    )
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(model(ids[1:, :9]), logits[1:])  # not a multiple of four


def test_a_token_is_a_word_and_a_rare_word_is_unknown():
    texts = [
        "The dog's tail, the Dog!! nai\u0308ve",
        "a tail; na\u00efve",
        "中文 ภาษา 한국어",
        "文 한국어",
    ]
    tokenizer = Tokenizer.from_str(train_words(iter(texts), 100))
    words = {"dog", "na\u00efve", "tail", "the", "า", "文", "한국어"}
    assert tokenizer.get_vocab().keys() == {"<pad>", "<unk>"} | words
    assert tokenizer.token_to_id("<pad>") == 0
    text = "THE nai\u0308ve cat's tail文章 <pad>"
    (ids,), _ = encode_texts(tokenizer, [text], 100)
    tokens = [tokenizer.id_to_token(token) for token in ids]
    assert tokens == ["the", "na\u00efve", *["<unk>"] * 3, "tail", "文", *["<unk>"] * 4]
    assert Tokenizer.from_str(train_words(iter(texts), 3)).get_vocab_size() == 3


def test_a_token_is_a_phrase_of_frequent_words():
    texts = 3 * ["This isn't one of the best.", "One of the worst; one of the best 文章!"]
    tokenizer = Tokenizer.from_str(train_tokenizer(lambda: zip(texts, texts), 6, "phrases", 20))
    phrases = ["of the", "one of the", "one of the best", "isn't one of the best"]
    words = ["of", "one", "the", "best", "!", ".", ";", "isn't"]
    tokens = ["<pad>", "<unk>", *words, *phrases]
    spelled = {tokenizer.id_to_token(i).replace("▁▁", " ").strip("▁"): i for i in range(14)}
    assert list(spelled) == tokens and tokenizer.get_vocab_size() == 14

    text = "ONE of  the best films?  The one; ISN'T one of the best 文 t▁the▁x <pad>"
    (ids,), _ = encode_texts(tokenizer, [text], 100)
    expected = ["one of the best", "<unk>", "<unk>", "the", "one", ";"]
    expected += ["isn't one of the best", "<unk>"]
    assert [tokens[i] for i in ids][:8] == expected


def test_phrases_are_found_in_texts_without_marks():
    words = [f"w{i % 7}" for i in range(5000)]
    tokenizer = Tokenizer.from_str(train_phrases(lambda: iter([" ".join(words)]), 30))
    assert len(tokenizer.encode(" ".join(words)).ids) < 1000


@pytest.mark.parametrize(
    "texts, text, count",
    [
        (["ผมไม่ชอบหนังเรื่องนี้"], "ผมไม่ชอบหนังเรื่องนี้", 1),
        (["\u2581\u2582 spark the film", "the film"], "the bar film", 3),
        (["J\u030caz ok", "J\u030caz ok"], "\u01f0az OK", 1),
        (["the film", "a film"], "the new good film", 3),
        (["! ? !", ", . ,"], "! ?", 2),
        ([""], "", 0),
    ],
)
def test_phrases_of_unusual_texts(texts, text, count):
    tokenizer = Tokenizer.from_str(train_phrases(lambda: iter(10 * texts), 200))
    assert len(tokenizer.encode(text).ids) == count


@pytest.mark.parametrize("vocab_size", [1, 3, 4, 60, 600])
def test_phrases_keep_to_the_size_of_the_vocabulary(vocab_size):
    """Also where words come only after those that are searched for phrases."""
    words = random.Random(1).choices([f"a{i}" for i in range(50)], k=550)
    text = " ".join(words + 2 * [f"b{i}" for i in range(200)])
    tokenizer = Tokenizer.from_str(train_phrases(lambda: iter(3 * [text]), vocab_size))
    assert 2 <= tokenizer.get_vocab_size() <= max(2, vocab_size)
    assert tokenizer.encode("a1 b1 c1").ids


def test_texts_get_pieces_of_words_where_words_seldom_recur():
    def kind(*texts):
        serialized = train_tokenizer(lambda: zip(texts, texts), len(texts), "auto", 300)
        return type(Tokenizer.from_str(serialized).model).__name__

    assert kind("a dog", "a cat", "a dog and a cat") == "WordLevel"
    assert kind("a dog", "two cats", "three cats", "some dogs") == "BPE"


def test_training_takes_one_window_of_a_text_drawn_anew_in_each_epoch(tmp_path):
    lengths = [3, 4, 8, 12, 0]
    texts = [list(range(100 * i + 1, 100 * i + 1 + n)) for i, n in enumerate(lengths)]
    append_ids(str(tmp_path / "train"), texts, np.dtype(np.int32))
    np.zeros(5, np.int32).tofile(tmp_path / "train.labels")
    examples = Texts(tmp_path, "train", window=4)
    plan = ExampleBatches(examples, 8, 1, 0, np.ones(1))
    rows = np.arange(5)
    assert examples.lengths(rows)[0].tolist() == [3, 4, 4, 4, 1]
    windows = [(0, 4), (4, 8), (8, 12)]
    drawn: dict[int, Counter] = {row: Counter() for row in range(5)}
    for epoch in range(300):
        x, _, _ = plan.collate(rows, [4], epoch)
        assert x.shape == (5, 4)
        for row, text, ids in zip(rows, texts, x.tolist()):
            shown = [id for id in ids if id]
            drawn[row][next(i for i, (a, b) in enumerate(windows) if text[a:b] == shown)] += 1
    assert drawn[0] == drawn[1] == drawn[4] == {0: 300}
    assert all(120 < drawn[2][window] < 180 for window in range(2))
    assert all(70 < drawn[3][window] < 130 for window in range(3))
    assert torch.equal(
        plan.collate(rows[[3, 2]], [4], 7)[0], plan.collate(rows, [4], 7)[0][[3, 2]]
    )
    other_seed = ExampleBatches(examples, 8, 2, 0, np.ones(1))
    of_seeds = [
        [p.collate(rows, [4], epoch)[0] for epoch in range(9)] for p in (plan, other_seed)
    ]
    assert not torch.equal(torch.stack(of_seeds[0]), torch.stack(of_seeds[1]))
    assert plan.collate(rows[:0], [4], 0)[0].shape == (1, 4)


def test_hidden_tokens_depend_on_seed_epoch_and_text_alone():
    class Whole:  # 40 texts of 9 tokens, none of them 0
        pad = window = 0

        def __len__(self):
            return 40

        def lengths(self, rows):
            return [np.full(len(rows), 9)]

        def batch(self, rows, width=9):
            ids = torch.from_numpy(np.asarray(rows))[:, None] * 9 + torch.arange(1, 1 + width)
            return ids, torch.zeros(len(rows), dtype=int), torch.ones(len(rows))

    plan = ExampleBatches(Whole(), 90, 1, 0, np.array([4 / 3]), token_dropout=0.4)
    # What FSDP makes of them in bf16.
    assert plan.weights.item() == plan.weights.bfloat16().item() != 4 / 3
    rows = np.arange(40)
    x, _, _ = plan.collate(rows, [9], epoch=0)
    whole, _, _ = Whole().batch(rows)
    hidden = x == 0
    assert torch.equal(x[~hidden], whole[~hidden]) and not hidden[:, 0].any()
    assert 0.3 < float(hidden[:, 1:].float().mean()) < 0.5
    assert torch.equal(plan.collate(rows[[30, 2]], [9], epoch=0)[0], x[[30, 2]])
    assert torch.equal(plan.collate(rows[[7]], [5], epoch=0)[0], x[[7], :5])
    assert not torch.equal(plan.collate(rows, [9], epoch=1)[0] == 0, hidden)
    other_seed = ExampleBatches(Whole(), 90, 2, 0, np.ones(1), token_dropout=0.4)
    assert not torch.equal(other_seed.collate(rows, [9], epoch=0)[0] == 0, hidden)


@pytest.mark.slow
def test_kill_9_loses_nothing(tmp_path, table):
    flags = [*table, "--batch-size", "24", "--dropout", "0.1"]
    kill.check(tmp_path, "cpu", 3, 500, 1, *flags)


@pytest.mark.slow
def test_what_cannot_be_is_said_in_one_line(tmp_path, table):
    done = run_script("train_cpu.py", *table, "--label", "nothing", cwd=tmp_path)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2 and len(lines) == 1 and "no column" in lines[0], done.stderr


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--data", "kinds", "--d-model", "33"], "heads"),
        (["--data", "phrasebook", "--freeze", "1"], "is for classification"),
        (["--data", "phrasebook", "--stem-channels", "8"], "is for classification"),
        (["--data", "phrasebook", "--patch", "8"], "--patch is for classification"),
        (["--data", "kinds", "--src", "en"], "--src is for translation"),
        (["--data", "kinds", "--pretrained", "nowhere"], "nowhere"),
        (["--data", "kinds", "--pool", "mean"], "--pool mean requires --pretrained"),
        (["--data", "phrasebook", "--tokenizer", "words"], "--tokenizer is for classification"),
        (
            ["--data", "IMAGES", "--patch", "2", "--stem-channels", "8"],
            "patch 2 is not a multiple of 4",
        ),
        (["--data", "IMAGES", "--patch", "3"], "does not divide; --image-size 6 would do"),
        (["--data", "IMAGES", "--patch", "16"], "not divide; --image-size 16 would do"),
        (["--data", "IMAGES", "--crop", "8"], "--crop 8: images have 8 pixels a side"),
    ],
)
def test_flags_that_do_not_go_together_are_refused(refusal, images, flags, expected):
    assert expected in refusal(*(images[1] if flag == "IMAGES" else flag for flag in flags))


@pytest.mark.parametrize(
    "flags",
    [
        ["--data", "kinds", "--flip", "yes"],
        ["--data", "kinds", "--image-size", "16"],
        ["--data", "kinds", "--crop", "1"],
        ["--data", "kinds", "--patch", "8"],
        ["--data", "kinds", "--stem-channels", "8"],
        ["--data", "IMAGES", "--token-dropout", "0.1"],
        ["--data", "IMAGES", "--tokenizer", "words"],
        ["--data", "IMAGES", "--windows", "2"],
    ],
)
def test_flags_are_refused_before_the_corpus_is_encoded(refusal, images, monkeypatch, flags):
    """Which may take minutes."""
    monkeypatch.setattr("support.classification.task.prepare_labelled", None)
    said = refusal(*(images[1] if flag == "IMAGES" else flag for flag in flags))
    assert "are for images, but" in said or "are for texts, but" in said


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A folder with a small BERT that knows the table's words, but has other classes."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = special + sum(WORDS.values(), [])
    tokenizer = Tokenizer(
        models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.add_special_tokens(special)
    config = ClassifierConfig(
        2,
        vocab_size=len(words),
        layers=2,
        d_model=32,
        heads=2,
        d_ff=64,
        bias=True,
        activation="gelu",
        positions="learned",
        norm="post",
        pool="first",
        head="tanh",
        max_length=32,
    )
    initialize(model := Classifier(config), seed=7)
    folder = tmp_path_factory.mktemp("published") / "bert"
    state = {"tokenizer": tokenizer.to_str(), "classes": ["no", "yes"], "transform": None}
    export(folder, model, state | {"config": asdict(config)})
    return str(folder), model


def test_classes_that_only_the_test_part_has_are_named_and_scored(tmp_path, table):
    (tmp_path / "test.csv").write_text(
        "title,text,topic\ndog,dog,animal\nsun,sun,sky\nred,red,colour\nice,ice,sky\n"
    )
    flags = [*SHAPE, *table, "--test", str(tmp_path / "test.csv"), "--name", "sky"]
    assert (
        "warning: 2 of the test set's 4 examples have classes that the training set lacks; "
        "no model can learn these, but they count in all metrics: sky\n"
    ) in train(tmp_path, "cpu", 2, *flags)
    summary = json.loads((tmp_path / "logs/sky/summary.json").read_text())
    assert summary["classes"] == ["animal", "colour", "food", "sky"]
    assert np.sum(summary["confusion"], axis=1).tolist() == [1, 1, 0, 2]
    assert summary["test_accuracy"] == np.trace(summary["confusion"]) / 4 <= 0.5


@pytest.fixture
def first_lines(tmp_path, monkeypatch):
    """first_lines(*flags) returns what a new run says of its data before the first step."""

    def say(*flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["train_cpu.py", *flags])
        return str(prepare_task(parse_arguments("", CpuSettings).complete()))

    return say


def test_few_examples_call_for_published_weights(
    first_lines, monkeypatch, table, images, published
):
    expected = "few texts: pretrained weights would do better, such as a BERT of their language"
    assert expected in first_lines(*table)
    assert "few images: pretrained weights" in first_lines(*images)
    assert "patches an image" not in first_lines(*images)
    monkeypatch.setattr("support.classification.task.MANY_PATCHES", 50)
    small = ["--patch", "1", "--stem-channels", "0"]
    assert "64 patches an image make this slow" in first_lines(*images, *small)
    assert "the valid set has only" in first_lines(*images)
    monkeypatch.setattr("support.corpora.held_out.FEW_VALID", 1)
    assert "the valid set has only" not in first_lines(*images)
    assert "would do better" not in first_lines(
        *table, "--pretrained", published[0], "--max-length", "32"
    )
    monkeypatch.setattr("support.classification.task.FEW_EXAMPLES", 200)
    assert "would do better" not in first_lines(*table)


@pytest.mark.parametrize(
    "labels, warning",
    [
        (("a", "b", "NaN"), "classes named NaN: if that means no label, remove the examples"),
        (("yes", "Yes", "no."), "classes named Yes, yes: each spelling is a class of its own"),
        (("0", "1", "1.0", "01"), "classes named 01, 1, 1.0: each spelling is a class of its"),
        (
            ("pos", "neg", "pos\u200b"),
            "classes named pos, pos\u200b: each spelling is a class of",
        ),
        ([f"{i / 10}" for i in range(30)], "classes named 0.0 to 2.9: each number is a class"),
        ([f"{i / 10}" for i in range(30)], "a class has 2.0 training examples on average: few"),
    ],
)
def test_labels_that_are_perhaps_no_classes_are_warned_of(
    first_lines, tmp_path, labels, warning
):
    rows = [f"text {i},{labels[i % len(labels)]}" for i in range(60)]
    for part in ("train", "valid"):
        write_rows(tmp_path / f"{part}.csv", rows)
    assert f"warning: {warning}" in first_lines("--data", str(tmp_path), "--label", "label")
    plain = [f"text {i},{'ab'[i % 2]}" for i in range(60)]
    for part in ("train", "valid"):
        write_rows(tmp_path / f"{part}.csv", plain)
    lines = first_lines("--data", str(tmp_path), "--label", "label")
    assert "classes named" not in lines and "on average" not in lines


def test_empty_texts_are_counted(first_lines, tmp_path):
    """pandas writes a missing text so: it is trained on and scored, which has to be seen."""
    rows = [f"text {i},{i % 2}" if i % 3 else f",{i % 2}" for i in range(60)]
    for part in ("train", "valid"):
        write_rows(tmp_path / f"{part}.csv", rows)
    lines = first_lines("--data", str(tmp_path), "--label", "label")
    assert "train: 60 texts; 20 empty\n" in lines and "valid: 60 texts; 20 empty\n" in lines
    assert "warning: 40 of the 60 texts of the valid set are in the training set, too" in lines


def test_what_was_read_is_said(first_lines, table, images):
    texts = first_lines(*table, "--windows", "1")
    assert re.search(r"train: 380 texts; [1-9]\d* cut to 6 tokens\n", texts)
    assert re.search(r"valid: 20 texts.*; held out of training\n", texts)
    assert re.search(r"test: 61 texts", texts)
    said = first_lines(*images)
    assert "train: 285 images\n" in said and "valid: 15 images; held out of training\n" in said


def test_a_part_without_an_example_is_refused(tmp_path):
    write_rows(tmp_path / "train.csv", ["same,1", "same,2"] * 30)
    corpus = find_labelled(str(tmp_path / "train.csv"), label="label")
    with pytest.raises(
        UserError, match="valid set has no example: too few differ to hold some"
    ):
        prepare_labelled(corpus, tmp_path / "cache", "", 64, 300)
    write_rows(tmp_path / "valid.csv", [])
    corpus = find_labelled(str(tmp_path), label="label")
    with pytest.raises(UserError, match="the valid set has no example$"):
        prepare_labelled(corpus, tmp_path / "cache", "", 64, 300)


def fine_tune(folder, mode, procs, name, table, init, *flags):
    own = (
        f"--name {name} --pretrained {init} --max-length 8 --dropout 0 --lr 3e-3 "
        f"--precision fp32 --batch-size 24 --warmup 5 --log-every 1"
    )
    return train(folder, mode, procs, *table, *shlex.split(own), *flags)


@pytest.mark.slow
def test_published_weights_are_tuned_alike_and_frozen_ones_stay(tmp_path, table, published):
    init, model = published
    frozen = ["--freeze", "1", "--head-lr", "1e-2", "--steps", "8"]
    said = fine_tune(tmp_path, "cpu", 1, "one", table, init, *frozen)
    assert "new are head.3.bias, head.3.weight" in said and "left out" in said
    one = weights_of(tmp_path / "logs/one")
    before = model.state_dict()
    for mode in ("cpu", "ddp", "fsdp", "tp2"):
        fine_tune(tmp_path, mode, 2, mode, table, init, *frozen)
        two = weights_of(tmp_path / "logs" / mode)
        # A key's bias does not change attention: its gradient is rounding error, which Adam
        # scales up.
        for weights in (one, two):
            bias = weights["encoder.1.attention.key_value.bias"]
            bias.unflatten(0, (2, 2, 16))[:, 0] = 0  # (heads, keys and values, d_head)
        assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4
        for name in one:
            if name.startswith(("encoder.0.", "embedding", "norm")):
                assert torch.equal(two[name], before[name]), name
    name = "encoder.1.feed_forward.0.weight"
    assert (one[name] - before[name]).abs().max() > 1e-3
    fine_tune(
        tmp_path, "fsdp", 2, "ddp", table, init, *frozen[:4], "--steps", "12"
    )  # and it goes on
    assert [int(row["step"]) for row in read_metrics(tmp_path / "logs/ddp")] == list(
        range(1, 13)
    )


@pytest.mark.slow
def test_the_mean_of_all_tokens_in_the_place_of_a_head(tmp_path, table, published):
    """--pool mean: there is no layer with tanh, and the first token counts like any other."""
    said = fine_tune(
        tmp_path, "cpu", 1, "one", table, published[0], "--pool", "mean", "--steps", "1"
    )
    assert (
        "new are head.1.bias, head.1.weight" in said
        and "left out: bert.pooler.dense.bias, bert.pooler.dense.weight, "
        "classifier.bias, classifier.weight\n"
        in said
    )
    saved = torch.load(tmp_path / "logs/one/last.pt", weights_only=True)
    model = Classifier(ClassifierConfig(**saved["task"]["config"])).eval()
    model.load_state_dict(saved["model"])
    x = torch.tensor([[2, 5, 6, 3], [2, 7, 3, 0]])
    y, _ = model.encode(x)
    expected = (
        torch.stack([y[0].mean(0), y[1, :3].mean(0)]) @ model.head[1].weight.T
        + model.head[1].bias
    )
    assert (model(x) - expected).abs().max() < 1e-5
    with pytest.raises(UserError, match="no class of transformers"):
        export(tmp_path / "out", model, saved["task"])


@pytest.mark.slow
def test_the_mean_gets_a_last_layer_of_its_own(tmp_path, images):
    """The published one is for the first token, though its classes are the same."""
    config = ClassifierConfig(
        4,
        patch=4,
        channels=1,
        image_size=8,
        layers=1,
        d_model=16,
        heads=2,
        d_ff=24,
        max_length=1,
        bias=True,
        activation="gelu",
        epsilon=1e-12,
        positions="learned",
        pool="first",
        num_prefix_tokens=1,
    )
    initialize(model := Classifier(config), seed=7)
    saved = {
        "tokenizer": "",
        "classes": ["0", "1", "2", "3"],
        "transform": asdict(ImageTransform(size=8, channels=1)),
        "config": asdict(config),
    }
    export(tmp_path / "vit", model, saved)
    flags = [*images[:6], "--steps", "1", "--lr", "0", "--pretrained", str(tmp_path / "vit")]
    assert "new are no weights" in train(tmp_path, "cpu", 1, "--name", "kept", *flags)
    assert "new are head.1.bias, head.1.weight" in train(
        tmp_path, "cpu", 1, "--name", "mean", "--pool", "mean", *flags
    )
    kept, mean = (weights_of(tmp_path / "logs" / name) for name in ("kept", "mean"))
    assert torch.equal(kept["head.1.weight"], model.state_dict()["head.1.weight"])
    assert not torch.equal(mean["head.1.weight"], kept["head.1.weight"])
    assert torch.equal(
        mean["encoder.0.attention.out.weight"], kept["encoder.0.attention.out.weight"]
    )


def test_texts_have_one_process_and_images_several(images):
    """A step of texts changes few of their embeddings, but an all-reduce would send all."""
    flags = {"data": "kinds", "pretrained": "", "image_size": 0} | dict.fromkeys(
        ("valid", "test", "text", "label"), ""
    )

    def procs(**changes):
        path = base_config(flags | changes)
        return read_config(str(path), CpuSettings).get("procs")

    assert procs() == procs(pretrained="FOLDER") == 1
    assert procs(data=images[1]) is None


@pytest.mark.slow
def test_a_folder_that_names_more_classes_than_it_has_rows_for(tmp_path, table, published):
    """Its last layer is left out, as for other classes, though its names include ours."""
    folder = shutil.copytree(published[0], tmp_path / "bert")
    said = json.loads((folder / "config.json").read_text())
    names = ["no", "yes", "maybe", *WORDS]
    said |= {
        "id2label": dict(enumerate(names)),
        "label2id": {name: i for i, name in enumerate(names)},
    }
    (folder / "config.json").write_text(json.dumps(said))
    said = fine_tune(tmp_path, "cpu", 1, "one", table, str(folder), "--steps", "1")
    assert "new are head.3.bias, head.3.weight" in said
    assert "left out: classifier.bias, classifier.weight\n" in said


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--layers", "3"], "have a shape already"),
        (["--head-lr", "1e-3", "--lr", "0"], "--freeze"),
        (["--max-length", "2"], "from 3 to 32"),
        (["--max-length", "64"], "from 3 to 32"),
        (["--freeze", "3"], "the model has 2 layers"),
        (["--dropout", "1"], "not in [0, 1)"),
    ],
)
def test_what_the_weights_cannot_be_tuned_for(refusal, table, published, flags, expected):
    assert expected in refusal(
        *table, "--pretrained", published[0], "--max-length", "16", *flags
    )


def test_pretrained_weights_run_in_a_plain_model_too(table, published, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = ["train_cpu.py", *table, "--pretrained", str(published[0]), "--plain"]
    monkeypatch.setattr("sys.argv", [*command, "--max-length", "16"])
    task = prepare_task(parse_arguments("", CpuSettings).complete())
    assert task.config.plain
    layer = task.build_model().layers()[0]
    assert layer.attention.attend is scaled_dot_product


@pytest.mark.slow
def test_fsdp_ends_with_the_mean_of_the_last_weights(tmp_path):
    """What evaluation gathered is put back into shards before other weights come."""
    found = {}
    for mode in ("cpu", "fsdp"):
        flags = f"--name {mode} --data kinds --average-checkpoints 3 --steps 12 --eval-every 3"
        train(tmp_path, mode, 2, *SHAPE, *shlex.split(flags))
        found[mode] = json.loads((tmp_path / f"logs/{mode}/summary.json").read_text())
    for figure in ("averaged_checkpoints", "best_step", "confusion"):
        assert found["cpu"][figure] == found["fsdp"][figure]


@pytest.mark.slow
def test_fsdp_has_post_norm_in_bf16(tmp_path):
    """Sinusoids are fp32, and its norms bf16."""
    flags = "--data kinds --steps 4 --norm post --precision bf16"
    train(tmp_path, "fsdp", 2, *SHAPE, *shlex.split(flags))


def test_the_label_is_not_the_text(tmp_path):
    from support.classification.labelled import read_labelled_table

    (tmp_path / "a.csv").write_text("comment,review\nfine,good\n")
    with pytest.raises(
        UserError, match="--text says which it is; its columns: comment, review"
    ):
        list(read_labelled_table(tmp_path / "a.csv", "", "review"))


@pytest.mark.parametrize("corpus", ["table", "images"])
def test_a_corpus_with_a_damaged_file_is_encoded_again(tmp_path, request, corpus):
    flags = request.getfixturevalue(corpus)
    label, text = ("topic", "text") if corpus == "table" else ("", "")
    found = find_labelled(flags[1], text=text, label=label)

    def encode():
        return prepare_labelled(found, tmp_path, "", 64, 300)

    folder = encode()
    whole = content_of(folder)
    for file in damage(folder):
        assert encode() == folder
        assert content_of(folder) == whole, file


@pytest.mark.slow
def test_a_corpus_of_any_size_is_encoded_in_the_same_memory(tmp_path):
    program = """
import sys
from pathlib import Path
from support.classification.encoding import prepare_labelled
from support.classification.labelled import find_labelled
from support.common.hardware import peak_resident
corpus = find_labelled(sys.argv[1], label="label")
prepare_labelled(corpus, Path(sys.argv[2]), "", 64, 500)
print(peak_resident() / 2**20)
"""
    rng = np.random.default_rng(1)
    peaks = []
    for rows in (20_000, 200_000):
        numbers = rng.integers(0, 1000, (rows, 100))  # all together they need more
        lines = [f"{row[0] % 2},{' '.join(map(str, row))}\n" for row in numbers.tolist()]
        (tmp_path / f"{rows}.csv").write_text("".join(["label,text\n", *lines]))
        command = [sys.executable, "-c", program, str(tmp_path / f"{rows}.csv"), str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(float(done.stdout))
    assert peaks[1] < peaks[0] + 60, peaks


def test_no_single_example_decides_what_is_held_out(tmp_path):
    """Not even one whose hash is small, as that of an empty text is."""
    rows = [f"text {i},{i % 2}" for i in range(300)] + [",0", "often,1"] * 60
    parts = held_out_of(tmp_path, rows)
    held_out = [text for text, _ in parts["valid"]()]
    assert len(held_out) == 21
    assert not {"", "often"} & set(held_out)


def test_the_only_empty_text_is_not_the_validation_set(tmp_path):
    """Of few examples a single one is held out, and an empty text has the smallest hash."""
    rows = [f"text {i},{i % 2}" for i in range(30)] + [",0"]
    parts = held_out_of(tmp_path, rows)
    assert [bool(text) for text, _ in parts["valid"]()] == [True]
    assert "" in {text for text, _ in parts["train"]()}


def test_texts_that_differ_in_case_alone_stay_together(tmp_path):
    """The tokenizer that is trained here takes them for one text."""
    rows = [f"{text} day {i},{i % 2}" for i in range(300) for text in ("Good", "GOOD", "good")]
    parts = held_out_of(tmp_path, rows)
    train, valid = ({text.lower() for text, _ in parts[part]()} for part in ("train", "valid"))
    assert valid and not train & valid


def test_of_no_class_all_examples_are_held_out(tmp_path):
    """Some of the 300 that occur once would be, by their hash."""
    rows = [f"{word} {i},often" for i, word in enumerate(["dog"] * 300)] + [
        f"text {i},once {i}" for i in range(300)
    ]
    write_rows(tmp_path / "a.csv", rows)
    corpus = find_labelled(str(tmp_path / "a.csv"), label="label")
    folder = prepare_labelled(corpus, tmp_path, "", 64, 300)
    train, valid = Texts(folder, "train").labels, Texts(folder, "valid").labels
    assert len(set(train)) == 301 and len(train) + len(valid) == 600
    assert set(valid) == {classes_of(corpus).index("often")}


def test_an_evaluation_has_no_dropout_and_training_goes_on_with_it(
    tmp_path, monkeypatch, table, alone
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train_cpu.py", *table, *SHAPE, "--dropout", "0.5"])
    task = prepare_task(parse_arguments("", CpuSettings).complete())
    initialize(model := task.build_model(), seed=1)
    first, second = (task.evaluate(model, "valid", 0, 1) for _ in range(2))
    assert first == second and model.training


@pytest.mark.parametrize("windows", [1, 2])
def test_texts_are_padded_with_the_token_of_the_weights(tmp_path, windows):
    """That of RoBERTa is 1."""
    append_ids(str(tmp_path / "train"), [[5, 6], [7]], np.dtype(np.int32))
    np.zeros(2, np.int32).tofile(tmp_path / "train.labels")
    task = SimpleNamespace(
        args=CpuSettings(windows=windows),
        config=SimpleNamespace(pad=1, max_length=4),
        transform=None,
        folder=tmp_path,
        classes=["a", "b"],
    )
    task.examples_of = partial(Classification.examples_of, task)
    Classification.make_batches(task)
    ids, _, _ = task.batches.collate(np.arange(2), [2], epoch=0)
    assert ids.tolist() == [[5, 6], [7, 1]]


@pytest.mark.parametrize("corpus", ["table", "images"])
def test_a_run_that_goes_on_reads_its_examples_as_before(
    tmp_path, monkeypatch, request, corpus
):
    """As the pretrained weights had it, whose folder is not read again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train_cpu.py", *request.getfixturevalue(corpus)])
    args = parse_arguments("", CpuSettings).complete()
    state = prepare_task(args).state()
    state["config"]["pool"] = "first"
    if corpus == "table":
        state["tokenizer"] = train_words(iter(["dog dog"]), 10)
    else:
        state["transform"] |= {"mean": [0.25], "std": [0.125]}
    args.task_state = state
    assert prepare_task(args).state() == state


def test_flags_of_augmentation_reach_the_batches(tmp_path, monkeypatch, table, images):
    def batches(*flags):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["train_cpu.py", *flags])
        return prepare_task(parse_arguments("", CpuSettings).complete()).batches

    of_images = batches(*images, "--crop", "3", "--flip", "yes")
    assert (of_images.crop, of_images.flip) == (3, True)
    assert not batches(*images, "--flip", "no").flip
    size = ["--windows", "2", "--max-length", "6"]
    of_texts = batches(*table, *size, "--token-dropout", "0.3")
    assert (of_texts.token_dropout, of_texts.examples.window) == (0.3, 6)


def test_all_layers_can_be_frozen(table, published, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = ["train_cpu.py", *table, "--pretrained", published[0], "--max-length", "16"]
    monkeypatch.setattr("sys.argv", [*command, "--freeze", "2"])
    model = prepare_task(parse_arguments("", CpuSettings).complete()).build_model()
    learning = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert {name.split(".")[0] for name in learning} == {"head"}


def test_weights_of_texts_are_not_for_images(refusal, images, published):
    said = refusal(*images[:2], "--pretrained", published[0])
    assert "--pretrained loads a model of texts, but" in said


def test_a_published_last_layer_gets_the_order_of_the_classes(published):
    folder, model = published  # its classes are no, yes
    args = CpuSettings(max_length=16, dropout=0.25, label_smoothing=0.125)
    config, weights, _ = adapt(load_pretrained(folder), args, ["yes", "no"])
    before = model.state_dict()
    assert torch.equal(weights["head.3.weight"], before["head.3.weight"][[1, 0]])
    assert torch.equal(weights["positions"], before["positions"][:16])
    found = (config.max_length, config.dropout, config.head_dropout, config.label_smoothing)
    assert found == (16, 0.25, 0.25, 0.125)


def test_a_rank_without_examples_adds_nothing(tmp_path):
    append_ids(str(tmp_path / "train"), [[5, 6], [7]], np.dtype(np.int32))
    np.zeros(2, np.int32).tofile(tmp_path / "train.labels")
    x, label, weight = Texts(tmp_path, "train").batch(np.arange(0))
    assert (x.tolist(), label.tolist(), weight.tolist()) == ([[5, 6]], [0], [0])


def test_a_batch_of_empty_texts_is_one_token_of_padding_wide(tmp_path):
    append_ids(str(tmp_path / "train"), [[], [7], []], np.dtype(np.int32))
    np.zeros(3, np.int32).tofile(tmp_path / "train.labels")
    x, _, weight = Texts(tmp_path, "train").batch(np.array([0, 2]))
    assert x.tolist() == [[0], [0]] and weight.tolist() == [1, 1]
