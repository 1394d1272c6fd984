"""The studies in batch/: what they run, how a stopped one goes on, and the table at the end."""

import csv
import importlib.util
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import LINUX, NETWORK, ROOT, SMALL, read_metrics, skip_on_windows, wait_for

from support.common.errors import run_main

skip_on_windows("Windows makes no links to folders")

spec = importlib.util.spec_from_file_location("batch_study", ROOT / "batch" / "study.py")
batch_study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(batch_study)

STUDIES = {"processes": 12, "batch-size": 5, "learning-rate": 4, "delay": 10}


@pytest.fixture
def folder(tmp_path):
    """What a user would have cloned."""
    shutil.copytree(ROOT / "batch", tmp_path / "batch")
    for path in [*ROOT.glob("*.py"), ROOT / "support"]:
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


@pytest.fixture
def study(tmp_path, monkeypatch, capsys):
    """study("delay --seed 2", task=3): runs batch/study.py in this process, but no command.

    Returns the exit status, output and errors, and the commands that it would have run. A
    command leaves what a finished run leaves. during(command): called while one "runs".
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(batch_study.signal, "signal", lambda number, answer: None)
    commands = []

    def run(flags, task=None, during=None):
        before = len(commands)

        def call(command):
            if during:
                during(command)
            commands.append(shlex.join(command))
            if "--name" in command:
                name = command[command.index("--name") + 1]
                (tmp_path / "logs" / name / "summary.json").write_text("{}")
            return 0

        with monkeypatch.context() as patch:
            patch.setattr(batch_study, "call", call)
            patch.setattr(sys, "argv", ["study.py", *shlex.split(flags)])
            patch.delenv("SLURM_ARRAY_TASK_ID", raising=False)
            if task is not None:
                patch.setenv("SLURM_ARRAY_TASK_ID", str(task))
                patch.setenv("SLURM_ARRAY_TASK_MAX", "12")
            status = 0
            try:
                run_main(batch_study.main)
            except SystemExit as end:
                status = end.code
        return status, *capsys.readouterr(), commands[before:]

    return run


def start(folder, *flags, first=Path(sys.executable).parent, task=""):
    """Starts batch/study.py in a process group of its own.

    first: the folder that is put before PATH. task: the number of a task of a Slurm array.
    """
    environment = {name: os.environ[name] for name in os.environ if "SLURM" not in name}
    environment["PATH"] = f"{first}:{os.environ['PATH']}"
    if task:
        environment["SLURM_ARRAY_TASK_ID"] = str(task)
    return subprocess.Popen(
        [sys.executable, "batch/study.py", *map(str, flags)],
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process):
    """Waits for a study; returns its status, output and errors."""
    try:
        output, errors = process.communicate(timeout=100)
        return process.returncode, output, errors
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_study_runs(study, name, device):
    """Each run once, under a name of its own, then the plot. Started again, only the plot."""
    flags = f"{name} --seed 2 --device {device}"
    if name == "delay":
        flags += " --no-netem"
    number = 9 if (name, device) == ("processes", "cuda") else STUDIES[name]
    status, _, errors, (one,) = study(flags, task=2)
    assert (status, errors) == (0, "")
    status, _, errors, (*others, plot) = study(flags)
    assert (status, errors) == (0, "")
    runs = [one, *others]
    assert len(runs) == number == len({re.search(r"--name (\S+)", run)[1] for run in runs})
    assert all(run.endswith("--seed 2") and "--data phrasebook" in run for run in runs)
    assert all(("train_cpu.py --procs" in run) != (f"--device {device}" in run) for run in runs)
    torchrun = "torchrun --standalone --nproc-per-node"
    assert device == "cpu" or all(run.startswith(torchrun) for run in runs)
    assert plot.startswith(f"python plot.py --out logs/study-{name} ")
    assert len(plot.split()) == 4 + number
    assert study(flags)[3] == [plot]


def test_published_weights_are_of_a_classifier_so_its_steps_are_of_examples(study):
    flags = "batch-size --data reviews --pretrained weights --batches 4 16"
    status, _, errors, (one, two, _) = study(flags)
    assert (status, errors) == (0, "")
    assert "--batch-size 4 --lr 1.8e-05 " in one and "--batch-size 16 --lr 3.5e-05 " in two
    assert "--pretrained weights" in one and "--d-model" not in one


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--data kinds", "--batch-size 4 "),
        ("--label-smoothing 0.2", "--batch-tokens 4 "),
        ("--label b", "--batch-size 4 "),
    ],
)
def test_flags_say_whether_a_study_is_of_a_classifier(study, flags, expected):
    status, _, errors, (run, _) = study(f"batch-size {flags} --batches 4")
    assert (status, errors) == (0, "") and expected in run and flags in run


def test_folders_of_classes_are_of_a_classifier_and_other_names_are_not(study, tmp_path):
    for name, file, content, expected in (
        ("reviews", "1.txt", b"x", "--batch-size 4 "),
        ("kinds-of-things", "1.pdf", b"%PDF-1.7\0", "--batch-tokens 4 "),
    ):
        (tmp_path / name / "good").mkdir(parents=True)
        (tmp_path / name / "good" / file).write_bytes(content)
        status, _, errors, (run, _) = study(
            f"batch-size --data {name} --batches 4 --name {name}"
        )
        assert (status, errors) == (0, "") and expected in run


def test_the_last_task_of_an_array_plots(study):
    """Also if the other's run was not finished when the last task started."""
    flags = "learning-rate --rates 1 2"
    results = []

    def train_the_first_as_well(command):
        if "--name" in command:
            results.append(study(flags, task=1))

    *_, commands = study(flags, task=2, during=train_the_first_as_well)
    ((status, output, _, (run,)),) = results
    assert status == 0 and "lr-1" in run and "1 of 2 runs are finished" in output
    assert commands[-1].startswith("python plot.py --out logs/study-learning-rate ")


