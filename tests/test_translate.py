"""translate.py as a user runs it: at a prompt, one sentence, files, scores, odd input, engines."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from data import BOS, EOS
from model import ModelConfig, Transformer, initialize
from support.beam import translate_batch
from support.errors import BadInput
from test_beam import make_model
from translate import main

from conftest import ROOT, children_of, run_script, wait_for


def translate(folder, *flags, **how):
    return run_script("translate.py", *flags, cwd=folder, **how)


def test_one_sentence_beam_and_n_best(trained):
    one = translate(trained, "Ein Hund läuft im Park.")
    assert one.returncode == 0 and one.stdout.count("\n") == 1 and one.stdout.strip(), one.stderr
    best = translate(trained, "Ein Hund läuft im Park.", "--n-best", "3", "--beam", "5").stdout.splitlines()
    scores = [float(line.split("\t")[0]) for line in best]
    assert len(best) == 3 and scores == sorted(scores, reverse=True)


ODD = ["Ein Hund läuft.", "", "   ", "😀🚀", "你好世界", "a\x07b\x1b[31mc", "mit\x00Null",
       "Wort " * 5000, "<eos> <pad>", "\u2028 eins \x85 zwei", "q"]


@pytest.mark.parametrize("engine", ["own", "ctranslate2"])
def test_odd_lines_come_out_one_for_one(trained, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    done = translate(trained, "--engine", engine, input=("\n".join(ODD) + "\n").encode())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().split("\n")
    assert len(lines) == len(ODD) + 1 and lines[-1] == ""
    assert lines[1] == lines[2] == ""
    warning = rb"warning: [\d,]+ tokens in one line, .*translated in \d+ pieces\n"
    assert re.fullmatch(b"(" + warning + b")+", done.stderr)
    assert not any(ord(c) < 32 for c in "".join(lines))


def test_a_file_is_translated_in_order_on_all_cores(trained, pairs):
    sources = [german for german, _ in pairs["train"][:700]]
    whole = translate(trained, "--beam", "1", "--procs", "2", input="\n".join(sources))
    assert whole.returncode == 0, whole.stderr
    few = translate(trained, "--beam", "1", "--procs", "1", input="\n".join(sources[300:310]))
    lines = whole.stdout.split("\n")[:-1]
    assert len(lines) == 700
    # Rounding may differ with the batch's shape.
    assert sum(a == b for a, b in zip(lines[300:310], few.stdout.split("\n"))) >= 8


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_of_the_pool_outlives_it(trained, number):
    command = [sys.executable, str(ROOT / "translate.py"), "--procs", "2"]
    with subprocess.Popen(command, cwd=trained, stdin=subprocess.PIPE,
                          stdout=subprocess.DEVNULL) as process:
        process.stdin.write("".join(f"{i} Hunde laufen im Park.\n" for i in range(20_000)).encode())
        process.stdin.flush()                              # as many as it reads at a time
        wait_for(lambda: len(children_of(process.pid)) == 2)
        workers = children_of(process.pid)
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(20) == -number
    wait_for(lambda: not any(alive(worker) for worker in workers), 20)


def alive(pid) -> bool:
    """Whether there is such a process; not if it has ended and nobody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


def test_score_prints_bleu_with_its_signature(trained, small_corpus):
    done = translate(trained, "--score", f"{small_corpus}-test.de", f"{small_corpus}-test.en")
    assert re.match(r"BLEU \d+\.\d\d  nrefs:1\|case:mixed\|.*tok:13a", done.stdout), done.stderr
    done = translate(trained, "--score", f"{small_corpus}-test.de", f"{small_corpus}-valid.en")
    assert done.returncode == 2 and "40 lines" in done.stderr and "60" in done.stderr


def test_the_translations_are_those_of_the_training(trained, small_corpus):
    done = translate(trained, input=Path(f"{small_corpus}-test.de").read_bytes())
    expected = trained / "logs" / "first" / "translations.txt"
    assert done.stdout == expected.read_bytes(), done.stderr


def test_bf16_is_only_less_exact(trained, small_corpus):
    lines = "".join(Path(f"{small_corpus}-test.de").read_text().splitlines(True)[:5])
    one, other = (translate(trained, "--precision", how, "--beam", "2", "--n-best", "2", input=lines)
                  for how in ("fp32", "bf16"))
    scores = [[float(line.split("\t")[0]) for line in done.stdout.splitlines()[::2]]
              for done in (one, other)]
    assert len(scores[0]) == 5 and scores[1] == pytest.approx(scores[0], rel=0.2), other.stderr


def test_several_checkpoints_are_an_ensemble(trained, tmp_path):
    checkpoint = torch.load(trained / "logs" / "first" / "best.pt")
    weights = {name: 0.9 * weight for name, weight in checkpoint["model"].items()}
    torch.save(checkpoint | {"model": weights}, tmp_path / "other.pt")
    first = "--checkpoint", "logs/first/best.pt"
    other = "--checkpoint", str(tmp_path / "other.pt")
    one, same, two = (translate(trained, "Ein Hund läuft im Park.", "--n-best", "4", *flags)
                      for flags in (first, first * 2, first + other))
    assert one.stdout == same.stdout and one.returncode == 0, one.stderr
    assert two.stdout.count("\n") == 4 and two.stdout != one.stdout, two.stderr


