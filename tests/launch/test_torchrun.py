"""train_ddp.py and train_fsdp.py under torchrun: signals, dead processes, flags, two nodes."""

import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import kill
import pytest
import torch
import torch.distributed as dist
from conftest import (
    NETWORK,
    ROOT,
    SMALL,
    children_of,
    is_alive,
    mathematics,
    read_metrics,
    run_script,
    skip_on_windows,
    wait_for,
    workers_of,
    write_pairs,
)
from parity import command

from support.common.errors import UserError
from support.distributed import rendezvous
from support.distributed.launch import run_under_torchrun
from support.distributed.rendezvous import checksum_of_code, send_text, share_settings
from support.training.command_line import parse_arguments
from support.training.settings import FsdpSettings, Settings, TpSettings
from support.training.tasks import prepare_task

skip_on_windows("torchrun asks for libuv, which PyTorch for Windows is built without")


def start(folder, mode, procs, *flags, **how):
    return subprocess.Popen(
        command(mode, procs, *map(str, flags)),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **how,
    )


def started(folder, mode, procs, *flags, **how):
    """A run that has saved for the first time."""
    run = start(folder, mode, procs, *flags, **how)
    wait_for(lambda: list(folder.glob("logs/*/last.pt")) or run.poll() is not None)
    assert run.poll() is None, run.communicate()[1]
    return run


def ends(run, seconds=240):
    """Waits for the end of a run and of all its processes; what it said."""
    everyone = children_of(run.pid)
    output = run.communicate(timeout=seconds)
    wait_for(lambda: not any(map(is_alive, everyone)), 40)
    return output


@pytest.fixture(autouse=True)
def nobody_stays():
    """What a test that failed has left behind would slow down those after it."""
    before = children_of(os.getpid())
    yield
    for pid in children_of(os.getpid()) - before:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def rank_of(pid: int) -> int:
    """The rank of a training process: torchrun's RANK, or its place among those of mp.spawn."""
    process = Path(f"/proc/{pid}")
    entries = (process / "environ").read_bytes().split(b"\0")
    environment = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
    if b"RANK" in environment:
        return int(environment[b"RANK"])
    after_name = (process / "stat").read_text().rsplit(")")[-1]  # state, parent, ...
    parent = int(after_name.split()[1])
    return workers_of(parent).index(pid)


def test_train_cpu_refuses_torchrun(tmp_path):
    """Each of its processes would start processes, and train a run of its own."""
    done = run_script(
        "train_cpu.py",
        "--steps",
        "2",
        cwd=tmp_path,
        env=os.environ | {"TORCHELASTIC_RUN_ID": "none"},
    )
    assert (
        done.returncode == 2 and done.stderr.count("\n") == 1 and not list(tmp_path.iterdir())
    )
    assert re.match(
        r"error: .* without torchrun: python .*train_cpu.py --steps 2$", done.stderr
    )


@pytest.mark.parametrize(
    "given, missing",
    [
        ("", "RANK, LOCAL_RANK, WORLD_SIZE, MASTER_PORT, MASTER_ADDR"),
        ("RANK=0", "LOCAL_RANK, WORLD_SIZE, MASTER_PORT, MASTER_ADDR"),
        ("RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=x", "MASTER_PORT"),
        ("RANK= LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1", "RANK"),
    ],
)
def test_half_of_torchruns_environment_is_not_enough(monkeypatch, capfd, given, missing):
    for name, value in (assignment.split("=") for assignment in given.split()):
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--device", "cpu"])
    with pytest.raises(SystemExit) as ended:
        run_under_torchrun(None, None)
    assert ended.value.code == 2
    assert capfd.readouterr().err == (
        f"error: start this script with torchrun, which sets {missing}: "
        f"torchrun --standalone --nproc-per-node 2 train_ddp.py --device cpu\n"
    )


