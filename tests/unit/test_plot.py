"""plot.py: its figures and their numbers, and one line for whatever cannot be drawn."""

import contextlib
import csv
import io
import json
import math
import os
import runpy
import shutil
import statistics
import struct
import subprocess
import warnings
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, make_link, run_script

matplotlib = pytest.importorskip("matplotlib")
import plot
import translate
from support.classification import confusion_plot
from support.classification.confusion_plot import draw_confusion
from support.common.figures import new_figure
from support.studies import runs_table
from support.training.settings import Settings, flags_of
from support.translation import attention_plot

COMMON = (
    "step,epoch,seconds,tokens,train_loss,learning_rate,grad_norm,tokens_per_second,mfu,"
    "valid_loss"
)
HEADER = COMMON + ",valid_bleu"
STUDY = (
    "study,run,mode,processes,batch_tokens,accumulate,lr,delay_ms,test_bleu,samples_per_second,"
    "epoch_seconds,tokens_per_second,train_loss,valid_loss,valid_bleu"
)


def write_run(
    folder,
    mode="cpu",
    processes=1,
    speed=1000.0,
    evaluated=True,
    figures=("bleu",),
    loss=4.0,
    rows=20,
    end="\n",
    **flags,
):
    """A run's folder; `loss` is that of step 10, each metric is 1 more than the last one."""
    folder.mkdir(parents=True)
    flags = {"data": "multi30k", "lr": 0.002, "batch_tokens": 3072, "accumulate": 1} | flags
    config = {"mode": mode, "flags": flags, "world_size": processes, "parameters": 5_481_472}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [",".join([COMMON, *(f"valid_{name}" for name in figures)])]
    for i in range(1, rows + 1):
        valid = [""] * (1 + len(figures))
        if evaluated and i % 5 == 0:
            valid = [loss / i + 0.5, *(2 * i + more for more in range(len(figures)))]
        row = [10 * i, 0, 6 * i, 5000 * i, loss / i, 1e-3, 0.5, speed, 0.5, *valid]
        lines.append(",".join(cell if cell == "" else f"{cell:.6f}" for cell in row))
    (folder / "metrics.csv").write_text("\n".join(lines) + end)
    summary = {f"test_{name}": 39.5 for name in figures if evaluated}
    more = {"steps": 10 * rows, "training_examples": 2500, "epoch_tokens": 25_000}
    more |= {"wall_seconds": 90, "peak_memory_mib": {"largest_process": 300}}
    (folder / "summary.json").write_text(json.dumps(more | summary))
    return folder


def table_of(*folders):
    """The table of the runs in these folders."""
    return [runs_table.read_run(folder, [], plot.DEFAULTS)[0] for folder in folders]


def curves_of(*folders):
    """The curves of the runs in these folders, by their names."""
    curves = {}
    for folder in folders:
        run, curve, _ = runs_table.read_run(folder, [*curves], plot.DEFAULTS)
        curves[run["run"]] = curve
    return curves


def write_study(path, rows):
    """A study's CSV of these rows, dicts; what they leave out is empty."""
    with open(path, "w", newline="") as file:
        table = csv.DictWriter(file, STUDY.split(","), restval="")
        table.writeheader()
        table.writerows(rows)
    return path


def run_plot(*arguments, cwd):
    """Runs plot.py in this process, which has loaded matplotlib; returns as run_script does."""
    out = io.StringIO()
    err = io.StringIO()
    status = 0
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        mock.patch("sys.argv", ["plot.py", *map(str, arguments)]),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error", UserWarning)  # pytest would keep warnings to itself
        try:
            runpy.run_path(str(ROOT / "plot.py"), run_name="__main__")
        except SystemExit as left:
            status = left.code
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())


