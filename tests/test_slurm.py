"""The files in batch/, submitted to a real Slurm: a two-node cluster on this machine, started for these tests."""

import csv
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import ROOT, SMALL, read_metrics

NEEDED = ["slurmctld", "slurmd", "munged", "sbatch", "srun"]
missing = [name for name in NEEDED if not shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin")]
pytestmark = pytest.mark.skipif(bool(missing) or os.geteuid() != 0, reason=f"a Slurm of one's own needs root and {missing or NEEDED}")

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=20
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} Gres=gpu:4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} Gres=gpu:4
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Starts munged, slurmctld and two slurmd; gives run(*command) with their configuration."""
    folder = tmp_path_factory.mktemp("slurm")
    folder.chmod(0o755)
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(CONFIG.format(host=host, folder=folder, ports=free_ports(3), cpus=os.cpu_count()))
    (folder / "gres.conf").write_text(f"NodeName=n1,n2 Name=gpu File={folder}/gpu[0-3]\n")
    for number in range(4):
        (folder / f"gpu{number}").touch()                  # what Slurm takes for the device
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    hosts = Path("/etc/hosts")
    before = hosts.read_text()
    environment = os.environ | {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"}
    daemons = []

    def daemon(*command):
        with open(folder / f"{len(daemons)}-{command[0]}.log", "w") as log:
            daemons.append(subprocess.Popen(command, stdout=log, stderr=log, env=environment))

    def run(*command, **how):
        return subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=60, **how)

    try:
        hosts.write_text(f"{before.rstrip()}\n127.0.0.1 n1 n2\n")
        daemon("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key",
               f"--pid-file={folder}/munge.pid", f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed")
        while not (folder / "munge.socket").exists():
            assert daemons[0].poll() is None
            time.sleep(0.1)
        daemon("slurmctld", "-D", "-c")
        daemon("slurmd", "-D", "-N", "n1")
        daemon("slurmd", "-D", "-N", "n2")
        end = time.monotonic() + 60
        while (nodes := run("sinfo", "-h", "-N", "-o", "%N %T").stdout) != "n1 idle\nn2 idle\n":
            logs = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
            assert time.monotonic() < end, nodes + run("scontrol", "show", "nodes").stdout + logs
            time.sleep(0.5)
        yield run
    finally:
        run("scancel", "--signal=KILL", "--full", "--user=root")
        time.sleep(1)
        for process in reversed(daemons):
            process.terminate()
        for process in daemons:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
        hosts.write_text(before)


@pytest.fixture
def folder(tmp_path):
    """What a user would have cloned."""
    shutil.copytree(ROOT / "batch", tmp_path / "batch")
    for script in ROOT.glob("*.py"):
        (tmp_path / script.name).symlink_to(script)
    (tmp_path / "logs").mkdir()
    return tmp_path


def state(slurm, job: str) -> str:
    return re.search(r"JobState=(\w+)", slurm("scontrol", "show", "job", job).stdout)[1]


def submit(slurm, folder, *command) -> str:
    done = slurm("sbatch", "--parsable", *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_until(slurm, folder, job: str, condition, seconds=150) -> None:
    end = time.monotonic() + seconds
    while not condition():
        written = "".join(path.read_text() for path in folder.glob("logs/*.out"))
        assert time.monotonic() < end, f"{state(slurm, job)}\n{written[-4000:]}"
        assert state(slurm, job) not in ("FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"), written[-4000:]
        time.sleep(0.5)


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "batch").iterdir() if "#SBATCH" in path.read_text()))
def test_sbatch_accepts(slurm, folder, file):
    done = slurm("sbatch", "--test-only", f"batch/{file}", cwd=folder)
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr


def test_files_differ_only_where_the_hardware_does():
    """The same page six times: apart from the #SBATCH lines, the comment on top and the script, nothing differs."""
    def body(path):
        return [line.replace("train_fsdp.py", "train_ddp.py") for line in path.read_text().splitlines()[2:] if not line.startswith("#SBATCH")]

    torchrun = [body(ROOT / "batch" / f"{name}.sbatch") for name in ("1gpu", "2gpu", "4gpu", "2node", "fsdp")]
    assert all(one == torchrun[0] for one in torchrun)
    assert all(len(path.read_text().splitlines()) <= 40 for path in (ROOT / "batch").glob("*.sbatch"))


@pytest.mark.parametrize("name, steps", [("cpu", 8000), ("2node", 1200)])
def test_a_job_near_its_time_limit_saves_requeues_and_goes_on(slurm, folder, corpus_flags, name, steps):
    """Once it trains, its time is cut to a minute, with a signal half a minute before; then, with more time, the rest."""
    device = ["--device", "cpu"] if name == "2node" else []
    job = submit(slurm, folder, "--time=20", "--signal=B:USR1@30", f"batch/{name}.sbatch", *device,
                 *corpus_flags, *SMALL, "--steps", steps, "--eval-every", "1000", "--log-every", "10")
    run = folder / "logs" / f"slurm-{job}"
    wait_until(slurm, folder, job, lambda: (run / "metrics.csv").exists() and read_metrics(run))
    seconds = int(re.search(r"RunTime=00:00:(\d+)", slurm("scontrol", "show", "job", job).stdout)[1])
    # Slurm looks at limits twice a minute, so the signal comes up to half a minute early: at once, if a minute is the limit.
    assert slurm("scontrol", "update", f"JobId={job}", f"TimeLimit={1 if seconds < 25 else 2}").returncode == 0
    wait_until(slurm, folder, job, lambda: "Restarts=0" not in slurm("scontrol", "show", "job", job).stdout)
    assert (run / "last.pt").exists() and not (run / "summary.json").exists()
    assert slurm("scontrol", "update", f"JobId={job}", "TimeLimit=20").returncode == 0
    wait_until(slurm, folder, job, lambda: state(slurm, job) == "COMPLETED", 400)
    written = "".join(path.read_text() for path in folder.glob("logs/*.out"))
    assert "stopped and saved at step" in written
    assert "Restarts=0" not in slurm("scontrol", "show", "job", job).stdout
    assert [int(row["step"]) for row in read_metrics(run)] == list(range(10, steps + 1, 10))
    assert (run / "summary.json").exists()


def test_a_study_as_an_array_makes_its_picture_when_all_runs_are_there(slurm, folder, corpus_flags):
    """Two tasks at once, each one run; whichever is last finds both."""
    job = submit(slurm, folder, "--array=1-2", "--cpus-per-task=1", "--export=ALL,RATES=0.001 0.002,PROCESSES=1", "batch/study_learning_rate.sh",
                 *corpus_flags, *SMALL, "--steps", "20", "--eval-every", "10", "--log-every", "5")
    study = folder / "logs" / "study-learning-rate"
    wait_until(slurm, folder, job, lambda: (study / "runs.csv").exists() and (study / "runs.csv").read_text().count("\n") == 3)
    assert (study / "learning_rate.png").exists()
    with open(study / "runs.csv", newline="") as file:
        assert [float(row["lr"]) for row in csv.DictReader(file)] == [0.001, 0.002]
