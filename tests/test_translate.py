"""translate.py as a user runs it: at a prompt in a real terminal, one sentence, files, scores, odd input."""

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

from conftest import ROOT, run_script


def translate(folder, *flags, **how):
    return run_script("translate.py", *flags, cwd=folder, **how)


def test_one_sentence_beam_and_n_best(trained):
    one = translate(trained, "Ein Hund läuft im Park.")
    assert one.returncode == 0 and one.stdout.count("\n") == 1 and one.stdout.strip(), one.stderr
    best = translate(trained, "Ein Hund läuft im Park.", "--n-best", "3", "--beam", "5").stdout.splitlines()
    scores = [float(line.split("\t")[0]) for line in best]
    assert len(best) == 3 and scores == sorted(scores, reverse=True)


ODD = ["Ein Hund läuft.", "", "   ", "😀🚀", "你好世界", "a\x07b\x1b[31mc", "mit\x00Null", "Wort " * 5000, "<eos> <pad>", "\u2028 eins \x85 zwei", "q"]


def test_odd_lines_come_out_one_for_one(trained):
    done = translate(trained, input=("\n".join(ODD) + "\n").encode())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().split("\n")
    assert len(lines) == len(ODD) + 1 and lines[-1] == ""
    assert lines[1] == lines[2] == ""
    assert re.fullmatch(rb"(warning: [\d,]+ tokens in one line, .*translated in \d+ pieces\n)+", done.stderr)
    assert not any(ord(c) < 32 for c in "".join(lines))


def test_a_file_is_translated_in_order_on_all_cores(trained, pairs):
    sources = [german for german, _ in pairs["train"][:700]]
    whole = translate(trained, "--beam", "1", "--procs", "2", input=("\n".join(sources) + "\n").encode())
    assert whole.returncode == 0, whole.stderr
    lines = whole.stdout.decode().split("\n")[:-1]
    few = translate(trained, "--beam", "1", "--procs", "1", input=("\n".join(sources[300:310])).encode()).stdout.decode().split("\n")[:-1]
    assert len(lines) == 700
    assert sum(a == b for a, b in zip(lines[300:310], few)) >= 8        # rounding may differ with the batch's shape


def test_score_prints_bleu_with_its_signature(trained, small_corpus):
    done = translate(trained, "--score", f"{small_corpus}-test.de", f"{small_corpus}-test.en")
    assert re.match(r"BLEU \d+\.\d\d  nrefs:1\|case:mixed\|.*tok:13a", done.stdout), done.stderr
    done = translate(trained, "--score", f"{small_corpus}-test.de", f"{small_corpus}-valid.en")
    assert done.returncode == 2 and "40 lines" in done.stderr and "60" in done.stderr


def test_in_the_precision_of_the_training_the_translations_are_the_trainings(trained, small_corpus):
    done = translate(trained, "--precision", "fp32", input=Path(f"{small_corpus}-test.de").read_bytes())
    assert done.stdout == (trained / "logs" / "first" / "translations.txt").read_bytes(), done.stderr


def test_several_checkpoints_are_an_ensemble(trained, tmp_path):
    checkpoint = torch.load(trained / "logs" / "first" / "best.pt")
    torch.save(checkpoint | {"model": {name: 0.9 * weight for name, weight in checkpoint["model"].items()}}, tmp_path / "other.pt")
    first, other = ("--checkpoint", "logs/first/best.pt"), ("--checkpoint", str(tmp_path / "other.pt"))
    one, same, two = (translate(trained, "Ein Hund läuft im Park.", "--precision", "fp32", "--n-best", "4", *flags)
                      for flags in (first, first * 2, first + other))
    assert one.stdout == same.stdout and one.returncode == 0, one.stderr
    assert two.stdout.count("\n") == 4 and two.stdout != one.stdout, two.stderr


def test_what_cannot_be_done_is_said_in_one_line(trained, tmp_path):
    (tmp_path / "zero.pt").write_bytes(b"")
    checkpoint = torch.load(trained / "logs" / "first" / "best.pt")
    torch.save(checkpoint | {"bpe": checkpoint["bpe"] + "\n"}, tmp_path / "other.pt")
    for folder, flags, how, expected in [
        (tmp_path, ["Hallo"], {}, "train one, in a few minutes: python train_cpu.py"),
        (trained, ["Hallo", "--checkpoint", "no.pt"], {}, "no.pt"),
        (trained, ["Hallo", "--checkpoint", str(tmp_path / "zero.pt")], {}, "zero.pt: not a whole checkpoint"),
        (trained, ["Hallo", "--checkpoint", "logs/first/best.pt", "--checkpoint", str(tmp_path / "other.pt")], {}, "different ones"),
        (trained, ["Hallo", "--n-best", "5"], {}, "--n-best 5 with --beam 4"),
        (trained, ["Hallo", "--beam", "2000"], {}, "--beam 2000: more than half the vocabulary"),
        (trained, ["--score", os.devnull + ".de", os.devnull], {}, "cannot be read"),
        (trained, [], {"input": b"gut\nsch\xf6n\n"}, "standard input, line 2: not UTF-8"),
    ]:
        done = translate(folder, *flags, **how)
        err = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
        assert done.returncode == 2 and err.startswith("error: ") and err.count("\n") == 1 and expected in err, err


class Terminal:
    """translate.py in a terminal of its own."""

    def __init__(self, folder):
        self.master, slave = pty.openpty()

        def take_the_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)   # whoever runs the tests may ignore it

        self.process = subprocess.Popen([sys.executable, str(ROOT / "translate.py")], cwd=folder, stdin=slave, stdout=slave,
                                        stderr=slave, start_new_session=True, preexec_fn=take_the_terminal,
                                        env=os.environ | {"TERM": "xterm"})
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
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)


def test_a_picture_of_what_each_word_attends_to(trained):
    done = translate(trained, "--attention", "out.png", "Ein Hund läuft im Park.")
    assert done.returncode == 0 and done.stdout.startswith("out.png: "), done.stderr
    assert (trained / "out.png").read_bytes().startswith(b"\x89PNG") and (trained / "out.png").stat().st_size > 5_000
    for wrong in (["--attention", "out.png"], ["--attention", "no/folder/out.png", "Ein Hund."], ["--attention", "out.png", "Hund " * 500]):
        done = translate(trained, *wrong, input="")
        assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
