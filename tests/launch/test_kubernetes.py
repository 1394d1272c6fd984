"""batch/jobset.yaml: its schema, its command run as two pods, and the contents of the image."""

import copy
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import jsonschema
import pytest
import yaml
from conftest import NETWORK, ROOT, SMALL, read_metrics, skip_on_windows, wait_for

skip_on_windows("Kubernetes runs on Linux")

CLAIM, JOBSET = yaml.safe_load_all((ROOT / "batch/jobset.yaml").read_text())
SCHEMA = jsonschema.Draft202012Validator(
    json.loads((ROOT / "tests/launch/jobset.schema.json").read_text())
)
NAME = JOBSET["metadata"]["name"]
REPLICATED = JOBSET["spec"]["replicatedJobs"][0]
JOB = REPLICATED["template"]["spec"]
POD = JOB["template"]["spec"]
CONTAINER = POD["containers"][0]
ENVIRONMENT = {entry.pop("name"): entry for entry in copy.deepcopy(CONTAINER["env"])}
COMMAND = CONTAINER["command"][2]
DOCKERFILE = (ROOT / "batch/Dockerfile").read_text()


def torchrun_flag(name: str) -> str:
    return re.search(rf"--{name} (\S+)", COMMAND.split("exec torchrun")[1])[1].strip('"')


# --- The file


def test_the_schema_accepts_the_file():
    assert [CLAIM["kind"], JOBSET["kind"]] == ["PersistentVolumeClaim", "JobSet"]
    for document in (CLAIM, JOBSET):
        SCHEMA.validate(document)


