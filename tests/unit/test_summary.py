"""What a run prints: at its beginning, with its rows, and at its end."""

import re
import sys
from types import SimpleNamespace

import pytest

from support.common.flops import StepCost
from support.training import summary
from support.training.settings import CpuSettings, FsdpSettings, Settings, TpSettings


class FakeTask(SimpleNamespace):
    unit = "pairs"

    def __str__(self) -> str:
        return "the corpus"


def fake_run(args, **others) -> SimpleNamespace:
    """What the first lines of a run say something about."""
    task = FakeTask(batches=SimpleNamespace(examples=range(1200)))
    return SimpleNamespace(args=args, task=task, epoch_steps=33, eval_every=33, **others)


def test_a_run_says_who_computes_and_whether_its_rate_gets_up():
    args = CpuSettings(device="cpu", precision="fp32", warmup=100)
    args.base_config = "configs/multi30k.yaml"
    run = fake_run(args, world_size=3, tp_size=1, last_step=99)
    settings, data, length, processes, warning = summary.beginning(run).split("\n")
    assert settings == "settings: configs/multi30k.yaml, and the flags given"
    assert data == "the corpus"
    assert length == "epochs: 3 of 1,200 pairs, 99 steps"
    assert processes.startswith("processes: 3, threads of each: ")
    assert processes.endswith(", fp32")
    assert "the run has 99 steps, fewer than --warmup 100" in warning
    run.eval_every = 11
    assert "pairs, 99 steps; an evaluation every 11\n" in summary.beginning(run)
    run.last_step = 100
    assert len(summary.beginning(run).split("\n")) == 4
    args.config = "mine.yaml"
    assert "settings: configs/multi30k.yaml, mine.yaml, and the" in summary.beginning(run)
    run.last_step = 1
    assert "\nepochs: 0.03 of 1,200 pairs, 1 step\n" in summary.beginning(run)


