"""batch/plan.py and its formulas: against autograd, against sums done by hand, and for what must hold of any plan."""

import importlib.util
import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from conftest import ROOT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from model import ModelConfig, Transformer, initialize
from support.common.errors import run_main
from support.common.kernels import speed_up
from support.distributed import delay as network_delay
from support.planning import measure as rates
from support.planning.estimate import KINDS, Plan, best, layouts, plans, smallest
from support.planning.footprint import Job, activations, layer_activations, memory

spec = importlib.util.spec_from_file_location("batch_plan", ROOT / "batch" / "plan.py")
batch_plan = importlib.util.module_from_spec(spec)
spec.loader.exec_module(batch_plan)

TINY = ModelConfig(10, layers=1, d_model=4, heads=2, d_ff=8)
H100 = KINDS["h100"]


@pytest.fixture(scope="module")
def large() -> Job:
    """6.7 billion parameters: too many for one GPU."""
    config = ModelConfig(
        32_000, layers=14, d_model=4096, heads=32, d_ff=16_384, max_length=2048
    )
    return Job(config, 512, 2048, "bf16")


# --- Memory


def kept_by_autograd(job: Job, device: str = "cpu") -> int:
    """Bytes that a forward pass keeps for the backward pass, each storage once, weights and their copies left out."""
    bf16 = job.precision == "bf16"
    model = speed_up(Transformer(job.config), "cpu" if device == "cpu" else "cuda", bf16).to(
        device
    )
    if job.recompute:
        from functools import partial

        from torch.utils.checkpoint import checkpoint

        for layer in model.layers():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    initialize(model, seed=1)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    shapes = {
        shape
        for weight in model.parameters()
        for shape in (tuple(weight.shape), tuple(weight.shape)[::-1])
    }
    found, alive = {}, []

    def keep(tensor):
        copy = (
            tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in shapes
        )  # autocast's, of a weight
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and not copy:
            found[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no other gets its place
        return tensor

    ids = torch.randint(3, job.config.vocab_size, (job.sentences, job.length), device=device)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device, torch.bfloat16, enabled=bf16),
    ):
        model(ids, ids, ids)
    return sum(found.values())


