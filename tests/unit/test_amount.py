"""Settings by kind and amount of data, and the length of a run by its time."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch.distributed as dist
from conftest import ROOT, SMALL, mathematics, read_metrics, write_pairs

from support.common import checkpoint
from support.common.errors import UserError
from support.common.flops import StepCost
from support.common.hardware import LAUNCH_SECONDS
from support.corpora.task_type import CLASSIFICATION_CORPORA, TRANSLATION_CORPORA
from support.distributed.rendezvous import store_on_loopback
from support.distributed.signals import Signals
from support.distributed.trial import Trial, settle_length
from support.training import command_line, config_file, summary
from support.training.command_line import CommandLine, parse_arguments
from support.training.larger_steps import enlarge_steps, find_growth
from support.training.progress import Progress
from support.training.run import Run
from support.training.settings import CpuSettings, Settings, defaults_of
from support.training.summary import LOW_MFU
from support.training.tasks import prepare_task
from support.training.throughput import Throughput


@pytest.mark.parametrize(
    ("examples", "expected"),
    [(1, "texts-to-10"), (10, "texts-to-10"), (11, "texts-to-200"), (201, "texts")],
)
def test_the_file_is_the_smallest_that_is_enough(tmp_path, monkeypatch, examples, expected):
    for name in ("texts-to-200", "texts-to-10", "texts", "pretrained-texts-to-10", "images"):
        (tmp_path / f"{name}.yaml").write_text("")
    monkeypatch.setattr(config_file, "CONFIGS", tmp_path)
    assert config_file.config_for_amount("texts", iter(range(examples))).stem == expected


def test_a_large_corpus_is_not_counted_to_its_end(tmp_path, monkeypatch):
    for name in ("pairs-to-5", "pairs"):
        (tmp_path / f"{name}.yaml").write_text("")
    monkeypatch.setattr(config_file, "CONFIGS", tmp_path)
    examples = iter(range(1000))
    assert config_file.config_for_amount("pairs", examples).stem == "pairs"
    assert next(examples) == 6


def test_epochs_on_the_command_line_override_the_steps_of_a_file(tmp_path, monkeypatch):
    (tmp_path / "phrasebook.yaml").write_text("steps: 500")
    monkeypatch.setattr(config_file, "CONFIGS", tmp_path)
    given = {"epochs": 3}
    flags, _ = CommandLine(CpuSettings, given).flags_of_new_run(given)
    assert (flags["epochs"], flags["steps"]) == (3, 0)


def test_every_file_can_be_chosen():
    paths = list(config_file.CONFIGS.glob("*-to-*.yaml"))
    assert paths
    for path in paths:
        kind, _, limit = path.stem.rpartition("-to-")
        assert (config_file.CONFIGS / f"{kind}.yaml").is_file(), f"{kind} has no file for more"
        assert config_file.config_for_amount(kind, range(int(limit))) == path


def test_every_corpus_with_a_name_has_its_own_file():
    for name in (*CLASSIFICATION_CORPORA, *TRANSLATION_CORPORA):
        assert (config_file.CONFIGS / f"{name}.yaml").is_file(), name


def test_published_weights_have_settings_by_amount_too(tmp_path):
    names = []
    for examples in (3, 30_000):
        table = tmp_path / f"{examples}.csv"
        table.write_text("text,label\n" + "a,1\n" * examples)
        flags = {"data": str(table), "label": "label", "pretrained": "FOLDER"}
        names.append(config_file.base_config(defaults_of(CpuSettings) | flags).name)
    assert names == ["pretrained-texts-to-1000.yaml", "pretrained-texts.yaml"]


@pytest.fixture
def group_of_one(monkeypatch):
    """The store of a process that is the only one of its group."""
    store = store_on_loopback()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    return store


@pytest.mark.parametrize(
    ("minutes", "epoch_seconds", "evaluation_seconds", "expected"),
    [
        (10, 60, 0, {"epochs": 9, "steps": 0}),
        (10, 1, 18, {"epochs": 54, "steps": 0}),  # small corpora: most of the time evaluates
        (1, 540, 0, {"epochs": 7, "steps": 6}),
        (1, 9, 60, {"epochs": 7, "steps": 1}),
    ],
)
def test_minutes_become_epochs_or_steps(
    monkeypatch,
    capfd,
    tmp_path,
    group_of_one,
    minutes,
    epoch_seconds,
    evaluation_seconds,
    expected,
):
    def train(rank, world_size, args):
        assert args.benchmark and args.trial.max_seconds == 12 * minutes
        assert Path(args.folder).is_dir()
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        args.trial.epoch_seconds = epoch_seconds
        args.trial.epoch_steps = args.trial.eval_every = 60
        args.trial.evaluation_seconds = evaluation_seconds

    monkeypatch.setattr("support.distributed.trial.seconds_since_start", lambda: 0.0)
    args = CpuSettings(minutes=minutes, epochs=7, folder=str(tmp_path))
    settle_length(train, 0, 1, group_of_one, args)
    assert {name: getattr(args, name) for name in expected} == expected
    assert not dist.is_initialized()
    assert not list(tmp_path.iterdir())
    is_too_short = "--minutes 1 is too short" in capfd.readouterr().out
    assert is_too_short == (expected["steps"] == 1)


def test_a_signal_in_the_trial_ends_the_run(monkeypatch, tmp_path, group_of_one, capfd):
    """Whatever the trial has measured by then: it would give the run a wrong length."""

    def train(rank, world_size, args):
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        args.trial.epoch_seconds = 60.0
        args.trial.epoch_steps = args.trial.eval_every = 60
        monkeypatch.setattr(Signals, "run_stopped", True)
        monkeypatch.setattr(Signals, "received", signal.SIGINT)

    args = CpuSettings(minutes=10, epochs=7, folder=str(tmp_path))
    with pytest.raises(SystemExit) as stop:
        settle_length(train, 0, 1, group_of_one, args)
    assert (stop.value.code, args.epochs) == (130, 7)
    first, last = capfd.readouterr().out.splitlines()
    assert first == "--minutes 10: first a trial of some steps and an evaluation"
    assert last == "stopped in the trial of --minutes; nothing was saved"


def test_a_trial_ends_when_its_time_is_over(monkeypatch):
    """Steps may take so long that a few need more than --minutes."""
    monkeypatch.setattr("support.training.run.broadcast_object", lambda value: value)
    for seconds, last in ((11, 40), (13, 3)):
        run = SimpleNamespace(began=time.perf_counter() - seconds, last_step=40)
        Run.stop_if_trial_is_over(run, step=3, max_seconds=12)
        assert run.last_step == last


def args_on_gpus(monkeypatch, peak, *flags):
    """Returns the settings of a new run on two GPUs with this peak, computed on the CPU."""
    monkeypatch.setattr(command_line, "find_device", lambda requested, supported: "cuda")
    monkeypatch.setattr(command_line, "known_rate", lambda args: peak)
    monkeypatch.setattr(command_line, "settle_precision", lambda args: None)
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--benchmark", *flags])
    monkeypatch.setenv("WORLD_SIZE", "2")
    args = parse_arguments("", Settings).complete()
    args.device = "cpu"
    return args


def test_few_pairs_to_validate_on_are_warned_of(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path / "a", [(f"Satz {i}", f"sentence {i}") for i in range(40)])
    monkeypatch.setattr("sys.argv", ["train_cpu.py", "--data", "a", "--vocab-size", "300"])
    lines = str(prepare_task(parse_arguments("", CpuSettings).complete()))
    assert "warning: the valid set has only 2 pairs, so its scores are rough" in lines


@pytest.mark.parametrize(
    ("peak", "epochs", "growth"),
    [
        (500e12, 360, 8),
        (3e12, 360, 2),  # enough for slow GPUs
        (1e12, 360, 1),
        (500e12, 170, 4),  # the run keeps 10,000 steps
        (500e12, 6, 1),
        (0.0, 360, 1),  # a GPU that is not known
    ],
)
def test_steps_are_larger_on_gpus(monkeypatch, peak, epochs, growth):
    args = args_on_gpus(monkeypatch, peak, "--epochs", str(epochs))
    num_steps = len(prepare_task(args).batches)
    assert (args.growth, args.batch_tokens) == (growth, 1024 * growth)
    assert args.lr == pytest.approx(0.006 * growth**0.5, rel=0.02)
    assert num_steps == pytest.approx(254 / growth, rel=0.05)
    assert epochs * num_steps >= min(10_000, epochs * 254)
    assert args.warmup == math.ceil(250 / growth)
    said = summary.step_flags(args, 1)
    assert said == (f"--batch-tokens {1024 * growth}", f"--lr {args.lr}")


@pytest.mark.parametrize("flag", ["--batch-tokens", "--batch-size", "--lr", "--warmup"])
def test_a_size_that_the_user_sets_stays(monkeypatch, flag):
    assert args_on_gpus(monkeypatch, 500e12, "--epochs", "60").gpu_rate == 1000e12
    assert args_on_gpus(monkeypatch, 500e12, "--epochs", "60", flag, "8").gpu_rate == 0


@pytest.mark.parametrize("length", [{"steps": 90_000}, {"minutes": 90.0}])
def test_a_run_of_a_given_length_keeps_the_size_of_its_steps(length):
    assert find_growth(SimpleNamespace(), Settings(gpu_rate=500e12, **length)) == 1


def test_more_micro_batches_make_larger_steps_worthwhile():
    """The GPU waits while the CPU starts the kernels of each of them."""
    rate = 500e12
    layers = 10
    enough = LOW_MFU * rate * layers * LAUNCH_SECONDS  # FLOPs of a step of one micro-batch
    task = SimpleNamespace(
        build_model=lambda: SimpleNamespace(layers=lambda: [None] * layers),
        batches=range(1_000_000),
        step_cost=lambda step: StepCost(1, 1, 0.9 * enough),
    )
    for accumulate, growth in [(1, 2), (2, 4), (4, 8)]:
        args = Settings(gpu_rate=rate, epochs=1, accumulate=accumulate)
        assert find_growth(task, args) == growth


def test_a_resumed_run_keeps_the_size_of_its_steps():
    """Also with other GPUs or none, for which they would not be enlarged."""
    larger = {"batch_tokens": 8192, "batch_size": 0, "lr": 0.017, "head_lr": 0.0, "warmup": 31}
    given = {"name": "a", "accumulate": 2, "steps": 7}
    command_line = CommandLine(Settings, given)
    flags = command_line.flags_of_resumed_run(given, defaults_of(Settings) | larger)
    assert flags == defaults_of(Settings) | larger | given


@pytest.mark.parametrize(("last", "expected"), [(40, ["forecast"]), (20, [])])
def test_after_the_last_step_nothing_is_foretold(monkeypatch, last, expected):
    """The second row tells how long the rest will take; it may be the last one."""
    monkeypatch.setattr(summary, "forecast", lambda run, step: "forecast")
    said = []
    run = SimpleNamespace(
        args=CpuSettings(),
        began=0.0,
        last_step=last,
        progress=Progress(),
        say=said.append,
        throughput=SimpleNamespace(speeds=[1.0, 1.0], mfus=[0.5, 0.5]),
        keeps_log=True,
    )
    Run.forecast_once(run, step=20)
    assert said == expected


def test_minutes_are_for_a_new_run(monkeypatch, trained):
    """A resumed run keeps the length that --minutes gave it."""
    monkeypatch.chdir(trained)
    for how in (["--resume", "logs/first"], ["--name", "first"]):
        monkeypatch.setattr("sys.argv", ["train_cpu.py", *how, "--minutes", "3"])
        with pytest.raises(UserError, match="--minutes is for a new run"):
            parse_arguments("", CpuSettings).complete()
    command_line = CommandLine(CpuSettings, {})
    stored = defaults_of(CpuSettings) | {"epochs": 4, "steps": 30, "minutes": 3.0}
    for given in ({"resume": "logs/first"}, {"name": "first", "minutes": 3.0}):
        flags = command_line.flags_of_resumed_run(given, stored)
        assert (flags["epochs"], flags["steps"], flags["minutes"]) == (4, 30, 3.0)
    with_file = {"name": "first", "minutes": 3.0, "epochs": 9}  # of --config
    flags = command_line.flags_of_resumed_run(with_file, stored)
    assert (flags["epochs"], flags["steps"]) == (4, 30)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["train_cpu.py", "train_ddp.py"])
def test_the_run_that_minutes_choose_can_be_repeated(tmp_path, corpus_flags, script):
    """By the length that it has written down, bit for bit."""

    def train(name, *flags):
        flags = (*corpus_flags, *SMALL, "--device", "cpu", "--name", name, *flags)
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        if script == "train_cpu.py":
            launcher = []
            flags = (*flags, "--procs", "2")
        done = subprocess.run(
            [sys.executable, *launcher, str(ROOT / script), *flags],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("settings: ") == 1  # the trial says nothing
        return tmp_path / "logs" / name

    first = train("first", "--minutes", "0.3")
    flags = json.loads((first / "config.json").read_text())["flags"]
    length = ["--steps", str(flags["steps"])] if flags["steps"] else []
    second = train("second", "--epochs", str(flags["epochs"]), *length)
    assert mathematics(read_metrics(first)) == mathematics(read_metrics(second))


def test_a_run_that_goes_on_is_not_enlarged_again(monkeypatch, tmp_path, trained):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained / "logs", tmp_path / "logs")
    last = checkpoint.load(tmp_path / "logs/first/last.pt")
    last["progress"]["growth"] = 4
    checkpoint.save(tmp_path / "logs/first/last.pt", last)
    monkeypatch.setattr(command_line, "find_device", lambda requested, supported: "cuda")
    monkeypatch.setattr(command_line, "known_rate", lambda args: 500e12)
    monkeypatch.setattr(sys, "argv", ["train_ddp.py", "--resume", "logs/first"])
    args = parse_arguments("", Settings).complete()
    assert (args.device, args.gpu_rate, args.growth) == ("cuda", 0, 4)


def test_a_resumed_run_takes_epochs_for_its_steps_and_forgets_its_machine():
    stored = defaults_of(CpuSettings) | {"steps": 30, "device": "cuda", "delay_ms": 5.0}
    given = {"resume": "logs/first", "epochs": 12}
    flags = CommandLine(CpuSettings, given).flags_of_resumed_run(given, stored)
    assert (flags["epochs"], flags["steps"]) == (12, 0)
    assert (flags["device"], flags["delay_ms"]) == ("auto", 0.0)


def test_a_trial_measures_an_epoch_and_an_evaluation(monkeypatch):
    """The speed is that of all steps but the first quarter."""
    clock = SimpleNamespace(perf_counter=lambda: 12.5)
    monkeypatch.setattr("support.training.run.time", clock)
    throughput = Throughput(peak=1.0)
    throughput.speeds = [1.0, 90.0, 100.0, 110.0]
    throughput.mfus = 4 * [0.5]
    run = SimpleNamespace(
        epoch_steps=40,
        eval_every=20,
        throughput=throughput,
        progress=SimpleNamespace(epochs=[]),
        task=SimpleNamespace(step_cost=lambda step: StepCost(1, 100, 0.0)),
    )
    trial = Trial(max_seconds=9.0, steps_ended=10.0)
    Run.measure_trial(run, trial)
    assert (trial.evaluation_seconds, trial.epoch_seconds) == (2.5, 40.0)
    assert (trial.epoch_steps, trial.eval_every) == (40, 20)


def test_the_time_before_training_counts_as_minutes(monkeypatch, tmp_path, group_of_one):
    def train(rank, world_size, args):
        dist.init_process_group("gloo", rank=rank, world_size=world_size)
        args.trial.epoch_seconds = 60
        args.trial.epoch_steps = args.trial.eval_every = 60

    monkeypatch.setattr("support.distributed.trial.seconds_since_start", lambda: 240.0)
    args = CpuSettings(minutes=10, folder=str(tmp_path))
    settle_length(train, 0, 1, group_of_one, args)
    assert args.epochs == 5  # (570 - 240) / 60


def test_published_weights_do_not_take_the_file_of_a_corpus_with_a_name():
    flags = defaults_of(CpuSettings) | {"data": "kinds", "pretrained": "FOLDER"}
    assert config_file.base_config(flags).stem.startswith("pretrained-texts")


def test_steps_of_examples_are_enlarged_and_the_rate_of_the_head_too():
    args = Settings(batch_tokens=4096, batch_size=32, lr=1e-3, head_lr=1e-2, warmup=50)
    enlarge_steps(args, 4)
    assert (args.growth, args.batch_tokens, args.batch_size) == (4, 16_384, 128)
    assert (args.lr, args.head_lr, args.warmup) == (0.002, 0.02, 13)