def draw(*sources, cwd, run=run_plot):
    """Runs plot.py, which must succeed and be silent on stderr.

    Returns the pictures' sizes by name, and its output.
    """
    done = run(*sources, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    pictures = {}
    for line in done.stdout.split("\n\n")[0].splitlines():
        name, said = line.removesuffix(" pixels").rsplit(": ", 1)
        content = (cwd / name).read_bytes()
        assert content[:8] == b"\x89PNG\r\n\x1a\n" and content[-8:-4] == b"IEND"
        assert len(content) > 20_000
        size = struct.unpack(">II", content[16:24])  # of the picture's header
        assert said == f"{size[0]} x {size[1]}"
        pictures[name] = size
    return pictures, done.stdout


def start_plot(*arguments, cwd, **how):
    """Runs plot.py in a process of its own."""
    return run_script("plot.py", *arguments, cwd=cwd, **how)


def refused(*sources, cwd, run=run_plot, **how):
    done = run(*sources, cwd=cwd, **how)
    assert done.returncode == 2 and done.stdout == "", (done.returncode, done.stdout)
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_one_run(tmp_path):
    """The committed run: its picture goes to its own folder, its figures to the terminal."""
    shutil.copytree(ROOT / "logs" / "reference" / "multi30k", tmp_path / "multi30k")
    pictures, output = draw("multi30k", cwd=tmp_path, run=start_plot)
    assert pictures == {"multi30k/curves.png": (2100, 1305)}
    summary = json.loads((tmp_path / "multi30k" / "summary.json").read_text())
    assert output.splitlines()[-1].split() == [
        "multi30k",
        "2",
        "3,072",
        "0.0025",
        "-",
        f"{summary['median_tokens_per_second']:,.0f}",
        f"{summary['valid_bleu']:.1f}",
        f"{summary['test_bleu']:.1f}",
        "-",  # this run has no chrF
    ]


@pytest.mark.slow
def test_thirty_runs(tmp_path):
    """All have their place in the legend, which adds height below the axes of a few."""
    few = [write_run(tmp_path / "few" / f"run-{i}", loss=4 + i / 10) for i in range(4)]
    many = [
        write_run(tmp_path / "many" / f"a-run-with-a-longer-name-{i}", loss=4 + i / 10)
        for i in range(30)
    ]
    size_of_few, _ = draw(*few, cwd=tmp_path)
    size_of_many, output = draw("--out", "pictures", *many, cwd=tmp_path)
    assert size_of_few.keys() == {"logs/curves.png"}
    assert size_of_many.keys() == {"pictures/curves.png"}
    assert size_of_many["pictures/curves.png"][1] >= size_of_few["logs/curves.png"][1] + 300
    assert sum("a-run-with-a-longer-name-" in line for line in output.splitlines()) == 30


def test_without_bleu_there_is_no_panel_for_it(tmp_path):
    with_bleu, _ = draw(write_run(tmp_path / "a"), "--out", "1", cwd=tmp_path)
    without, output = draw(
        write_run(tmp_path / "b", evaluated=False), "--out", "2", cwd=tmp_path
    )
    assert without["2/curves.png"][1] < 0.7 * with_bleu["1/curves.png"][1]
    assert output.splitlines()[-1].split()[-2:] == ["-", "-"]


@pytest.mark.parametrize("decades", [1, 1.9, 3, 9])
def test_the_axis_of_a_loss_has_room_for_its_marks(decades):
    axes = matplotlib.figure.Figure((3.5, 2.1)).subplots()
    axes.plot([1, 2], [5, 5 / 10**decades])
    plot.set_scales(axes, "step", "loss", {"a": {1: 5, 2: 5 / 10**decades}}, "nats")
    low, high = axes.get_ylim()
    assert 3 <= sum(low <= mark <= high for mark in axes.get_yticks()) <= 9


def test_what_runs_differ_in_is_compared(tmp_path):
    runs = [
        write_run(tmp_path / f"{mode}-{n}", mode, n, 1000 * n**0.9)
        for mode in ("cpu", "ddp")
        for n in (1, 2, 4)
    ]
    assert {*draw("--out", ".", *runs, cwd=tmp_path)[0]} == {"curves.png", "scaling.png"}
    runs = [write_run(tmp_path / f"lr-{lr}", lr=lr) for lr in (0.001, 0.002)]
    assert {*draw("--out", ".", *runs, cwd=tmp_path)[0]} == {"curves.png", "learning_rate.png"}
    runs = [write_run(tmp_path / f"batch-{n}", batch_tokens=n) for n in (1024, 2048)]
    assert {*draw("--out", ".", *runs, cwd=tmp_path)[0]} == {"curves.png", "batch_size.png"}
    # Each size has a rate of its own, as in `study.py batch-size`: one figure shows them.
    runs = [write_run(tmp_path / f"both-{n}", batch_tokens=n, lr=n / 1e6) for n in (1024, 2048)]
    assert {*draw("--out", ".", *runs, cwd=tmp_path)[0]} == {"curves.png", "batch_size.png"}


@pytest.mark.parametrize(
    "flags",
    [
        {"data": "y/news"},
        {"tgt": "fr"},
        {"tokenizer": "words"},
        {"dropout": 0.5},
        {"patch": 8},
        {"stem_channels": 32},
        {"crop": 2},
        {"netem": True},
        {"replicas": 2},
    ],
)
def test_runs_that_differ_in_more_are_not_joined(tmp_path, flags):
    runs = table_of(
        write_run(tmp_path / "a", **{"data": "x/news", "lr": 0.001}),
        write_run(tmp_path / "b", **{"data": "x/news", "lr": 0.002} | flags),
    )
    assert runs_table.compare(runs, "lr", "tokens_per_second") == {}


def test_steps_of_examples_and_of_tokens_are_not_compared(tmp_path):
    runs = table_of(
        write_run(tmp_path / "examples", batch_size=64),
        write_run(tmp_path / "tokens", batch_tokens=2048),
    )
    assert runs_table.compare(runs, "batch_tokens", "tokens_per_second") == {}


def test_runs_without_a_setting_form_a_group_of_their_own():
    shared = dict.fromkeys(runs_table.SETTINGS, "") | {"mode": "ddp"}
    runs = [
        shared | {"processes": n, "accumulate": accumulate}
        for n in (1, 2)
        for accumulate in (2, math.nan)
    ]
    groups = runs_table.comparable_groups(runs, "processes", ["processes", "accumulate"])
    assert [*groups] == ["accumulate 2", "train_ddp.py"]


def test_study(tmp_path):
    """A CSV has no curves, but all comparisons; a value that was not measured is left out."""
    common = {
        "mode": "ddp",
        "processes": 2,
        "batch_tokens": 3072,
        "accumulate": 1,
        "lr": 0.002,
        "delay_ms": 0,
        "tokens_per_second": 9000,
        "valid_loss": 1.5,
        "valid_bleu": 40,
    }
    tried = {
        "processes": (1, 2, 4),
        "batch_tokens": (1024, 4096),
        "lr": (1e-3, 2e-3, 4e-3),
        "delay_ms": (0, 10),
    }
    rows = [
        common | {"study": name, "run": f"{name}-{value}", name: value}
        for name, values in tried.items()
        for value in values
    ]
    rows[-3] |= {"valid_loss": "nan", "valid_bleu": ""}
    study = write_study(tmp_path / "study.csv", rows)
    pictures, output = draw(study, "--out", ".", cwd=tmp_path)
    assert {*pictures} == {"scaling.png", "batch_size.png", "learning_rate.png", "delay.png"}
    assert len(output.split("\n\n")[1].splitlines()) == 1 + len(rows)


def test_a_table_that_an_editor_saved_loses_no_row(tmp_path):
    """Its last line has no end; a row that is cut short is refused, not left out."""
    common = {"mode": "ddp", "lr": 1, "batch_tokens": 9}
    rows = [common | {"processes": n, "tokens_per_second": 9000 * n} for n in (1, 2)]
    path = write_study(tmp_path / "study.csv", rows)
    path.write_text(path.read_text().rstrip())
    assert [run["processes"] for run in runs_table.read_study(path)] == [1, 2]
    path.write_text(path.read_text().rsplit(",", 1)[0])
    with pytest.raises(ValueError, match="a row does not have 15 cells"):
        runs_table.read_study(path)


def test_classifiers(tmp_path):
    """A task's own figures are drawn as BLEU is, and go through the study's table."""
    runs = [
        write_run(tmp_path / f"lr-{lr}", lr=lr, figures=("accuracy", "f1"))
        for lr in (0.001, 0.002)
    ]
    row = table_of(runs[0])[0]
    assert (row["valid_accuracy"], row["valid_f1"], row["test_f1"]) == (40, 41, 39.5)
    assert runs_table.curve_lines(curves_of(runs[0]), "step", "valid_f1") == {
        "validation": {50: 11, 100: 21, 150: 31, 200: 41}
    }
    pictures, output = draw("--out", ".", *runs, cwd=tmp_path)
    assert pictures["curves.png"][1] > 4 * 600  # four rows: two losses, two figures
    assert pictures["learning_rate.png"][1] > 2 * 600  # two rows of two
    title, *rows = output.split("\n\n")[-1].splitlines()
    assert title.endswith("best valid accuracy  best valid F1  test accuracy  test F1")
    assert [row.split()[-4:] for row in rows] == 2 * [
        ["40.0000", "41.0000", "39.5000", "39.5000"]
    ]
    head, row, _ = (tmp_path / "runs.csv").read_text().splitlines()
    assert head.endswith(
        ",seed,wall_seconds,peak_memory_mib,test_accuracy,test_f1,samples_per_second,"
        "epoch_seconds,tokens_per_second,train_loss,valid_loss,valid_accuracy,valid_f1"
    )
    assert ",,90,300,39.5,39.5,100,25,1000," in row  # as many examples as 1,000 tokens are
    again, output_again = draw("--out", "again", "runs.csv", cwd=tmp_path)
    assert again == {"again/learning_rate.png": pictures["learning_rate.png"]}
    assert output_again.split("\n\n")[-1] == output.split("\n\n")[-1]


def test_a_table_has_what_a_paper_needs(tmp_path):
    """Seeds, all metrics of the test set, and what the batch sizes count."""
    runs = []
    for seed in (1, 2):
        run = write_run(
            tmp_path / f"seed-{seed}", figures=("accuracy",), seed=seed, batch_size=64
        )
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"test_precision": 40 + seed}))
        runs.append(run)
    table = table_of(*runs)
    assert runs_table.batch_unit(table) == "examples"
    assert runs_table.batch_unit(table_of(write_run(tmp_path / "tokens"))) == "tokens"
    runs_table.write_study(table, tmp_path / "runs.csv")
    rows = runs_table.read_study(tmp_path / "runs.csv")
    assert [(row["seed"], row["test_precision"]) for row in rows] == [(1, 41), (2, 42)]


