"""Who is said to have died is who has died: each number of a process, and nobody where nobody has."""

import signal
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist
import torch.multiprocessing as mp

from support import processes
from support.errors import BadInput
from support.rendezvous import name_lost_processes
from support.stopping import STOPPING


@pytest.fixture(autouse=True)
def same_signals():
    """What they do, and which wait, stays as it is."""
    before, blocked = {number: signal.getsignal(number) for number in STOPPING}, signal.pthread_sigmask(signal.SIG_BLOCK, [])
    yield
    for number, how in before.items():
        signal.signal(number, how)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 2], []])
def test_who_does_not_notice_is_named(monkeypatch, lost):
    store, here = dist.HashStore(), [rank for rank in range(3) if rank not in lost]

    def meanwhile(seconds):
        assert seconds >= 1                                # the others notice a little later
        for rank in here[1:]:
            store.set(f"noticed/{rank}", "")

    monkeypatch.setattr(time, "sleep", meanwhile)
    with pytest.raises(BadInput if lost else RuntimeError) as problem:
        with name_lost_processes(store, here[0], 3):
            raise RuntimeError("gloo: Connection closed by peer\nat pair.cc")
    expected = f"process {', '.join(map(str, lost))} of 3 has died or does not answer (gloo: Connection closed by peer)"
    assert not lost or str(problem.value) == expected


def test_another_problem_is_nobodys_death():
    with pytest.raises(RuntimeError, match="^shapes differ"):
        with name_lost_processes(dist.HashStore(), 0, 3):
            raise RuntimeError("shapes differ")


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("killed", [0, 1, 2])
def test_who_was_killed_is_named(monkeypatch, tmp_path, killed, saved):
    """The others were ended with it, by SIGTERM."""
    class Workers:
        processes = [SimpleNamespace(exitcode=-signal.SIGKILL if rank == killed else -signal.SIGTERM) for rank in range(3)]

        def join(self):
            raise mp.ProcessExitedException("process 0 terminated with signal SIGTERM", 0, 1, -signal.SIGTERM)

    folder = tmp_path / "logs" / "run"
    folder.mkdir(parents=True)
    if saved:
        (folder / "last.pt").touch()
    monkeypatch.setattr("sys.argv", ["a/train_cpu.py"])
    with pytest.raises(SystemExit) as ended:
        processes.watch(Workers(), str(folder))
    assert ended.value.code == (f"error: process {killed} of 3 was killed (SIGKILL); "
                                + (f"go on with: python train_cpu.py --resume {folder}" if saved else "nothing was saved"))
    assert folder.exists() == saved                      # an empty folder is removed
