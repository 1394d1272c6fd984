"""The SBATCH files, submitted to a real Slurm with two nodes that the tests start here."""

import csv
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, read_metrics, skip_on_windows, wait_for

skip_on_windows("Slurm runs on Linux")

NEEDED = ["slurmctld", "slurmd", "munged", "sbatch", "srun"]
PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
MISSING = [name for name in NEEDED if not shutil.which(name, path=PATH)]

FILES = sorted(path.name for path in (ROOT / "batch").glob("*.sbatch"))

# Of a node: at least as many as the files for four GPUs ask for.
CPUS = max(8, os.cpu_count() or 1)

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
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=20
SchedulerParameters=sched_interval=2,bf_interval=2
GresTypes=gpu
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} Gres=gpu:4
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} Gres=gpu:4
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=all Nodes=n1,n2 Default=YES MaxTime=INFINITE PriorityTier=1 GraceTime=60
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE PriorityTier=2
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
    """Starts munged, slurmctld and two slurmd; gives run(*command), to talk to them."""
    if MISSING or os.geteuid() != 0:
        pytest.skip(f"to start a Slurm needs root and {', '.join(MISSING or NEEDED)}")
    folder = tmp_path_factory.mktemp("slurm")
    write_slurm_config(folder)
    hosts = Path("/etc/hosts")
    hosts_before = hosts.read_text()
    cluster = Slurm(folder)
    try:
        hosts.write_text(f"{hosts_before.rstrip()}\n127.0.0.1 n1 n2\n")
        cluster.start()
        yield cluster.run
    finally:
        cluster.stop()
        hosts.write_text(hosts_before)


def write_slurm_config(folder: Path) -> None:
    folder.chmod(0o755)
    for name in ("state", "spool-n1", "spool-n2"):
        (folder / name).mkdir()
    host = socket.gethostname().split(".")[0]
    (folder / "slurm.conf").write_text(
        CONFIG.format(host=host, folder=folder, ports=free_ports(3), cpus=CPUS)
    )
    (folder / "gres.conf").write_text(f"NodeName=n1,n2 Name=gpu File={folder}/gpu[0-3]\n")
    for number in range(4):
        (folder / f"gpu{number}").touch()  # Slurm takes it for the device
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)