def test_layers_that_two_nodes_share_are_warned_of(monkeypatch):
    """Each node has two of the four processes."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    args = TpSettings(device="cpu", precision="fp32")
    run = fake_run(args, world_size=4, tp_size=2, last_step=9000)
    assert "processes: 4 (2 share each layer), " in summary.beginning(run)
    assert "warning" not in summary.beginning(run)
    run.tp_size = 4
    assert summary.beginning(run).split("\n")[-1] == (
        "warning: --tensor 4, but a node has 2 processes, so the parts of a layer are added up "
        "over the network; --tensor 2 would not"
    )


def test_a_clock_has_hours_if_there_are_any():
    assert [summary.format_duration(s) for s in (5, 90.9, 3690, 97_203)] == [
        "0:05",
        "1:30",
        "1:01:30",
        "27:00:03",
    ]


def test_a_forecast_counts_what_remains():
    task = SimpleNamespace(step_cost=lambda step: StepCost(8, 100 + step % 2, 0.0))
    throughput = SimpleNamespace(speeds=[1.0, 100.5])
    progress = SimpleNamespace(last_evaluation=0, seconds=500.0, epochs=[])
    run = SimpleNamespace(
        task=task, last_step=900, epoch_steps=400, throughput=throughput, progress=progress
    )
    assert summary.forecast(run, step=50) == "about 14 minutes of training here"
    assert summary.forecast(run, step=800) == "about 100 seconds of training here"
    progress.last_evaluation = 400  # of which one takes longer than the steps of an epoch
    assert summary.forecast(run, step=800) == "about 62 seconds of training here"
    for steps, said in ((20_000, "3 hours"), (300_000, "2 days")):  # of 0.625 seconds
        run.last_step = 800 + steps
        assert summary.forecast(run, step=800) == f"about {said} of training here"


@pytest.mark.parametrize(
    ("mfu", "batch_size", "expected"),
    [
        (0.1, 0, ""),
        (0.0004, 0, "reach 0.04% of their peak"),
        (0.06, 0, "try --batch-tokens 32768 --lr 0.0057"),  # eight times as many
        (0.08, 0, "try --batch-tokens 16384 --lr 0.004"),
        (0.004, 64, "try --batch-size 512 --lr 0.0057"),
    ],
)
def test_a_run_advises_larger_steps_for_idle_gpus(mfu, batch_size, expected):
    args = Settings(device="cuda", batch_tokens=4096, batch_size=batch_size, lr=0.002)
    run = SimpleNamespace(args=args, throughput=SimpleNamespace(mfus=[0.5, mfu]))
    advice = summary.advice(run)
    assert expected in advice
    assert bool(advice) == bool(expected)
    args.growth = 8  # the run has enlarged its steps already
    assert summary.advice(run) == ""


def test_a_row_of_the_log_is_one_line():
    run = SimpleNamespace(
        task=SimpleNamespace(metrics=("bleu", "weighted_f1")),
        progress=SimpleNamespace(seconds=90.0),
        last_step=40,
    )
    row = {"step": 30, "epoch": 2, "train_loss": "1.23456", "tokens_per_second": "12345"}
    assert summary.progress_line(run, row) == (
        "step 30/40, epoch 2: loss 1.235, 12,345 tokens/s, 1:30 elapsed, 0:30 left"
    )
    row = {"step": 40, "epoch": 2, "valid_loss": "0.5", "valid_bleu": "34.56789"}
    row["valid_weighted_f1"] = "0.91234"
    assert summary.progress_line(run, row) == (
        "step 40/40, epoch 2: valid loss 0.5, valid bleu 34.57, valid weighted f1 0.9123, "
        "1:30 elapsed, 0:00 left"
    )


def test_a_benchmark_prints_its_speed(monkeypatch, capsys):
    monkeypatch.setattr(summary, "all_gather_objects", lambda mine: [100.0, 250.4])
    throughput = SimpleNamespace(
        speeds=[1.0], peak=2.5e12, warm_medians=lambda: (12_345.6, 0.4567)
    )
    run = SimpleNamespace(
        args=CpuSettings(precision="fp32"),
        task=SimpleNamespace(speed_unit="tokens"),
        throughput=throughput,
        world_size=3,
        say=print,
    )
    summary.print_benchmark(run)
    assert re.fullmatch(
        r"12,346 tokens/s, MFU 45\.7% of 2,500 GFLOP/s; processes x threads: 3 x \d+, fp32; "
        r"at most 250 MiB each\n",
        capsys.readouterr().out,
    )
    throughput.speeds = []
    summary.print_benchmark(run)
    assert capsys.readouterr().out == "stopped before there was anything to measure\n"


@pytest.mark.parametrize(
    "nodes, flags, expected",
    [
        (0, {}, "python train_cpu.py --resume logs/r"),
        (
            0,
            {"delay_ms": 2.5, "profile": True, "minutes": 3.0, "replicas": 1},
            "python train_cpu.py --resume logs/r --delay-ms 2.5",
        ),
        (
            1,
            {"replicas": 2, "sharded": True, "device": "cpu"},
            "torchrun --standalone --nproc-per-node 4 train_cpu.py --resume logs/r "
            "--device cpu --replicas 2 --sharded",
        ),
        (2, {"device": "cuda"}, "torchrun ... train_cpu.py --resume logs/r"),
    ],
)
def test_a_stopped_run_says_how_it_goes_on(monkeypatch, nodes, flags, expected):
    monkeypatch.setattr(sys, "argv", ["train_cpu.py"])
    if nodes:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
        monkeypatch.setenv("GROUP_WORLD_SIZE", str(nodes))
    args = FsdpSettings(**{"device": ""} | flags)
    run = SimpleNamespace(args=args, world_size=4, folder="logs/r")
    said = summary.how_to_resume(run, 7)
    assert said == f"stopped and saved at step 7; resume with: {expected}"