def test_the_table_shows_delays_and_accumulation_where_they_differ(tmp_path):
    runs = [write_run(tmp_path / f"delay-{ms}", delay_ms=ms) for ms in (0, 20)]
    _, output = draw("--out", ".", *runs, cwd=tmp_path)
    title, *_ = output.split("\n\n")[-1].splitlines()
    assert "delay (ms)" in title and "accumulate" not in title


def test_axes_say_what_they_show():
    axes, curve = matplotlib.figure.Figure((3.5, 2.1)).subplots(2)
    lines = {"a": {32: 0.5, 64: 0.6}}
    plot.set_scales(axes, "batch_tokens", "valid_f1", lines, "nats", "examples")
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "batch size (examples)",
        "best F1 (validation)",
    )
    plot.set_scales(curve, "step", "valid_f1", lines, "nats")
    assert curve.get_ylabel() == "F1 (validation)"


def test_a_run_that_diverged_at_once_is_left_out(tmp_path):
    runs = [write_run(tmp_path / name, lr=lr) for name, lr in (("a", 1e-3), ("b", 1e-2))]
    diverged = write_run(tmp_path / "c", rows=0)
    done = run_plot("--out", ".", *runs, diverged, cwd=tmp_path)
    assert done.returncode == 0 and f"warning: {diverged} is left out" in done.stderr
    both = run_plot("--out", ".", diverged, write_run(tmp_path / "d", rows=0), cwd=tmp_path)
    assert both.returncode == 2 and "error: none of the runs has logged a loss" in both.stderr


