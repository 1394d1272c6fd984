"""classify.py as a user runs it: at a prompt, one text or image, files, scores, odd input."""

import csv
import io
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import LINUX, ROOT, run_script, write_runs
from test_translate import ODD, Terminal
from tokenizers import Tokenizer, models, pre_tokenizers

import classify
import translate
from classify import Predictor
from model import initialize
from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.encoding import hold_out_labelled
from support.classification.images import ImageTransform
from support.classification.labelled import find_labelled
from support.classification.metrics import metrics_table
from support.common import checkpoint
from support.common.checkpoint import find_checkpoint
from support.common.errors import UserError
from support.pretrained.load import load_pretrained

# Seven classes, so that not all are shown; each has words of its own.
WORDS = {
    "animal": "dog cat horse",
    "colour": "red green blue",
    "food": "bread apple cheese",
    "number": "one two three",
    "body": "hand foot nose",
    "sky": "sun moon star",
    'the "Geräte"': "hammer saw nail",
}
CLASSES = list(WORDS)
LENGTH = 8  # tokens


def save(folder, model, kind="classification", flags=None, **saved):
    """Writes folder/best.pt as training does."""
    folder.mkdir(parents=True)
    task = {
        "type": kind,
        "config": asdict(model.config),
        "classes": CLASSES,
        "tokenizer": "",
        "transform": None,
        "checksum": "",
    } | saved
    checkpoint.save(
        folder / "best.pt",
        {
            "step": 1,
            "model": model.state_dict(),
            "task": task,
            "flags": {"windows": 1} | (flags or {}),
            "progress": {},
        },
    )


@pytest.fixture(scope="module")
def examples():
    """(text, class): two words of the class, and one of any."""
    random = np.random.default_rng(1)
    words = [word for some in WORDS.values() for word in some.split()]
    return [
        (" ".join([*random.choice(WORDS[name].split(), 2), random.choice(words)]), name)
        for name in map(str, random.choice(CLASSES, 200))
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, examples):
    """A folder with logs/texts, of a model that knows the words, and with its corpus."""
    folder = tmp_path_factory.mktemp("classifier")
    vocabulary = {"<pad>": 0, "?": 1}
    for word in " ".join(WORDS.values()).split():
        vocabulary[word] = len(vocabulary)
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    for part in ("train", "test"):
        write_table(
            folder / f"{part}.csv", examples[:150] if part == "train" else examples[150:]
        )
    config = ClassifierConfig(
        classes=len(CLASSES),
        vocab_size=len(vocabulary),
        layers=1,
        d_model=16,
        heads=2,
        d_ff=16,
        max_length=LENGTH,
    )
    model = Classifier(config)
    initialize(model, 1)
    adam, texts, names = torch.optim.Adam(model.parameters(), lr=1e-2), *zip(*examples)
    ids = torch.tensor([encoded.ids for encoded in tokenizer.encode_batch(texts)])
    labels = torch.tensor([CLASSES.index(name) for name in names])
    for _ in range(60):
        torch.nn.functional.cross_entropy(model(ids), labels).backward()
        adam.step()
        adam.zero_grad()
    save(
        folder / "logs" / "texts",
        model,
        tokenizer=tokenizer.to_str(),
        flags={
            "data": "train.csv",
            "valid": "",
            "test": "test.csv",
            "text": "words",
            "label": "kind",
        },
    )
    return folder


def write_table(path, rows, header=("words", "kind")):
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


@pytest.fixture
def answer(folder, monkeypatch, capsys):
    """answer(*flags, lines=b""): what classify.py prints, run in this process."""
    monkeypatch.chdir(folder)

    def answer(*flags, lines=b"", script=classify):
        monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, flags)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
        threads = torch.get_num_threads()
        try:
            script.main()
        finally:
            torch.set_num_threads(threads)
        return capsys.readouterr()

    return answer


def predictor_of(run):
    return Predictor(*find_checkpoint(run / "best.pt", "classification"), "cpu")


