"""translate.py as a user runs it: prompt, one sentence, files, scores, odd input, engines."""

import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from conftest import POSIX, ROOT, children_of, is_alive, run_script, wait_for, write_pairs
from test_beam import make_model  # the latter is a fixture

import translate
from data import BOS, BPE, EOS
from model import ModelConfig, Transformer, initialize
from support.common.errors import UserError
from support.common.errors import run_main as answered
from support.common.prompt import warn_if_path
from support.translation import attention_plot
from support.translation.attention_plot import find_words
from support.translation.beam import translate_batch

SENTENCE = "Ein Hund läuft im Park."


def run(folder, *flags, **how):
    """translate.py in a process of its own."""
    return run_script("translate.py", *flags, cwd=folder, **how)


@pytest.fixture
def answer(trained, monkeypatch, capsys):
    """answer(*flags, lines=""): what translate.py prints, run in this process to save time."""
    monkeypatch.chdir(trained)

    def answer(*flags, lines=""):
        monkeypatch.setattr(sys, "argv", ["translate.py", *map(str, flags)])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines.encode())))
        translate.main()
        return capsys.readouterr().out

    return answer


def scores(text) -> list[float]:
    """Those of the lines that --n-best prints."""
    return [float(line.split("\t")[0]) for line in text.splitlines()]


def test_from_python(trained):
    """As docs/running.md shows it. A process that decodes ends with the translator."""
    words = ["--checkpoint", str(trained / "logs/first"), "--procs", "2"]
    before = children_of(os.getpid())
    translator = translate.Translator(translate.parse_arguments(words))
    sentences = [f"{SENTENCE} {i}" for i in range(200)]  # several batches
    assert len(translator(sentences)) == 200
    with pytest.raises(TypeError, match="a list of lines"):
        translator(SENTENCE)
    processes = set(children_of(os.getpid())) - set(before)
    assert len(processes) >= 2
    del translator
    wait_for(lambda: not any(map(is_alive, processes)))


def test_one_sentence_beam_and_n_best(trained, answer):
    one = run(trained, SENTENCE)
    assert one.returncode == 0 and one.stdout.count("\n") == 1 and one.stdout.strip(), (
        one.stderr
    )
    assert answer("Ein", "--beam", "1", "--", "-Ja") == answer("Ein -Ja", "--beam", "1")
    best = scores(answer(SENTENCE, "--n-best", "3", "--beam", "5"))
    assert len(best) == 3 and best == sorted(best, reverse=True)


def test_a_sentence_needs_no_quotes(trained, answer):
    words = SENTENCE.split()
    assert len(words) > 1 and answer(*words) == answer(SENTENCE)
    assert answer(words[0], "--beam", "2", *words[1:]) == answer(SENTENCE, "--beam", "2")


ODD = [
    "Ein Hund läuft.",
    "",
    "   ",
    "😀🚀",
    "你好世界",
    "a\x07b\x1b[31mc",
    "mit\x00Null",
    "Wort " * 5000,
    "<eos> <pad>",
    "\u2028 eins \x85 zwei",
    "q",
]


@pytest.mark.parametrize(
    "engine", ["own", pytest.param("ctranslate2", marks=pytest.mark.optional)]
)
def test_odd_lines_come_out_one_for_one(trained, engine):
    if engine == "ctranslate2":
        pytest.importorskip("ctranslate2")
    done = run(trained, "--engine", engine, input=("\n".join(ODD) + "\n").encode())
    assert done.returncode == 0, done.stderr
    lines = done.stdout.decode().split("\n")
    assert len(lines) == len(ODD) + 1 and lines[-1] == ""
    assert lines[1] == lines[2] == ""
    warning = rb"warning: [\d,]+ tokens in one line, .*translated in \d+ pieces\n"
    assert re.fullmatch(b"(" + warning + b")+", done.stderr)
    assert not any(ord(c) < 32 for c in "".join(lines))


