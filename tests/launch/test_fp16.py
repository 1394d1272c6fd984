"""--precision fp16: the loss is scaled, and a step whose scaled gradient overflows is left out.

GPUs without bf16 have it by default; here it is computed on a CPU.
"""

import pytest
import torch
from conftest import SMALL, read_metrics, skip_on_windows

from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings, TpSettings

skip_on_windows("torchrun asks for libuv, which PyTorch for Windows is built without")

FP16 = ["--precision", "fp16", "--dropout", "0", "--log-every", "1", "--bleu-sentences", "0"]


def checkpoint_of(folder, name):
    return torch.load(folder / "logs" / name / "last.pt", weights_only=True)


def overwrite_scale(folder, name, scale: float) -> None:
    """Gives the loss of a run that is resumed another scale."""
    content = checkpoint_of(folder, name)
    content["progress"]["scaler"]["scale"] = scale
    torch.save(content, folder / "logs" / name / "last.pt")


@pytest.mark.slow
def test_fp16_is_nearly_fp32_in_every_script(tmp_path, corpus_flags, go):
    flags = [*corpus_flags, *SMALL, *FP16, "--steps", "8"]
    go("cpu", 1, *flags, "--name", "fp32", "--precision", "fp32")
    exact = read_metrics(tmp_path / "logs" / "fp32")
    for mode, procs in (("cpu", 2), ("ddp", 2), ("fsdp", 2)):
        errors = go(mode, procs, *flags, "--name", mode, "--accumulate", "2")
        assert "Warning" not in errors, errors
        rows = read_metrics(tmp_path / "logs" / mode)
        for row, wanted in zip(rows, exact, strict=True):
            for column, tolerance in (("train_loss", 1e-3), ("grad_norm", 1e-2)):
                assert float(row[column]) == pytest.approx(float(wanted[column]), tolerance)
        apart = [
            abs(float(row["train_loss"]) / float(wanted["train_loss"]) - 1)
            for row, wanted in zip(rows, exact)
        ]
        assert max(apart) > 1e-6  # it was not fp32, which is 3e-7 apart at most
        assert checkpoint_of(tmp_path, mode)["progress"]["scaler"]["scale"] == 2**16


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["cpu", "ddp", "fsdp"])
def test_a_step_that_overflows_is_left_out(tmp_path, corpus_flags, go, mode):
    """A much larger scale is halved in each step until the gradients are finite again."""
    flags = [*corpus_flags, *SMALL, *FP16, "--eval-every", "100", "--average-checkpoints", "1"]
    go(mode, 2, *flags, "--name", "run", "--steps", "2")
    before = checkpoint_of(tmp_path, "run")
    overwrite_scale(tmp_path, "run", 2.0**60)

    go(mode, 2, "--resume", "logs/run", "--steps", "3")
    after = checkpoint_of(tmp_path, "run")
    assert after["progress"]["scaler"]["scale"] == 2.0**59
    assert all(
        torch.equal(after["model"][name], before["model"][name]) for name in before["model"]
    )
    assert read_metrics(tmp_path / "logs" / "run")[-1]["grad_norm"] in ("inf", "nan")

    overwrite_scale(tmp_path, "run", 2.0**30)
    go(mode, 2, "--resume", "logs/run", "--steps", "20")
    after = checkpoint_of(tmp_path, "run")
    assert 2**13 < after["progress"]["scaler"]["scale"] < 2**30
    assert all(weight.isfinite().all() for weight in after["model"].values())
    norms = [float(row["grad_norm"]) for row in read_metrics(tmp_path / "logs" / "run")]
    assert norms[-1] < 100 and len(norms) == 20


@pytest.mark.slow
def test_a_gradient_that_always_overflows_ends_the_run(tmp_path, corpus_flags, go):
    flags = [*corpus_flags, *SMALL, *FP16, "--name", "run"]
    go("cpu", 1, *flags, "--steps", "2")
    overwrite_scale(tmp_path, "run", 0.5)
    errors = go("cpu", 1, "--resume", "logs/run", "--steps", "4", status=2)
    assert "The gradient is not finite" in errors


def test_tensor_parallelism_has_no_fp16(monkeypatch):
    """By itself it takes fp32 where the other scripts take fp16."""
    from support.training import command_line

    monkeypatch.setattr(command_line, "fast_precision", lambda device: "fp16")
    chosen = {}
    for settings in (CpuSettings, TpSettings):
        monkeypatch.setattr("sys.argv", ["train.py", "--benchmark"])
        chosen[settings] = parse_arguments("", settings).complete().precision
    assert chosen == {CpuSettings: "fp16", TpSettings: "fp32"}
    monkeypatch.setattr("sys.argv", ["train.py", "--benchmark", "--precision", "fp16"])
    with pytest.raises(command_line.UserError, match="train_tp.py cannot scale the loss"):
        parse_arguments("", TpSettings).complete()