def test_numbers_that_have_to_agree_do():
    nodes = int(torchrun_flag("nnodes"))
    assert JOB["parallelism"] == JOB["completions"] == nodes
    assert JOB["completionMode"] == "Indexed" and REPLICATED["replicas"] == 1
    assert JOB["backoffLimit"] == nodes - 1  # if one pod is evicted, the others fail
    gpus = int(CONTAINER["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus == int(torchrun_flag("nproc-per-node"))
    assert POD["terminationGracePeriodSeconds"] >= int(torchrun_flag("shutdown-timeout")) + 15
    assert "max-restarts" not in COMMAND.split("exec torchrun")[1]


def test_names_that_have_to_agree_do():
    network = JOBSET["spec"]["network"]
    assert network["enableDNSHostnames"] and network["publishNotReadyAddresses"]
    subdomain = network.get("subdomain", NAME)  # the name of the headless service
    pod = f"{NAME}-{REPLICATED['name']}-0-"  # then the pod's index
    endpoint, address = (
        torchrun_flag(name).replace("$JOBSET", NAME) for name in ("rdzv-endpoint", "local-addr")
    )
    assert endpoint == f"{pod}0.{subdomain}:29400"
    assert address == f"{pod}$JOB_COMPLETION_INDEX.{subdomain}"
    assert len(pod) + 2 <= 63 and len(f"{pod}0.{subdomain}") <= 253
    assert COMMAND.split()[-3:] == ["--name", '"$JOBSET"', '"$@"']
    # Every variable of the command is set by this file, by the Job, or by the command.
    used = set(re.findall(r"\$(\w+)", re.sub(r"#.*", "", COMMAND)))
    assert used <= {*ENVIRONMENT, "JOB_COMPLETION_INDEX", "host"} and "$(" not in COMMAND
    # Labels that JobSet puts on its pods.
    read = {
        entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in ENVIRONMENT.values()
        if "fieldRef" in entry.get("valueFrom", {})
    }
    assert read <= {
        f"metadata.labels['jobset.sigs.k8s.io/{name}']"
        for name in ("jobset-name", "restart-attempt")
    }
    volumes = {volume["name"]: volume for volume in POD["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in CONTAINER["volumeMounts"]}
    assert len(volumes) == len(mounts)
    assert mounts["/dev/shm"]["emptyDir"]["medium"] == "Memory" and "emptyDir" in mounts["/tmp"]
    logs = mounts[f"{CONTAINER['workingDir']}/logs"]
    assert logs["persistentVolumeClaim"]["claimName"] == CLAIM["metadata"]["name"]
    assert ENVIRONMENT["XDG_CACHE_HOME"]["value"].startswith(f"{CONTAINER['workingDir']}/logs/")
    assert "ReadWriteMany" in CLAIM["spec"]["accessModes"]


def test_an_eviction_is_no_failure():
    """The Job fails at once, for a reason that the JobSet does not count as a restart."""
    [rule] = JOB["podFailurePolicy"]["rules"]
    assert rule["action"] == "FailJob" and POD["restartPolicy"] == "Never"
    assert rule["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]
    policy = JOBSET["spec"]["failurePolicy"]
    assert policy["maxRestarts"] > 0
    [rule] = policy["rules"]
    assert rule["action"] == "RestartJobSetAndIgnoreMaxRestarts"
    assert rule["onJobFailureReasons"] == ["PodFailurePolicy"]


def test_no_root_and_no_secret():
    """What the Pod Security Standard «restricted» requires; no secret stands in the file."""
    pod, container = POD["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] and pod["runAsUser"] == pod["runAsGroup"] == pod["fsGroup"] > 0
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert container["allowPrivilegeEscalation"] is False
    assert container["readOnlyRootFilesystem"] is True
    for name, entry in ENVIRONMENT.items():
        if re.search("KEY|TOKEN|SECRET|PASS", name):
            assert entry["valueFrom"]["secretKeyRef"]["optional"] is True


# --- The image


def instructions(name: str) -> list[str]:
    lines = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", DOCKERFILE)).splitlines()
    return [line.split(maxsplit=1)[1] for line in lines if line.startswith(f"{name} ")]


def test_the_recipe_is_pinned_and_not_root():
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", instructions("FROM")[0])
    constraints = (ROOT / "batch/constraints.txt").read_text().splitlines()
    pinned = dict(line.split("==") for line in constraints if line[0] != "#")
    wanted = re.findall(r"^([\w-]+)(.*)", (ROOT / "requirements.txt").read_text(), re.MULTILINE)
    assert "-c constraints.txt" in instructions("RUN")[1]
    assert ("torch", f"=={pinned['torch']}") in wanted
    assert {name for name, _ in wanted} | {"tensorboard", "wandb"} <= pinned.keys()
    uid = POD["securityContext"]["runAsUser"]
    assert instructions("USER") == [f"{uid}:{POD['securityContext']['runAsGroup']}"]
    assert instructions("WORKDIR") == [CONTAINER["workingDir"]]
    # Apptainer sets the image's variables over the user's own. This one keeps packages out of
    # the home folder, which it mounts, from replacing those of the image.
    assert instructions("ENV") == ["PYTHONNOUSERSITE=1"]
    assert not instructions("ENTRYPOINT")


def copied() -> list[tuple[Path, str]]:
    """(file, its path in the image) of all files that COPY takes and .dockerignore allows."""
    ignored = (ROOT / "batch/Dockerfile.dockerignore").read_text().split()
    kept = {path for line in ignored if line[0] == "!" for path in ROOT.glob(line[1:])}
    found = []
    for line in instructions("COPY"):
        *sources, target = [word for word in shlex.split(line) if not word.startswith("--")]
        for source in sources:
            folder = ROOT / source
            if folder.is_dir():
                files = kept & set(folder.rglob("*"))
                found += [(path, f"{target}/{path.relative_to(folder)}") for path in files]
            else:
                files = kept & set(ROOT.glob(source))
                found += [(path, f"{target}{path.name}") for path in files]
            assert files, f"COPY {source}: nothing to copy"
    return found


def test_the_image_holds_all_that_the_scripts_import(tmp_path):
    """The image is not built. What COPY would take is copied, and run in another folder."""
    app = tmp_path / "app"
    for path, target in copied():
        (app / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, app / target)

    def files(folder, *patterns):
        found = [
            path for pattern in patterns for path in folder.glob(pattern) if path.is_file()
        ]
        return {str(path.relative_to(folder)) for path in found}

    scripts = files(ROOT, "*.py", "support/**/*.py", "support/**/*.gz", "configs/*.yaml")
    assert files(app, "**/*") == {"requirements.txt", "constraints.txt", *scripts}
    done = subprocess.run(
        [sys.executable, app / "train_ddp.py", "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "--name" in done.stdout, done.stderr


# --- Two pods

ENTER = 'mount --bind "$1" /etc/hosts && hostname "$2" && shift 2 && exec "$@"'


class Pods:
    """The JobSet's pods here: processes with a network, name and hosts file.

    The command, the place of its arguments and the environment are the file's. One folder
    stands for the image's /app and for the volume at /app/logs; the CPUs are this machine's.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.attempt = 0
        self.running = {}
        indices = range(JOB["parallelism"])
        self.names = [f"{NAME}-{REPLICATED['name']}-0-{index}" for index in indices]
        self.networks = [f"k{os.getpid()}-{index}" for index in indices]
        for path in [*ROOT.glob("*.py"), ROOT / "support"]:
            (folder / path.name).symlink_to(path)
        (folder / "logs").mkdir()

    def ip(self, words: str) -> None:
        subprocess.run(["ip", *words.split()], check=True, capture_output=True, timeout=20)

    def __enter__(self):
        for network in self.networks:
            self.ip(f"netns add {network}")
        one, other = self.networks
        self.ip(f"link add eth0 netns {one} type veth peer name eth0 netns {other}")
        for index, network in enumerate(self.networks):
            self.ip(f"-n {network} addr add 10.78.0.{index + 1}/24 dev eth0")
            self.ip(f"-n {network} link set eth0 up")
            self.ip(f"-n {network} link set lo up")
            self.dns(index, known=False)
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for run in self.running.values():
            run.wait(20)
        for network in self.networks:
            subprocess.run(["ip", "netns", "delete", network], capture_output=True, timeout=20)

    def processes(self) -> list[int]:
        """All processes that run in a pod, whoever started them."""
        listed = [
            subprocess.run(
                ["ip", "netns", "pids", network], capture_output=True, text=True, timeout=20
            ).stdout
            for network in self.networks
        ]
        return [int(pid) for one in listed for pid in one.split()]

    def dns(self, index: int, known: bool) -> None:
        """Writes a pod's hosts file. known: the headless service has the names of all pods."""
        name = self.names[index]
        own = f"10.78.0.{index + 1} {name}.{NAME}.default.svc.cluster.local {name}\n"
        service = "".join(
            f"10.78.0.{i + 1} {name}.{NAME}\n" for i, name in enumerate(self.names)
        )
        hosts = "127.0.0.1 localhost\n" + own
        if known:
            hosts += service
        (self.folder / f"hosts-{index}").write_text(hosts)

    def environment(self, index: int) -> dict[str, str]:
        labels = {
            "jobset.sigs.k8s.io/jobset-name": NAME,
            "jobset.sigs.k8s.io/restart-attempt": str(self.attempt),
        }
        found = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "JOB_COMPLETION_INDEX": str(index),
        }
        for name, entry in ENVIRONMENT.items():
            source = entry.get("valueFrom", {})
            if "value" in entry:
                found[name] = entry["value"].replace(CONTAINER["workingDir"], str(self.folder))
            elif "fieldRef" in source:
                found[name] = labels[source["fieldRef"]["fieldPath"].split("'")[1]]
            elif "resourceFieldRef" in source:
                found[name] = "1"
            else:
                assert source["secretKeyRef"]["optional"]
        return found

    def start(self, index: int, *args: str) -> None:
        namespaces = f"ip netns exec {self.networks[index]} unshare --mount --uts".split()
        hosts = str(self.folder / f"hosts-{index}")
        enter = [*namespaces, "sh", "-c", ENTER, "pod", hosts, self.names[index]]
        with open(self.folder / f"{self.attempt}-{index}.log", "w") as log:
            self.running[index] = subprocess.Popen(
                [*enter, *CONTAINER["command"], *args],
                cwd=self.folder,
                env=self.environment(index),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self, index: int) -> str:
        return (self.folder / f"{self.attempt}-{index}.log").read_text()

    def logs(self) -> str:
        return "".join(self.log(index) for index in self.running)

    def wait(self, condition) -> None:
        end = time.monotonic() + 120
        while not condition():
            if time.monotonic() > end:
                pytest.fail(f"waited in vain:\n{self.logs()[-6000:]}")
            time.sleep(0.05)

    def end(self, seconds: float) -> list[int]:
        """Waits until all processes of the pods have ended; returns the pods' exit statuses."""
        end = time.monotonic() + seconds
        for run in self.running.values():
            try:
                run.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                pytest.fail(f"it does not end:\n{self.logs()[-6000:]}")
        wait_for(lambda: not self.processes(), 20)
        statuses = [run.returncode for run in self.running.values()]
        self.running = {}
        return statuses


@pytest.mark.slow
@pytest.mark.skipif(
    not NETWORK or not shutil.which("unshare"),
    reason="pods need root, iproute2, util-linux and a kernel that has namespaces",
)
def test_two_pods_meet_train_leave_together_when_one_is_evicted_and_go_on(
    tmp_path, corpus_flags
):
    more = shlex.split("--device cpu --eval-every 100000 --save-every 5")
    flags = [*corpus_flags, *SMALL, *more]
    saved = tmp_path / "logs" / NAME / "last.pt"
    with Pods(tmp_path) as pods:

        def all_run():
            return all(run.poll() is None for run in pods.running.values())

        # The first attempt: the second pod starts first, and DNS knows neither of them yet.
        pods.start(1, *flags, "--steps", "100000")
        pods.start(0, *flags, "--steps", "100000")
        pods.wait(lambda: all("29400) cannot be retrieved" in pods.log(i) for i in (0, 1)))
        assert all_run() and not (tmp_path / "logs" / NAME).exists()
        for index in (0, 1):
            pods.dns(index, known=True)
        pods.wait(lambda: saved.exists() or not all_run())
        assert saved.exists(), pods.logs()
        config = json.loads((saved.parent / "config.json").read_text())
        assert (config["world_size"], config["hosts"], config["threads"]) == (2, pods.names, 1)
        # One pod is evicted, or the JobSet is deleted. Both save, and end before
        # --shutdown-timeout.
        for index in random.choice([[0], [1], [0, 1]]):
            os.kill(pods.running[index].pid, signal.SIGTERM)
        assert 0 not in pods.end(60)
        step = int(re.search(r"stopped and saved at step (\d+)", pods.log(0))[1])
        assert "stopped and saved" not in pods.log(1)  # the log is pod 0's
        # The second attempt, with what the JobSet would give it, and an end.
        pods.attempt = 1
        for index in (0, 1):
            pods.start(index, *flags, "--steps", str(step + 7))
        assert pods.end(120) == [0, 0], pods.log(0) + pods.log(1)
        assert "BLEU" in pods.log(0)
        assert [int(row["step"]) for row in read_metrics(saved.parent)] == list(
            range(1, step + 8)
        )
        assert {path.name for path in (tmp_path / "logs").iterdir()} - {".cache"} == {NAME}