def test_a_file_is_translated_in_order_on_all_cores(trained, pairs, answer):
    sources = [german for german, _ in pairs["train"][:700]]
    whole = run(trained, "--beam", "1", "--procs", "2", input="\n".join(sources))
    assert whole.returncode == 0, whole.stderr
    lines = whole.stdout.split("\n")[:-1]
    assert len(lines) == 700
    few = answer("--beam", "1", "--procs", "1", lines="\n".join(sources[300:310])).split("\n")
    # The shape of a batch may change how sums are rounded.
    assert sum(a == b for a, b in zip(lines[300:310], few)) >= 8


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("SIGINT", marks=pytest.mark.slow),
        pytest.param("SIGTERM", marks=pytest.mark.slow),
        "SIGKILL",
    ],
)
@POSIX
def test_no_process_of_the_pool_outlives_it(trained, name):
    number = signal.Signals[name]
    lines = "".join(f"{i} Hunde laufen im Park.\n" for i in range(translate.LINES_AT_ONCE))
    with subprocess.Popen(
        [sys.executable, str(ROOT / "translate.py"), "--procs", "2"],
        cwd=trained,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=notice_ctrl_c,
    ) as process:
        process.stdin.write(lines.encode())
        process.stdin.flush()
        wait_for(lambda: len(children_of(process.pid)) == 2)
        workers = children_of(process.pid)
        time.sleep(0.5)
        process.send_signal(number)
        assert process.wait(20) == (130 if number == signal.SIGINT else -number)
    wait_for(lambda: not any(map(is_alive, workers)), 20)


