"""train_cpu.py as a user runs it: resuming, stopping, bad flags, and what a run leaves."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from conftest import (
    POSIX,
    ROOT,
    SMALL,
    children_of,
    is_alive,
    mathematics,
    read_metrics,
    run_script,
    wait_for,
)

from support.common import hardware
from support.common.errors import UserError
from support.common.run_folder import lock_folder
from support.training import command_line, throughput
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings
from support.training.tasks import prepare_task


@pytest.mark.slow
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(tmp_path, train):
    """With dropout; ended twice by --steps, and gone on with by --resume and by --name."""
    how = shlex.split(
        "--procs 2 --dropout 0.2 --log-every 3 --eval-every 6 --average-checkpoints 3"
    )
    assert train(tmp_path, "--name", "whole", *how, "--epochs", "2").returncode == 0
    whole = read_metrics(tmp_path / "logs" / "whole")
    steps = int(whole[-1]["step"])
    first, second = steps // 12 * 6, steps // 12 * 6 + 6  # an epoch ends between these
    assert first < steps / 2 < second or steps % 12 == 0
    assert train(tmp_path, "--name", "parts", *how, "--steps", first).returncode == 0
    done = train(tmp_path, "--name", "parts", *how, "--steps", second)
    assert done.returncode == 0, done.stderr
    done = train(tmp_path, "--resume", "logs/parts", "--steps", "0", "--epochs", "2")
    assert done.returncode == 0, done.stderr
    assert mathematics(read_metrics(tmp_path / "logs" / "parts")) == mathematics(whole)
    summaries = [
        json.loads((tmp_path / "logs" / name / "summary.json").read_text())
        for name in ("whole", "parts")
    ]
    same = ("best_step", "averaged_checkpoints", "valid_bleu", "test_bleu")
    assert len({tuple(summary[name] for name in same) for summary in summaries}) == 1
    a, b = (torch.load(tmp_path / "logs" / name / "last.pt") for name in ("whole", "parts"))
    assert all(torch.equal(a["model"][name], b["model"][name]) for name in a["model"])
    states = [checkpoint["optimizer"]["state"] for checkpoint in (a, b)]
    assert all(
        torch.equal(states[0][name]["exp_avg"], states[1][name]["exp_avg"])
        for name in states[0]
    )


@pytest.mark.slow
def test_what_reads_the_output_may_leave(tmp_path, corpus_flags):
    """As `| head` does: the run goes on to its end, and says nothing of it."""
    flags = [*corpus_flags, *SMALL, "--procs", "2", "--steps", "4", "--name", "unread"]
    run = subprocess.Popen(
        [sys.executable, str(ROOT / "train_cpu.py"), *flags],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    run.stdout.close()
    try:
        _, err = run.communicate(timeout=300)
    finally:
        run.kill()
    assert (run.returncode, err) == (0, b"")
    assert (tmp_path / "logs/unread/summary.json").is_file()


def test_flags_that_are_remembered_can_be_taken_back(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.yaml").write_text("recompute: true\ncompile: true\n")
    monkeypatch.setattr(
        sys,
        "argv",
        ["train_cpu.py", "--config", "a.yaml", "--no-recompute", "--name", "logs/deep/x"],
    )
    monkeypatch.setattr(command_line, "check_compiler", lambda device: None)
    args = parse_arguments("", CpuSettings).complete()
    assert (args.recompute, args.compile) == (False, True)
    assert Path(args.folder) == Path("logs/deep/x")


def test_what_a_run_leaves(trained):
    run = trained / "logs" / "first"
    config, summary = (
        json.loads((run / f"{name}.json").read_text()) for name in ("config", "summary")
    )
    rows = read_metrics(run)
    assert list(rows[0]) == shlex.split(
        "step epoch seconds tokens train_loss learning_rate grad_norm tokens_per_second mfu "
        "step_ms data_ms memory_mib reserved_mib valid_loss valid_bleu"
    )
    for row in rows:
        assert 0 < float(row["data_ms"]) < float(row["step_ms"]) and int(row["memory_mib"]) > 0
    assert config["flags"]["steps"] == 30
    assert config["world_size"] >= 1 and config["parameters"] > 0
    assert summary["averaged_checkpoints"] in (1, 2) and summary["test_bleu"] >= 0
    assert "tok:13a" in summary["bleu_signature"]
    assert [int(row["step"]) for row in rows if row["valid_loss"]] == [10, 20, 30]
    assert len((run / "translations.txt").read_text().split("\n")) == 41
    best = torch.load(run / "best.pt", weights_only=True)
    assert "bpe" in best["task"] and best["task"]["config"]["d_model"] == 32


@pytest.fixture
def started(request, tmp_path, small_corpus):
    """A run of very many steps, just started. Its parameter: another length."""
    corpus = ["--data", small_corpus, "--valid", f"{small_corpus}-valid"]
    how = shlex.split("--procs 2 --name long --eval-every 50000 --save-every 5")
    length = getattr(request, "param", ["--steps", "100000"])
    process = subprocess.Popen(
        [sys.executable, ROOT / "train_cpu.py", *corpus, *SMALL, *how, *length],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    yield process
    # Its workers, too, even if it has died. macOS does not permit it where all are zombies.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
def running(tmp_path, started):
    """The same, once it has logged its tenth step: (process, its workers, its folder)."""
    metrics = tmp_path / "logs" / "long" / "metrics.csv"
    wait_for(
        lambda: (
            started.poll() is not None
            or metrics.is_file()
            and metrics.read_text().count("\n") > 10
        )
    )
    assert started.poll() is None, started.communicate()[1]
    return started, children_of(started.pid), tmp_path / "logs" / "long"


def alive(pids) -> set[int]:
    return {pid for pid in pids if is_alive(pid)}


@pytest.mark.parametrize(
    "name, whole_group",
    [
        ("SIGINT", True),
        pytest.param("SIGTERM", False, marks=pytest.mark.slow),
        pytest.param("SIGHUP", True, marks=pytest.mark.slow),
        pytest.param("SIGUSR2", True, marks=pytest.mark.slow),
        pytest.param("SIGXCPU", True, marks=pytest.mark.slow),
    ],
)
@POSIX
def test_ctrl_c_and_kill_save_say_so_and_leave_nobody_behind(running, name, whole_group):
    """Ctrl-C at a terminal reaches all processes, `kill` the parent alone."""
    number = signal.Signals[name]
    process, workers, run = running
    (os.killpg if whole_group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + number, err
    saved = int(re.search(r"saved at step (\d+)", out).group(1))
    assert torch.load(run / "last.pt", weights_only=True)["step"] == saved
    assert "--resume logs/long" in out and not err.strip()
    wait_for(lambda: not alive(workers), 10)


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("started", [["--minutes", "2"]], indirect=True)
def test_a_signal_after_the_trial_of_minutes_saves_too(running):
    """Training begins twice: the trial is over when the run itself prepares its data."""
    process, _, run = running
    process.terminate()
    out, err = process.communicate(timeout=240)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "saved at step" in out
    assert (run / "last.pt").is_file()


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_the_processes_start_ends_the_run_too(started, number):
    """Whatever they are doing at that moment: importing, meeting, or their first step."""
    wait_for(lambda: started.poll() is not None or len(children_of(started.pid)) >= 2)
    workers = children_of(started.pid)
    os.killpg(started.pid, number)
    _, err = started.communicate(timeout=240)
    assert started.returncode == 128 + number, err
    assert "Traceback" not in err
    wait_for(lambda: not alive(workers), 10)


@POSIX
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_all_processes_have_started_is_kept_for_them(
    tmp_path, small_corpus, number
):
    """It may come to any thread: a mask of the main one alone lets it through."""
    early = tmp_path / "early.py"
    early.write_text(f"""
