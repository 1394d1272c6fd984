"""The process that an error message calls dead is the one that has died, and no other."""

import os
import signal
import socket
import subprocess
import sys
import time
from argparse import Namespace
from datetime import timedelta
from types import SimpleNamespace

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp
from conftest import LINUX, POSIX, ROOT, run_script, skip_on_windows

from support.common import run_folder
from support.common.errors import UserError
from support.distributed import launch as processes
from support.distributed import liveness, rendezvous
from support.distributed.rendezvous import report_lost_processes, store_of_this_start
from support.distributed.signals import STOPPING, Signals

skip_on_windows("Windows has no POSIX signals")

TOUCH = "the processes have lost contact"


@pytest.fixture(autouse=True)
def same_signals():
    """Restores the signal handlers and the mask of blocked signals."""
    handlers = {number: signal.getsignal(number) for number in STOPPING}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 2], []])
def test_who_does_not_answer_is_named(monkeypatch, lost):
    store = dist.HashStore()
    here = [rank for rank in range(3) if rank not in lost]

    def meanwhile(seconds):
        assert seconds >= 1  # the others answer a little later
        for rank in here[1:]:
            store.set(f"answer/{rank}", "")

    monkeypatch.setattr(time, "sleep", meanwhile)
    with pytest.raises(UserError) as problem, report_lost_processes(store, here[0], 3):
        raise RuntimeError("gloo: Connection closed by peer\nat pair.cc")
    who = (
        f"process {', '.join(map(str, lost))} of 3 has died or does not answer"
        if lost
        else TOUCH
    )
    assert str(problem.value) == f"{who} (gloo: Connection closed by peer)"


def test_a_process_that_waits_for_longer_answers(monkeypatch):
    """Here process 1, as while another writes a checkpoint: for up to ten times as long."""
    monkeypatch.setattr(rendezvous, "PERIOD", 0.1)
    store = dist.HashStore()
    with (
        report_lost_processes(store, 1, 3),
        pytest.raises(UserError, match="process 2 of 3 has died or does not answer"),
        report_lost_processes(store, 0, 3),
    ):
        raise RuntimeError("gloo: Timed out waiting 5000ms for recv operation")


def test_where_the_store_has_gone_too_nobody_is_named():
    class Gone:
        def set(self, key, value):
            raise dist.DistNetworkError("Broken pipe")

    with pytest.raises(UserError) as problem, report_lost_processes(Gone(), 0, 3):
        raise RuntimeError("gloo: Connection closed by peer")
    assert str(problem.value) == f"{TOUCH} (gloo: Connection closed by peer)"


def test_another_problem_is_nobodys_death():
    store = dist.HashStore()
    with (
        pytest.raises(RuntimeError, match="^shapes differ"),
        report_lost_processes(store, 0, 3),
    ):
        raise RuntimeError("shapes differ")


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_who_was_killed_is_named(monkeypatch, tmp_path, killed, saved):
    """The others were ended with it, by SIGTERM."""

    class Workers:
        processes = [
            SimpleNamespace(exitcode=-signal.SIGKILL if rank == killed else -signal.SIGTERM)
            for rank in range(3)
        ]

        def join(self):
            raise mp.ProcessExitedException(
                "process 0 terminated with signal SIGTERM", 0, 1, -signal.SIGTERM
            )

    folder = tmp_path / "logs" / "run"
    folder.mkdir(parents=True)
    if saved:
        (folder / "last.pt").touch()
    monkeypatch.setattr("sys.argv", ["a/train_cpu.py"])
    with pytest.raises(SystemExit) as ended:
        processes.wait_for_workers(Workers(), str(folder), early=[])
    assert ended.value.code == (
        f"error: process {killed} of 3 was killed (SIGKILL); "
        + (
            f"resume with: python a/train_cpu.py --resume {folder}"
            if saved
            else "there is no checkpoint to resume from"
        )
    )
    assert folder.exists() == saved  # an empty folder is removed


@pytest.mark.parametrize(
    "how, expected",
    [
        ("killed", "process 1 of 2 was killed"),
        ("crashed", "process 1 terminated with signal SIGSEGV"),
        ("raised", "a traceback"),
    ],
)
def test_what_ended_first_is_named_if_pytorch_has_killed_the_others(how, expected):
    """It does so to a process that computes for more than 30 seconds after SIGTERM."""
    killed = -signal.SIGKILL
    first = {
        "killed": (mp.ProcessExitedException("SIGKILL", 1, 1, killed), [killed, killed]),
        "crashed": (
            mp.ProcessExitedException(
                "process 1 terminated with signal SIGSEGV", 1, 1, -signal.SIGSEGV
            ),
            [killed, -signal.SIGSEGV],
        ),
        "raised": (mp.ProcessRaisedException("a traceback", 1, 1), [killed, 1]),
    }[how]
    with pytest.raises(SystemExit, match=f"^error: {expected}"):
        processes.report_failure(*first, "logs/none")


