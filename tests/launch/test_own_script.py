"""docs/own_script.md: its scripts compute the same on one process and on two, and resume."""

import re
import shutil
import subprocess
import sys

import pytest
from conftest import ROOT, skip_on_windows

skip_on_windows("torchrun needs libuv")

EPOCH = re.compile(r"epoch (\d): loss (\S+), norm (\S+), accuracy (\S+)")


@pytest.fixture
def train(tmp_path):
    """train("ddp", 2) trains without dropout there; returns the figures of each epoch."""
    shutil.copytree(ROOT / "docs/own_script", tmp_path / "scripts")
    constants = tmp_path / "scripts/one_gpu.py"

    def train(script, processes, epochs=2):
        text = constants.read_text(encoding="utf-8")
        for name, value in (("DROPOUT", 0), ("EPOCHS", epochs)):
            text = re.sub(f"(?m)^{name} = .*$", f"{name} = {value}", text)
        constants.write_text(text, encoding="utf-8")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
        launcher = [] if script == "one_gpu" else [*torchrun, str(processes)]
        done = subprocess.run(
            [sys.executable, *launcher, f"scripts/{script}.py"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert "Warning: FSDP2" not in done.stderr
        return [tuple(map(float, figures)) for figures in EPOCH.findall(done.stdout)]

    return train


@pytest.mark.slow
def test_one_process_and_two_compute_the_same_also_resumed(tmp_path, train):
    expected = train("ddp", 1)
    assert len(expected) == 2 and expected[1][1] < 0.7 * expected[0][1]
    (tmp_path / "ddp.pt").unlink()
    for script in ("ddp", "fsdp"):
        found = train(script, 2, epochs=1) + train(script, 2)
        assert found == [pytest.approx(row, rel=1e-4) for row in expected]


@pytest.mark.slow
def test_one_device_resumes(tmp_path, train):
    expected = train("one_gpu", 1)
    assert len(expected) == 2
    (tmp_path / "one_gpu.pt").unlink()
    found = train("one_gpu", 1, epochs=1) + train("one_gpu", 1)
    assert found == [pytest.approx(row, rel=1e-4) for row in expected]