def test_what_cannot_be_done_is_said_in_one_line(trained, tmp_path):
    for folder, flags, how, expected in [
        (tmp_path, ["Hallo"], {}, "train one, in a few minutes: python train_cpu.py"),
        (trained, ["Hallo", "--beam", "many"], {}, "--help lists the flags"),
        (trained, [], {"input": b"gut\nsch\xf6n\n"}, "standard input, line 2: not UTF-8"),
    ]:
        done = translate(folder, *flags, **how)
        err = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
        assert done.returncode == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        assert expected in err


def test_what_does_not_go_together_is_refused(trained, tmp_path, monkeypatch):
    """In this process: each of them is a start of Python less."""
    best = "logs/first/best.pt"
    checkpoint = torch.load(trained / best)
    task = checkpoint["task"] | {"bpe": checkpoint["task"]["bpe"] + "\n"}
    torch.save(checkpoint | {"task": task}, tmp_path / "other.pt")
    (tmp_path / "zero.pt").write_bytes(b"")
    monkeypatch.chdir(trained)
    engine = ["Hallo", "--engine", "ctranslate2"]
    for flags, expected in [
        (["Hallo", "--checkpoint", "no.pt"], "no.pt"),
        (["Hallo", "--checkpoint", tmp_path / "zero.pt"], "zero.pt: not a whole checkpoint"),
        (["Hallo", "--checkpoint", best, "--checkpoint", tmp_path / "other.pt"], "different ones"),
        (["Hallo", "--n-best", "5"], "--n-best 5 with --beam 4"),
        (["Hallo", "--beam", "0"], "--n-best 1 with --beam 0"),
        (["Hallo", "--beam", "151"], "--beam 151: more than half the vocabulary, 300"),
        (["Hallo", "--precision", "int8"], "that is what --engine ctranslate2 is for"),
        ([*engine, "--checkpoint", best, "--checkpoint", best], "decodes one --checkpoint"),
        ([*engine, "--attention", "a.png"], "without --attention"),
        ([*engine, "--precision", "bf16"], "in int8"),
        (["--score", os.devnull + ".de", os.devnull], "cannot be read"),
    ]:
        monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, flags)])
        with pytest.raises(BadInput) as problem:
            main()
        assert expected in str(problem.value) and "\n" not in str(problem.value)


def test_the_newest_translator_is_taken_and_other_tasks_are_passed_over(trained, tmp_path):
    checkpoint = torch.load(trained / "logs" / "first" / "best.pt")
    kinds = {"new": "other", "mid": "translation", "old": "translation"}
    for age, (name, kind) in enumerate(kinds.items()):
        path = tmp_path / "logs" / name / "best.pt"
        path.parent.mkdir(parents=True)
        torch.save(checkpoint | {"task": checkpoint["task"] | {"kind": kind}}, path)
        os.utime(path, (1e9 - age, 1e9 - age))
    terminal = Terminal(tmp_path)
    try:
        assert "logs/mid/best.pt: de to en" in terminal.read_until("de> $")
    finally:
        terminal.end()


# --- The other engine -----------------------------------------------------------------------------


def test_the_scores_of_ctranslate2_are_nearly_ours(trained, small_corpus):
    """It decodes in int8, and in fp32 where the CPU has nothing else."""
    pytest.importorskip("ctranslate2")
    lines = Path(f"{small_corpus}-test.de").read_text()
    own, other = (translate(trained, "--engine", engine, "--n-best", "2", input=lines)
                  for engine in ("own", "ctranslate2"))
    assert other.returncode == 0 and not other.stderr
    best, others_best = ([float(line.split("\t")[0]) for line in done.stdout.splitlines()[::2]]
                         for done in (own, other))
    assert len(best) == 40 and others_best == pytest.approx(best, rel=0.1)


@pytest.fixture(scope="module")
def copier():
    """A model that has learned to copy: unlike those that are hardly trained it is sure of itself."""
    model = Transformer(ModelConfig(30, layers=1, d_model=32, heads=2, d_ff=64, dropout=0.0))
    initialize(model, 1)
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for words in (random_words(step, 64, 2 + step % 7) for step in range(350)):
        tgt_in, src = F.pad(words, (1, 0), value=BOS), F.pad(words, (0, 1), value=EOS)
        loss, _ = model(src, tgt_in, src)
        (loss / src.numel()).backward()
        adam.step()
        adam.zero_grad()
    return model.eval()