def test_a_mesh_has_the_same_number_of_processes_in_each_row(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_fsdp.py", "--replicas", "2"])
    monkeypatch.setattr("support.training.command_line.make_folder", lambda *_: "")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert parse_arguments("", FsdpSettings).complete().replicas == 2
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(UserError, match="--replicas 2: 3 processes cannot be divided by it"):
        parse_arguments("", FsdpSettings).complete()
    monkeypatch.setattr(sys, "argv", ["train_fsdp.py", "--replicas", "0"])
    with pytest.raises(UserError, match="--replicas 0: it must be from 1"):
        parse_arguments("", FsdpSettings).complete()


@pytest.mark.parametrize(
    "flags, expected",
    [
        ("--tensor 3", "--tensor 3: 4 processes cannot be divided by it"),
        ("--tensor -1", "--tensor -1: it must be from 0"),
        ("--heads 2 --tensor 4", "--tensor 4: --heads 2 cannot be divided by it"),
        ("--d-ff 66 --tensor 4", "--tensor 4: --d-ff 66 cannot be divided by it"),
    ],
)
def test_layers_that_cannot_be_split(monkeypatch, corpus_flags, flags, expected):
    monkeypatch.setattr(sys, "argv", ["train_tp.py", *corpus_flags, *flags.split()])
    monkeypatch.setattr("support.training.command_line.make_folder", lambda *_: "")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(UserError, match=expected) as problem:
        prepare_task(parse_arguments("", TpSettings).complete())
    assert "\n" not in str(problem.value)


def test_a_layer_takes_the_processes_of_a_node(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train_tp.py"])
    monkeypatch.setattr("support.training.command_line.make_folder", lambda *_: "")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert parse_arguments("", TpSettings).complete().tensor == 2


def pretend_gpus(monkeypatch, count: int) -> None:
    """Has PyTorch say that this machine has so many GPUs."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_90"])


def test_more_processes_than_gpus(monkeypatch):
    pretend_gpus(monkeypatch, 2)
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--precision", "fp32"])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("support.training.command_line.make_folder", lambda *_: "")
    assert parse_arguments("", Settings).complete().device == "cuda"
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(
        UserError,
        match="--nproc-per-node 4: each process needs a GPU, and this machine has 2; "
        "start fewer",
    ):
        parse_arguments("", Settings).complete()


@pytest.mark.parametrize("gpus", [1, 2])
def test_a_node_that_has_fewer_gpus_than_rank_0s(monkeypatch, gpus):
    pretend_gpus(monkeypatch, gpus)
    monkeypatch.setattr(sys, "argv", ["train_ddp.py"])
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    store = dist.HashStore()
    parsed = parse_arguments("", Settings)
    mine = {"command line": {}, "torch": torch.__version__, "code": checksum_of_code()}
    store.set("checked/0", "")
    send_text(store, "settings", json.dumps([mine, {"device": "cuda"}]))
    if gpus == 2:
        assert share_settings(parsed, store, store, 1, 2).device == "cuda"
    else:
        with pytest.raises(
            UserError,
            match="--nproc-per-node 2: each process needs a GPU, and this machine has 1;",
        ):
            share_settings(parsed, store, store, 1, 2)


def test_a_restart_without_the_checkpoint_says_that_it_begins_again(
    tmp_path, corpus_flags, monkeypatch, capsys
):
    """As where `logs/` is not shared, and rank 0 is now on another node."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train_ddp.py", *map(str, corpus_flags)])
    store = dist.HashStore()
    store.set("folder", "logs/own-1")
    args = share_settings(parse_arguments("", Settings), store, dist.HashStore(), 0, 1)
    assert args.folder == "logs/own-1"
    said = "logs/own-1/last.pt is not on this machine, so it begins at step 0"
    assert said in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("mode, number", [("ddp", signal.SIGTERM), ("fsdp", signal.SIGINT)])
