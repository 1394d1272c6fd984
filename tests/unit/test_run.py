"""Runs that diverge, stop, are killed and resumed: train_cpu.py in the process of the test."""

import contextlib
import copy
import json
import math
import os
import signal
import sys
import threading
import time
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import SMALL, read_metrics

import train_cpu
from support.classification.examples import ExampleBatches
from support.classification.task import Classification
from support.common import checkpoint, run_folder
from support.common.errors import UserError
from support.distributed import launch, weights
from support.distributed.rendezvous import publish, store_on_loopback, wait_for_result
from support.distributed.signals import STOPPING, Signals
from support.studies.runs_table import read_run
from support.training import final
from support.training.command_line import parse_arguments
from support.training.progress import Progress
from support.training.run import Run
from support.training.settings import CpuSettings, FsdpSettings, defaults_of
from support.translation.task import Translation


class Killed(BaseException):
    """In the place of `kill -9`."""


@pytest.fixture
def train_here(tmp_path, monkeypatch):
    """train_here(*flags) trains in logs/r, in this process alone, and returns summary.json.

    stop=N: the run is asked to stop in its Nth step; kill=N: it is killed in that step, before
    what is due at its end. Without --resume a run is a new one. What it learns is so easy that
    each evaluation is better than the one before.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    rows = ["good,1", "bad,0"] * 40
    (tmp_path / "reviews.csv").write_text("\n".join(["text,label", *rows, ""]))
    threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in STOPPING}

    def train(*flags, stop=0, kill=0):
        if "--resume" not in flags:
            corpus = ("--data", "reviews.csv", "--valid", "reviews.csv", "--label", "label")
            size = ("--batch-size", 8, "--hardware-tflops", 1)
            flags = (*corpus, *SMALL, *size, "--name", "r", *flags)
        steps = iter(range(1, 10**6))

        def stop_requested() -> bool:
            Signals.handle(Signals.note)
            step = next(steps)
            if step == kill:
                raise Killed
            return step == stop

        monkeypatch.setattr(train_cpu, "stop_requested", stop_requested)
        monkeypatch.setattr(sys, "argv", ["train_cpu.py", *map(str, flags)])
        args = parse_arguments("", CpuSettings).complete()
        with contextlib.suppress(Killed):
            launch.set_up_and_train(train_cpu.train, 0, 1, store_on_loopback(), args)
        if dist.is_initialized():
            dist.destroy_process_group()
        path = tmp_path / "logs/r/summary.json"
        return json.loads(path.read_text()) if path.is_file() else None

    yield train
    if dist.is_initialized():
        dist.destroy_process_group()
    torch.set_num_threads(threads)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def best_step(run) -> int:
    return checkpoint.load(run / "best.pt")["step"]


def test_a_loss_that_is_not_finite_is_never_the_best(tmp_path, train_here, monkeypatch):
    losses = iter([0.5, math.nan])
    monkeypatch.setattr(
        Classification, "evaluate", lambda *_, **__: {"accuracy": 1.0, "loss": next(losses)}
    )
    said = (
        "The validation loss is not finite, as was noticed at step 4. "
        "The last good checkpoint is logs/r/best.pt."
    )
    with pytest.raises(UserError, match=said):
        train_here("--steps", 4, "--eval-every", 2, "--save-every", 4)
    assert best_step(tmp_path / "logs/r") == 2
    assert not (tmp_path / "logs/r/last.pt").exists()


def test_a_steps_time_leaves_out_evaluations_and_saves(tmp_path, train_here, monkeypatch):
    """By a clock that stands still, except in the calls that `takes` wraps."""
    now = 0.0
    clock = SimpleNamespace(perf_counter=lambda: now)
    for module in ("data", "support.training.run", "support.training.final"):
        monkeypatch.setattr(f"{module}.time", clock)

    def takes(seconds, function):
        def slow(*args, **kwargs):
            nonlocal now
            now += next(seconds)
            return function(*args, **kwargs)

        return slow

    waits = [0.25, 0.5, 1.0, 1.5, 2.0, 2.5]  # for the batches of the steps
    make = takes(iter(waits), ExampleBatches.make_micro_batch)
    monkeypatch.setattr(ExampleBatches, "make_micro_batch", make)
    monkeypatch.setattr(train_cpu, "learning_rate", takes(repeat(1.0), train_cpu.learning_rate))
    monkeypatch.setattr(
        Classification, "evaluate", takes(repeat(100.0), Classification.evaluate)
    )
    monkeypatch.setattr(Run, "save_checkpoint", takes(repeat(1000.0), Run.save_checkpoint))
    train_here("--steps", 6, "--log-every", 1, "--eval-every", 2, "--save-every", 3)
    rows = read_metrics(tmp_path / "logs/r")
    assert [float(row["data_ms"]) for row in rows] == [1000 * wait for wait in waits]
    assert [float(row["step_ms"]) for row in rows] == [1000 * (1 + wait) for wait in waits]
    tokens_before = 0
    for row, wait in zip(rows, waits, strict=True):
        speed = (int(row["tokens"]) - tokens_before) / (1 + wait)
        assert float(row["tokens_per_second"]) == pytest.approx(speed, abs=0.5)
        tokens_before = int(row["tokens"])


def test_progress_counts_rows_and_epochs():
    progress = Progress()
    progress.count_step(examples=4, tokens=30, num_targets=12, seconds=0.5)
    progress.count_step(examples=2, tokens=20, num_targets=8, seconds=0.25)
    progress.add_nll(40.0)
    assert progress.tokens == 50
    assert progress.end_row() == 2.0 and progress.end_row() is None
    progress.evaluated = {"valid_loss": 1.5}
    progress.end_epoch(1, step=2)
    progress.end_epoch(1, step=2)  # as after a resumed run's evaluation
    progress.count_step(examples=4, tokens=30, num_targets=12, seconds=0.5)
    progress.add_nll(6.0)
    assert progress.end_row() == 0.5 and progress.tokens == 80
    progress.end_epoch(2, step=3)
    for record in progress.epochs:
        assert record.pop("memory_mib") > 0
    assert progress.epochs == [
        {
            "epoch": 1,
            "step": 2,
            "train_loss": 2.0,
            "valid_loss": 1.5,
            "examples": 6,
            "tokens": 50,
            "seconds": 0.75,
            "samples_per_second": 8.0,
            "tokens_per_second": 67,
        },
        {
            "epoch": 2,
            "step": 3,
            "train_loss": 0.5,
            "examples": 4,
            "tokens": 30,
            "seconds": 0.5,
            "samples_per_second": 8.0,
            "tokens_per_second": 60,
        },
    ]


@pytest.mark.parametrize("averaged", [1, 5])
@pytest.mark.parametrize(("metrics", "best"), [(("accuracy",), 1), ((), 2)])
def test_the_first_metric_chooses_the_best_weights_or_else_the_loss(
    tmp_path, train_here, monkeypatch, metrics, best, averaged
):
    evaluations = iter(
        {"accuracy": accuracy, "loss": loss} for accuracy, loss in [(0.9, 3.0), (0.8, 1.0)]
    )
    final = {"accuracy": 0.5, "loss": 4.0}  # also of the mean of the weights
    monkeypatch.setattr(Classification, "metrics", metrics)
    monkeypatch.setattr(Classification, "evaluate", lambda *_: next(evaluations, final))
    monkeypatch.setattr(Classification, "final_evaluation", lambda *_: (final, None))
    monkeypatch.setattr(Classification, "report", lambda *_: ({}, ""))
    train_here("--steps", 2, "--eval-every", 1, "--average-checkpoints", averaged)
    assert best_step(tmp_path / "logs/r") == best


def test_of_evaluations_that_differ_by_chance_the_last_is_the_best():
    progress = Progress()
    metrics = [0.90, 0.95, 0.94, 0.93, 0.95, 0.94]
    kept = [progress.note_evaluation(step, [x, -1.0], 0.015) for step, x in enumerate(metrics)]
    assert kept == [True, True, True, False, True, True]
    assert (progress.highest, progress.best) == ([0.95, -1.0], [0.94, -1.0])
    assert progress.since_best == 4  # for --patience


def test_the_standard_error_of_an_accuracy():
    task = SimpleNamespace(examples_of=lambda part: {"valid": range(100)}[part])
    errors = [Classification.standard_error(task, value) for value in (0.0, 0.5, 0.9, 1.0)]
    assert errors == pytest.approx([0.0099, 0.05, 0.0310, 0.0099], abs=1e-4)


def test_nothing_is_translated_where_the_loss_is_not_finite():
    task = SimpleNamespace(  # it cannot translate
        metrics_of_tokens=lambda *_: {"loss": math.nan},
        args=SimpleNamespace(bleu_sentences=2000),
    )
    model = torch.nn.Linear(1, 1)
    assert math.isnan(Translation.evaluate(task, model, "valid", 0, 1)["loss"])
    with pytest.raises(UserError, match="the loss on the test set is not finite"):
        Translation.final_evaluation(task, model, "test", 0, 1)


@pytest.fixture
def write_in_background(monkeypatch):
    """Checkpoints are written as on a GPU: copies of the weights, slowly, in a thread."""

    def copied(function):
        return lambda *args, **kwargs: copy.deepcopy(function(*args, **kwargs))

    def slow_save(*args):
        time.sleep(0.1)
        save(*args)

    save = checkpoint.save
    Writer = checkpoint.Writer
    monkeypatch.setattr(checkpoint, "save", slow_save)
    monkeypatch.setattr(checkpoint, "Writer", lambda in_background: Writer(True))
    for name in ("full_state_dict", "state_dicts"):
        monkeypatch.setattr(weights, name, copied(getattr(weights, name)))


def test_files_are_the_same_in_the_background(tmp_path, train_here, request):
    """Also if the training is faster than the disk."""
    flags = ("--steps", 12, "--eval-every", 2, "--average-checkpoints", 2)
    train_here(*flags)
    before = tmp_path / "before"
    (tmp_path / "logs/r").rename(before)
    request.getfixturevalue("write_in_background")
    train_here(*flags)
    after = tmp_path / "logs/r"
    assert sorted(os.listdir(after)) == sorted(os.listdir(before))
    for path in before.glob("*.pt"):
        files = (checkpoint.load(path), checkpoint.load(after / path.name))
        states = [(file["model"], file.get("optimizer", {}).get("state")) for file in files]
        torch.testing.assert_close(*states, rtol=0, atol=0)
        assert files[0]["step"] == files[1]["step"]


def test_a_run_ends_when_its_files_are_written(tmp_path, train_here, write_in_background):
    train_here("--steps", 20, "--eval-every", 4, stop=6)
    assert checkpoint.load(tmp_path / "logs/r/last.pt")["step"] == 6


def test_a_file_that_cannot_be_written_in_the_background_ends_the_run(
    train_here, write_in_background, monkeypatch
):
    def fail(path, content):
        raise UserError(f"{path}: the checkpoint cannot be written")

    monkeypatch.setattr(checkpoint, "save", fail)
    with pytest.raises(UserError, match="best.pt: the checkpoint cannot be written"):
        train_here("--steps", 20, "--eval-every", 4)


@pytest.mark.parametrize("schedule", ["linear", "noam"])
def test_a_learning_rate_that_jumps_is_said(train_here, capsys, schedule):
    """That of a longer run may rise again, but noam depends on the warm-up alone."""
    train_here("--steps", 10, "--schedule", schedule, "--warmup", 2, "--lr", "1e-3")
    train_here("--resume", "logs/r", "--steps", 20)
    warning = "the schedule is now of 20 steps instead of 10: the learning rate changes from "
    out = capsys.readouterr().out
    assert (f"warning: {warning}1.1e-04 to 5.8e-04" in out) == (schedule == "linear")
    assert (warning in out) == (schedule == "linear")


def test_the_writer_has_one_job_at_a_time():
    """Each keeps a copy of the weights."""
    writer = checkpoint.Writer(in_background=True)
    gate = threading.Event()
    done = []
    writer.write(lambda: done.append(gate.wait(60)))
    writer.check()
    assert done == []
    threading.Timer(0.2, gate.set).start()
    writer.write(lambda: done.append(2))
    assert done[0] is True
    writer.wait()
    assert done == [True, 2]


@pytest.mark.parametrize("step", [2, 6, 8, 10])
def test_a_stopped_run_may_end_where_it_is(train_here, capsys, step):
    """Before and after its first evaluation, in the step of one, and at the end of an epoch."""
    train_here("--steps", 20, "--eval-every", 4, stop=step)
    assert "stopped and saved at step" in capsys.readouterr().out
    summary = train_here("--resume", "logs/r", "--steps", step)
    assert (summary["steps"], summary["best_step"]) == (step, step)
    assert [epoch["step"] for epoch in summary["epochs"]] == [step]
    assert step < 10 or summary["epoch_tokens"] == summary["epochs"][0]["tokens"]
    was_evaluated = step == 8
    out = capsys.readouterr().out
    assert f"at step {step}, its last: nothing is left to train" in out
    assert (f"evaluating the weights of step {step}" in out) == (not was_evaluated)


@pytest.mark.parametrize("log_every", [1, 10])
def test_the_evaluation_at_the_end_of_a_stopped_run_is_in_its_log(
    tmp_path, train_here, log_every
):
    """In a row of its own; with --log-every 10 the run was stopped before it had one."""
    flags = ("--log-every", log_every, "--eval-every", 8)
    train_here("--steps", 20, *flags, stop=6)
    summary = train_here("--resume", "logs/r", "--steps", 6)
    rows = read_metrics(tmp_path / "logs/r")
    assert float(rows[-1]["valid_loss"]) == pytest.approx(summary["valid_loss"], abs=1e-3)
    losses = [float(row["train_loss"]) for row in rows if row["train_loss"]]
    assert len(losses) == (6 if log_every == 1 else 1)
    row, _, _ = read_run(tmp_path / "logs/r", [], defaults_of(FsdpSettings))
    assert row["train_loss"] > 0
    assert row["valid_loss"] == float(rows[-1]["valid_loss"])


def test_rows_of_a_log_with_fewer_columns_are_kept(tmp_path, train_here):
    """The task has another metric since: the earlier rows have an empty cell for it."""
    train_here("--steps", 8, "--eval-every", 4, stop=4)
    path = tmp_path / "logs/r/metrics.csv"
    lines = path.read_text().splitlines()
    path.write_text("".join(line.rpartition(",")[0] + "\n" for line in lines) + "5,1,")
    train_here("--resume", "logs/r")
    rows = read_metrics(tmp_path / "logs/r")
    assert [int(row["step"]) for row in rows] == list(range(1, 9))
    last = lines[0].rpartition(",")[2]
    assert [bool(row[last]) for row in rows] == [False] * 7 + [True]
    assert float(rows[3]["valid_loss"]) > 0


@pytest.mark.parametrize("fast", ["bf16", "fp32"])
def test_emulated_bf16_is_warned_of(train_here, monkeypatch, capsys, fast):
    monkeypatch.setattr("support.training.summary.fast_precision", lambda device: fast)
    train_here("--steps", 1, "--precision", "bf16")
    assert ("warning: bf16 is emulated" in capsys.readouterr().out) == (fast == "fp32")


@pytest.mark.parametrize("steps", [8, 12])
def test_a_run_goes_on_without_its_best_weights(tmp_path, train_here, steps):
    """From last.pt alone; also where the run has ended, at step 8."""
    train_here("--steps", 8, "--eval-every", 4)
    (tmp_path / "logs/r/best.pt").unlink()
    summary = train_here("--resume", "logs/r", "--steps", steps)
    assert summary["best_step"] == best_step(tmp_path / "logs/r") == steps


@pytest.mark.parametrize("steps", [10, 20])
def test_the_best_weights_of_steps_that_were_given_up_are_removed(tmp_path, train_here, steps):
    """Killed in step 19, a run goes on from its checkpoint at step 10."""
    train_here("--steps", 40, "--eval-every", 4, "--save-every", 10, kill=19)
    assert best_step(tmp_path / "logs/r") == 16
    summary = train_here("--resume", "logs/r", "--steps", steps)
    assert summary["best_step"] == best_step(tmp_path / "logs/r") == steps


def pretend_metrics(monkeypatch, metrics: dict, of_mean: dict) -> None:
    """Makes all evaluations return `metrics`, which become `of_mean` with the mean weights."""

    def average_weights(paths):
        metrics.update(of_mean)
        return average(paths)

    average = checkpoint.average_weights
    monkeypatch.setattr(checkpoint, "average_weights", average_weights)
    monkeypatch.setattr(Classification, "evaluate", lambda *_: dict(metrics))
    monkeypatch.setattr(Classification, "final_evaluation", lambda *_: (dict(metrics), None))
    monkeypatch.setattr(Classification, "report", lambda *_: ({}, ""))


@pytest.mark.parametrize(("loss_of_mean", "averaged"), [(0.2, 2), (0.4, 1)])
def test_the_mean_of_the_last_is_kept_where_its_loss_is_lower(
    tmp_path, train_here, monkeypatch, loss_of_mean, averaged
):
    """Its accuracy is lower in both cases: the loss decides."""
    metrics = {"accuracy": 0.9, "loss": 0.3}

    average = checkpoint.average_weights
    pretend_metrics(monkeypatch, metrics, of_mean={"accuracy": 0.8, "loss": loss_of_mean})
    summary = train_here("--steps", 4, "--eval-every", 2, "--average-checkpoints", 2)
    best = checkpoint.load(tmp_path / "logs/r/best.pt")
    assert best["averaged"] == summary["averaged_checkpoints"] == averaged
    paths = sorted((tmp_path / "logs/r").glob("step-*.pt"))[-averaged:]
    torch.testing.assert_close(best["model"], average(paths), rtol=0, atol=0)


def test_a_longer_run_keeps_the_mean_until_an_evaluation_is_as_good(
    tmp_path, train_here, monkeypatch
):
    """The evaluation after the mean is worse than it, and better than those before."""
    metrics = {"accuracy": 0.1, "loss": 0.4}

    pretend_metrics(monkeypatch, metrics, of_mean={"accuracy": 0.9, "loss": 0.1})
    train_here("--steps", 4, "--eval-every", 2, "--average-checkpoints", 2)
    metrics.update(accuracy=0.2, loss=0.3)
    train_here("--resume", "logs/r", "--steps", 6, "--average-checkpoints", 1)
    best = checkpoint.load(tmp_path / "logs/r/best.pt")
    assert (best["step"], best["averaged"]) == (4, 2)


def test_the_best_weights_of_another_run_are_removed(tmp_path, train_here):
    """One of the same name that was killed before it had saved last.pt."""
    train_here("--steps", 40, "--eval-every", 4, "--save-every", 40, kill=9)
    assert best_step(tmp_path / "logs/r") == 8
    train_here("--seed", 2, "--steps", 40, kill=2)
    assert not (tmp_path / "logs/r/best.pt").exists()


def test_a_signal_in_the_last_evaluation_is_heeded(train_here, monkeypatch, capsys):
    """Before the test set is scored, which may take long."""
    monkeypatch.setattr("support.training.run.stop_requested", lambda: True)
    assert train_here("--steps", 4) is None
    assert "stopped and saved at step 4; resume with: " in capsys.readouterr().out


def test_a_signal_while_a_run_is_scored_ends_it(train_here, monkeypatch, capfd):
    """It is complete but for that, and says how to score it."""

    def finish(run, model):
        signal.raise_signal(signal.SIGINT)
        raise AssertionError("it goes on")

    monkeypatch.setattr(final, "score_run", finish)
    monkeypatch.setattr(os, "_exit", sys.exit)
    with pytest.raises(SystemExit) as stop:
        train_here("--steps", 4)
    assert stop.value.code == 130
    assert "stopped and saved at step 4; resume with: " in capfd.readouterr().out


def test_a_profile_that_a_run_is_too_short_for_is_missed(train_here, capsys):
    pytest.importorskip("matplotlib")
    train_here("--steps", 40, "--profile", stop=2)
    said = "--profile: the run ended before step 9, so nothing was recorded"
    assert said in capsys.readouterr().out


def test_all_ranks_hear_of_rank_0s_error_in_the_same_words():
    store = dist.HashStore()
    with pytest.raises(FileNotFoundError), publish(store, "prepared"):
        Path("no-such-file").read_bytes()
    with pytest.raises(UserError, match="^no-such-file: No such file or directory$"):
        wait_for_result(store, "prepared")


@pytest.mark.parametrize("content", ['{"saved": tr', "{}"])
def test_a_folder_with_a_damaged_config_json_is_answered(tmp_path, monkeypatch, content):
    monkeypatch.setattr(run_folder, "LOGS", tmp_path)
    folder = tmp_path / "damaged"
    folder.mkdir()
    (folder / "config.json").write_text(content)
    with pytest.raises(UserError, match="config.json: damaged; choose another --name"):
        run_folder.make_folder(folder, "corpus")


@pytest.mark.parametrize(
    "epoch_steps, flags, evaluated, saved",
    [
        (900, {}, {900, 1800}, {900, 1000, 1800}),
        (900, {"save_every": 700}, {900, 1800}, {700, 1400, 1800}),
        (900, {"eval_every": 800}, {800, 1600, 1800}, {800, 1000, 1600, 1800}),
        (900, {"benchmark": True}, set(), set()),
        # In equal parts of at most 5,000 steps, the last of which ends with the epoch.
        (7001, {"save_every": 7001}, {3501, 7001, 10_502, 14_002}, {7001, 14_002}),
    ],
)
def test_when_a_run_evaluates_and_saves(tmp_path, epoch_steps, flags, evaluated, saved):
    args = CpuSettings(folder=str(tmp_path), epochs=2, **flags)
    run = Run(args, SimpleNamespace(batches=range(epoch_steps)), rank=0, world_size=1)
    steps = range(1, 2 * epoch_steps + 1)
    assert set(filter(run.should_evaluate, steps)) == evaluated
    assert {step for step in steps if run.should_save(step, stopping=False)} == saved
    if not args.benchmark:
        assert evaluated <= set(filter(run.ends_row, steps))


def test_weights_of_steps_that_were_given_up_are_not_averaged(tmp_path, train_here):
    """The run is killed in step 19, when it has those of steps 8, 12 and 16."""
    flags = ("--eval-every", 4, "--save-every", 10, "--average-checkpoints", 3)
    train_here("--steps", 40, *flags, kill=19)
    train_here("--resume", "logs/r", "--steps", 10)
    names = sorted(path.name for path in (tmp_path / "logs/r").glob("step-*.pt"))
    assert names == ["step-0000008.pt", "step-0000010.pt"]


def test_a_run_that_is_made_longer_has_no_summary_until_its_new_end(train_here):
    assert train_here("--steps", 4)
    assert train_here("--resume", "logs/r", "--steps", 8, stop=2) is None


def test_a_longer_run_keeps_a_mean_that_is_better_than_its_own(
    tmp_path, train_here, monkeypatch
):
    """Though its own is better than each of its evaluations."""
    metrics = {"accuracy": 0.1, "loss": 0.4}
    of_mean = {"accuracy": 0.9, "loss": 0.1}
    pretend_metrics(monkeypatch, metrics, of_mean)
    train_here("--steps", 4, "--eval-every", 2, "--average-checkpoints", 2)
    metrics.update(accuracy=0.1, loss=0.4)
    of_mean["loss"] = 0.2
    train_here("--resume", "logs/r", "--steps", 6)
    assert best_step(tmp_path / "logs/r") == 4


def test_a_run_whose_patience_is_over_does_not_go_on(train_here, monkeypatch):
    same = {"accuracy": 0.5, "loss": 1.0}
    monkeypatch.setattr(Classification, "evaluate", lambda *_: same)
    assert train_here("--steps", 8, "--eval-every", 1, "--patience", 2)["steps"] == 3
    assert train_here("--resume", "logs/r")["steps"] == 3


def test_the_time_of_a_resumed_run_counts_on(tmp_path, train_here):
    train_here("--steps", 8, stop=4)
    path = tmp_path / "logs/r/last.pt"
    last = checkpoint.load(path)
    last["progress"]["seconds"] = 1000.0
    checkpoint.save(path, last)
    assert train_here("--resume", "logs/r")["wall_seconds"] >= 1000
    assert float(read_metrics(tmp_path / "logs/r")[4]["seconds"]) >= 1000


def test_a_summary_has_the_memory_of_all_processes_and_the_median_speed(
    tmp_path, train_here, monkeypatch
):
    monkeypatch.setattr(final, "all_gather_objects", lambda mine: [100.4, 250.8])
    summary = train_here("--steps", 3)
    assert summary["peak_memory_mib"] == {"largest_process": 251, "all_processes": 351}
    rows = read_metrics(tmp_path / "logs/r")
    speeds = sorted(float(row["tokens_per_second"]) for row in rows)
    assert summary["median_tokens_per_second"] == speeds[1]