def test_cores_that_are_no_number_are_refused_before_a_folder_is_made(monkeypatch, capsys):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "abc")
    with pytest.raises(SystemExit) as ended:
        processes.spawn(None, SimpleNamespace(complete=lambda: pytest.fail("too late")))
    assert ended.value.code == 2 and "SLURM_CPUS_PER_TASK" in capsys.readouterr().err


ENDING = """
import sys, time
from pathlib import Path
from support.common.checkpoint import Writer
from support.distributed.launch import end_at_once

def write():
    time.sleep(0.5)
    Path(sys.argv[1]).touch()

with end_at_once():
    Writer(in_background=True).write(write)
    sys.exit(2)
"""


def test_a_process_that_ends_finishes_the_checkpoint_that_its_thread_writes(tmp_path):
    path = tmp_path / "last.pt"
    ended = subprocess.run([sys.executable, "-c", ENDING, str(path)], cwd=ROOT, timeout=120)
    assert ended.returncode == 2 and path.exists()


def test_a_folder_with_a_lock_alone_is_empty(tmp_path):
    for name, files in {"written": [".lock", "metrics.csv"], "locked": [".lock"]}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()
        run_folder.remove_if_empty(str(tmp_path / name))
    assert [path.name for path in tmp_path.iterdir()] == ["written"]
    assert (tmp_path / "written" / ".lock").exists()


def test_what_nohup_ignores_stays_ignored():
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for how in (Signals.note, signal.SIG_DFL):
        Signals.handle(how)
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == how
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    Signals.handle(Signals.note)
    assert signal.getsignal(signal.SIGHUP) == Signals.note


@pytest.mark.parametrize("how", ["spawn", "torchrun"])
def test_a_process_whose_parent_has_died_before_they_met_ends(monkeypatch, capfd, how):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    monkeypatch.setattr(processes, "CONNECT_TIMEOUT", timedelta(seconds=1))
    monkeypatch.setattr("atexit.register", lambda end: None)  # pytest does not end so
    began = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        if how == "spawn":
            processes.worker(0, None, Namespace(timeout=600), port, 2)
        for name, value in {
            "RANK": 0,
            "LOCAL_RANK": 0,
            "WORLD_SIZE": 2,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }.items():
            monkeypatch.setenv(name, str(value))
        processes.run_under_torchrun(None, Namespace(given={}, settings=Namespace(timeout=600)))
    assert ended.value.code == (1 if how == "spawn" else 2) and time.monotonic() - began < 20
    assert how == "spawn" or capfd.readouterr().err.endswith(
        "error: torchrun has ended meanwhile\n"
    )


