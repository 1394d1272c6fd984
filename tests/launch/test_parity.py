"""The four training scripts compute the same thing and resume each other's checkpoints."""

from statistics import mean

import parity
import pytest
import torch
from conftest import SMALL, read_metrics, run_script, skip_on_windows

skip_on_windows("torchrun asks for libuv, which PyTorch for Windows is built without")

FEW = (("cpu", 2, 1), ("ddp", 2, 1), ("fsdp", 2, 2), ("tp2", 2, 1))
MANY = (("ddp", 3, 4), ("fsdp", 3, 1), ("tp2", 4, 2))


def last_checkpoints(folder, *names) -> list[dict]:
    """Returns what logs/NAME/last.pt holds, for each name."""
    return [torch.load(folder / "logs" / name / "last.pt", weights_only=True) for name in names]


@pytest.mark.parametrize("cases", [FEW, pytest.param(MANY, marks=pytest.mark.slow)])
def test_every_mode_gives_the_same_curve_and_weights(
    tmp_path, corpus_flags, monkeypatch, cases
):
    """Some cases of tests/measure/parity.py. With 3 processes nothing divides evenly."""
    monkeypatch.setattr(parity, "STEPS", 20)
    flags = [*corpus_flags, "--batch-tokens", "512", "--warmup", "300"]
    one = parity.run(tmp_path, "cpu", 1, 1, *flags)
    assert mean(one.losses[-5:]) < mean(one.losses[:5]) - 0.05
    for mode, procs, accumulate in cases:
        loss, weights = parity.differences(
            one, parity.run(tmp_path, mode, procs, accumulate, *flags)
        )
        assert loss < 1e-4 and weights < 1e-4, (mode, procs, accumulate)
        a, b = (
            read_metrics(tmp_path / "logs" / name)[-1]
            for name in ("cpu-1-1", f"{mode}-{procs}-{accumulate}")
        )
        assert float(b["valid_loss"]) == pytest.approx(float(a["valid_loss"]), rel=1e-4)
        assert float(b["valid_bleu"]) == pytest.approx(float(a["valid_bleu"]), abs=0.05)
        assert float(b["grad_norm"]) == pytest.approx(float(a["grad_norm"]), rel=1e-3)
        assert b["tokens"] == a["tokens"]


@pytest.mark.slow
def test_split_layers_of_a_classifier_give_the_same_curve(tmp_path, monkeypatch):
    """With post-norm. The confusion matrices are equal. parity.py has all combinations."""
    monkeypatch.setattr(parity, "STEPS", 10)
    flags = ["--data", "kinds", "--norm", "post", "--batch-tokens", "512", "--warmup", "300"]
    one = parity.run(tmp_path, "cpu", 1, 1, *flags)
    for case in (("tp2", 2, 2), ("tp4", 4, 1)):
        loss, weights = parity.differences(one, parity.run(tmp_path, *case, *flags))
        assert loss < 1e-6 and weights < 1e-4, case


@pytest.mark.slow
def test_a_split_run_that_goes_on_is_the_same_to_the_bit(tmp_path, corpus_flags, go):
    """From one file and from shards, with dropout, two micro-batches and two groups."""
    flags = [*corpus_flags, *SMALL, "--dropout", "0.1", "--accumulate", "2"]
    for how in (
        ["--name", "whole", "--steps", "6", *flags],
        ["--name", "parts", "--steps", "2", *flags],
        ["--resume", "logs/parts", "--steps", "4", "--sharded"],
        ["--resume", "logs/parts", "--steps", "6"],
    ):
        errors = go("tp2", 4, *how)
        assert "Warning" not in errors and "[rank" not in errors, errors
    whole, parts = last_checkpoints(tmp_path, "whole", "parts")
    states = [(last["model"], last["optimizer"]["state"]) for last in (whole, parts)]
    torch.testing.assert_close(*states, rtol=0, atol=0)


@pytest.mark.slow
def test_any_checkpoint_goes_on_in_any_mode(tmp_path, corpus_flags, go):
    """The curve is the same as without interruption, and the result translates.

    The run goes from FSDP on 4 processes (2 replicas of 2 shards) to FSDP on 3, which read
    these shards, to split layers on 4, DDP on 2 and train_cpu.py on 1.
    """
    flags = [*corpus_flags, *SMALL, "--dropout", "0", "--eval-every", "5"]
    go("cpu", 1, "--name", "unbroken", "--steps", "12", *flags)
    go("fsdp", 4, "--name", "moved", "--steps", "3", "--replicas", "2", "--sharded", *flags)
    go("fsdp", 3, "--resume", "logs/moved", "--steps", "4")
    go("tp2", 4, "--resume", "logs/moved", "--steps", "6")
    go("ddp", 2, "--resume", "logs/moved", "--steps", "8")
    go("cpu", 1, "--resume", "logs/moved", "--steps", "12")
    one, other = (read_metrics(tmp_path / "logs" / name) for name in ("unbroken", "moved"))
    assert [row["step"] for row in other] == [row["step"] for row in one]
    for a, b in zip(one, other):
        assert float(b["train_loss"]) == pytest.approx(float(a["train_loss"]), rel=1e-4)
        assert float(b["grad_norm"]) == pytest.approx(float(a["grad_norm"]), rel=1e-3)
        assert b["tokens"] == a["tokens"] and b["learning_rate"] == a["learning_rate"]
    unbroken, moved = last_checkpoints(tmp_path, "unbroken", "moved")
    states = unbroken["optimizer"]["state"]
    assert states.keys() == unbroken["model"].keys()
    torch.testing.assert_close(moved["optimizer"]["state"], states, rtol=1e-3, atol=1e-6)
    done = run_script("translate.py", "Ein Hund läuft.", cwd=tmp_path)
    assert done.returncode == 0 and done.stdout.count("\n") == 1


@pytest.mark.slow
def test_checkpoints_in_parts_and_recomputed_activations(tmp_path, corpus_flags, go):
    """Saved in parts by two processes, and gone on with; then one file, for any mode."""
    flags = [*corpus_flags, *SMALL, "--dropout", "0.1", "--eval-every", "10"]
    go("fsdp", 2, "--name", "whole", "--steps", "16", *flags)
    for how in (
        ["--name", "parts", "--steps", "4", *flags],
        ["--resume", "logs/parts", "--steps", "8"],
    ):
        go("fsdp", 2, *how, "--sharded", "--recompute")
    parts = tmp_path / "logs/parts"
    assert [path.name for path in parts.glob("sharded-*")] == ["sharded-0000008"]
    assert (parts / "last.pt").stat().st_size < 100_000
    go("fsdp", 2, "--resume", "logs/parts", "--steps", "12")
    go("fsdp", 2, "--resume", "logs/parts", "--steps", "16")
    a, b = last_checkpoints(tmp_path, "whole", "parts")
    torch.testing.assert_close(a["model"], b["model"], rtol=0, atol=1e-6)
    one, other = (read_metrics(tmp_path / "logs" / name)[-1] for name in ("whole", "parts"))
    assert one["train_loss"] == other["train_loss"]