class Slurm:
    """The daemons of a cluster with two nodes, n1 and n2, and commands that talk to them."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.daemons = []
        self.environment = os.environ | {
            "SLURM_CONF": str(folder / "slurm.conf"),
            "PATH": PATH,
            "OMP_NUM_THREADS": "1",
        }

    def start(self) -> None:
        munge_files = [
            f"--{name}-file={self.folder}/munge.{name}"
            for name in ("key", "pid", "log", "seed")
        ]
        socket_path = self.folder / "munge.socket"
        self.daemon(
            "munged", "--foreground", "--force", f"--socket={socket_path}", *munge_files
        )
        wait_for(lambda: socket_path.exists() or self.daemons[0].poll() is not None)
        assert self.daemons[0].poll() is None
        self.daemon("slurmctld", "-D", "-c")
        self.daemon("slurmd", "-D", "-N", "n1")
        self.daemon("slurmd", "-D", "-N", "n2")
        end = time.monotonic() + 60
        while (nodes := self.nodes()) != "n1 idle\nn2 idle\n":
            logs = "".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
            details = self.run("scontrol", "show", "nodes").stdout
            assert time.monotonic() < end, nodes + details + logs
            time.sleep(0.5)

    def daemon(self, *command: str) -> None:
        with open(self.folder / f"{len(self.daemons)}-{command[0]}.log", "w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        self.daemons.append(process)

    def run(self, *command, **kwargs) -> subprocess.CompletedProcess:
        return subprocess.run(
            list(map(str, command)),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=60,
            **kwargs,
        )

    def nodes(self) -> str:
        return self.run("sinfo", "-h", "-N", "-p", "all", "-o", "%N %T").stdout

    def stop(self) -> None:
        self.run("scancel", "--signal=KILL", "--full", "--user=root")
        time.sleep(1)
        for process in reversed(self.daemons):
            process.terminate()
        for process in self.daemons:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def folder(tmp_path):
    """What a user would have cloned."""
    shutil.copytree(ROOT / "batch", tmp_path / "batch")
    for path in [*ROOT.glob("*.py"), ROOT / "support"]:
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "logs").mkdir()
    return tmp_path


def show(slurm, job: str) -> str:
    return slurm("scontrol", "show", "job", job).stdout


def state(slurm, job: str) -> str:
    return re.search(r"JobState=(\w+)", show(slurm, job))[1]


def output(folder) -> str:
    return "".join(path.read_text() for path in folder.glob("logs/*.out"))


def submit(slurm, folder, *command) -> str:
    done = slurm("sbatch", "--parsable", *command, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_until(slurm, folder, job: str, condition, seconds=150) -> None:
    end = time.monotonic() + seconds
    while not condition():
        now = state(slurm, job)
        written = output(folder)[-4000:]
        assert time.monotonic() < end, f"{now}\n{written}"
        assert now not in ("FAILED", "TIMEOUT", "CANCELLED", "NODE_FAIL"), written
        time.sleep(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_sbatch_accepts(slurm, folder, file):
    done = slurm("sbatch", "--test-only", f"batch/{file}", cwd=folder)
    assert done.returncode == 0 and "to start at" in done.stderr, done.stderr


def test_each_file_is_named_after_its_job():
    """Each sources job.sh, and passes its flags on to a script."""
    commands = {
        "cpu": 'run python train_cpu.py --name "slurm-$SLURM_JOB_ID" "$@"',
        "finetune": 'torchrun_on_all_nodes train_ddp.py --data agnews --pretrained "$@"',
        "fsdp": 'torchrun_on_all_nodes train_fsdp.py "$@"',
        "study": 'exec python batch/study.py "$@"',
        "tp": 'torchrun_on_all_nodes train_tp.py "$@"',
    }
    assert {f"{name}.sbatch" for name in commands} <= {*FILES}
    for file in FILES:
        subprocess.run(["bash", "-n", ROOT / "batch" / file], check=True)
        *header, source, command = (ROOT / "batch" / file).read_text().splitlines()
        name = file.removesuffix(".sbatch")
        assert f"#SBATCH --job-name={name}" in header
        assert all(line.startswith("#") for line in header)
        assert source == 'set -e; . "$SLURM_SUBMIT_DIR/batch/job.sh"'
        assert command == commands.get(name, 'torchrun_on_all_nodes train_ddp.py "$@"')


@pytest.mark.parametrize("file", FILES)
def test_a_command_of_job_sh_that_fails_ends_the_job(tmp_path, file):
    """Such as one that loads a module which the cluster does not have."""
    (tmp_path / "batch").mkdir()
    (tmp_path / "batch/job.sh").write_text("no-such-command python\necho went on\n")
    *_, source, _ = (ROOT / "batch" / file).read_text().splitlines()
    done = subprocess.run(
        ["bash", "-c", source],
        env=os.environ | {"SLURM_SUBMIT_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (127, "")


def test_a_job_passes_on_signals_and_the_name_of_its_run():
    """Only a real Slurm shows that it goes on: see the tests below."""
    text = (ROOT / "batch/job.sh").read_text()
    for part in (
        "    trap stop USR1\n    srun --kill-on-bad-exit=1 ",
        "--signals-to-handle SIGTERM,SIGINT,SIGUSR1,SIGUSR2,SIGXCPU ",
        '"$1" --name "slurm-$SLURM_JOB_ID" --device cuda "${@:2}"\n',
    ):
        assert part in text


def test_torchrun_waits_for_a_run_to_save():
    """It kills what has not saved after 30 seconds, unless it is told to wait."""
    shared = (ROOT / "batch/job.sh").read_text()
    subprocess.run(["bash", "-n", ROOT / "batch/job.sh"], check=True)
    (waits,) = re.findall(r"^export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=(\d+)", shared, re.MULTILINE)
    for file in FILES:
        left = re.search(r"--signal=B:USR1@(\d+)", (ROOT / "batch" / file).read_text())
        assert left and 60 <= int(waits) < int(left[1])


@pytest.mark.parametrize(
    ("ids", "job"),
    [({}, "9"), ({"SLURM_ARRAY_JOB_ID": "9", "SLURM_ARRAY_TASK_ID": "3"}, "9_3")],
)
def test_the_last_task_of_an_array_does_not_requeue_the_others(ids, job):
    """Its job has the id of the array."""
    text = (ROOT / "batch/job.sh").read_text()
    line = next(line for line in text.splitlines() if line.startswith("job="))
    done = subprocess.run(
        ["bash", "-c", f'{line}; echo "$job"'],
        env={"SLURM_JOB_ID": "9"} | ids,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == job


@pytest.mark.slow
def test_a_job_that_is_preempted_saves_and_goes_on(slurm, folder, corpus_flags):
    """It gets SIGTERM, and its grace time lasts until it has saved."""
    activate = folder / ".venv/bin/activate"  # --export=NONE leaves nothing of the environment
    activate.parent.mkdir(parents=True)
    activate.write_text(f"export PATH={shlex.quote(PATH)} OMP_NUM_THREADS=1\n")
    flags = shlex.split("--device cpu --delay-ms 50 --log-every 10 --eval-every 1000")
    job = submit(
        slurm,
        folder,
        "--time=20",
        "--export=NONE",
        "--nodes=2",
        f"--cpus-per-task={CPUS}",
        "batch/2node.sbatch",
        *corpus_flags,
        *SMALL,
        *flags,
        "--steps",
        "300",
    )
    run = folder / "logs" / f"slurm-{job}"
    wait_until(slurm, folder, job, lambda: (run / "metrics.csv").exists() and read_metrics(run))
    urgent = submit(
        slurm, folder, "--partition=urgent", f"--cpus-per-task={CPUS}", "--wrap=sleep 1"
    )
    wait_until(slurm, folder, urgent, lambda: state(slurm, urgent) == "COMPLETED")
    assert (run / "last.pt").exists() and not (run / "summary.json").exists()
    wait_until(slurm, folder, job, lambda: state(slurm, job) == "COMPLETED", 400)
    assert "Restarts=1" in show(slurm, job)
    assert [int(row["step"]) for row in read_metrics(run)] == list(range(10, 301, 10))


@pytest.mark.slow
def test_jobs_near_their_time_limit_save_and_go_on(slurm, folder, corpus_flags):
    """Two jobs at the same time are requeued before their time limit, and finish.

    Once a job trains, its time limit becomes a minute, and the signal comes half a minute
    earlier. When it has started again, it gets enough time for the rest.
    """
    # A step has two collectives, so 700 steps take 70 seconds or more: the signal is earlier.
    flags = shlex.split(
        "--device cpu --steps 700 --delay-ms 50 --log-every 10 --eval-every 1000"
    )
    runs = {}
    for name in ("cpu", "2node"):
        job = submit(
            slurm,
            folder,
            "--time=20",
            "--signal=B:USR1@30",
            "--cpus-per-task=1",
            f"batch/{name}.sbatch",
            *corpus_flags,
            *SMALL,
            *flags,
        )
        runs[job] = folder / "logs" / f"slurm-{job}"

    def has_trained(run):
        return (run / "metrics.csv").exists() and read_metrics(run)

    def has_restarted(job):
        return "Restarts=0" not in show(slurm, job)

    def has_completed(job):
        return state(slurm, job) == "COMPLETED"

    for job, run in runs.items():
        wait_until(slurm, folder, job, partial(has_trained, run))
        run_time = re.search(r"RunTime=00:(\d+):(\d+)", show(slurm, job))
        minutes, seconds = map(int, run_time.groups())
        # Slurm checks limits twice a minute, so the signal comes up to half a minute early: at
        # once if the limit is a minute.
        limit = minutes + 1
        if seconds >= 25:
            limit += 1
        assert slurm("scontrol", "update", f"JobId={job}", f"TimeLimit={limit}").returncode == 0
    for job, run in runs.items():
        wait_until(slurm, folder, job, partial(has_restarted, job))
        assert (run / "last.pt").exists() and not (run / "summary.json").exists()
        assert slurm("scontrol", "update", f"JobId={job}", "TimeLimit=20").returncode == 0
    for job, run in runs.items():
        wait_until(slurm, folder, job, partial(has_completed, job), 600)
        assert has_restarted(job)
        assert [int(row["step"]) for row in read_metrics(run)] == list(range(10, 701, 10))
        assert (run / "summary.json").exists()
    assert output(folder).count("stopped and saved at step") == 2
    assert {path.name for path in folder.glob("logs/*/")} == {run.name for run in runs.values()}


@pytest.mark.slow
def test_a_study_as_an_array_plots_at_the_end(slurm, folder, corpus_flags):
    """Two tasks at the same time, each trains one run; the one that ends last finds both."""
    flags = "--rates 0.001 0.002 --processes 1 --steps 20 --eval-every 10 --log-every 5"
    job = submit(
        slurm,
        folder,
        "--array=1-3",  # the third has nothing to do
        "--cpus-per-task=1",
        "batch/study.sbatch",
        "learning-rate",
        *corpus_flags,
        *SMALL,
        *flags.split(),
    )
    study = folder / "logs" / "study-learning-rate"
    table = study / "runs.csv"
    plot = study / "learning_rate.png"
    wait_until(slurm, folder, job, lambda: plot.exists() and table.exists())
    with open(table, newline="") as file:
        assert [float(row["lr"]) for row in csv.DictReader(file)] == [0.001, 0.002]