def random_words(seed, sentences, length):
    return torch.randint(3, 30, (sentences, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("compute_type", ["int8", "float32", "unknown"])
@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_finds_what_beam_search_finds(copier, tmp_path, beam, compute_type):
    pytest.importorskip("ctranslate2")
    from support.ctranslate import Engine

    path = tmp_path / "best.pt"
    path.write_bytes(b"")                                  # only its checksum is asked for
    batches = [[ids for n in lengths for ids in random_words(n, 3, n).tolist()]
               for lengths in ((7, 6), (5,), (3, 2))]
    engine = Engine(path, copier, beam, min(beam, 2), 2, compute_type)
    for batch, found in zip(batches, engine.search(batches), strict=True):
        for ids, ours, theirs in zip(batch, translate_batch(copier, batch, beam), found, strict=True):
            assert theirs[0][1] == ours[0][1] == ids and len(theirs) == min(beam, 2)
            assert theirs[0][0] == pytest.approx(ours[0][0], rel=0.2, abs=0.01)


def test_ctranslate2_takes_models_with_post_norm(tmp_path):
    pytest.importorskip("ctranslate2")
    from support.ctranslate import Engine

    model, path, batch = make_model(norm="post"), tmp_path / "best.pt", [[9, 8, 7, 6, 5], [3, 4, 5]]
    path.write_bytes(b"")
    found = next(Engine(path, model, 1, 1, 1, "float32").search([batch]))
    ours = translate_batch(model, batch, 1)
    assert [one[0][1] for one in found] == [one[0][1] for one in ours]


def test_a_conversion_is_kept_until_the_checkpoint_changes(tmp_path, monkeypatch):
    pytest.importorskip("ctranslate2")
    from support import ctranslate

    path, conversions, convert = tmp_path / "best.pt", [], ctranslate.convert
    monkeypatch.setattr(ctranslate, "convert", lambda model: conversions.append(1) or convert(model))

    def result(model):
        return list(ctranslate.Engine(path, model, 2, 1, 1).search([[[5, 6, 7], [8]]]))

    path.write_bytes(b"one")
    first = result(make_model())
    assert result(make_model()) == first and len(conversions) == 1
    path.write_bytes(b"two")                               # another checkpoint
    assert result(make_model(seed=8)) != first and len(conversions) == 2
    weights = tmp_path / "best.ct2" / "model.bin"
    for spoil in (lambda: weights.write_bytes(weights.read_bytes()[:5000]), weights.unlink):
        spoil()
        result(make_model(seed=8))
    assert len(conversions) == 4
    assert sorted(p.name for p in tmp_path.iterdir()) == ["best.ct2", "best.pt"]


def test_without_its_package_ctranslate2_is_refused(trained, tmp_path):
    (tmp_path / "ctranslate2.py").write_text("raise ImportError('not here')")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = translate(trained, "Hallo", "--engine", "ctranslate2", env=environment)
    assert done.returncode == 2
    assert done.stderr == "error: --engine ctranslate2 needs a package: pip install ctranslate2\n"


# --- In a terminal --------------------------------------------------------------------------------


class Terminal:
    """translate.py in a terminal of its own."""

    def __init__(self, folder):
        self.master, slave = pty.openpty()

        def take_the_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)   # whoever runs the tests may ignore it

        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "translate.py")], cwd=folder, stdin=slave, stdout=slave, stderr=slave,
            start_new_session=True, preexec_fn=take_the_terminal, env=os.environ | {"TERM": "xterm"})
        os.close(slave)

    def read_until(self, pattern, seconds=60):
        seen, end = b"", time.monotonic() + seconds
        while not re.search(pattern, seen.decode(errors="replace")):
            assert time.monotonic() < end, f"no {pattern!r} in {seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 65536)        # a character may come in two parts
        return seen.decode()

    def write(self, text):
        os.write(self.master, text.encode())

    def end(self):
        self.process.kill()
        self.process.wait()
        os.close(self.master)


@pytest.mark.parametrize("end", ["q\n", " q \n", "\x04", "\x03"])
def test_the_prompt_answers_until_q_ctrl_d_or_ctrl_c(trained, end):
    terminal = Terminal(trained)
    try:
        assert "q ends" in terminal.read_until("de> $")
        terminal.write("Ein Hund läuft.\n")
        assert terminal.read_until(r"en> .*\r\n(.*\r\n)*.*de> $")
        terminal.write("\n")
        terminal.read_until("de> $")
        if end == "q\n":
            terminal.write("\x1b[A\x1b[A")                 # the arrow key brings back an earlier line
            assert "läuft" in terminal.read_until("läuft")
            terminal.write("\x15")
        time.sleep(0.5)                                    # a person's: between printing a prompt and waiting for
        terminal.write(end)                                # a key, Python's input() does not notice a signal
        assert terminal.process.wait(30) == 0
    finally:
        terminal.end()


def test_a_picture_of_what_each_word_attends_to(trained):
    done = translate(trained, "--attention", "out.png", "Ein Hund läuft im Park.")
    assert done.returncode == 0 and done.stdout.startswith("out.png: "), done.stderr
    picture = (trained / "out.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
    for wrong in (["out.png"], ["no/folder/out.png", "Ein Hund."], ["out.png", "Hund " * 500]):
        done = translate(trained, "--attention", *wrong, input="")
        assert done.returncode == 2 and done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