SHAPES = [
    dict(layers=2, d_model=64, heads=4, d_ff=128),
    dict(layers=1, d_model=96, heads=2, d_ff=512),
    dict(layers=3, d_model=32, heads=8, d_ff=64, norm="post"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "precision, dropout", [("fp32", 0.1), ("fp32", 0), ("bf16", 0.1), ("bf16", 0)]
)
def test_activations_are_what_autograd_keeps(shape, precision, dropout):
    job = Job(ModelConfig(200, **shape, dropout=dropout), 10, 23, precision, cpu=True)
    assert activations(job, 10) == pytest.approx(kept_by_autograd(job), rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_keeps_the_inputs_of_layers(precision):
    job = Job(ModelConfig(200, **SHAPES[0]), 10, 23, precision, recompute=True, cpu=True)
    forward = activations(job, 10) - layer_activations(
        job, 10, 2
    )  # that one comes back in the backward pass
    assert forward == pytest.approx(kept_by_autograd(job), rel=0.1)
    assert activations(job, 10) < activations(replace(job, recompute=False), 10)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("precision, dropout", [("fp32", 0.1), ("bf16", 0.1), ("bf16", 0)])
def test_activations_on_a_gpu(precision, dropout):
    job = Job(ModelConfig(200, **SHAPES[0], dropout=dropout), 10, 23, precision)
    assert activations(job, 10) == pytest.approx(kept_by_autograd(job, "cuda"), rel=0.1)


def test_parts_of_a_tiny_model_by_hand():
    # Embedding 40; encoder: attention 64, feed-forward 76, norms 16; decoder: 128, 76, 24; last norms 16.
    job = Job(TINY, sentences=4, length=5)
    assert (job.parameters, job.units) == (440, [56, 156, 228])
    # Four pairs; 6 for each weight that a token meets, and for each product of attention, of which the decoder sees half.
    assert job.flops == 4 * 6 * (5 * 160 + 5 * 160 + 2 * 4 * (25 + 15 + 25) + 5 * 40)
    ddp, _ = memory(job, shards=0, sentences=4, accumulate=1)
    assert [ddp[part] for part in ("parameters", "gradients", "optimizer state")] == [
        1760,
        1760,
        3520,
    ]
    fsdp, _ = memory(job, shards=4, sentences=1, accumulate=1)
    assert [fsdp[part] for part in ("parameters", "gradients", "optimizer state")] == [
        440,
        440,
        880,
    ]
    # What is not sent yet is whole; and a micro-batch of half the sentences keeps half of the activations.
    fsdp, most = memory(job, shards=4, sentences=1, accumulate=2)
    assert fsdp["gradients"] == 1760 and most == sum(fsdp.values())
    loss = 4 * 10 * 4  # the embedding's gradient does not depend on them
    half, _ = memory(job, shards=0, sentences=2, accumulate=2)
    assert half["activations"] - loss == (ddp["activations"] - loss) / 2


def test_recomputing_costs_one_forward_pass_of_the_layers():
    plain, again = (
        Job(replace(TINY, vocab_size=1), 4, 5, recompute=recompute)
        for recompute in (False, True)
    )
    assert again.flops == plain.flops and again.computed == pytest.approx(4 / 3 * plain.flops)


@pytest.mark.parametrize("mode", ["fsdp", "mesh"])
def test_sharded_memory_falls_with_gpus(large, mode):
    most = [Plan(large, H100, mode, *where, 1).most for where in layouts(8)]
    assert most == sorted(most, reverse=True) and most[-1] < most[0] / 2


def test_a_copy_of_the_model_needs_the_same_on_every_number_of_gpus(large):
    few, many = (Plan(large, H100, "ddp", nodes, 8, 1).memory for nodes in (1, 64))
    same = ("parameters", "gradients", "optimizer state")
    assert [few[part] for part in same] == [many[part] for part in same]
    assert many["activations"] < few["activations"]


@pytest.mark.parametrize(
    "mode, gigabytes", [("fsdp", 80), ("fsdp", 24), ("mesh", 80), ("ddp", 80), ("ddp", 200)]
)
def test_the_smallest_number_that_holds_it_is_the_smallest(large, mode, gigabytes):
    kind = replace(H100, memory=gigabytes * 1e9)
    every = [1, 2, 3, 4, 5, 6, 7, *range(8, 1025, 8)]
    holding = [
        gpus
        for gpus in every
        for parts in range(1, -(-512 // gpus) + 1)
        if Plan(large, kind, mode, max(1, gpus // 8), min(gpus, 8), parts).fits
    ]
    assert smallest(large, kind, mode, 8) == min(holding, default=0)


# --- Time


def test_exchanges_by_hand():
    two = Plan(Job(TINY, 64, 5), H100, "ddp", 1, 2, 1)
    # Half of it leaves each of two GPUs twice, at 0.8 of 450 GB/s.
    assert two.collective(360e9, 2) == pytest.approx(1 + 2 * 3.4e-6)
    sixteen = Plan(Job(TINY, 64, 5), H100, "fsdp", 2, 8, 1)
    # Eight adapters of 50 GB/s are the slowest link; 14 hops within nodes, 1 between them.
    assert sixteen.collective(320e9, 1) == pytest.approx(15 / 16 + 14 * 3.4e-6 + 14e-6)
    assert sixteen.collective(360e9, 1, "node") == pytest.approx(7 / 8 + 7 * 3.4e-6)
    # Each GPU of a node has an eighth of its network, and talks to one other.
    assert sixteen.collective(40e9, 2, "nodes") == pytest.approx(1 + 2 * 14e-6)
    # A single GPU of a node cannot use eight adapters.
    assert Plan(Job(TINY, 64, 5), H100, "ddp", 2, 1, 1).collective(40e9, 2) == pytest.approx(
        1 + 2 * 14e-6
    )
    assert Plan(Job(TINY, 64, 5), H100, "ddp", 1, 1, 1).exchange == 0


@pytest.mark.parametrize("seconds, shown", [(0.5, 0.5), (1, 1), (3, 5)])
def test_buckets_hide_under_the_backward_pass(monkeypatch, seconds, shown):
    # Two buckets are there after 1 and 2 seconds of a backward pass of 2.
    job = Job(TINY, 64, 5)
    job.tensors = [2**23, 2**23]
    plan = Plan(job, H100, "ddp", 1, 2, 1)
    plan.micro = 3.0
    monkeypatch.setattr(Plan, "collective", lambda self, size, passes: seconds)
    assert plan.buckets() == pytest.approx(shown)


def test_ddp_closes_its_first_bucket_early(monkeypatch):
    job, sizes = Job(TINY, 64, 5), []
    job.tensors = [2**23, 2**20, 2**21, 2**22, 2**18]  # the last has exactly 1 MiB
    plan = Plan(job, H100, "ddp", 1, 2, 1)
    monkeypatch.setattr(
        Plan, "collective", lambda self, size, passes: sizes.append(size / 2**20) or 0
    )
    plan.buckets()
    assert sizes == [1, 16 + 8 + 4, 32]


def test_fsdp_gathers_a_layer_while_another_computes():
    job = Job(TINY, 64, 5)
    job.units = [1, 1, 1]
    plan = Plan(job, H100, "fsdp", 1, 2, 1)
    plan.micro = 9.0  # a unit takes 1 second there, and 2 back
    none = [0, 0, 0]
    assert plan.pipeline(none, none, none) == pytest.approx(0)
    # What the first two units wait for, nothing hides: the root, then the first layer.
    assert plan.pipeline([1, 1, 1], none, none) == pytest.approx(2)
    # After the backward pass: the first layer's gradient, and the root's.
    assert plan.pipeline([1, 1, 1], [1, 1, 1], none) == pytest.approx(4)
    # Over the nodes the sums of one go on while the next is summed within them.
    assert plan.pipeline([1, 1, 1], [1, 1, 1], [1, 1, 1]) == pytest.approx(5)
    # Nothing can hide gathers that take longer than to compute.
    assert plan.pipeline([10, 10, 10], none, none) == pytest.approx(6 + 50 - 9, rel=0.2)


def test_delays_are_counted_by_exchange():
    def wait(mode: str, accumulate: int) -> float:
        plain, slow = (
            Plan(Job(TINY, 64, 5, delay=delay), KINDS["cpu"], mode, 1, 2, accumulate)
            for delay in (0, 1)
        )
        return round(slow.seconds - plain.seconds)

    assert wait("cpu", 1) == wait("cpu", 4) == 2  # gradients, sums
    assert wait("ddp", 1) == wait("ddp", 4) == 2  # one bucket, sums
    assert wait("fsdp", 1) == 5 + 3 + 1 + 1  # 3 gathers there, 2 back, 3 scatters, norm, sums
    assert wait("fsdp", 4) == 4 * 5 + 3 + 1 + 1
    assert wait("mesh", 1) == 5 + 3 + 3 + 1 + 1  # and each unit's sum over the nodes


def all_reduce_bucket(_, bucket):
    """What DDP does with a bucket by itself; but the futures of the fake group have no value."""
    dist.all_reduce(bucket.buffer())
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future


@pytest.fixture
def waits(monkeypatch):
    """The waits of --delay-ms in this process, one of four; the others are only pretended."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    found = []
    monkeypatch.setattr(network_delay, "time", SimpleNamespace(sleep=found.append))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    with network_delay.delayed_exchanges(1e-6):
        yield found
    count = len(found)
    dist.all_reduce(torch.ones(1))
    assert len(found) == count  # the block has ended, and with it the delays
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "mode, accumulate", [("ddp", 1), ("fsdp", 1), ("fsdp", 2), ("mesh", 1), ("mesh", 2)]
)
def test_a_step_waits_as_often_as_planned(waits, mode, accumulate):
    model, ids = Transformer(TINY), torch.ones(2, 5, dtype=torch.int64)
    names = {"mesh": ("nodes", "within")}.get(mode, ("all",))
    mesh = init_device_mesh("cpu", (2, 2) if mode == "mesh" else (4,), mesh_dim_names=names)
    if mode == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, all_reduce_bucket)
    else:
        for part in [*model.layers(), model]:
            fully_shard(part, mesh=mesh)
    waits.clear()
    for left in reversed(range(accumulate)):
        if mode != "ddp":
            model.set_requires_gradient_sync(not left)
        model(ids, ids, ids)[0].backward()
    norm = clip_grad_norm_(model.parameters(), 1.0)
    if mode != "ddp":
        norm.full_tensor()
    plain, slowly = (
        Plan(Job(TINY, 64, 5, delay=delay), KINDS["cpu"], mode, 2, 2, accumulate)
        for delay in (0, 1)
    )
    assert len(waits) + 1 == round(slowly.seconds - plain.seconds)  # and once for the sums


def test_processes_take_turns_on_cores():
    job = Job(TINY, 64, 5, cpu=True)
    kind = replace(KINDS["cpu"], cores=2)
    one, two, four = (Plan(job, kind, "cpu", 1, n, 1).micro for n in (1, 2, 4))
    assert two == pytest.approx(one / 2) and four == pytest.approx(one / 2)


def test_more_gpus_are_faster_and_use_their_peak_less(large):
    found = [best(large, H100, "fsdp", nodes, 8) for nodes in (2, 4, 16, 64)]
    assert all(few.seconds > many.seconds for few, many in zip(found, found[1:]))
    assert found[-1].mfu < 0.9 * found[0].mfu < found[0].mfu < H100.efficiency


def test_the_best_is_the_fastest_that_fits(large):
    fitting = [plan for plan in plans(large, H100, "fsdp", 2, 8) if plan.fits]
    assert best(large, H100, "fsdp", 2, 8).seconds == min(plan.seconds for plan in fitting)
    assert {plan.accumulate for plan in plans(large, H100, "fsdp", 2, 8)} == {
        1,
        2,
        4,
        8,
        16,
        32,
    }


# --- The command


def said(capsys, monkeypatch, *flags: str) -> tuple[int, str, str]:
    """Status, output and errors of batch/plan.py, run in this process."""
    monkeypatch.setattr(sys, "argv", ["plan.py", *flags])
    status = 0
    try:
        run_main(batch_plan.main)
    except SystemExit as ended:
        status = ended.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    "flags, part",
    [
        (
            ["--kind", "h1000"],
            "--kind h1000: known are h200, h100, a100-80, a100-40, v100, l4, cpu",
        ),
        (["--data", "klingon"], "--data klingon: known are phrasebook, multi30k"),
        (["--layers", "-3"], "--layers -3: it must be from 1 to 1000"),
        (["--d-model", "30", "--heads", "4"], "d_model 30 cannot be split over 4 heads"),
        (["--nodes", "0"], "--nodes 0: it must be from 1"),
        (["--nodes", "300"], "2,400 GPUs: at most 1,024"),
        (["--memory-gb", "-1"], "--memory-gb -1.0: it must be from 0"),
        (["--tflops", "nan"], "--tflops nan"),
        (["--total-tokens", "-5"], "--total-tokens -5.0"),
        (["--efficiency", "1.5"], "from 0 to 1"),
        (["--layers", "many"], "invalid int value"),
        (["--colour", "red"], "unrecognized arguments"),
        (["--precision", "fp32"], "--precision fp32: --tflops has to give h100's peak"),
        (["--measure"], "--kind cpu --nodes 1"),
        (["--picture", "/proc/none/a.png"], "/proc/none"),
        (
            [
                "--layers",
                "40",
                "--d-model",
                "16384",
                "--heads",
                "64",
                "--d-ff",
                "65536",
                "--kind",
                "l4",
            ],
            "nor on any number",
        ),
        (
            [
                "--layers",
                "14",
                "--d-model",
                "4096",
                "--heads",
                "32",
                "--d-ff",
                "16384",
                "--kind",
                "l4",
                "--gpus-per-node",
                "4",
            ],
            "FSDP fits on",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, monkeypatch, flags, part):
    status, output, errors = said(capsys, monkeypatch, *flags)
    assert (
        status == 2
        and errors.count("\n") == 1
        and errors.startswith("error: ")
        and part in errors
    )
    assert not output or flags[0] == "--picture"


def test_a_plan_from_end_to_end(capsys, monkeypatch, tmp_path):
    status, output, _ = said(
        capsys,
        monkeypatch,
        "--kind",
        "a100-40",
        "--nodes",
        "2",
        "--gpus-per-node",
        "4",
        "--layers",
        "12",
        "--d-model",
        "1024",
        "--heads",
        "16",
        "--d-ff",
        "4096",
        "--batch-tokens",
        "262144",
        "--total-tokens",
        "1e10",
        "--picture",
        str(tmp_path / "plan.png"),
    )
    assert status == 0
    rows = {line[:30].strip(): line[30:].split() for line in output.splitlines()}
    assert rows["parameters"][0] == "1.44" and "yes" in rows["fits in 36"]
    assert float(rows["seconds of a step"][0]) == pytest.approx(
        float(rows["computing"][0]) + float(rows["exchange that is not hidden"][0]), rel=0.01
    )
    # The lines are those of the file that it names, and all flags are the script's own.
    name = output.split("In batch/")[1].split(":")[0]
    lines = [line for line in output.splitlines() if line.startswith("#SBATCH")]
    text = (ROOT / "batch" / name).read_text()
    assert len(lines) >= 4 and all(line.split("=")[0] + "=" in text for line in lines)
    assert "--d-model 1024" in output and "--steps " in output
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "nodes, meet",
    [
        (1, "torchrun --standalone --nproc-per-node"),
        (
            2,
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 --nproc-per-node",
        ),
    ],
)
def test_its_command_says_where_nodes_without_gpus_meet(capsys, monkeypatch, nodes, meet):
    flags = ["--kind", "cpu", "--nodes", str(nodes), "--gpus-per-node", "2", "--layers", "12"]
    if nodes == 1:  # too little for any but FSDP
        flags += ["--memory-gb", "0.3"]
    status, output, _ = said(capsys, monkeypatch, *flags)
    assert status == 0 and f" {meet} 2 train_" in output


def test_the_readme_shows_what_the_command_prints(capsys, monkeypatch):
    command, shown = (
        (ROOT / "batch" / "README.md").read_text().split("## A plan")[1].split("```")[1:4:2]
    )
    status, output, _ = said(capsys, monkeypatch, *command.replace("\\\n", " ").split()[2:])
    assert (status, output.split()) == (0, shown.replace("\\\n", " ").split())


def test_given_figures_take_the_place_of_the_kinds(capsys, monkeypatch):
    status, output, _ = said(capsys, monkeypatch, "--memory-gb", "10", "--gpus-per-node", "1")
    assert status == 0 and "fits in 9 " in output
    _, faster, _ = said(
        capsys,
        monkeypatch,
        "--tflops",
        "2000",
        "--bandwidth-inside",
        "900",
        "--bandwidth-between",
        "100",
        "--nodes",
        "2",
        "--data",
        "multi30k",
    )
    assert faster != said(capsys, monkeypatch, "--nodes", "2", "--data", "multi30k")[1]


def test_given_figures_take_the_place_of_measured_ones(capsys, monkeypatch):
    monkeypatch.setattr(rates, "measure", lambda job, processes: KINDS["cpu"])
    status, output, _ = said(
        capsys,
        monkeypatch,
        "--kind",
        "cpu",
        "--gpus-per-node",
        "2",
        "--measure",
        "--memory-gb",
        "3",
    )
    assert status == 0 and re.search(r"fits in 3 +yes", output), output


@pytest.mark.parametrize(
    "few, recompute, seconds",
    [(1.0, False, 4), (2.5, False, 4), (1.0, True, None), (4.5, False, 4)],
)
def test_what_was_measured_is_what_is_planned(monkeypatch, few, recompute, seconds):
    """Also where noise makes a quarter of the sentences slower than all of them; --recompute costs more than was measured."""
    found = {"whole": 4.0, "few": few, "adam": 1.0, "peak": 1e9, "base": 0.0}
    monkeypatch.setattr(
        rates.mp,
        "spawn",
        lambda worker, args, nprocs: Path(args[-1]).write_text(json.dumps(found)),
    )
    job = Job(TINY, 4, 5, recompute=recompute, cpu=True)
    kind = rates.measure(job, processes=1)
    assert 0 < kind.efficiency <= 1
    assert Plan(job, kind, "cpu", 1, 1, 1).micro == pytest.approx(
        seconds or 4 * job.computed / job.flops
    )


@pytest.mark.slow
def test_measured_rates_are_those_of_a_cpu():
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "batch" / "plan.py"),
            "--kind",
            "cpu",
            "--gpus-per-node",
            "2",
            "--measure",
            "--layers",
            "1",
            "--batch-size",
            "2",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0 and "train_cpu.py" in done.stdout, done.stderr
    kind = rates.measure(Job(TINY, 8, 5, cpu=True), processes=2)
    assert kind.cpu and kind.cores >= 1 and 0 < kind.efficiency <= 1 and kind.rate > 1e9
    assert kind.inside > 1e7 and 0 < kind.hop < 0.1 and 5e7 < kind.base < 2e9


@pytest.mark.slow
def test_predicted_memory_is_the_measured_one():
    """In a process of its own: --measure takes what Python and PyTorch need from the one that it runs in."""
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "tests" / "plan.py"),
            "--only",
            "memory",
            "--processes",
            "2",
            "--modes",
            "ddp,fsdp",
        ],
        capture_output=True,
        text=True,
        timeout=600,
    )
    rows = re.findall(r"train_(\w+)\.py \| 2 \| ([\d,]+) \| ([\d,]+) ", done.stdout)
    assert [mode for mode, *_ in rows] == ["ddp", "fsdp"], done.stderr
    for mode, *figures in rows:
        predicted, measured = (float(figure.replace(",", "")) for figure in figures)
        assert predicted == pytest.approx(measured, rel=0.1), mode