def test_the_array_has_a_task_for_each_run():
    text = (ROOT / "batch" / "study.sbatch").read_text()
    assert f"#SBATCH --array=1-{max(STUDIES.values())} " in text
    assert subprocess.run(["bash", "-n", ROOT / "batch" / "study.sbatch"]).returncode == 0


@pytest.mark.parametrize("name", STUDIES)
def test_help_says_what_a_study_does_and_runs_nothing(study, tmp_path, name):
    status, output, errors, commands = study(f"{name} --help")
    assert (status, errors, commands) == (0, "", [])
    assert re.search("^(What|How) .*png", output, re.MULTILINE) and f"study-{name}]" in output
    assert not (tmp_path / "logs").exists()


def test_other_flags_are_refused_unless_nothing_was_trained(study, tmp_path):
    """config.json is there as soon as a run trains; `command` is how it was started."""
    run = tmp_path / "logs" / "study-learning-rate" / "lr-0.0003"
    run.mkdir(parents=True)
    (run / "command").write_text("python train_cpu.py --a-mistake\n")
    assert study("learning-rate --seed 3")[0] == 0
    (run / "config.json").touch()
    assert study("learning-rate --seed 3")[0] == 0
    status, _, errors, commands = study("learning-rate --seed 4")
    assert (status, errors.count("\n"), commands) == (2, 1, [])
    assert "lr-0.0003 was started as: python train_cpu.py --procs 2" in errors
    assert "--seed 3; pass --name for another study" in errors


@pytest.mark.slow
def test_a_wrong_flag_can_be_put_right(folder, study):
    assert finish(start(folder, "learning-rate", "--lrr", "3"))[0] == 2
    assert study("learning-rate")[0] == 0


@pytest.mark.slow
def test_a_stopped_study_goes_on(folder, corpus_flags):
    """One task of an array; then all, stopped by Ctrl-C; then the rest, without repeating."""
    logs = folder / "logs" / "study-learning-rate"
    flags = ["learning-rate", *corpus_flags, *SMALL, "--eval-every", "400"]
    flags += ["--rates", "0.002", "0.004", "--epochs", "4"]

    def run(*more, task=""):
        return finish(start(folder, *flags, *more, task=task))

    status, output, errors = run(task=2)
    assert (status, errors) == (0, "") and "1 of 2 runs are finished" in output
    assert [path.parent.name for path in logs.rglob("summary.json")] == ["lr-0.004"]
    finished = (logs / "lr-0.004" / "summary.json").stat().st_mtime_ns

    study = start(folder, *flags)
    metrics = logs / "lr-0.002" / "metrics.csv"
    wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") > 5)
    os.killpg(study.pid, signal.SIGINT)
    status, output, errors = finish(study)
    assert (status, errors) == (
        130,
        "study-learning-rate is stopped; to resume it, start it again\n",
    )
    assert (logs / "lr-0.002" / "last.pt").exists() and not list(logs.glob("*.png"))

    status, output, errors = run("--seed", "3")
    assert status == 2 and errors.count("\n") == 1 and "pass --name for another" in errors

    status, output, errors = run()
    assert (status, errors) == (0, "") and output.count("train_cpu.py --procs") == 1
    assert "--name study-learning-rate/lr-0.002 " in output
    assert (logs / "lr-0.004" / "summary.json").stat().st_mtime_ns == finished
    steps = [int(row["step"]) for row in read_metrics(logs / "lr-0.002")]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) == len(read_metrics(logs / "lr-0.004"))
    with open(logs / "runs.csv", newline="") as file:
        assert [(row["run"], row["mode"], row["lr"]) for row in csv.DictReader(file)] == [
            ("lr-0.002", "cpu", "0.002"),
            ("lr-0.004", "cpu", "0.004"),
        ]
    plots = {path.name for path in logs.glob("*.png")}
    assert plots == {"curves.png", "learning_rate.png"}
    for name in plots:
        (logs / name).unlink()
    again = [sys.executable, ROOT / "plot.py", "--out", logs, logs / "runs.csv"]
    assert subprocess.run(again).returncode == 0
    assert [path.name for path in logs.glob("*.png")] == ["learning_rate.png"]