def test_the_first_of_each_node_goes_before_the_others_there(monkeypatch):
    store = dist.HashStore()
    order = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")

    def enter(rank, node, local):
        monkeypatch.setenv("GROUP_RANK", str(node))
        monkeypatch.setenv("LOCAL_RANK", str(local))
        monkeypatch.setattr(processes.ThisProcess, "rank", rank)
        monkeypatch.setattr(processes.ThisProcess, "store", store, raising=False)
        with processes.rank_0_first():
            order.append(rank)

    class Waits(Exception):
        pass

    def wait_for_result(store, key):
        if not store.check([key]):
            raise Waits

    monkeypatch.setattr(rendezvous, "wait_for_result", wait_for_result)
    barriers = []
    monkeypatch.setattr(processes, "long_barrier", lambda: barriers.append(1))
    everyone = {(rank, rank // 2, rank % 2) for rank in range(4)}
    for turn in ([0], [1, 2], [3]):
        for process in sorted(everyone, reverse=True):
            if process[0] not in turn and process[0] not in order:
                with pytest.raises(Waits):
                    enter(*process)
        for process in sorted(everyone):
            if process[0] in turn:
                enter(*process)
    assert order == [0, 1, 2, 3] and barriers == [1, 1, 1, 1]
    # Another launcher's variables, under train_cpu.py.
    monkeypatch.delenv("TORCHELASTIC_RUN_ID")
    store = dist.HashStore()
    for rank in range(3):
        enter(rank, 1, 1)
    assert order == [0, 1, 2, 3, 0, 1, 2]


def test_a_second_signal_does_not_end_what_the_first_removes(monkeypatch):
    monkeypatch.setattr(processes.ThisProcess, "rank", 0)
    monkeypatch.setattr(processes.ThisProcess, "store", dist.HashStore(), raising=False)
    with pytest.raises(SystemExit) as ended, processes.rank_0_first():
        try:
            signal.raise_signal(signal.SIGINT)
            time.sleep(1)
        finally:
            signal.raise_signal(signal.SIGTERM)
            removed = True
    assert ended.value.code == 128 + signal.SIGINT and removed


@pytest.mark.parametrize("rank, missing", [(1, 0), (0, 1)])
def test_a_process_that_has_not_started_is_named(rank, missing):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(
        UserError,
        match=rf"^process {missing} of 2 has not started within 1 seconds \(--timeout\)$",
    ):
        store_of_this_start(store, rank, 2, timeout=1)


@pytest.mark.parametrize("length", [0, 1, rendezvous.PIECE, 9 * rendezvous.PIECE + 1])
def test_text_of_any_length_goes_through_the_store(length):
    """PyTorch's store takes 8 MiB at most; a tokenizer may have more."""
    store = rendezvous.store_on_loopback()
    text = "".join(map(str, range(length)))[:length]
    rendezvous.send_text(store, "text", text)
    assert rendezvous.receive_text(store, "text") == text


WAITING = """
import ctypes
import sys
from datetime import timedelta

from support.distributed import liveness
from support.distributed.rendezvous import connect
from support.distributed.signals import Signals

liveness.GRACE = liveness.PERIOD = 0.2
store = connect(int(sys.argv[1]), timedelta(seconds=60))
Signals.handle(Signals.note)
with liveness.exit_if_another_dies(store, 0, 2):
    store.set("waiting", "")
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    for _ in range(2):  # the second time never ends, as little as a wait for a lost GPU
        libc.pthread_mutex_lock(mutex)
"""


@LINUX  # where zeros are a mutex
@pytest.mark.parametrize("fate", ["alive", "finished", "died"])
def test_who_waits_for_the_dead_in_code_of_c_ends_by_a_signal(monkeypatch, fate):
    store = rendezvous.store_on_loopback()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    waiting = subprocess.Popen(
        [sys.executable, "-c", WAITING, str(store.port)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        store.wait(["waiting"])
        with socket.create_server(("127.0.0.1", 0)) as listener:  # rank 1 is this process
            store.set("listener/1", f"127.0.0.1 {listener.getsockname()[1]}")
            waiting.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(1)
            if fate == "finished":
                store.set("finished/1", "")
            if fate != "alive":
                listener.close()
            if fate == "died":
                assert "error: process 1 of 2 has died" in waiting.communicate(timeout=20)[1]
                assert waiting.returncode == 1
                return
            with pytest.raises(subprocess.TimeoutExpired):
                waiting.wait(1)
    finally:
        waiting.kill()
        waiting.communicate()


@LINUX  # Only runs on GPUs listen, and these need Linux.
def test_a_living_process_can_be_asked_any_number_of_times(monkeypatch):
    """As often as others ask while a large checkpoint is saved after a signal."""
    store = rendezvous.store_on_loopback()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setattr(liveness, "BACKLOG", 1)
    with liveness.exit_if_another_dies(store, 0, 2):
        assert not any(liveness.has_died(store, 0) for _ in range(10))
    store.delete_key("finished/0")
    assert liveness.has_died(store, 0)  # nobody listens now


@LINUX
@pytest.mark.parametrize(
    ("nodes", "host", "name", "is_reachable"),
    [
        (1, "localhost", "127.0.0.1", False),
        (2, "localhost", "localhost", True),
        (2, "::1", "::1", False),
    ],
)
def test_a_process_is_found_by_an_address_that_other_nodes_reach(
    monkeypatch, nodes, host, name, is_reachable
):
    """A node that takes its own name for loopback is found by that name."""
    if rendezvous.own_address(host) is None:
        pytest.skip(f"this machine does not reach {host}")
    store = rendezvous.store_on_loopback()
    monkeypatch.setenv("MASTER_ADDR", host)
    monkeypatch.setenv("GROUP_WORLD_SIZE", str(nodes))
    with liveness.exit_if_another_dies(store, 0, 2):
        published, port = store.get("listener/0").decode().split()
        assert published == name
        assert not liveness.has_died(store, 0)
        store.set("listener/1", f"127.0.0.2 {port}")  # another address of a Linux machine
        assert liveness.has_died(store, 1) != is_reachable


def test_a_process_that_finishes_while_it_is_asked_has_not_died(monkeypatch):
    store = dist.HashStore()
    store.set("listener/1", "127.0.0.1 1")

    def connect(*_, **__):
        store.set("finished/1", "")
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", connect)
    assert not liveness.has_died(store, 1)


def test_a_store_that_does_not_answer_is_not_taken_for_a_dead_process(monkeypatch):
    def has_died(store, rank):
        raise dist.DistNetworkError("the connection was reset")

    monkeypatch.setattr(liveness, "has_died", has_died)
    assert "the store of the run does not answer" in liveness.describe_dead_processes(
        dist.HashStore(), 1, 4
    )
    monkeypatch.setattr(liveness, "has_died", lambda store, rank: rank > 1)
    assert (
        liveness.describe_dead_processes(dist.HashStore(), 1, 4) == "process 2, 3 of 4 has died"
    )
    assert liveness.describe_dead_processes(dist.HashStore(), 1, 2) == ""


def test_what_is_registered_later_is_called_before_a_process_ends(tmp_path):
    """W&B sends what it has; nothing that Python does after that is reached."""
    script = """
import atexit, sys
from support.distributed.launch import end_at_once

class Late:
    def __del__(self):
        print("modules are deleted", flush=True)

sys.modules["late"] = Late()
with end_at_once():
    atexit.register(print, "sent")
    sys.exit(3)
"""
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (3, "sent\n"), done.stderr
    source = (ROOT / "support" / "distributed" / "launch.py").read_text()
    assert "atexit._" not in source  # a private name may go


@pytest.mark.slow
def test_a_thread_that_drops_a_tensor_late_does_not_abort_the_process(tmp_path):
    """It waits for Python's lock, and gets it when Python has begun to end."""
    late = tmp_path / "late.py"
    late.write_text("""
import atexit, sys, time
import torch
import torch.distributed as dist
from support.distributed.launch import spawn
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings

class Pause:
    def __init__(self):
        self.sleep = time.sleep  # Python has deleted most modules by then

    def __del__(self):
        self.sleep(0.5)  # gives up the lock

def drop_late(rank):
    sys.setswitchinterval(1000)  # from here on only what waits gives up the lock
    time.sleep(0.3 * rank)
    sys.group.allreduce([torch.ones(1)])  # a thread of Gloo's now holds the tensor
    start = time.monotonic()
    while time.monotonic() < start + 1:
        pass
    print(f"rank {rank} has sent the rest", flush=True)  # as W&B does at the end

def train(rank, world_size, args):
    dist.init_process_group("gloo")
    dist.barrier()
    sys.group = dist.group.WORLD  # PyTorch's optimizers keep it as well
    sys.modules["pause"] = Pause()
    atexit.register(drop_late, rank)

if __name__ == "__main__":
    spawn(train, parse_arguments("", CpuSettings))
""")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run_script(late, "--procs", 2, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert "rank 0 has sent" in done.stdout and "rank 1 has sent" in done.stdout


def test_a_folder_that_another_run_has_locked_is_refused_and_stays(tmp_path, monkeypatch):
    """Also if there is nothing but the lock in it yet."""
    monkeypatch.setattr(run_folder, "LOCK_TIMEOUT", 0)
    with run_folder.lock_folder(tmp_path, is_new=True):
        run_folder.remove_if_empty(str(tmp_path))
        with pytest.raises(UserError, match="another run is writing to it"):
            run_folder.lock_folder(tmp_path, is_new=True)
    run_folder.lock_folder(tmp_path, is_new=True).close()


@POSIX
def test_a_signal_some_seconds_after_the_first_kills_the_processes(monkeypatch):
    """One that comes at once may be the same Ctrl-C: they have to save."""
    sent = []
    process = SimpleNamespace(pid=7, is_alive=lambda: True, kill=lambda: sent.append("kill"))
    times = iter([10, 11, 13])
    monkeypatch.setattr(os, "kill", lambda pid, number: sent.append((pid, number)))
    monkeypatch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: next(times)))
    received = processes.forward_signals(SimpleNamespace(processes=[process]), early=[])
    for _ in range(3):
        signal.raise_signal(signal.SIGINT)
    assert sent == [(7, signal.SIGINT), (7, signal.SIGINT), "kill"]
    assert received == 3 * [signal.SIGINT]


@pytest.mark.parametrize(
    "procs, batch_tokens, cores, expected",
    [(0, 4096, 4, 4), (0, 10**6, 64, 8), (0, 1535, 64, 2), (0, 100, 64, 1), (8, 100, 2, 8)],
)
def test_as_many_processes_as_cores_unless_they_had_too_little_to_do(
    procs, batch_tokens, cores, expected
):
    args = SimpleNamespace(procs=procs, batch_tokens=batch_tokens, folder="")
    assert processes.number_of_processes(args, cores) == expected


def test_a_process_that_was_asked_to_stop_blames_nobody(monkeypatch):
    monkeypatch.setattr(Signals, "received", signal.SIGTERM)
    with pytest.raises(SystemExit) as ended, report_lost_processes(dist.HashStore(), 0, 2):
        raise RuntimeError("gloo: Connection closed by peer")
    assert ended.value.code == 128 + signal.SIGTERM