def test_a_signal_to_torchrun_saves_one_step_everywhere(tmp_path, corpus_flags, mode, number):
    flags = [*corpus_flags, *SMALL, "--save-every", "5", "--eval-every", "40"]
    run = started(tmp_path, mode, 2, "--name", "stopped", "--steps", "100000", *flags)
    os.kill(run.pid, number)
    output, _ = ends(run)
    assert run.returncode != 0
    step = int(
        re.search(
            r"stopped and saved at step (\d+); "
            r"resume with: torchrun --standalone --nproc-per-node \d \S*/train_",
            output,
        )[1]
    )
    checkpoint = torch.load(tmp_path / "logs/stopped/last.pt", weights_only=True)
    assert (
        checkpoint["step"] == step == int(read_metrics(tmp_path / "logs/stopped")[-1]["step"])
    )
    until = str(step + 7)
    for folder, how in (
        (tmp_path, ["--resume", "logs/stopped"]),
        (tmp_path / "calm", ["--name", "calm", *flags]),
    ):
        folder.mkdir(exist_ok=True)
        run = start(folder, mode, 2, *how, "--steps", until)
        assert ends(run)[0] and run.returncode == 0
    assert mathematics(read_metrics(tmp_path / "logs/stopped")) == mathematics(
        read_metrics(tmp_path / "calm/logs/calm")
    )


@pytest.mark.slow
def test_torchrun_restarts_the_run_when_a_process_has_died(tmp_path, corpus_flags):
    """Without --name and without --resume: the restarted processes find their run."""
    flags = [*corpus_flags, *SMALL, "--save-every", "5", "--eval-every", "40", "--steps", "80"]
    restarts = os.environ | {"PET_MAX_RESTARTS": "2"}  # as torchrun --max-restarts 2
    run = started(tmp_path, "ddp", 2, *flags, env=restarts)
    os.kill(random.choice(workers_of(run.pid)), signal.SIGKILL)
    output, errors = ends(run, 120)
    assert run.returncode == 0, errors
    assert len(list(tmp_path.glob("logs/*"))) == 1
    folder = next(tmp_path.glob("logs/*"))
    assert [int(row["step"]) for row in read_metrics(folder)] == list(range(1, 81))
    calm = start(tmp_path, "ddp", 2, "--name", "calm", *flags)
    assert ends(calm)[0] and calm.returncode == 0
    assert mathematics(read_metrics(folder)) == mathematics(
        read_metrics(tmp_path / "logs/calm")
    )


def start_nodes(folders, flags, *, script="train_ddp.py", restarts=3, procs=1):
    """Two torchrun on loopback, each with one or more processes, a folder and flags."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [
        subprocess.Popen(
            [
                sys.executable,
                *shlex.split(
                    f"-m torch.distributed.run --nnodes 2 --nproc-per-node {procs} "
                    f"--max-restarts {restarts} --rdzv-backend c10d "
                    f"--rdzv-endpoint 127.0.0.1:{port} --rdzv-conf is_host={not node} "
                    f"--local-addr 127.0.0.1"
                ),
                ROOT / script,
                *["--device", "cpu", *map(str, own)],
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"},
        )
        for node, (folder, own) in enumerate(zip(folders, flags))
    ]


def two_folders(tmp_path, pairs, same=True):
    """Two nodes' folders, each with its copy of a corpus; or with one sentence that differs."""
    folders = [tmp_path / "one", tmp_path / "two"]
    for number, folder in enumerate(folders):
        folder.mkdir()
        write_pairs(
            folder / "own",
            pairs["train"][:300] if same else pairs["train"][number : 300 + number],
        )
    return folders


