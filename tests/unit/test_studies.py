"""The studies in batch/: what they run, how a stopped one goes on, and the table at the end."""

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import NETWORK, ROOT, SMALL, read_metrics, wait_for

STUDIES = {"processes": 9, "batch_size": 5, "learning_rate": 4, "delay": 10}

# Takes the place of python and torchrun: notes the command, and leaves what a finished run leaves.
STUB = """#!/bin/sh
case $1 in -c) exec {python} "$@" ;; esac
echo "$(basename "$0") $*" >> commands.txt
for word; do
    if [ "$before" = --name ]; then sleep "${{SLOW:-0}}"; echo > "logs/$word/summary.json"; fi
    before=$word
done
"""


@pytest.fixture
def folder(tmp_path):
    """What a user would have cloned."""
    shutil.copytree(ROOT / "batch", tmp_path / "batch")
    for path in [*ROOT.glob("*.py"), ROOT / "support"]:
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def start(folder, study, *flags, first=Path(sys.executable).parent, **settings):
    """Starts batch/study_STUDY.sh in a process group of its own; settings: environment variables.

    first: the folder that is put before PATH.
    """
    unset = {
        "BATCHES",
        "DATA",
        "DELAYS",
        "DEVICE",
        "EPOCHS",
        "PROCESSES",
        "RATES",
        "STEPS",
        "STUDY",
        "TOKENS",
        "SLURM_ARRAY_TASK_ID",
    }
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    environment |= {"PATH": f"{first}:{os.environ['PATH']}", "NETEM": "no"}
    environment |= {name: str(value) for name, value in settings.items()}
    return subprocess.Popen(
        ["sh", f"batch/study_{study}.sh", *map(str, flags)],
        cwd=folder,
        env=environment,
        text=True,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # A process in the background ignores SIGINT, and a shell cannot trap an ignored signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def finish(process):
    """Waits for a study; returns its status, output and errors."""
    try:
        output, errors = process.communicate(timeout=100)
        return process.returncode, output, errors
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def stubs(folder):
    (folder / "stubs").mkdir()
    for name in ("python", "torchrun"):
        (folder / "stubs" / name).write_text(STUB.format(python=sys.executable))
        (folder / "stubs" / name).chmod(0o755)
    return folder / "stubs"


@pytest.mark.parametrize("study", STUDIES)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_study_runs(folder, stubs, study, device):
    """Each run once, under a name of its own, then the picture. Started again, only the picture."""

    def commands(**settings):
        (folder / "commands.txt").write_text("")
        started = start(folder, study, "--seed", "2", first=stubs, DEVICE=device, **settings)
        status, _, errors = finish(started)
        assert (status, errors) == (0, "")
        return (folder / "commands.txt").read_text().splitlines()

    number = 6 if (study, device) == ("processes", "cuda") else STUDIES[study]
    (one,) = commands(SLURM_ARRAY_TASK_ID=2)
    *others, picture = commands()
    runs = [one, *others]
    assert len(runs) == number == len({re.search(r"--name (\S+)", run)[1] for run in runs})
    assert all(run.endswith("--seed 2") and "--data phrasebook" in run for run in runs)
    assert all(("train_cpu.py --procs" in run) != (f"--device {device}" in run) for run in runs)
    torchrun = "torchrun --standalone --nproc-per-node"
    assert device == "cpu" or all(run.startswith(torchrun) for run in runs)
    assert picture.startswith(f"python plot.py --out logs/study-{study.replace('_', '-')} ")
    assert len(picture.split()) == 4 + number
    assert commands() == [picture]


def test_published_weights_are_of_a_classifier_so_its_steps_are_of_examples(folder, stubs):
    status, _, errors = finish(
        start(folder, "batch_size", first=stubs, DATA="reviews", INIT="weights", BATCHES="4 16")
    )
    assert (status, errors) == (0, "")
    one, two, _ = (folder / "commands.txt").read_text().splitlines()
    assert "--batch-size 4 --lr 1.8e-05 " in one and "--batch-size 16 --lr 3.5e-05 " in two


def test_flags_say_whether_a_study_is_of_a_classifier(folder, stubs):
    for number, (flags, expected) in enumerate(
        {
            ("--data", "kinds"): "--batch-size 4 ",
            ("--label-smoothing", "0.2"): "--batch-tokens 4 ",
            ("--label", "b"): "--batch-size 4 ",
        }.items()
    ):
        assert finish(
            start(folder, "batch_size", *flags, first=stubs, BATCHES="4", STUDY=f"s{number}")
        )[::2] == (0, "")
        assert expected in (folder / "commands.txt").read_text().splitlines()[-2]


def test_folders_of_classes_are_of_a_classifier_and_other_names_are_not(folder, stubs):
    for name, flag in (
        ("reviews", "--batch-size 4 "),
        ("kinds-of-things", "--batch-tokens 4 "),
    ):
        (folder / name / "good").mkdir(parents=True)
        (folder / name / "good" / ("1.txt" if name == "reviews" else "1.pdf")).write_text("x")
        started = start(folder, "batch_size", first=stubs, DATA=name, BATCHES="4", STUDY=name)
        assert finish(started)[::2] == (0, "")
        assert flag in (folder / "commands.txt").read_text()


def test_the_last_task_of_an_array_makes_the_picture(folder, stubs):
    """Also if the other's run was not finished when the last task started."""

    def task(number, **settings):
        return start(
            folder,
            "learning_rate",
            first=stubs,
            RATES="1 2",
            SLURM_ARRAY_TASK_ID=number,
            **settings,
        )

    slow = task(2, SLOW=3)
    wait_for(lambda: (folder / "commands.txt").exists())
    status, output, _ = finish(task(1))
    assert status == 0 and "1 of 2 runs are finished" in output
    assert finish(slow)[0] == 0
    last = (folder / "commands.txt").read_text().splitlines()[-1]
    assert last.startswith("python plot.py --out logs/study-learning-rate ")


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_short_and_says_how_many_runs_it_has(study):
    text = (ROOT / "batch" / f"study_{study}.sh").read_text()
    assert len(text.splitlines()) <= 40 and f"#SBATCH --array=1-{STUDIES[study]}\n" in text
    for shell in filter(shutil.which, ("sh", "dash", "bash")):
        for name in (f"study_{study}.sh", "study.sh"):
            assert subprocess.run([shell, "-n", ROOT / "batch" / name]).returncode == 0


@pytest.mark.parametrize("study", STUDIES)
def test_help_says_what_a_study_does_and_runs_nothing(folder, study):
    status, output, errors = finish(start(folder, study, "--help"))
    assert (status, errors) == (0, "") and "SBATCH" not in output
    assert re.match("(What|How) .*", output) and f"sh batch/study_{study}.sh" in output
    assert not (folder / "logs").exists()


def test_other_flags_are_refused_unless_nothing_was_trained(folder, stubs):
    """config.json is there as soon as a run trains; `flags` are those that it was started with."""

    def study(*flags):
        return finish(start(folder, "learning_rate", *flags, first=stubs))

    run = folder / "logs" / "study-learning-rate" / "lr-0.0003"
    run.mkdir(parents=True)
    (run / "flags").write_text("cpu 2 --a-mistake\n")
    assert study("--seed", "3")[0] == 0
    (run / "config.json").touch()
    assert study("--seed", "3")[0] == 0
    status, _, errors = study("--seed", "4")
    assert (
        status == 2 and errors.count("\n") == 1 and "lr-0.0003 was started as: cpu 2" in errors
    )
    assert "--seed 3; STUDY=NAME keeps studies apart" in errors


@pytest.mark.slow
def test_a_wrong_flag_can_be_put_right(folder, stubs):
    assert finish(start(folder, "learning_rate", "--lrr", "3"))[0] == 1
    assert finish(start(folder, "learning_rate", first=stubs))[0] == 0


@pytest.mark.slow
def test_a_stopped_study_goes_on(folder, corpus_flags):
    """One task of an array; then all, stopped by Ctrl-C; then the rest, not the finished runs."""
    logs = folder / "logs" / "study-learning-rate"
    flags = [*corpus_flags, *SMALL, "--eval-every", "400"]
    settings = {"RATES": "0.002 0.004", "PROCESSES": 2, "EPOCHS": 4}

    def run(*more, **changed):
        return finish(start(folder, "learning_rate", *flags, *more, **settings | changed))

    status, output, errors = run(SLURM_ARRAY_TASK_ID=2)
    assert (status, errors) == (0, "") and "1 of 2 runs are finished" in output
    assert [path.parent.name for path in logs.rglob("summary.json")] == ["lr-0.004"]
    finished = (logs / "lr-0.004" / "summary.json").stat().st_mtime_ns

    study = start(folder, "learning_rate", *flags, **settings)
    metrics = logs / "lr-0.002" / "metrics.csv"
    wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") > 5)
    os.killpg(study.pid, signal.SIGINT)
    status, output, errors = finish(study)
    assert (status, errors) == (
        130,
        "study-learning-rate: stopped; started again as before, "
        "study-learning-rate goes on where it stopped\n",
    )
    assert (logs / "lr-0.002" / "last.pt").exists() and not list(logs.glob("*.png"))

    status, output, errors = run(EPOCHS=5)
    assert (
        status == 2 and errors.count("\n") == 1 and "STUDY=NAME keeps studies apart" in errors
    )

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
    pictures = {path.name for path in logs.glob("*.png")}
    assert pictures == {"curves.png", "learning_rate.png"}
    for name in pictures:
        (logs / name).unlink()
    again = [sys.executable, ROOT / "plot.py", "--out", logs, logs / "runs.csv"]
    assert subprocess.run(again).returncode == 0
    assert [path.name for path in logs.glob("*.png")] == ["learning_rate.png"]


@pytest.mark.slow
def test_a_run_that_fails_ends_the_study(folder):
    status, _, errors = finish(start(folder, "learning_rate", "--heads", "3"))
    assert status == 1 and "run 1, lr-0.0003, ended with status 2;" in errors
    assert "Traceback" not in errors
    assert [path.name for path in (folder / "logs/study-learning-rate").iterdir()] == [
        "lr-0.0003"
    ]


def test_a_task_too_many(folder):
    status, _, errors = finish(start(folder, "delay", SLURM_ARRAY_TASK_ID=11))
    assert (status, errors) == (2, "study-delay: error: there are only 10 runs\n")


@pytest.mark.slow
@pytest.mark.skipif(
    not NETWORK, reason="network namespaces need root, iproute2 and kernel support"
)
def test_delay_on_a_network(folder, stubs, corpus_flags):
    """Two nodes in two network namespaces.

    A stub notes what `tc` is told, because not every kernel has netem.
    """
    (stubs / "tc").write_text('#!/bin/sh\necho "$*" >> netem.txt\n')
    (stubs / "tc").chmod(0o755)
    for name in ("python", "torchrun"):
        (stubs / name).unlink()
    study = start(
        folder,
        "delay",
        *corpus_flags,
        *SMALL,
        first=f"{stubs}:{Path(sys.executable).parent}",
        NETEM="yes",
        DELAYS="0 3",
        STEPS=8,
        SLURM_ARRAY_TASK_ID=2,
    )
    status, output, errors = finish(study)
    assert (status, "1 of 4 runs are finished" in output) == (0, True), errors
    told = (folder / "netem.txt").read_text().splitlines()
    assert len(told) == 4
    assert all("netem delay 0us" in line for line in told[:2])  # netem.sh 0 works
    assert all(re.search(r"dev eth0 root netem delay 1500us", line) for line in told[2:])
    logs = folder / "logs" / "study-delay" / "delay-3-accumulate-1"
    config = json.loads((logs / "config.json").read_text())
    flags = config["flags"]
    assert (config["world_size"], flags["delay_ms"], flags["netem"]) == (2, 3, True)
    assert [int(row["step"]) for row in read_metrics(logs)] == list(range(1, 9))
    assert (
        "netem-"
        not in subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    )