import os, time, torch.multiprocessing as mp
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings, FsdpSettings
from support.training.tasks import prepare_task
from support.distributed.launch import spawn
from train_cpu import train
start = mp.spawn
def signalled(*args, **kwargs):
    os.kill(os.getpid(), {int(number)})
    time.sleep(0.2)
    return start(*args, **kwargs)
if __name__ == "__main__":
    mp.spawn = signalled
    spawn(train, parse_arguments("", CpuSettings))
""")
    flags = ["--data", small_corpus, *SMALL, "--procs", "2", "--steps", "100000"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = run_script(early, *flags, cwd=tmp_path, env=environment)
    assert done.returncode == 128 + number and done.stderr == "", done.stderr


@POSIX
@pytest.mark.slow
def test_kill_9_of_the_parent_or_of_a_worker_leaves_nobody_behind(running):
    process, workers, run = running
    process.kill()
    process.wait()
    wait_for(lambda: not alive(workers), 60)
    assert torch.load(run / "last.pt", weights_only=True)["step"] >= 5


@POSIX
@pytest.mark.slow
def test_a_dead_worker_ends_the_run_with_one_line(running):
    process, workers, run = running
    victim = max(
        pid for pid in workers if "spawn_main" in " ".join(psutil.Process(pid).cmdline())
    )
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=240)
    assert process.returncode == 1
    assert "SIGKILL" in err.splitlines()[-1] and "--resume logs/long" in err.splitlines()[-1]
    wait_for(lambda: not alive(workers), 10)


def answered_in_one_line(done, expected) -> bool:
    return (
        done.returncode == 2
        and done.stderr.startswith("error: ")
        and done.stderr.count("\n") == 1
        and expected in done.stderr
    )


def test_bad_flags_are_answered_in_one_line(tmp_path, train):
    for flags, expected in [
        (["--data", "nowhere"], "nowhere: no such file or folder, and no nowhere.de"),
        (["--procs", "10000"], "--procs 10000: at most 4 for each of the"),
    ]:
        done = train(tmp_path, *flags)
        assert answered_in_one_line(done, expected), done.stderr
        assert not (tmp_path / "logs").exists()


@pytest.mark.parametrize(
    "flags, expected",
    [
        (["--d-model", "250", "--heads", "4"], "d_model 250 cannot be split over 4 heads"),
        (["--device", "cuda"], "--device cuda: this script runs on cpu only"),
        (["--resume", "logs/nothing"], "logs/nothing/last.pt: no such file"),
        (["--batch-tokens", "0"], "--batch-tokens 0: it must be from 1 to"),
        (["--seed", "-1"], "--seed -1: it must be from 0 to"),
        (["--accumulate", "300000000"], "--accumulate 300000000: it must be from 1 to"),
        (["--timeout", "10000000000000"], "--timeout 10000000000000: it must be from 1 to"),
        (
            ["--vocab-size", "12345678901234567890"],
            "--vocab-size 12345678901234567890: it must be from",
        ),
        (["--max-length", "2000000000"], "--max-length 2000000000: it must be from 1 to"),
        (["--d-model", "2000000"], "--d-model 2000000: it must be from 1 to"),
        (["--precision", "tf32"], "--precision tf32: only GPUs have it; use fp32"),
        (["--profile", "--benchmark"], "saves nothing: leave out --profile"),
        (["--benchmark", "--minutes", "3"], "saves nothing: leave out --minutes"),
        (["--resume", "logs/a", "--name", "b"], "--resume and --name: one of them is enough"),
        (["--lr", "nan"], "--lr nan: it must be from 0 to"),
        (["--data", "\udcff.tsv"], "--data '\\udcff.tsv': not UTF-8"),
        (["--name", "/tmp/x"], "--name '/tmp/x': letters, digits"),
        (["--name", "a/../../x"], "--name 'a/../../x': letters, digits"),
        (["--dropout", "1.5"], "dropout 1.5 is not in [0, 1)"),
        (
            ["--head-lr", "1e-3"],
            "--head-lr is for classification, but phrasebook is for translation",
        ),
        (["--crop", "2"], "--crop is for classification"),
        (["--flip", "yes"], "--flip is for classification"),
    ],
)
def test_flags_that_cannot_be_are_refused(tmp_path, refusal, flags, expected):
    assert expected in refusal(*flags)
    assert not (tmp_path / "logs").exists()


def test_a_resumed_run_scores_its_evaluations_as_before(tmp_path, trained, refusal):
    """BLEU of other sentences could not be compared with that of the best weights."""
    shutil.copytree(trained / "logs", tmp_path / "logs")
    assert "--bleu-sentences 0: logs/first was started with 2000" in refusal(
        "--resume", "logs/first", "--bleu-sentences", "0"
    )


@pytest.mark.slow
def test_going_on_keeps_the_rows_and_refuses_another_corpus(tmp_path, refusal, pairs):
    """The rows from before stay, also when rows are now wanted less often."""
    from conftest import write_pairs

    write_pairs(tmp_path / "own", pairs["train"][:300])
    flags = ["--data", "own", *SMALL, "--name", "r", "--eval-every", "4"]
    assert run_script("train_cpu.py", *flags, "--steps", "6", cwd=tmp_path).returncode == 0
    done = run_script(
        "train_cpu.py", "--resume", "logs/r", "--steps", "12", "--log-every", "5", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = [int(row["step"]) for row in read_metrics(tmp_path / "logs/r")]
    assert rows == [1, 2, 3, 4, 5, 6, 8, 10, 12]
    done = run_script("train_cpu.py", "--resume", "logs/r", "--steps", "6", cwd=tmp_path)
    assert done.returncode == 2 and "at step 12 already" in done.stderr
    write_pairs(tmp_path / "own", pairs["train"][1:301])
    assert "--data own: logs/r was started with another corpus" in refusal(
        "--resume", "logs/r", "--steps", "20"
    )


@pytest.mark.parametrize("how", [["--resume", "logs/first"], ["--name", "first"]])
def test_a_run_cannot_go_on_with_a_corpus_of_another_task(tmp_path, trained, refusal, how):
    shutil.copytree(trained / "logs", tmp_path / "logs")
    expected = "--data kinds is for classification, but logs/first is a run of translation"
    assert expected in refusal(*how, "--data", "kinds")


def test_a_refused_flag_of_a_file_names_the_file(tmp_path, trained, refusal):
    shutil.copytree(trained / "logs", tmp_path / "logs")
    (tmp_path / "a.yaml").write_text("lr: 0.3")
    said = refusal("--name", "first", "--config", "a.yaml")
    assert "--config a.yaml: --lr 0.3: logs/first was started with" in said


def test_a_run_goes_on_with_a_corpus_that_has_moved(
    tmp_path, trained, small_corpus, refusal, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "logs", tmp_path / "logs")
    for file in small_corpus.parent.iterdir():
        shutil.copy(file, tmp_path / file.name.replace("small", "moved"))

    def flags_with(data: str) -> list[str]:
        others = ["--valid", "moved-valid", "--test", "moved-test"]
        return ["--resume", "logs/first", "--data", data, *others]

    summary = json.loads((tmp_path / "logs/first/summary.json").read_text())
    for data in ("moved", "./moved"):
        monkeypatch.setattr(sys, "argv", ["train_cpu.py", *flags_with(data)])
        args = parse_arguments("", CpuSettings).complete()
        assert len(prepare_task(args).batches.examples) == summary["training_examples"]
    expected = "--data moved-valid: logs/first was started with another corpus"
    assert expected in refusal(*flags_with("moved-valid"))


@pytest.mark.slow
def test_a_run_goes_on_without_what_it_has_lost(tmp_path, train):
    """Checkpoints to average and the metrics are missing; a file of the user's own stays."""
    how = ["--name", "r", "--eval-every", "2"]
    assert train(tmp_path, *how, "--steps", "4").returncode == 0
    best, another = tmp_path / "logs/r/best.pt", tmp_path / "logs/another/best.pt"
    another.parent.mkdir()
    shutil.copy(best, another)
    (tmp_path / "logs/r/step-mine.pt").touch()
    (tmp_path / "logs/r/metrics.csv").unlink()
    done = run_script(
        "train_cpu.py", "--resume", "logs/r", "--average-checkpoints", "3", cwd=tmp_path
    )
    assert done.returncode == 0 and not done.stderr, done.stderr
    summary = json.loads((tmp_path / "logs/r/summary.json").read_text())
    assert best.stat().st_mtime > another.stat().st_mtime  # so translate.py takes this run
    assert (
        summary["median_tokens_per_second"] == 0
        and (tmp_path / "logs/r/step-mine.pt").is_file()
    )
    assert summary["averaged_checkpoints"] == 1