@pytest.mark.slow
def test_two_nodes_without_a_shared_disk_go_on_from_the_same_step(tmp_path, pairs):
    """One node has the checkpoint. After a kill both resume from it, to the same result.

    Processes meet although torchrun's counts of restarts differ between the nodes.
    """
    folders = two_folders(tmp_path, pairs)
    flags = [
        "--data",
        "own",
        *SMALL,
        *shlex.split("--dropout 0.1 --save-every 5 --eval-every 100 --steps 200 --name two"),
    ]
    nodes = start_nodes(folders, [flags, flags])

    def saved():
        return [folder for folder in folders if (folder / "logs/two/last.pt").exists()]

    wait_for(saved, 90)
    os.kill(workers_of(nodes[1].pid)[0], signal.SIGKILL)
    for node in nodes:
        _, errors = ends(node, 180)
        assert node.returncode == 0, errors
    [first] = saved()
    assert [int(row["step"]) for row in read_metrics(first / "logs/two")] == list(range(1, 201))
    (tmp_path / "calm").mkdir()
    write_pairs(tmp_path / "calm" / "own", pairs["train"][:300])
    calm = start(tmp_path / "calm", "ddp", 2, *flags)
    assert ends(calm, 120)[0] and calm.returncode == 0
    assert mathematics(read_metrics(first / "logs/two")) == mathematics(
        read_metrics(tmp_path / "calm/logs/two")
    )


@pytest.mark.slow
def test_a_node_that_dies_while_it_prepares_its_data_ends_the_other(tmp_path, pairs):
    folders = two_folders(tmp_path, pairs)
    (tmp_path / "dies.py").write_text(f"""
import os, signal, sys, time
sys.path.insert(0, {str(ROOT)!r})
import train_ddp
from support.training.command_line import parse_arguments
from support.training.settings import Settings
from support.distributed.launch import run_under_torchrun
prepare_task = train_ddp.prepare_task
def prepare_or_die(args):
    if os.environ["GROUP_RANK"] == "1":
        time.sleep(3)  # the other waits by then
        os.kill(os.getpid(), signal.SIGKILL)
    return prepare_task(args)
train_ddp.prepare_task = prepare_or_die
run_under_torchrun(train_ddp.train, parse_arguments("", Settings))
""")
    flags = [["--data", "own", *SMALL, "--timeout", "1000"]] * 2
    nodes = start_nodes(folders, flags, script=tmp_path / "dies.py", restarts=0)
    errors = "".join(ends(node, 60)[1] for node in nodes)
    assert all(node.returncode for node in nodes)
    assert "error: process 1 of 2 has died or does not answer" in errors


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [["--data", "uneven"], ["--lr", "-1"], ["--lrr", "1"]])
def test_what_rank_0_refuses_each_node_says_once(tmp_path, pairs, wrong):
    """Rank 0 has the store. The other node learns why rank 0 ended, not just that it did."""
    folders = two_folders(tmp_path, pairs)
    for folder in folders:
        (folder / "uneven.de").write_text("Ein Haus.\nEin Hund.\n")
        (folder / "uneven.en").write_text("A house.\n")
    nodes = start_nodes(folders, [["--data", "own", *SMALL, *wrong]] * 2, restarts=0, procs=2)
    said = [
        [line for line in ends(node, 240)[1].splitlines() if "error:" in line] for node in nodes
    ]
    assert all(node.returncode for node in nodes)
    assert (
        len(said[0]) == 1 and said[0][0].startswith("error: ") and "Traceback" not in said[0][0]
    )
    assert said[1] == said[0] or (wrong[0] == "--lrr" and set(said[1]) <= set(said[0]))


@pytest.mark.slow
@pytest.mark.parametrize("what", ["learning rate", "corpus"])
def test_nodes_that_differ_train_nothing(tmp_path, pairs, what):
    folders = two_folders(tmp_path, pairs, same=what != "corpus")
    flags = ["--data", "own", *SMALL, "--steps", "10", "--name", "two"]
    others = [*flags, "--lr", "0.1"] if what == "learning rate" else flags
    nodes = start_nodes(folders, [flags, others], restarts=0)
    errors = "".join(ends(node, 240)[1] for node in nodes)
    assert all(node.returncode for node in nodes)
    expected = (
        r"error: process 1, on \S+, differs from process 0 in its command line: .*0\.1"
        if what == "learning rate"
        else r"error: process 1, on \S+, differs from process 0 in its data"
    )
    assert re.search(expected, errors), errors
    assert not list(tmp_path.glob("*/logs/two/metrics.csv"))