def test_a_confusion_matrix_is_drawn_of_one_classifier(tmp_path):
    runs = [write_run(tmp_path / name, figures=("accuracy",)) for name in ("one", "other")]
    for run in runs:
        confuse(run, [[90, 10, 0], [0, 0, 0], [3, 4, 12345]], ["a", "b" * 90, "$c_$"])
    alone, _ = draw(runs[0], cwd=tmp_path)
    assert {*alone} == {f"{runs[0]}/curves.png", f"{runs[0]}/confusion.png"}
    together, _ = draw("--out", "both", *runs, cwd=tmp_path)
    assert {*together} == {"both/curves.png"}


def confuse(run, matrix, classes):
    """Writes the confusion matrix of a run to its summary."""
    summary = json.loads((run / "summary.json").read_text())
    more = {"confusion": matrix, "classes": classes}
    (run / "summary.json").write_text(json.dumps(summary | more))


@pytest.mark.parametrize("draw", ["confusion", "attention"])
def test_there_is_room_for_chinese_labels(tmp_path, monkeypatch, draw):
    """As much as for twice as many Latin characters."""
    sizes = []

    def note_size(path, width, height, **_):
        sizes.append((round(width, 6), round(height, 6)))
        raise StopIteration

    module = {"confusion": confusion_plot, "attention": attention_plot}[draw]
    monkeypatch.setattr(module, "new_figure", note_size)
    for name in ("国际新闻", "national"):
        words = [attention_plot.Word(name, [0]), attention_plot.Word("end", [1])]
        with contextlib.suppress(StopIteration):
            if draw == "confusion":
                draw_confusion(np.eye(2, dtype=int), [name, "b"], tmp_path / "a.png")
            else:
                attention_plot.plot_weights(torch.eye(2), words, words, tmp_path / "a.png")
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize("classes", [2, 20, 300])
def test_all_of_a_confusion_matrix_is_on_the_picture(tmp_path, monkeypatch, classes):
    """No label leaves the figure or meets another; of 20 classes no number leaves its cell."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figures = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure,
        "savefig",
        lambda figure, *path, **how: (figures.append(figure), save(figure, *path, **how)),
    )
    counts = np.full((classes, classes), 1_000) + 100_000 * np.eye(classes, dtype=int)
    names = ["an unusually long name of a class", *(f"class {i}" for i in range(1, classes))]
    draw_confusion(counts, names, tmp_path / "confusion.png")
    [figure] = figures
    axes = figure.axes[0]
    render = FigureCanvasAgg(figure).get_renderer()
    whole = figure.bbox
    for ticks, side in ((axes.get_xticklabels(), 0), (axes.get_yticklabels(), 1)):
        boxes = sorted(
            (tick.get_window_extent(render) for tick in ticks), key=lambda box: box.min[side]
        )
        assert all(
            (box.min >= whole.min - 1).all() and (box.max <= whole.max + 1).all()
            for box in boxes
        )
        assert all(a.max[side] <= b.min[side] + 1 for a, b in zip(boxes, boxes[1:]))
    cell = axes.get_window_extent(render).width / classes
    assert len(axes.texts) == (classes**2 if classes <= 20 else 0)
    assert all(text.get_window_extent(render).width <= cell for text in axes.texts)


def test_runs_are_compared_by_the_figures_that_they_share(tmp_path):
    translator = write_run(tmp_path / "translator")
    classifier = write_run(tmp_path / "classifier", figures=("accuracy", "f1"))
    pictures, output = draw("--out", ".", translator, classifier, cwd=tmp_path)
    assert 2 * 600 < pictures["curves.png"][1] < 3 * 600  # the losses alone
    assert output.splitlines()[-3].split()[-3:] == ["epoch", "(s)", "examples/s"]


def test_lines_of_a_comparison(tmp_path):
    """A line for each mode, speed-up within it, and the median where a run was repeated.

    The ideal line reaches as far as the longest of those that begin with as many processes.
    """
    speeds = {
        ("cpu", 1): [900, 1000, 1100],
        ("cpu", 2): [1800],
        ("ddp", 2): [2000],
        ("ddp", 4): [3000],
        ("fsdp", 1): [1000],
        ("fsdp", 4): [3200],
    }
    runs = table_of(
        *[
            write_run(tmp_path / f"{mode}-{n}-{speed}", mode, n, speed)
            for (mode, n), values in speeds.items()
            for speed in values
        ]
    )
    lines = runs_table.compare(runs, "processes", "tokens_per_second")
    assert lines == {
        "train_cpu.py": {1: 1000, 2: 1800},
        "train_ddp.py": {2: 2000, 4: 3000},
        "train_fsdp.py": {1: 1000, 4: 3200},
    }
    lines = runs_table.compare(runs, "processes", "speed_up")
    assert lines == {
        "train_cpu.py": {1: 1, 2: 1.8},
        "ideal, from 1": {1: 1, 2: 2, 4: 4},
        "train_ddp.py": {2: 1, 4: 1.5},
        "ideal, from 2": {2: 1, 4: 2},
        "train_fsdp.py": {1: 1, 4: 3.2},
    }
    efficiency = runs_table.compare(runs, "processes", "efficiency")
    assert efficiency["train_ddp.py"] == {2: 100, 4: 75}
    assert efficiency["ideal, from 2"] == {2: 100, 4: 100}
    assert runs_table.compare(runs, "lr", "valid_loss") == {}


def test_a_line_joins_runs_alike_in_all_else(tmp_path):
    """One for each --accumulate over delays; where all differ in more, one for the mode."""
    runs = table_of(
        *[
            write_run(
                tmp_path / f"{n}-{ms}", accumulate=n, delay_ms=ms, speed=5000 + 100 * n - ms
            )
            for n in (1, 4)
            for ms in (20, 0)
        ]
    )
    assert runs_table.compare(runs, "delay_ms", "tokens_per_second") == {
        "accumulate 1": {0: 5100, 20: 5080},
        "accumulate 4": {0: 5400, 20: 5380},
    }
    weak = table_of(
        *[write_run(tmp_path / f"weak-{n}", processes=n, batch_tokens=1024 * n) for n in (1, 2)]
    )
    lines = runs_table.compare(weak, "processes", "tokens_per_second")
    assert lines == {"train_cpu.py": {1: 1000, 2: 1000}}
    weak[1]["study"] = "other"
    assert runs_table.compare(weak, "processes", "tokens_per_second") == {}


def test_curves_of_a_run_that_is_going_on(tmp_path):
    """A last row cut anywhere and values that are not finite are left out."""
    folder = write_run(
        tmp_path / "run", end="\n210,0,126.00,105000,0.19,1e-3,0.5,1000,0.5,0.71,4"
    )
    text = (folder / "metrics.csv").read_text()
    for loss, other in ("1.333333", "nan"), ("1.000000", "inf"):  # of steps 30 and 40
        assert text.count(f"000,{loss},0.001") == 1
        text = text.replace(f"000,{loss},0.001", f"000,{other},0.001")
    (folder / "metrics.csv").write_text(text)
    (folder / "summary.json").unlink()
    curves = curves_of(folder)
    lines = runs_table.curve_lines(curves, "step", "loss")
    assert [*lines["training (running mean)"]] == [10, 20, *range(50, 201, 10)]
    assert lines["validation"] == pytest.approx(
        {50: 1.3, 100: 0.9, 150: 4 / 15 + 0.5, 200: 0.7}, abs=1e-6
    )
    assert runs_table.curve_lines(curves, "minutes", "valid_bleu") == {
        "validation": {0.5: 10, 1: 20, 1.5: 30, 2: 40}
    }
    row = table_of(folder)[0]
    assert row["valid_bleu"] == 40 and math.isnan(row["test_bleu"])
    draw(folder, cwd=tmp_path)


def test_the_running_mean_is_over_a_fortieth_of_the_run_to_each_side(tmp_path):
    curve = runs_table.read_curve(write_run(tmp_path / "run", rows=200) / "metrics.csv")
    losses = [round(4.0 / i, 6) for i in range(1, 201)]
    for i, row in enumerate(curve):
        near = min(5, i)
        expected = statistics.mean(losses[i - near : i + near + 1])
        assert row["train_loss"] == pytest.approx(expected, rel=1e-9)


def test_folders_of_the_same_name_have_lines_of_their_own(tmp_path):
    runs = [
        write_run(tmp_path / place / "run", loss=loss) for place, loss in zip("ab", (4.0, 5.0))
    ]
    _, output = draw("a/run", "b/run", cwd=tmp_path)
    assert [line.split()[0] for line in output.splitlines()[-2:]] == ["run", "b/run"]
    lines = runs_table.curve_lines(curves_of(*runs), "step", "train_loss")
    assert [*lines] == ["run", str(runs[1])]


@pytest.mark.parametrize("name", ["_run", "$a_$b", "x" * 200, "a b, c"])
def test_names_that_mean_something_to_matplotlib(tmp_path, name):
    draw(write_run(tmp_path / name), write_run(tmp_path / "other"), cwd=tmp_path)


def test_a_short_run(tmp_path):
    draw(write_run(tmp_path / "run", rows=1, evaluated=False), cwd=tmp_path)


def rename_all(folder):
    for path in list(folder.iterdir()):
        path.rename(folder / f"{path.name}.txt")


# What is done to a run's folder, or what one of its files holds instead.
BROKEN = {
    "missing": shutil.rmtree,
    "empty": lambda folder: (shutil.rmtree(folder), folder.mkdir()),
    "foreign": rename_all,
    "config cut short": ("config.json", '{"flags": {"data": "multi30k", "lr": 0.0'),
    "config of something else": ("config.json", "[1, 2]"),
    "summary of something else": ("summary.json", "[]"),
    "config without flags": ("config.json", '{"flags": 3}'),
    "config in bytes": lambda folder: (folder / "config.json").write_bytes(b"\xff\xfe\x00"),
    "no metrics": lambda folder: (folder / "metrics.csv").unlink(),
    "metrics empty": ("metrics.csv", ""),
    "metrics without rows": ("metrics.csv", HEADER + "\n"),
    "metrics with half a row": ("metrics.csv", HEADER + "\n10,0,6.00,5000,4.0"),
    "metrics of something else": ("metrics.csv", "a,b\n1,2\n"),
    "metrics of words": ("metrics.csv", HEADER + "\n" + "word," * 10 + "word\n"),
    "no finite loss": ("metrics.csv", HEADER + "\n10,0,6.0,5000,nan,1,1,1,1,inf,\n"),
    "summary cut short": ("summary.json", '{"steps": 2'),
}


# As of a run that has diverged at once. Beside others it is left out.
WITHOUT_A_LOSS = ("metrics without rows", "metrics with half a row", "no finite loss")


@pytest.mark.parametrize("how", BROKEN)
def test_folders_that_cannot_be_drawn(tmp_path, how):
    """One line that names the folder; and nothing is drawn of the good run beside it."""
    good, bad = write_run(tmp_path / "good"), write_run(tmp_path / "bad")
    if callable(BROKEN[how]):
        BROKEN[how](bad)
    else:
        name, content = BROKEN[how]
        (bad / name).write_text(content)
    others = () if how in WITHOUT_A_LOSS else (good,)
    assert "bad" in refused(*others, bad, cwd=tmp_path)
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.parametrize(
    "content",
    [
        "",
        STUDY + "\n",
        "a,b\n1,2\n",
        STUDY.replace("mode,", "") + "\n",
        STUDY + "\n" + "x," * 14 + "x\n",
        "\0\0\n",
        STUDY + "\nlr,one,cpu,1,3072,1,0.002,0,,80,30,9000,2,2,30\n",
    ],
)
def test_studies_that_cannot_be_drawn(tmp_path, content):
    """Empty, no rows, something else, a column missing, words, bytes, nothing to compare."""
    (tmp_path / "study.csv").write_text(content)
    assert "study.csv" in refused("study.csv", cwd=tmp_path)
    write_study(tmp_path / "runs.csv", [])
    assert f"the folder of a study: pass its table, {tmp_path / 'runs.csv'}" in refused(
        tmp_path, cwd=tmp_path
    )


def test_bad_use(tmp_path):
    run = write_run(tmp_path / "run")
    assert "--help" in refused(cwd=tmp_path)
    assert "--help" in refused(run, "--no-such-flag", cwd=tmp_path)
    assert "config.json" in refused(run, "--out", run / "config.json", cwd=tmp_path)
    (tmp_path / "without" / "matplotlib").mkdir(parents=True)
    (tmp_path / "without" / "matplotlib" / "__init__.py").write_text("raise ImportError")
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "without")}
    assert "pip install matplotlib" in refused(
        run, cwd=tmp_path, run=start_plot, env=environment
    )


def test_help_fits_a_screen(tmp_path):
    text = run_script("plot.py", "--help", cwd=tmp_path).stdout
    assert len(text.splitlines()) <= 24 and max(map(len, text.splitlines())) <= 90
    figures = ("curves", "scaling", "batch_size", "learning_rate", "delay")
    assert "--out" in text and all(f"{name}.png" in text for name in figures)


def test_runs_that_differ_in_what_is_learnt_are_not_joined():
    """A flag that a resumed run may not change can change what is learnt."""
    counted = {"vocab_size", "layers", "d_model", "d_ff"}  # by the number of parameters
    compared = {"batch_tokens", "batch_size", "lr", "warmup", "seed"}  # by studies
    others = {"bleu_sentences"}
    for name, field in flags_of(Settings).items():
        if not field.metadata["changeable"] and name not in counted | compared | others:
            assert name in runs_table.STUDY_FLAGS, f"see `A flag` in docs/extending.md: {name}"


def test_a_figure_replaces_a_link_that_no_user_has_named(tmp_path):
    """A user may name /dev/stdout; in the folder of a run, a link may come from others."""
    (tmp_path / "precious").write_text("text")
    make_link(tmp_path / "curves.png", tmp_path / "precious")
    make_link(tmp_path / "link", tmp_path / "picture")
    for name, follow_link in (("curves.png", False), ("link", True)):
        with new_figure(tmp_path / name, 1, 1, follow_link):
            pass
    assert (tmp_path / "precious").read_text() == "text"
    assert (tmp_path / "curves.png").is_file() and not (tmp_path / "curves.png").is_symlink()
    assert (tmp_path / "link").is_symlink() and (tmp_path / "picture").is_file()


def test_the_row_of_a_run_has_its_last_training_loss_and_its_best_validation(tmp_path):
    """Of a run that goes on; a finished one has the metrics of the weights that it kept."""
    folder = write_run(tmp_path / "run")
    text = (folder / "metrics.csv").read_text()
    text = text.replace(",1000.000000,0.500000", ",10.000000,0.500000", 3)  # slow at first
    text = text.replace(",0.700000,40.000000", ",0.800000,25.000000")  # worse at the end
    (folder / "metrics.csv").write_text(text)
    names = ("tokens_per_second", "train_loss", "valid_loss", "valid_bleu")
    kept = {"valid_loss": 0.9, "valid_bleu": 20}
    for summary, valid in (({}, (0.766667, 30)), (kept, (0.9, 20))):
        (folder / "summary.json").write_text(json.dumps(summary))
        [row] = table_of(folder)
        expected = (1000, (4 / 19 + 4 / 20) / 2, *valid)
        assert [row[name] for name in names] == pytest.approx(expected, abs=1e-6)


def test_attention_may_go_to_what_a_link_leads_to(tmp_path):
    """As /dev/stdout is one."""
    translate.check_figure("/dev/stdout")
    make_link(tmp_path / "link.png", tmp_path / "picture.png")
    words = [attention_plot.Word("a", [0]), attention_plot.Word("end", [1])]
    attention_plot.plot_weights(torch.eye(2), words, words, tmp_path / "link.png")
    assert (tmp_path / "link.png").is_symlink() and (tmp_path / "picture.png").is_file()


@pytest.mark.parametrize(
    "x, y, scales, from_0",
    [
        ("batch_tokens", "tokens_per_second", ("log", "linear"), True),
        ("processes", "tokens_per_second", ("log", "log"), False),
        ("delay_ms", "epoch_seconds", ("linear", "linear"), True),
        ("lr", "valid_f1", ("log", "linear"), False),
    ],
)
def test_which_axes_are_logarithmic_and_which_begin_at_0(x, y, scales, from_0):
    axes = matplotlib.figure.Figure((3.5, 2.1)).subplots()
    axes.plot([1, 4], [500, 1000])
    plot.set_scales(axes, x, y, {"a": {1: 500, 4: 1000}}, "nats")
    assert (axes.get_xscale(), axes.get_yscale()) == scales
    assert (axes.get_ylim()[0] == 0) == from_0