def notice_ctrl_c():
    """Whoever runs the tests may ignore it, and then so do all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_score_prints_bleu_with_its_signature(small_corpus, answer):
    text = answer("--score", f"{small_corpus}-test.de", f"{small_corpus}-test.en")
    bleu = r"BLEU \d+\.\d\d  nrefs:1\|case:mixed\|.*tok:13a.*\n"
    chrf = r"chrF \d+\.\d\d  nrefs:1\|case:mixed\|.*nc:6.*\n"
    assert re.match(bleu + chrf + "40 sentences, beam 4, ", text)
    with pytest.raises(UserError, match="40 lines.*60"):
        answer("--score", f"{small_corpus}-test.de", f"{small_corpus}-valid.en")


def test_score_leaves_out_what_has_no_translation_or_no_reference(tmp_path, answer, pairs):
    rows = pairs["test"][:6]
    write_pairs(tmp_path / "whole", rows)
    write_pairs(tmp_path / "more", [*rows[:3], ("", "empty"), *rows[3:], ("leer", " ")])

    def lines_of(name):
        return answer("--score", tmp_path / f"{name}.de", tmp_path / f"{name}.en").split("\n")

    whole, more = lines_of("whole"), lines_of("more")
    assert more[:2] == whole[:2]
    assert more[3] == "not scored: 2 lines with an empty side"


def test_the_translations_are_those_of_the_training(trained, small_corpus):
    done = run(trained, input=Path(f"{small_corpus}-test.de").read_bytes())
    expected = trained / "logs" / "first" / "translations.txt"
    assert done.stdout == expected.read_bytes(), done.stderr


def test_bf16_is_only_less_exact(small_corpus, answer):
    lines = "".join(Path(f"{small_corpus}-test.de").read_text().splitlines(True)[:5])
    exact, near = (
        scores(answer("--precision", how, "--n-best", "2", lines=lines))[::2]
        for how in ("fp32", "bf16")
    )
    assert len(exact) == 5 and near == pytest.approx(exact, rel=0.2)


def test_each_line_has_its_n_best_also_a_blank_and_a_long_one(answer, capsys):
    lines = answer("--n-best", "2", lines=f"{SENTENCE}\n\n{'Wort ' * 300}\n").splitlines()
    assert len(lines) == 6 and lines[2:4] == ["0.000\t"] * 2 and lines[4] == lines[5]


def test_a_closed_stdin_is_an_empty_one(answer, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    monkeypatch.setattr(sys, "argv", ["translate.py"])
    answered(translate.main)
    assert capsys.readouterr().out == ""


def test_several_checkpoints_are_an_ensemble(trained, tmp_path, answer):
    checkpoint = torch.load(trained / "logs" / "first" / "best.pt")
    weights = {name: 0.9 * weight for name, weight in checkpoint["model"].items()}
    torch.save(checkpoint | {"model": weights}, tmp_path / "other.pt")
    first = "--checkpoint", "logs/first/best.pt"
    other = "--checkpoint", tmp_path / "other.pt"
    one, same, two = (
        answer(SENTENCE, "--n-best", "4", *flags) for flags in (first, first * 2, first + other)
    )
    assert one == same and two.count("\n") == 4 and two != one


def test_what_cannot_be_done_is_said_in_one_line(trained, tmp_path):
    for folder, flags, how, expected in [
        (tmp_path, ["Hallo"], {}, f"train one, in a few minutes: python {ROOT}/train_cpu.py"),
        (trained, [], {"input": b"gut\nsch\xf6n\n"}, "standard input, line 2: not UTF-8"),
    ]:
        done = run(folder, *flags, **how)
        err = done.stderr if isinstance(done.stderr, str) else done.stderr.decode()
        assert done.returncode == 2 and err.startswith("error: ") and err.count("\n") == 1, err
        assert expected in err
        # The line before the bad one has its answer.
        assert done.stdout.count(b"\n") == 1 if how else not done.stdout


def test_what_does_not_go_together_is_refused(trained, tmp_path, answer):
    best = "logs/first/best.pt"
    checkpoint = torch.load(trained / best)
    task = checkpoint["task"] | {"bpe": checkpoint["task"]["bpe"] + "\n"}
    torch.save(checkpoint | {"task": task}, tmp_path / "other.pt")
    turned = checkpoint["task"] | {"src": "en", "tgt": "de"}
    torch.save(checkpoint | {"task": turned}, tmp_path / "turned.pt")
    torch.save(checkpoint | {"model": {}, "sharded": "step-9"}, tmp_path / "last.pt")
    (tmp_path / "zero.pt").write_bytes(b"")
    engine = ["Hallo", "--engine", "ctranslate2"]
    for flags, expected in [
        (["Hallo", "--beam", "many"], "--help lists the flags"),
        (["Hallo", "--checkpoint", "no.pt"], "no.pt"),
        (["Hallo", "--checkpoint", "logs"], "logs: no best.pt, which a run has after"),
        (["Hallo", "--checkpoint", tmp_path / "zero.pt"], "zero.pt: not a whole checkpoint"),
        (
            ["Hallo", "--checkpoint", best, "--checkpoint", tmp_path / "other.pt"],
            "different ones",
        ),
        (
            ["Hallo", "--checkpoint", best, "--checkpoint", tmp_path / "turned.pt"],
            "one vocabulary, direction",
        ),
        (["Hallo", "--checkpoint", tmp_path / "last.pt"], "its weights are sharded"),
        (["Hallo", "--n-best", "5"], "--n-best 5 with --beam 4"),
        (["--score", "a.de", "a.en", "--n-best", "2"], "leave out --n-best"),
        (["Hallo", "--attention", "a.png", "--n-best", "2"], "best translation of one model"),
        (["Hallo", "--procs", "-1"], "--procs -1: it must be at least 0"),
        (["Hallo", "--beam", "0"], "--beam 0: it must be at least 1"),
        (["Hallo", "--beam", "300"], "--beam 300: more than half the vocabulary, 300"),
        (["Hallo", "--precision", "int8"], "invalid choice: 'int8'"),
        (
            [*engine, "--checkpoint", best, "--checkpoint", best],
            "decodes with one --checkpoint",
        ),
        ([*engine, "--attention", "a.png"], "leave out --attention"),
        (
            ["Hallo", "--attention", "a.png", "--checkpoint", best, "--checkpoint", best],
            "best translation of one model",
        ),
        ([*engine, "--precision", "bf16"], "in int8"),
        (["Hallo", "--score", "a.de", "a.en"], "leave out the sentence"),
        (["--score", os.devnull + ".de", os.devnull], "cannot be read"),
    ]:
        with pytest.raises(UserError) as problem:
            answer(*flags)
        assert expected in str(problem.value) and "\n" not in str(problem.value)


def test_the_name_of_a_file_is_no_sentence(tmp_path, capsys):
    path = tmp_path / "in.de"
    path.write_text("Ja.\n")
    warn_if_path(str(path))
    expected = f"the name {path} is taken for a text; for the lines of the file: < {path}\n"
    assert capsys.readouterr().err == f"warning: {expected}"
    for text in ("Ja.", "Hund " * 300, "a\0b"):  # the second is too long for a name
        warn_if_path(text)
    assert capsys.readouterr().err == ""


def test_all_white_space_is_a_space(trained, answer):
    words = SENTENCE.split()
    expected = answer(" ".join(words))
    for space in ("\t", "\n", "\u00a0", "  "):
        assert answer(space.join(words)) == expected
    assert answer(lines=f"{SENTENCE}\r{SENTENCE}\r") == 2 * expected  # the Macintosh's
    lines = f"\ufeff{SENTENCE}\n\ufeff{SENTENCE}\n"  # two files, each with a byte order mark
    assert answer(lines=lines) == 2 * expected


def test_a_picture_of_what_each_word_attends_to(trained, answer):
    assert answer("--attention", "out.png", SENTENCE).startswith("out.png: ")
    picture = (trained / "out.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
    answer("--attention", "out.pdf", SENTENCE)
    assert (trained / "out.pdf").read_bytes().startswith(b"%PDF")
    wrong_flags = (["out.png"], ["out.png", "Hund " * 500], ["out.png", " "], ["", "Ja."])
    for wrong in (*wrong_flags, ["in.de", "Ja."]):  # the last one may be a text
        with pytest.raises(UserError, match="--attention"):
            answer("--attention", *wrong)


def test_words_of_scripts_without_spaces():
    """A whole sentence would be a single column of the picture."""
    text = "Rex mag 我喜欢狗。"
    bpe = BPE.train(["Rex mag Bäume"], 300)  # a Chinese character is three tokens
    ids = [*bpe.encode([text])[0], EOS]
    words = find_words(bpe, ids)
    assert len(words) > 5 and words[-1].text == "end"
    assert "".join(word.text for word in words[:-1]).replace(" ", "") == text.replace(" ", "")
    assert [position for word in words for position in word.positions] == [*range(len(ids))]
    german = find_words(bpe, bpe.encode(["Rex mag Bäume"])[0])
    assert [word.text.strip() for word in german] == ["Rex", "mag", "Bäume"]


# --- The other engine -------------------------------------------------------------------------


@pytest.mark.optional
def test_the_scores_of_ctranslate2_are_nearly_ours(small_corpus, answer):
    pytest.importorskip("ctranslate2")
    lines = Path(f"{small_corpus}-test.de").read_text()
    own, other = (
        scores(answer("--engine", engine, "--n-best", "2", lines=lines))[::2]
        for engine in ("own", "ctranslate2")
    )
    # The scores are rounded to three digits.
    assert len(own) == 40 and other == pytest.approx(own, rel=0.1, abs=0.0025)


@pytest.fixture(scope="module")
def copier():
    """A model that has learned to copy, and unlike the others here is sure of its output."""
    pytest.importorskip("ctranslate2")
    model = Transformer(ModelConfig(30, layers=1, d_model=32, heads=2, d_ff=64, dropout=0.0))
    initialize(model, 1)
    adam = torch.optim.Adam(model.parameters(), lr=5e-3)
    for words in (random_words(step, 64, 2 + step % 7) for step in range(350)):
        tgt_in, src = F.pad(words, (1, 0), value=BOS), F.pad(words, (0, 1), value=EOS)
        token_indices = torch.arange(src.numel())  # no padding
        loss, _ = model(src, tgt_in, src, token_indices)
        (loss / src.numel()).backward()
        adam.step()
        adam.zero_grad()
    return model.eval()


def random_words(seed, sentences, length):
    return torch.randint(
        3, 30, (sentences, length), generator=torch.Generator().manual_seed(seed)
    )


@pytest.mark.optional
@pytest.mark.parametrize("compute_type", ["int8", "float32", "unknown"])
@pytest.mark.parametrize("beam", [1, 4])
def test_ctranslate2_finds_what_beam_search_finds(copier, beam, compute_type):
    from support.ctranslate.engine import Engine

    batches = [
        [ids for n in lengths for ids in random_words(n, 3, n).tolist()]
        for lengths in ((7, 6), (5,), (3, 2))
    ]
    engine = Engine(copier, beam, min(beam, 2), 2, compute_type)
    for batch, found in zip(batches, engine.search(batches), strict=True):
        expected = translate_batch([copier], batch, beam)
        for ids, ours, theirs in zip(batch, expected, found, strict=True):
            assert theirs[0][1] == ours[0][1] == ids and len(theirs) == min(beam, 2)
            # Eight bits are coarse, on a CPU without instructions for them coarser still.
            near = 0.05 if compute_type == "int8" else 0.001
            assert theirs[0][0] == pytest.approx(ours[0][0], rel=0.2, abs=near)


@pytest.mark.optional
def test_ctranslate2_takes_models_with_post_norm():
    pytest.importorskip("ctranslate2")
    from support.ctranslate.engine import Engine

    model = make_model(norm="post")
    batch = [[9, 8, 7, 6, 5], [3, 4, 5]]
    found = next(Engine(model, 1, 1, 1, "float32").search([batch]))
    ours = translate_batch([model], batch, 1)
    assert [one[0][1] for one in found] == [one[0][1] for one in ours]


@pytest.mark.optional
def test_a_plain_model_may_have_been_changed_so_ctranslate2_refuses_it():
    pytest.importorskip("ctranslate2")
    from support.ctranslate.engine import Engine

    with pytest.raises(UserError, match="trained with --plain"):
        Engine(make_model(plain=True), 1, 1, 1, "float32")


def test_without_its_package_ctranslate2_is_refused(answer, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    monkeypatch.delitem(sys.modules, "support.ctranslate.engine", raising=False)
    with pytest.raises(UserError, match="needs a package: pip install ctranslate2"):
        answer("Hallo", "--engine", "ctranslate2")


# --- In a terminal ----------------------------------------------------------------------------


class Terminal:
    """A script in a terminal of its own."""

    def __init__(self, folder, script="translate.py"):
        fcntl = pytest.importorskip("fcntl", reason="Windows has no pseudo-terminals")
        import pty
        import termios

        self.master, slave = pty.openpty()

        def take_the_terminal():
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            notice_ctrl_c()

        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / script)],
            cwd=folder,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=take_the_terminal,
            env=os.environ | {"TERM": "xterm"},
        )
        os.close(slave)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.master)

    def read_until(self, pattern, seconds=60):
        seen = b""
        end = time.monotonic() + seconds
        while not re.search(pattern, seen.decode(errors="replace")):
            assert time.monotonic() < end, f"no {pattern!r} in {seen!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                seen += os.read(self.master, 65536)  # a character may come in two parts
        return seen.decode()

    def write(self, text):
        os.write(self.master, text.encode())


@pytest.mark.parametrize(
    "end",
    ["q\n", *(pytest.param(end, marks=pytest.mark.slow) for end in (" q \n", "\x04", "\x03"))],
)
def test_the_prompt_answers_until_q_ctrl_d_or_ctrl_c(trained, end):
    with Terminal(trained) as terminal:
        assert "logs/first/best.pt: de to en. Type" in terminal.read_until("de> $")
        terminal.write("Ein Hund läuft.\n")
        assert terminal.read_until(r"en> .*\r\n(.*\r\n)*.*de> $")
        terminal.write("\n")
        terminal.read_until("de> $")
        if end == "q\n":
            terminal.write("\x1b[A\x1b[A")  # the arrow key: an earlier line
            assert "läuft" in terminal.read_until("läuft")
            terminal.write("\x15")
        # As a person would; input() misses a signal between its prompt and its wait for input.
        time.sleep(0.5)
        terminal.write(end)
        assert terminal.process.wait(30) == 0


def test_attention_is_the_mean_over_a_words_tokens_and_their_sum_over_a_sources(monkeypatch):
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.25, 0.75], [0.125, 0.125, 0.75]])
    asked = []
    plotted = []

    def align(model, src, tgt_in):
        asked.append((src.tolist(), tgt_in.tolist()))
        return weights[None]

    words = [attention_plot.Word("a", [0, 1]), attention_plot.Word("end", [2])]
    monkeypatch.setattr(attention_plot, "alignment", align)
    monkeypatch.setattr(attention_plot, "beam_search", lambda *_: [[(0.0, [7, 8])]])
    monkeypatch.setattr(attention_plot, "find_words", lambda bpe, ids: words)
    monkeypatch.setattr(attention_plot, "plot_weights", lambda *how: plotted.append(how[0]))
    model = torch.nn.Linear(1, 1)
    model.config = ModelConfig(10)
    bpe = SimpleNamespace(encode=lambda _: [[5, 6]], decode=lambda _: "Ja.")
    assert attention_plot.draw_attention(model, bpe, "Yes.", 4, "a.png") == "Ja."
    assert asked == [([[5, 6, EOS]], [[BOS, 7, 8]])]
    assert plotted[0].tolist() == [[0.5, 0.5], [0.25, 0.75]]