@pytest.mark.slow
def test_a_delay_changes_nothing_but_the_time(tmp_path, corpus_flags):
    runs = {}
    for delay in ("0", "100"):
        more = f"--steps 10 --delay-ms {delay} --name delay-{delay}".split()
        run = start(tmp_path, "ddp", 2, *corpus_flags, *SMALL, *more)
        assert ends(run)[0] and run.returncode == 0
        runs[delay] = read_metrics(tmp_path / "logs" / f"delay-{delay}")
    assert mathematics(runs["0"]) == mathematics(runs["100"])
    assert float(runs["100"][-1]["seconds"]) > 10 * 0.1


@pytest.mark.slow
def test_kill_9_again_and_again(tmp_path, corpus_flags):
    """Of train_cpu.py: in tests/unit/test_classification.py."""
    kill.check(tmp_path, "ddp", 2, 600, random.randrange(1000), *corpus_flags)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode, size, more", [("cpu", 3, []), ("ddp", 3, []), ("fsdp", 4, ["--replicas", "2"])]
)
def test_a_process_that_hangs_is_named(tmp_path, corpus_flags, mode, size, more):
    flags = [
        *corpus_flags,
        *SMALL,
        *shlex.split("--save-every 5 --steps 100000 --timeout 5 --name hanging"),
        *more,
    ]
    with open(tmp_path / "errors", "w") as errors:
        run = subprocess.Popen(
            command(mode, size, *flags), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=errors
        )
    wait_for(lambda: (tmp_path / "logs/hanging/last.pt").exists())
    victim = max(workers_of(run.pid))
    rank = rank_of(victim)  # now, while all of them live
    os.kill(victim, signal.SIGSTOP)
    try:
        message = rf"^error: process (\d) of {size} has died or does not answer"

        def blamed():
            return re.search(message, (tmp_path / "errors").read_text(), re.MULTILINE)

        wait_for(blamed, 60)
        assert int(blamed()[1]) == rank
    finally:
        # torchrun would do so after half a minute
        os.kill(victim, signal.SIGKILL)
    ends(run)
    assert run.returncode != 0