@pytest.mark.slow
def test_a_name_goes_on_with_its_run_or_refuses_other_flags(
    tmp_path, train, refusal, corpus_flags
):
    """--name resumes a run as --resume does. One without a checkpoint is not overwritten."""
    how = ["--name", "r", "--eval-every", "4"]
    assert train(tmp_path, *how, "--steps", "6").returncode == 0
    run = tmp_path / "logs/r"
    done = train(tmp_path, *how, "--steps", "8")
    assert done.returncode == 0, done.stderr
    assert [int(row["step"]) for row in read_metrics(run)] == list(range(1, 9))
    older = torch.load(run / "last.pt", weights_only=True)
    del older["flags"]["token_dropout"]  # as if the run were older than this flag
    torch.save(older, run / "last.pt")
    assert train(tmp_path, *how, "--steps", "9").returncode == 0
    before = {
        name: (run / name).read_bytes() for name in ("metrics.csv", "summary.json", "last.pt")
    }
    said = refusal(*corpus_flags, *SMALL, *how, "--steps", "9", "--lr", "0.5")
    assert "--lr 0.5: logs/r was started with 0.004; leave it out to resume" in said
    done = run_script("train_cpu.py", "--name", "r", "--steps", "9", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.startswith("settings: those of logs/r,")
    assert "nothing is left to train" in done.stdout
    (run / "last.pt").unlink()
    for file in ("summary.json", None):  # a finished run, and one that had only saved
        done = train(tmp_path, *how, "--steps", "3")
        assert (
            done.returncode == 2
            and "logs/r is a run whose checkpoint last.pt is missing" in done.stderr
        )
        assert (run / "metrics.csv").read_bytes() == before["metrics.csv"]
        if file:
            (run / file).unlink()


def test_a_name_goes_on_in_the_precision_that_auto_was(trained, monkeypatch, corpus_flags):
    """Also on a machine where it would be another."""
    monkeypatch.chdir(trained)
    monkeypatch.setattr("support.training.command_line.fast_precision", lambda device: "bf16")
    small = [word for word in SMALL if word not in ("--precision", "fp32")]
    how = [*corpus_flags, *small, "--eval-every", "10", "--average-checkpoints", "2"]
    how += ["--warmup", "3000"]
    for more, precision in (
        (["--name", "first"], "fp32"),
        (["--name", "first", "--precision", "bf16"], "bf16"),
        (["--benchmark"], "bf16"),
    ):
        monkeypatch.setattr(sys, "argv", ["train_cpu.py", *how, *more])
        assert parse_arguments("", CpuSettings).complete().precision == precision


@pytest.mark.parametrize(
    "data, name",
    [("my corpus.tsv", "my-corpus-1"), (".hidden.tsv", "run-1"), ("größe.de.tsv", "größe-1")],
)
def test_the_name_that_a_run_gets_can_be_typed(tmp_path, monkeypatch, data, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train_cpu.py", "--data", data])
    Path(data).write_text("de\ten\nJa.\tYes.\n")
    assert parse_arguments("", CpuSettings).complete().folder == f"logs/{name}"


@pytest.mark.slow
def test_weights_of_a_run_that_never_saved_are_not_averaged_into_the_next(tmp_path, train):
    folder = tmp_path / "logs" / "r"
    folder.mkdir(parents=True)
    (folder / "step-0000002.pt").write_bytes(b"left by another")
    done = train(
        tmp_path,
        *shlex.split("--name r --steps 4 --eval-every 2 --average-checkpoints 3"),
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.glob("step-*.pt")) == [
        "step-0000002.pt",
        "step-0000004.pt",
    ]
    assert torch.load(folder / "step-0000002.pt")["step"] == 2


def test_logs_that_cannot_be_written(tmp_path, train):
    (tmp_path / "logs").write_text("a file, where the folder should be")
    done = train(tmp_path, "--steps", "2", "--name", "new")
    said = "" if sys.platform == "win32" else "File exists"
    assert (
        done.returncode == 2
        and done.stderr.startswith(f"error: logs: {said}")
        and done.stderr.count("\n") == 1
    )


@pytest.mark.slow
def test_a_run_waits_for_the_last_checkpoint_of_the_one_before(tmp_path, train):
    """The lock comes first: a killed run may still be saving, and nothing of that is lost."""
    run, later = tmp_path / "logs/r", tmp_path / "later.pt"
    assert train(tmp_path, "--name", "r", "--steps", "2").returncode == 0
    earlier = (run / "last.pt").read_bytes()
    assert train(tmp_path, "--name", "r", "--steps", "4").returncode == 0
    shutil.copy(run / "last.pt", later)
    (run / "last.pt").write_bytes(earlier)
    command = [sys.executable, str(ROOT / "train_cpu.py"), "--resume", "logs/r", "--steps", "6"]
    fcntl = pytest.importorskip("fcntl", reason="Windows has other locks")
    with open(run / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert "train:" in "".join(
            process.stdout.readline() for _ in range(3)
        )  # it has begun, and waits
        time.sleep(1)
        later.rename(run / "last.pt")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "resumed logs/r at step 4" in out
    assert [int(row["step"]) for row in read_metrics(run)] == [1, 2, 3, 4, 5, 6]
    assert (
        json.loads((run / "config.json").read_text())["flags"]["procs"] == 0
    )  # worked out anew where it goes on


def test_a_checkpoint_that_appears_is_not_overwritten(tmp_path):
    lock_folder(tmp_path, is_new=True).close()
    (tmp_path / "last.pt").write_text("")
    lock_folder(tmp_path, is_new=False).close()
    with pytest.raises(UserError, match="has just saved it; start again"):
        lock_folder(tmp_path, is_new=True)


@pytest.mark.slow
def test_two_runs_at_once_do_not_disturb_each_other(tmp_path, small_corpus):
    """Same folder, same corpus that neither has encoded yet, no names given."""
    corpus = ["--data", small_corpus, "--valid", f"{small_corpus}-valid"]
    how = shlex.split("--vocab-size 333 --steps 8 --dropout 0")
    command = [sys.executable, ROOT / "train_cpu.py", *corpus, *SMALL, *how]
    both = [
        subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in both:
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
    runs = sorted((tmp_path / "logs").iterdir())
    assert len(runs) == 2
    assert mathematics(read_metrics(runs[0])) == mathematics(read_metrics(runs[1]))


@pytest.mark.slow
@pytest.mark.parametrize("procs", [1, 2])
def test_mfu_is_the_models_operations_over_those_that_the_hardware_could_do(
    tmp_path, train, procs
):
    """Counting real tokens only; --hardware-tflops is of one device."""
    done = train(
        tmp_path, "--benchmark", "--steps", "40", "--hardware-tflops", "0.01", "--procs", procs
    )
    assert done.returncode == 0, done.stderr
    speed, mfu, peak = (
        float(number.replace(",", ""))
        for number in re.search(
            r"([\d,]+) source\+target tokens/s, MFU ([\d.]+)% of ([\d,]+) GFLOP/s", done.stdout
        ).groups()
    )
    assert peak == 10 * procs and not (tmp_path / "logs").exists()
    # Forward and backward: products with the weights for each token, with the vocabulary for
    # the target tokens, half of all.
    weights = 3 * 2 * (6 * 32 * 32 + 2 * 32 * 64 + 300 * 32 / 2)
    flops_per_token = mfu / 100 * peak * 1e9 / speed
    assert weights < flops_per_token < 1.5 * weights  # the rest are attention's scores


@pytest.mark.parametrize(
    "name, tflops",
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
    ],
)
def test_the_peak_of_a_known_gpu(monkeypatch, name, tflops):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: name)
    monkeypatch.setattr(throughput, "broadcast_object", lambda rate: rate)
    args = SimpleNamespace(hardware_tflops=0.0, device="cuda", precision="bf16")
    assert throughput.peak_rate(args, 0, 2, Path("nowhere")) == 2 * tflops * 1e12
    # Another node may have an unknown GPU: all use rank 0's figure, and nobody waits in vain.
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: f"{name} MIG 1g.5gb")
    monkeypatch.setattr(throughput, "broadcast_object", lambda rate: rate + 2 * tflops * 1e12)
    assert throughput.peak_rate(args, 1, 2, Path("nowhere")) == 2 * tflops * 1e12


def test_the_peak_is_measured_by_all_processes_once_for_a_machine(monkeypatch, tmp_path):
    measured = iter([1e9, 5e9])  # the second would be another machine's
    processes = 2
    monkeypatch.setattr(throughput, "broadcast_object", lambda rate: rate)
    monkeypatch.setattr(throughput, "all_gather_objects", lambda rate: [rate] * processes)
    monkeypatch.setattr(throughput, "matrix_rate", lambda *_: next(measured))
    args = SimpleNamespace(hardware_tflops=0.0, device="cpu", precision="fp32")
    assert [throughput.peak_rate(args, 0, 2, tmp_path) for _ in range(3)] == [2e9] * 3
    processes = 3
    assert (
        throughput.peak_rate(args, 0, 3, tmp_path) == 15e9
    )  # three processes are another case
    (tmp_path / "matrix_rates.json").write_text("spoilt")
    measured = iter([1e9])
    processes = 2
    assert throughput.peak_rate(args, 0, 2, tmp_path) == 2e9


def test_the_measured_rate_is_one_that_products_reach():
    torch.set_num_threads(1)
    rate = hardware.matrix_rate("cpu", "fp32")
    matrix = torch.randn(512, 512)
    reached = 0.0
    for _ in range(5):
        began = time.perf_counter()
        matrix @ matrix
        reached = max(reached, 2 * 512**3 / (time.perf_counter() - began))
    assert rate / 20 < reached < 20 * rate


@pytest.mark.parametrize("count", ["0", "7"])
def test_evaluations_translate_as_many_sentences_as_asked(tmp_path, train, count):
    """Without any, the loss decides which weights are best; the end translates all lines."""
    done = train(
        tmp_path,
        *f"--name few --steps 4 --eval-every 2 --bleu-sentences {count} --procs 1".split(),
    )
    assert done.returncode == 0, done.stderr
    run = tmp_path / "logs" / "few"
    evaluated = [row for row in read_metrics(run) if row["valid_loss"]]
    assert [row["valid_bleu"] != "" for row in evaluated] == [count != "0"] * 2
    assert len((run / "translations.txt").read_text().splitlines()) == 40
    assert json.loads((run / "summary.json").read_text())["test_bleu"] >= 0


def test_each_precision_has_a_peak_of_its_own(monkeypatch, tmp_path):
    rates = {"fp32": 1e9, "bf16": 4e9}
    monkeypatch.setattr(throughput, "broadcast_object", lambda rate: rate)
    monkeypatch.setattr(throughput, "all_gather_objects", lambda rate: [rate])
    monkeypatch.setattr(throughput, "matrix_rate", lambda _, precision: rates.pop(precision))
    for precision, rate in (("fp32", 1e9), ("bf16", 4e9), ("fp32", 1e9)):  # the last is kept
        args = SimpleNamespace(hardware_tflops=0.0, device="cpu", precision=precision)
        assert throughput.peak_rate(args, 0, 1, tmp_path) == rate
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H200")
    args = SimpleNamespace(hardware_tflops=0.0, device="cuda", precision="fp32")
    assert throughput.known_rate(args) == 0.0  # its data sheet is of bf16