@pytest.mark.slow
def test_the_other_runs_of_a_study_are_trained_if_one_fails(folder, corpus_flags):
    """As a learning rate does with which the loss is not finite."""
    flags = [*corpus_flags, *SMALL, "--epochs", "2", "--clip", "0"]
    rates = ["--rates", "0.002", "1e9", "0.004"]
    status, output, errors = finish(start(folder, "learning-rate", *flags, *rates))
    assert status == 2 and "Traceback" not in errors
    study = "logs/study-learning-rate"
    assert f"{study}/lr-1e9 ended with status 2; to resume" in errors
    assert f"{study}/runs.csv: 2 runs" in output


@pytest.mark.parametrize(
    "flags, message",
    [
        ("delay --accumulate 2", "--accumulate: not for the study delay"),
        ("batch-size --batch-size=8", "--batch-size: not for the study batch-size"),
        ("learning-rate --lr 1", "--lr: not for the study learning-rate"),
        ("processes --config a.yaml", "--config: not for the study processes"),
        ("batch-size --examples 9", "--examples is for a study of another task"),
        ("batch-size --data kinds --tokens 9", "--tokens is for a study of another task"),
    ],
)
def test_what_a_study_sets_is_not_passed_on(study, flags, message):
    status, _, errors, commands = study(flags)
    assert (status, commands) == (2, []) and message in errors


def test_micro_batches_of_a_delay_have_the_same_size(study):
    _, _, _, commands = study("delay --no-netem --delays 0 --batch-tokens 512")
    assert "--batch-tokens 512 " in commands[0] and "--batch-tokens 2048 " in commands[1]


@pytest.mark.parametrize("name", ["processes", "learning-rate", "delay --no-netem"])
def test_the_warm_up_is_a_share_of_the_run(study, name):
    _, _, _, (*runs, _) = study(name)
    assert runs and all("--warmup 0 " in run for run in runs)


def test_a_corpus_that_has_changed_since_is_warned_of(study, tmp_path):
    study("learning-rate --rates 1 2")
    for rate in "12":
        summary = tmp_path / f"logs/study-learning-rate/lr-{rate}/summary.json"
        summary.write_text(json.dumps({"training_examples": 1000 * int(rate)}))
    _, output, _, _ = study("learning-rate --rates 1 2")
    assert "warning: the runs had 1,000, 2,000 training examples" in output


def test_an_array_with_too_few_tasks_says_so(study):
    """The last task has not finished the last run, so nothing would be plotted."""
    flags = "delay --no-netem --delays 0 1 5 10 20 50 100"
    for task in range(1, 13):
        status, output, _, commands = study(flags, task=task)
        assert status == 0 and len(commands) == 1
    assert output.endswith("others: sbatch --array=1-14\n")


@pytest.mark.parametrize(
    ("ids", "job"), [({}, "9"), ({"SLURM_ARRAY_JOB_ID": "9"}, "9_4")], ids=["alone", "array"]
)
def test_a_task_near_its_time_limit_requeues_itself_alone(study, monkeypatch, ids, job):
    """Slurm takes the SLURM_JOB_ID of an array's last task for the whole array."""

    def signalled(command):
        sys.exit(128 + signal.SIGUSR1)

    called = []
    monkeypatch.setattr(batch_study.subprocess, "run", called.append)
    for name, value in ({"SLURM_JOB_ID": "9"} | ids).items():
        monkeypatch.setenv(name, value)
    status, _, _, _ = study("learning-rate", task=4, during=signalled)
    assert status == 128 + signal.SIGUSR1
    assert called == [["scontrol", "requeue", job]]