def run_in(folder, *command):
    """Runs a command in a folder whose scripts can import the project."""
    return subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_translating_may_take_longer_than_the_timeout(tmp_path, corpus_flags):
    """It takes 13 seconds here, and --timeout is 12: the ranks wait for a batch at a time."""
    (tmp_path / "slow.py").write_text("""
import sacrebleu, time                                     # the former is slow to import
from support.translation import lines
from support.translation import task as translation
from support.training.command_line import parse_arguments
from support.training.settings import FsdpSettings, Settings
from support.distributed.launch import run_under_torchrun
from train_fsdp import train
translate_batch = translation.translate_batch
def slowly(*args, **kwargs):
    time.sleep(2.2)
    return translate_batch(*args, **kwargs)
lines.MAX_SENTENCES["cpu"] = 5                             # 6 batches of a rank's 30 sentences
translation.translate_batch = slowly
run_under_torchrun(train, parse_arguments("", FsdpSettings))
""")
    start = [
        sys.executable,
        *shlex.split("-m torch.distributed.run --standalone --nproc-per-node 2 slow.py"),
    ]
    more = shlex.split("--device cpu --steps 2 --timeout 12")
    done = run_in(tmp_path, *start, *corpus_flags, *SMALL, *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_writing_and_averaging_may_take_longer_than_the_timeout(tmp_path, corpus_flags):
    """Rank 0 does both alone, for 8 seconds each, and --timeout is 6."""
    (tmp_path / "slow.py").write_text("""
import time
from support.common import checkpoint
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings
from support.distributed.launch import spawn
from train_cpu import train
save, average = checkpoint.save, checkpoint.average_weights
def slowly(path, content):
    if path.name == "last.pt":
        time.sleep(8)
    save(path, content)
def average_slowly(paths):
    time.sleep(8)
    print("averaged", len(paths))
    return average(paths)
checkpoint.save, checkpoint.average_weights = slowly, average_slowly
if __name__ == "__main__":
    spawn(train, parse_arguments("", CpuSettings))
""")
    more = shlex.split("--procs 2 --steps 2 --timeout 6 --bleu-sentences 4 --eval-every 1")
    more += ["--average-checkpoints", "2"]
    done = run_in(tmp_path, sys.executable, "slow.py", *corpus_flags, *SMALL, *more)
    assert done.returncode == 0, done.stderr
    assert "averaged 2" in done.stdout


def test_the_gradients_of_ddp_stay_in_its_buckets(tmp_path, corpus_flags):
    """Else --accumulate would need as much memory again, for gradients beside the buckets."""
    (tmp_path / "noted.py").write_text("""
import train_ddp
from support.distributed.launch import run_under_torchrun
from support.training.command_line import parse_arguments
from support.training.settings import Settings
weights = []
clip = train_ddp.clip_gradients
seed_step = train_ddp.seed_step
def noted_clip(parameters, max_norm):
    weights[:] = parameters
    return clip(weights, max_norm)
def noted_seed_step(seed, step, rank):                      # at the beginning of a step
    seed_step(seed, step, rank)
    if weights:
        buckets = {weight.grad.untyped_storage().data_ptr() for weight in weights}
        print("step", step, "in a bucket:", len(buckets) < len(weights))
train_ddp.clip_gradients = noted_clip
train_ddp.seed_step = noted_seed_step
run_under_torchrun(train_ddp.train, parse_arguments("", Settings))
""")
    start = "-m torch.distributed.run --standalone --nproc-per-node 1 noted.py --device cpu"
    more = shlex.split("--steps 3 --accumulate 2 --benchmark")
    done = run_in(tmp_path, sys.executable, *start.split(), *corpus_flags, *SMALL, *more)
    assert "step 2 in a bucket: True" in done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cpu", "fsdp"])
def test_a_loss_that_is_no_number_ends_the_run(tmp_path, corpus_flags, mode):
    """The learning rate is far too high; the last checkpoint is complete and finite."""
    more = shlex.split("--lr 1e6 --clip 0 --save-every 1 --steps 200 --name wild")
    run = start(tmp_path, mode, 2, *corpus_flags, *SMALL, *more)
    _, errors = ends(run)
    assert run.returncode != 0
    said = [line for line in errors.splitlines() if line.startswith("error:")]
    step = int(
        re.match(
            r"error: The (loss|gradient) is not finite, as was noticed at step (\d+)\. "
            r"The last good checkpoint is logs/wild/last.pt\.",
            said[0],
        )[2]
    )
    saved = torch.load(tmp_path / "logs/wild/last.pt", weights_only=True)
    assert len(said) == 1 and saved["step"] == step - 1
    assert [int(row["step"]) for row in read_metrics(tmp_path / "logs/wild")] == list(
        range(1, step)
    )


@pytest.mark.slow
def test_two_runs_at_once_do_not_disturb_each_other(tmp_path, corpus_flags):
    """All start at the same time in one folder without a name: each has a folder of its own."""
    flags = [*corpus_flags, *SMALL, "--steps", "20", "--eval-every", "10"]
    runs = [start(tmp_path, mode, 2, *flags) for mode in ("ddp", "ddp", "cpu")]
    for run in runs:
        _, errors = run.communicate(timeout=120)
        assert run.returncode == 0, errors
    folders = sorted(tmp_path.glob("logs/*"))
    assert len(folders) == 3
    one, *others = (read_metrics(folder) for folder in folders)
    for other in others:
        assert [row["tokens"] for row in other] == [row["tokens"] for row in one]


@pytest.mark.slow
@pytest.mark.skipif(
    not NETWORK, reason="network namespaces need root, iproute2 and a kernel that has them"
)
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_nodes_on_a_network(tmp_path, corpus_flags, mode):
    """Two torchrun, each in its own network namespace, with addresses that are not loopback."""

    def ip(words):
        subprocess.run(["ip", *words.split()], check=True, capture_output=True)

    names = [f"n{os.getpid()}a", f"n{os.getpid()}b"]
    runs = []
    try:
        for name in names:
            ip(f"netns add {name}")
        ip(f"link add eth7 netns {names[0]} type veth peer name eth7 netns {names[1]}")
        for number, name in enumerate(names, 1):
            ip(f"-n {name} addr add 10.77.0.{number}/24 dev eth7")
            ip(f"-n {name} link set eth7 up")
            ip(f"-n {name} link set lo up")
        for number, name in enumerate(names, 1):
            torchrun = shlex.split(
                f"-m torch.distributed.run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d "
                f"--rdzv-endpoint 10.77.0.1:29400 --rdzv-conf is_host={number == 1} "
                f"--local-addr 10.77.0.{number}"
            )
            start = ["ip", "netns", "exec", name, sys.executable, *torchrun]
            more = shlex.split("--device cpu --name nodes --steps 10")
            runs.append(
                subprocess.Popen(
                    [*start, ROOT / f"train_{mode}.py", *corpus_flags, *SMALL, *more],
                    cwd=tmp_path,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        for run in runs:
            _, errors = run.communicate(timeout=120)
            assert run.returncode == 0, errors
        traffic = subprocess.run(
            ["ip", "-n", names[0], "-s", "link", "show", "eth7"], capture_output=True, text=True
        ).stdout
        sent = int(re.search(r"TX:.*\n\s+(\d+)", traffic)[1])
        weights = torch.load(tmp_path / "logs/nodes/last.pt", weights_only=True)["model"]
        parameters = sum(weight.numel() for weight in weights.values())
        # the gradients of ten steps went this way
        assert sent > 10 * parameters * 4 / 2
        assert [int(row["step"]) for row in read_metrics(tmp_path / "logs/nodes")] == list(
            range(1, 11)
        )
    finally:
        for run in runs:
            run.kill()
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["code", "torch"])
def test_a_process_with_other_code_trains_nothing(monkeypatch, name):
    monkeypatch.setattr(sys, "argv", ["train_ddp.py"])
    rank_0s = {"command line": {}, "torch": torch.__version__, "code": checksum_of_code()}
    store = dist.HashStore()
    store.set("checked/0", "")
    send_text(store, "settings", json.dumps([rank_0s | {name: "other"}, {"device": "cpu"}]))
    with pytest.raises(UserError, match=f"differs from process 0 in its {name}: .* of other$"):
        share_settings(parse_arguments("", Settings), store, store, 1, 2)
    assert b"differs from process 0" in store.get("checked/1")  # so that all hear of it


def test_the_checksum_of_the_code_is_of_all_modules(tmp_path, monkeypatch):
    monkeypatch.setattr(rendezvous, "ROOT", tmp_path)
    sums = {checksum_of_code()}
    (tmp_path / "support/common").mkdir(parents=True)
    for name in ("model.py", "support/common/kernels.py"):
        (tmp_path / name).write_text("x = 1\n")
        sums.add(checksum_of_code())
    assert len(sums) == 3


def test_rank_0_does_not_begin_if_another_process_is_refused(
    tmp_path, corpus_flags, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["train_ddp.py", *map(str, corpus_flags)])
    store = dist.HashStore()
    store.set("checked/1", "process 1 differs")
    with pytest.raises(UserError, match="^process 1 differs$"):
        share_settings(parse_arguments("", Settings), dist.HashStore(), store, 0, 2)