def probabilities(folder, texts):
    return predictor_of(folder / "logs" / "texts")(texts)


# --- Texts ------------------------------------------------------------------------------------


def test_one_text_gets_its_five_likeliest_classes(folder, answer):
    lines = answer("cat dog").out.splitlines()
    rows = [re.fullmatch(r"(.*?) +([\d.]+)%  (=*)", line) for line in lines]
    assert len(rows) == 5 and len({line.index("%") for line in lines}) == 1
    expected, labels = probabilities(folder, ["cat dog"])[0].topk(5)
    assert [row[1].strip() for row in rows] == [CLASSES[label] for label in labels]
    assert [float(row[2]) for row in rows] == pytest.approx(100 * expected, abs=0.051)
    assert rows[0][1].strip() == "animal"
    assert [len(row[3]) for row in rows] == [round(30 * p) for p in expected.tolist()]


def test_a_file_comes_out_one_for_one(folder, answer, examples):
    texts = [text for text, _ in examples] * 12  # more than are read at once
    texts[::7] = ["", " \t "] * (len(texts[::7]) // 2) + [""] * (len(texts[::7]) % 2)
    assert len(texts) > 2 * classify.BLOCK
    done = answer(lines="\n".join(texts).encode())
    assert done.err == ""
    lines = done.out.split("\n")
    assert len(lines) == len(texts) + 1 and lines.pop() == ""
    expected = [found.max(-1) for found in probabilities(folder, texts)]
    for text, line, best in zip(texts, lines, expected):
        if text.strip():
            name, p = line.split("\t")
            assert name == CLASSES[best.indices] and re.fullmatch(r"[01]\.\d{4}", p)
            assert float(p) == pytest.approx(float(best.values), abs=1e-4)
        else:
            assert line == ""
    assert answer().out == ""  # nothing in, nothing out


def test_odd_lines_come_out_one_for_one(folder):
    done = run_script("classify.py", cwd=folder, input=("\n".join(ODD) + "\n").encode())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().split("\n")
    assert lines.pop() == "" and len(lines) == len(ODD)
    assert [not line for line in lines] == [not line.strip() for line in ODD]
    # Its 5,000 words, and perhaps others that fall apart into more than there is room for.
    assert re.fullmatch(
        rb"warning: \d of \d+ texts were cut to the model's maximum of 8 tokens\n", done.stderr
    )


def test_texts_that_are_cut_are_counted(answer):
    long, fits = "cat " * (LENGTH + 1), "cat " * LENGTH
    done = answer(lines=f"{long}\n{fits}\n\n{long * 100_000}\n".encode())
    assert done.err == "warning: 2 of 3 texts were cut to the model's maximum of 8 tokens\n"
    assert len({*done.out.split("\n")[:2]}) == 1 and done.out.count("animal") == 3
    assert answer(fits).err == "" and "1 of 1 texts" in answer(long).err


def test_a_files_name_in_place_of_a_text_is_noted(answer):
    done = answer("train.csv")
    assert done.out.count("%") == 5 and done.err.endswith("lines of the file: < train.csv\n")


def test_what_reads_the_lines_may_leave(folder):
    with subprocess.Popen(
        [sys.executable, str(ROOT / "classify.py")],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        _, err = process.communicate(b"dog\n" * 10_000, 60)
    assert (process.returncode, err) == (0, b"")


# --- Scores -----------------------------------------------------------------------------------


def expected_table(folder, rows):
    confusion = np.zeros((len(CLASSES), len(CLASSES)), int)
    for (_, name), p in zip(rows, probabilities(folder, [text for text, _ in rows])):
        confusion[CLASSES.index(name), p.argmax()] += 1
    assert 0.5 < confusion.trace() / confusion.sum() < 1
    return metrics_table(confusion, CLASSES)


def test_score_prints_the_figures(folder, answer, examples, tmp_path):
    rows = examples[150:]
    rows = [*rows, *(("red green", name) for name in CLASSES)]  # six of them wrong
    (tmp_path / "same.tsv").write_text(
        "".join("\t".join(pair) + "\n" for pair in [("words", "kind"), *rows]),
        encoding="utf-8",
    )
    with open(tmp_path / "other.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"a": text, "b": name}) + "\n" for text, name in rows)
    for number, (text, name) in enumerate(rows):
        inner = tmp_path / "texts" / name
        inner.mkdir(parents=True, exist_ok=True)
        (inner / f"{number}.txt").write_text(text, encoding="utf-8")
    expected = expected_table(folder, rows)
    for flags in (["same.tsv"], ["other.jsonl", "--text", "a", "--label", "b"], ["texts"]):
        out = answer("--score", tmp_path / flags[0], *flags[1:]).out
        assert out.startswith(expected + "\n\n")
        assert re.fullmatch(r"57 texts, \d+\.\d s, [\d,]+ texts/s\n", out[len(expected) + 2 :])


def test_score_takes_a_part_of_what_the_model_was_trained_on(folder, answer, examples):
    rows = examples[150:] + [("red green", "animal")]
    write_table(folder / "test.csv", rows)
    assert answer("--score", "test").out.startswith(expected_table(folder, rows))
    assert answer("--score", "test.csv").out.startswith(expected_table(folder, rows))
    said = answer("--score", "train.csv").out
    assert "texts, including those that the model was trained on, " in said


def test_score_takes_the_examples_that_were_held_out(folder, answer, examples, tmp_path):
    corpus = find_labelled(str(folder / "train.csv"), text="words", label="kind")
    parts = hold_out_labelled(corpus)
    held_out = [*parts["valid"]()]
    count = corpus.class_counts.total()
    assert 0 < len(held_out) < count / 10 and {*held_out} <= {*examples}
    predictor = predictor_of(folder / "logs" / "texts")
    model, saved = predictor.model, predictor.state
    data = str(folder / "train.csv")
    flags = {"data": data, "valid": "", "test": "", "text": "words", "label": "kind"}
    how = {"flags": flags, "tokenizer": saved["tokenizer"]}
    save(tmp_path / "run", model, **how, checksum=corpus.checksum)
    for part, number in (("valid", len(held_out)), ("train", count - len(held_out))):
        said = answer("--checkpoint", tmp_path / "run", "--score", part).out
        assert f"\n{number} texts of the {part} set, " in said
    with pytest.raises(UserError, match="--score test: .* has only the parts train, valid"):
        answer("--checkpoint", tmp_path / "run", "--score", "test")
    save(tmp_path / "older", model, **how, checksum="another")
    # Others are held out of it now.
    with pytest.raises(UserError, match="--score valid: .* has changed since"):
        answer("--checkpoint", tmp_path / "older", "--score", "valid")


def test_a_folder_with_a_test_part_alone_is_scored(answer, tmp_path):
    (tmp_path / "all/test/animal").mkdir(parents=True)
    (tmp_path / "all/test/animal/1.txt").write_text("dog")
    assert "\n1 texts, " in answer("--score", tmp_path / "all").out


def test_of_a_folder_with_parts_the_one_to_test_on_is_scored(answer, tmp_path):
    for part, texts in (
        ("train", ["dog", "cat", "horse"]),
        ("dev", ["dog"]),
        ("test", ["dog", "cat"]),
    ):
        for number, text in enumerate(texts):
            inner = tmp_path / "all" / part / "animal"
            inner.mkdir(parents=True, exist_ok=True)
            (inner / f"{number}.txt").write_text(text)
        if part != "train":
            named = "valid" if part == "dev" else part
            found = answer("--score", tmp_path / "all").out
            assert f"\n{len(texts)} texts of the {named} set, " in found
    # The columns that it was trained on are another table's.
    assert "have classes that the model does not know" in answer("--score", "kinds").err
    with pytest.raises(UserError, match="is not a table"):
        answer("--score", tmp_path / "all", "--label", "kind")


def test_a_class_in_another_spelling_is_pointed_out(answer, tmp_path):
    write_table(tmp_path / "new.csv", [("rain", CLASSES[0].upper())])
    assert (
        f"is {CLASSES[0].upper()!r} the model's {CLASSES[0]!r}?"
        in answer("--score", tmp_path / "new.csv").err
    )


def test_an_image_and_an_empty_text_are_no_texts(answer, folder):
    (folder / "a.jpg").touch()
    for text, message in (("a.jpg", "a.jpg: an image, but"), (" ", "the argument is empty")):
        with pytest.raises(UserError, match=message):
            answer(text)
    with pytest.raises(UserError, match="a.jpg: an image, but"):
        answer(lines=b"a.jpg\n")
    assert answer("I took a.jpg").out
    (folder / "a.jpg").unlink()


def test_a_class_that_the_model_does_not_know_counts_as_wrong(answer, folder, tmp_path):
    rows = [("rain", "weather"), ("dog", "animal"), ("red", "colour"), ("snow", "weather")]
    write_table(tmp_path / "new.csv", rows)
    predictions = probabilities(folder, [text for text, _ in rows]).argmax(-1)
    right = [CLASSES[i] == name for i, (_, name) in zip(predictions.tolist(), rows)]
    printed = answer("--score", tmp_path / "new.csv")
    accuracy = re.search(r"\naccuracy +([\d.]+) +4\n", printed.out)
    assert accuracy and float(accuracy[1]) == sum(right) / 4
    assert re.search(r"\nweather +0.0000 +0.0000 +0.0000 +2\n", printed.out)
    assert printed.err == (
        "warning: 2 of 4 texts have classes that the model does not know, and count as wrong: "
        "weather\n"
    )


def test_what_cannot_be_scored_is_refused(answer, tmp_path):
    write_table(tmp_path / "ids.csv", [("dog", f"id {i}") for i in range(4994)])
    write_table(tmp_path / "empty.csv", [])
    write_table(tmp_path / "columns.csv", [("dog", "animal")], ("a", "b"))
    (tmp_path / "images" / "animal").mkdir(parents=True)
    (tmp_path / "images" / "animal" / "1.png").write_bytes(b"")
    for name, expected in [
        ("ids.csv", "5,001 classes; does --label name the right column?"),
        ("empty.csv", "it has no example"),
        ("columns.csv", "no column 'words'"),
        ("no.csv", "no such file"),
        ("images", "it has images, but logs/texts/best.pt is a model of texts"),
        ("nothing", "no such file or folder"),
    ]:
        with pytest.raises(UserError, match=expected) as problem:
            answer("--score", tmp_path / name)
        assert "\n" not in str(problem.value)


# --- Which model ------------------------------------------------------------------------------


def test_the_newest_classifier_is_taken(folder, tmp_path, monkeypatch, answer):
    content = torch.load(folder / "logs" / "texts" / "best.pt")
    write_runs(
        tmp_path,
        content,
        {"new": "translation", "mid": "classification", "old": "classification"},
    )
    monkeypatch.chdir(tmp_path)
    assert find_checkpoint(None, "classification")[0] == Path("logs/mid/best.pt")
    for path in ("logs/old", "logs/old/best.pt"):
        assert "animal" in answer("--checkpoint", path, "dog").out
    for script, path, other in (
        (classify, "new", "translate.py"),
        (translate, "mid", "classify.py"),
    ):
        with pytest.raises(UserError) as problem:
            answer("--checkpoint", f"logs/{path}", "dog", script=script)
        best = Path("logs", path, "best.pt")
        assert f"; use python {other} --checkpoint {best}" in str(problem.value)


def test_what_cannot_be_done_is_said_in_one_line(folder):
    done = run_script("classify.py", cwd=folder, input=b"gut\nsch\xf6n\n")
    assert done.returncode == 2 and re.fullmatch(
        rb"error: standard input, line 2: not UTF-8.*\n", done.stderr
    ), done.stderr
    assert done.stdout.count(b"\n") == 1  # the line before the bad one has its answer


def test_what_does_not_go_together_is_refused(folder, tmp_path, answer):
    content = torch.load(folder / "logs" / "texts" / "best.pt")
    (tmp_path / "zero.pt").write_bytes(b"")
    config = content["task"]["config"] | {"d_model": 32}
    torch.save(content | {"task": content["task"] | {"config": config}}, tmp_path / "shape.pt")
    for flags, expected in [
        (["dog", "--checkpoint", "no.pt"], "no.pt: no such file"),
        (["dog", "--checkpoint", tmp_path], ": no best.pt, which a run has after its first"),
        (["dog", "--checkpoint", tmp_path / "zero.pt"], "zero.pt: not a whole checkpoint"),
        (
            ["dog", "--checkpoint", tmp_path / "shape.pt"],
            "not a complete checkpoint of a classifier",
        ),
        (["dog", "--score", "test"], "not allowed with argument"),
        (["--export", "out", "--score", "test"], "not allowed with argument"),
        (["--score", ""], "--score and --export need a name"),
        (["--export", ""], "--score and --export need a name"),
        (["dog", "--threads", "-1"], "--threads -1"),
        (["dog", "--label", "kind"], "columns of --score's file"),
        (["dog", "--device", "tpu"], "--help lists the flags"),
        (["dog", "cat"], "pass one text, in quotes"),
    ]:
        with pytest.raises(UserError) as problem:
            answer(*flags)
        assert expected in str(problem.value) and "\n" not in str(problem.value)


def test_export_writes_what_init_reads(folder, tmp_path, answer):
    saved = torch.load(folder / "logs" / "texts" / "best.pt")["task"]
    with pytest.raises(UserError, match="no class of transformers"):
        answer("--export", tmp_path / "no")
    like_bert = {
        "norm": "post",
        "bias": True,
        "activation": "gelu",
        "positions": "learned",
        "pool": "first",
        "head": "tanh",
        "epsilon": 1e-12,
    }
    model = Classifier(ClassifierConfig(**saved["config"] | like_bert))
    initialize(model, 1)
    save(tmp_path / "logs" / "bert", model, tokenizer=saved["tokenizer"])
    answer("--checkpoint", tmp_path / "logs" / "bert", "--export", tmp_path / "folder")
    with pytest.raises(UserError, match="folder: the folder has a model already"):
        answer("--checkpoint", tmp_path / "logs" / "bert", "--export", tmp_path / "folder")
    found = load_pretrained(str(tmp_path / "folder"))
    assert found.labels == CLASSES
    assert {*found.weights} == {*model.state_dict()}
    assert all(
        torch.equal(weight, found.weights[name]) for name, weight in model.state_dict().items()
    )


# --- Images -----------------------------------------------------------------------------------


@pytest.fixture
def images(tmp_path, monkeypatch):
    """The folder of a model of images, and in it a red.png and a broken.png."""
    image = pytest.importorskip("PIL.Image")
    model = Classifier(
        ClassifierConfig(
            classes=7,
            patch=4,
            image_size=8,
            layers=1,
            d_model=16,
            heads=2,
            d_ff=16,
            positions="learned",
            max_length=1,
        )
    )
    initialize(model, 1)
    save(
        tmp_path / "logs" / "images",
        model,
        flags={"data": "shapes"},
        transform=asdict(ImageTransform(size=8)),
    )
    image.new("RGB", (20, 10), (250, 0, 0)).save(tmp_path / "red.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "red.png").read_bytes()[:45])
    red = np.zeros((3, 8, 8), np.uint8)
    red[0] = 250
    [probabilities] = predictor_of(tmp_path / "logs" / "images")([red])
    return tmp_path, CLASSES[probabilities.argmax()], float(probabilities.max())


@pytest.mark.optional
def test_images_are_named_by_their_paths(images, answer, monkeypatch, capsys):
    folder, name, p = images
    monkeypatch.chdir(folder)
    assert answer("red.png").out.split()[:2] == [name, f"{p:.1%}"]
    assert (
        answer(lines=b"red.png\n\n red.png \n").out == f"{name}\t{p:.4f}\n\n{name}\t{p:.4f}\n"
    )
    with pytest.raises(UserError, match="~nobody.png"):
        answer("~nobody.png")
    with pytest.raises(UserError, match="no.png"):
        answer("red.png", "no.png")
    assert capsys.readouterr().out == f"red.png\t{name}\t{p:.4f}\n"
    assert answer("red.png", "'red.png'").out == (
        f"red.png\t{name}\t{p:.4f}\n'red.png'\t{name}\t{p:.4f}\n"
    )
    (folder / "shown" / name).mkdir(parents=True)
    (folder / "red.png").rename(folder / "shown" / name / "1.png")
    out = answer("--score", "shown").out
    table = r"accuracy +1.0000 +1\n\(classes without examples: .; .*\)\n\npredicted as"
    assert re.search(table, out) and "\n\n1 images, " in out
    for path, expected in (
        ("broken.png", "broken.png: not a readable image"),
        ("no.png", "no such file"),
        ("shown", "shown: a folder; pass an image"),
    ):
        for given in ({}, {"lines": f"{path}\n".encode()}):
            with pytest.raises(UserError, match=expected):
                answer(*([] if given else [path]), **given)
    (folder / "red.png").write_bytes((folder / "shown" / name / "1.png").read_bytes())
    done = run_script("classify.py", cwd=folder, input=b"red.png\nno.png\nred.png\n")
    assert (done.returncode, done.stdout) == (2, f"{name}\t{p:.4f}\n".encode())


@LINUX
@pytest.mark.optional
def test_an_image_whose_name_is_not_utf_8(images, answer, monkeypatch, capsys):
    folder, name, p = images
    monkeypatch.chdir(folder)
    Path("red.png").rename("r\udce9d.png")
    assert answer("r\udce9d.png").out.split()[:2] == [name, f"{p:.1%}"]
    lines = iter(["r\udce9d.png", "q"])
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    classify.classify_at_prompt(predictor_of(folder / "logs" / "images"))
    _, chart = capsys.readouterr().out.split("q ends.\n")
    assert chart.split()[:2] == [name, f"{p:.1%}"]


@pytest.mark.optional
def test_a_mistyped_path_does_not_end_the_prompt(images):
    with Terminal(images[0], "classify.py") as terminal:
        assert "Type the path of an image; q ends." in terminal.read_until("> $")
        for path, expected in (
            ("no.png", "error: no.png: no such file"),
            ("red.png", images[1]),
        ):
            terminal.write(f"{path}\n")
            assert expected in terminal.read_until(r"\r\n(.*\r\n)+> $")
        time.sleep(0.5)
        terminal.write("q\n")
        assert terminal.process.wait(30) == 0


# --- In a terminal ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end", ["q\n", *(pytest.param(end, marks=pytest.mark.slow) for end in ("\x04", "\x03"))]
)
def test_the_prompt_answers_until_q_ctrl_d_or_ctrl_c(folder, end):
    with Terminal(folder, "classify.py") as terminal:
        assert "logs/texts/best.pt: 7 classes. Type a text; q ends." in terminal.read_until(
            "> $"
        )
        terminal.write("cat dog\n")
        shown = terminal.read_until(r"\r\n(.*\r\n){5}> $")
        assert re.search(r"\r\nanimal  .*%  =+\r\n", shown)
        terminal.write("\n")
        terminal.read_until("> $")
        # A person takes as long; input() misses a signal between its prompt and the waiting.
        time.sleep(0.5)
        terminal.write(end)
        assert terminal.process.wait(30) == 0