def test_tasks_count_from_one(study):
    """Task 0 would train all runs, beside the tasks that train one each."""
    status, _, errors, commands = study("delay --no-netem", task=0)
    assert (status, commands) == (2, []) and "sbatch --array=1-10" in errors


def test_models_with_other_heads_are_split_into_other_parts(study):
    *_, commands = study("processes --processes 1 8 --heads 8")
    assert any("tp-8" in command for command in commands)
    status, _, _, commands = study("processes --processes 1 4 --heads 2 --name two")
    assert status == 0 and commands
    assert not any("tp-4" in command for command in commands)


@pytest.mark.parametrize(
    "flags, part",
    [
        ("processes --processes 0", "must be at least 1"),
        ("batch-size --batches -4", "must be at least 1"),
        ("learning-rate --name ../../elsewhere", "letters, digits"),
        ("speed", "'speed'"),
        ("delay --delays 5 x", "'x'"),
        ("delay --delays -3", "-3"),
        ("delay --delays nan", "finite"),
        ("learning-rate --rates fast", "'fast'"),
    ],
)
def test_impossible_flags_are_refused(study, tmp_path, flags, part):
    status, _, errors, commands = study(flags)
    assert (status, commands) == (2, []) and part in errors and errors.count("\n") == 1
    assert not (tmp_path / "logs").exists()


def test_a_task_too_many(study):
    status, output, errors, commands = study("delay --no-netem", task=11)
    assert (status, errors, commands) == (0, "", [])
    assert output == "study-delay: there are only 10 runs, none for task 11\n"


@pytest.mark.slow
@pytest.mark.skipif(
    not NETWORK, reason="network namespaces need root, iproute2 and kernel support"
)
def test_delay_on_a_network(folder, corpus_flags):
    """Two nodes in two network namespaces.

    A stub notes what `tc` is told, because not every kernel has netem.
    """
    stub = folder / "stubs" / "tc"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\necho "$*" >> netem.txt\n')
    stub.chmod(0o755)
    flags = ["delay", *corpus_flags, *SMALL, "--delays", "0", "3", "--steps", "8"]
    status, output, errors = finish(start(folder, *flags, first=stub.parent, task=2))
    assert (status, "1 of 4 runs are finished" in output) == (0, True), errors
    calls = (folder / "netem.txt").read_text().splitlines()
    assert len(calls) == 4
    assert all("netem delay 0us" in line for line in calls[:2])  # netem.sh 0 works
    assert all(re.search(r"dev eth0 root netem delay 1500us", line) for line in calls[2:])
    logs = folder / "logs" / "study-delay" / "delay-3-accumulate-1"
    config = json.loads((logs / "config.json").read_text())
    flags = config["flags"]
    assert (config["world_size"], flags["delay_ms"], flags["netem"]) == (2, 3, True)
    assert [int(row["step"]) for row in read_metrics(logs)] == list(range(1, 9))
    assert (
        "netem-"
        not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    )


def test_all_runs_of_a_study_see_equally_many_tokens(study):
    *_, (small, large, _) = study("batch-size --batches 32 1024 --tokens 64000")
    lengths = "--steps 2000 --warmup 500 --eval-every 500 --log-every 51 "
    assert f"--batch-tokens 32 --lr 0.00035 {lengths}" in small
    lengths = "--steps 62 --warmup 15 --eval-every 15 --log-every 2 "
    assert f"--batch-tokens 1024 --lr 0.002 {lengths}" in large
    *_, (one, four, _) = study("delay --no-netem --delays 0 --steps 10")
    assert "--accumulate 1 --steps 10 " in one and "--accumulate 4 --steps 3 " in four


@LINUX
def test_on_cpus_each_process_gets_one_core(study, monkeypatch):
    monkeypatch.setattr(batch_study.os, "sched_getaffinity", lambda _: {7, 3, 5})
    monkeypatch.setattr(batch_study.shutil, "which", lambda name: name)
    *_, (*runs, _) = study("processes --processes 2")
    assert len(runs) == 4 and all(run.startswith("taskset -c 3,5 ") for run in runs)
