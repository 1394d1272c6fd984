"""batch/plan.py and its formulas.

They are compared with autograd, with sums done by hand, and with what holds of any estimate.
"""

import importlib.util
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import psutil
import pytest
import torch
import torch.distributed as dist
from conftest import ROOT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from model import ModelConfig, Transformer, initialize, tensor_parallel_plan
from support.common.errors import run_main
from support.common.hardware import autocast_dtype
from support.common.kernels import cast_together, speed_up
from support.distributed import delay as network_delay
from support.distributed.clip import clip_gradients
from support.planning import measure
from support.planning.estimate import Estimate, best, bucket_sizes, fewest_gpus, layouts
from support.planning.footprint import (
    TrainingStep,
    activations,
    layer_activations,
    memory,
    temporary_memory,
)
from support.planning.machines import HARDWARE, Network
from support.training.settings import CLASSIFY, Settings, flags_of

spec = importlib.util.spec_from_file_location("batch_plan", ROOT / "batch" / "plan.py")
batch_plan = importlib.util.module_from_spec(spec)
spec.loader.exec_module(batch_plan)

TINY = ModelConfig(10, layers=1, d_model=4, heads=2, d_ff=8)
H100 = HARDWARE["h100"]


@pytest.fixture(scope="module")
def large() -> TrainingStep:
    """6.7 billion parameters: too many for one GPU."""
    config = ModelConfig(
        32_000, layers=14, d_model=4096, heads=32, d_ff=16_384, max_length=2048
    )
    return TrainingStep(config, 512, 2048, "bf16")


# --- Memory


def kept_by_autograd(step: TrainingStep, device: str = "cpu") -> int:
    """Returns the bytes that a forward pass keeps for the backward pass.

    Each storage counts once; weights and their bf16 copies are left out.
    """
    dtype = autocast_dtype(step.precision)
    model = speed_up(Transformer(step.config), device, dtype).to(device)
    if step.recompute:
        for layer in model.layers():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    initialize(model, seed=1)
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    shapes = {tuple(weight.shape) for weight in model.parameters()}
    shapes |= {shape[::-1] for shape in shapes}
    shapes.add((3 * step.config.d_model, step.config.d_model))  # OneProductAttention's
    sizes = {}
    alive = []

    def keep(tensor):
        # Autocast's copy of a weight.
        copy = tensor.dtype == torch.bfloat16 and tuple(tensor.shape) in shapes
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights and not copy:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)  # so that no other tensor gets its address
        return tensor

    ids = torch.randint(3, step.config.vocab_size, (step.sentences, step.length), device=device)
    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast(device, dtype, enabled=dtype is not None),
    ):
        model(ids, ids, ids, torch.arange(ids.numel(), device=device))
    return sum(sizes.values())


SHAPES = [
    dict(layers=2, d_model=64, heads=4, d_ff=128),
    dict(layers=1, d_model=96, heads=2, d_ff=512),
    dict(layers=3, d_model=32, heads=8, d_ff=64, norm="post"),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("length", [23, 32])  # in bf16 either is padded, to 32 and 64
@pytest.mark.parametrize(
    "precision, dropout", [("fp32", 0.1), ("fp32", 0), ("bf16", 0.1), ("bf16", 0)]
)
def test_activations_are_what_autograd_keeps(shape, precision, dropout, length):
    config = ModelConfig(200, **shape, dropout=dropout)
    step = TrainingStep(config, 10, length, precision, cpu=True)
    assert activations(step, 10) == pytest.approx(kept_by_autograd(step), rel=0.1)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_recomputing_keeps_the_inputs_of_layers(precision):
    step = TrainingStep(
        ModelConfig(200, **SHAPES[0]), 10, 23, precision, recompute=True, cpu=True
    )
    # The last layer's activations come back in the backward pass.
    forward = activations(step, 10) - layer_activations(step, 10, 2)
    assert forward == pytest.approx(kept_by_autograd(step), rel=0.1)
    assert activations(step, 10) < activations(replace(step, recompute=False), 10)


@pytest.mark.gpu
@pytest.mark.parametrize("precision, dropout", [("fp32", 0.1), ("bf16", 0.1), ("bf16", 0)])
def test_activations_on_a_gpu(precision, dropout):
    step = TrainingStep(ModelConfig(200, **SHAPES[0], dropout=dropout), 10, 23, precision)
    assert activations(step, 10) == pytest.approx(kept_by_autograd(step, "cuda"), rel=0.1)


def test_a_gpu_holds_all_gradients_of_a_layer_twice(monkeypatch):
    """In bf16 and in fp32, when `CastTogether` converts them. This decides with few tokens."""
    converted = []

    def cast(tensors, dtype):
        copies = cast_together(tensors, dtype)
        if dtype == torch.float32:
            converted.append(sum(tensor.nbytes for tensor in [*tensors, *copies]))
        return copies

    monkeypatch.setattr("support.common.kernels.cast_together", cast)
    config = ModelConfig(10, **SHAPES[0])
    model = speed_up(Transformer(config), "cuda", torch.bfloat16)
    ids = torch.ones(1, 3).long()
    with torch.autocast("cpu", torch.bfloat16):
        loss, _ = model(ids, ids, ids, torch.arange(3))
    loss.backward()
    step = TrainingStep(config, 1, 3, "bf16", recompute=True)
    assert temporary_memory(step, shards=0, sentences=1) == max(converted)
    step = replace(step, recompute=False)
    other_layers = 2 * (sum(step.units[1:]) - max(step.units[1:]) + 3 * (3 * 64 * 64))
    assert temporary_memory(step, shards=0, sentences=1) == other_layers + max(converted)


def test_parts_of_a_tiny_model_by_hand():
    # Embedding 40; encoder: attention 64, feed-forward 76, norms 16; decoder: 128, 76, 24; the
    # last norms 16.
    step = TrainingStep(TINY, sentences=4, length=5)
    assert (step.parameters, step.units) == (440, [56, 156, 228])
    # Four pairs; 6 for each weight that a token meets, and for each product of attention, of
    # which the decoder sees half.
    assert step.flops == 4 * 6 * (5 * 160 + 5 * 160 + 2 * 4 * (25 + 15 + 25) + 5 * 40)
    state = ("parameters", "gradients", "optimizer state")
    ddp, _ = memory(step, shards=0, sentences=4, accumulate=1)
    assert [ddp[part] for part in state] == [1760, 1760, 3520]
    fsdp, _ = memory(step, shards=4, sentences=1, accumulate=1)
    assert [fsdp[part] for part in state] == [440, 440, 880]
    # Gradients that are not summed yet are whole; and a micro-batch of half the sentences
    # keeps half of the activations.
    fsdp, peak = memory(step, shards=4, sentences=1, accumulate=2)
    assert fsdp["gradients"] == 1760 and peak == sum(fsdp.values())
    loss = 4 * 10 * 4  # the embedding's gradient does not depend on them
    half, _ = memory(step, shards=0, sentences=2, accumulate=2)
    assert half["activations"] - loss == (ddp["activations"] - loss) / 2


def test_an_evaluation_needs_the_whole_model(large):
    step = replace(large, sentences=1, length=1)
    _, peak = memory(step, shards=1000, sentences=1, accumulate=1)
    shards = 4 * step.parameters / 1000 * (1 + 2)
    embedding_and_norms = 2 * step.units[0]
    assert peak == pytest.approx(4 * step.parameters + shards + embedding_and_norms)


def test_recomputing_costs_one_forward_pass_of_the_layers():
    plain, again = (
        TrainingStep(replace(TINY, vocab_size=1), 4, 5, recompute=recompute)
        for recompute in (False, True)
    )
    assert again.flops == plain.flops and again.hardware_flops == pytest.approx(
        4 / 3 * plain.flops
    )


def test_a_layer_that_is_split_costs_each_gpu_a_part_of_it(large):
    """Half of the matrices, of what they keep and of their work; all of the projection's."""
    whole, half = (replace(large, tensor=tensor) for tensor in (1, 2))
    d, d_ff = large.config.d_model, large.config.d_ff
    encoder_layer = 4 * d * d + 2 * d * d_ff
    layers = slice(1, 1 + large.config.layers)
    assert {a - b for a, b in zip(whole.units[layers], half.units[layers])} == {
        (encoder_layer + d_ff) // 2  # a bias as well
    }
    assert whole.units[0] == half.units[0] and whole.flops == half.flops
    assert whole.flops / 2 < half.hardware_flops < whole.hardware_flops


def test_split_layers_wait_for_their_sums_by_hand():
    step = TrainingStep(TINY, 64, 5)
    one, two = (Estimate(step, H100, "tp", 1, 2, accumulate) for accumulate in (1, 2))
    size = 4 * 64 * 5 * TINY.d_model
    sums = TINY.layers * (5 + 8)  # FORWARD_SUMS and BACKWARD_SUMS
    seconds = 2 * (size / 2 / (0.8 * 450e9) + 3.4e-6)
    assert one.tensor_communication() == pytest.approx(sums * seconds)
    halved = 2 * (size / 4 / (0.8 * 450e9) + 3.4e-6)
    assert two.tensor_communication() == pytest.approx(2 * sums * halved)
    assert Estimate(step, H100, "fsdp", 1, 2, 1).tensor_communication() == 0


def test_few_examples_are_faster_with_split_layers(large):
    """Four pairs keep four of sixteen GPUs busy with FSDP, all with tensor parallelism."""
    four = replace(large, sentences=4)
    assert best(four, H100, "tp", 2, 8).seconds < best(four, H100, "fsdp", 2, 8).seconds
    assert best(large, H100, "tp", 2, 8).seconds > best(large, H100, "fsdp", 2, 8).seconds


@pytest.mark.parametrize("mode", ["fsdp", "hsdp"])
def test_sharded_memory_falls_with_gpus(large, mode):
    peaks = [Estimate(large, H100, mode, *layout, 1).peak_memory for layout in layouts(8)]
    assert peaks == sorted(peaks, reverse=True) and peaks[-1] < peaks[0] / 2


def test_a_copy_of_the_model_needs_the_same_on_every_number_of_gpus(large):
    few, many = (Estimate(large, H100, "ddp", nodes, 8, 1).memory for nodes in (1, 64))
    same = ("parameters", "gradients", "optimizer state")
    assert [few[part] for part in same] == [many[part] for part in same]
    assert many["activations"] < few["activations"]


@pytest.mark.parametrize(
    "mode, gigabytes", [("fsdp", 80), ("fsdp", 24), ("hsdp", 80), ("ddp", 80), ("ddp", 200)]
)
def test_the_smallest_number_that_holds_it_is_the_fewest_gpus(large, mode, gigabytes):
    hardware = replace(H100, memory=gigabytes * 1e9)
    holding = []
    for gpus in (1, 2, 3, 4, 5, 6, 7, *range(8, 1025, 8)):
        for accumulate in range(1, -(-512 // gpus) + 1):
            nodes, per_node = max(1, gpus // 8), min(gpus, 8)
            if Estimate(large, hardware, mode, nodes, per_node, accumulate).fits:
                holding.append(gpus)
    assert fewest_gpus(large, hardware, mode, 8) == min(holding, default=0)


# --- Time


def test_collectives_by_hand():
    two = Network(H100, 1, 2)
    # Half of it leaves each of two GPUs twice, at 0.8 of 450 GB/s.
    assert two.all_reduce(360e9) == pytest.approx(1 + 2 * 3.4e-6)
    sixteen = Network(H100, 2, 8)
    # Eight adapters of 50 GB/s are the slowest link; 14 hops within nodes, 1 between them.
    assert sixteen.all_gather(320e9) == pytest.approx(15 / 16 + 14 * 3.4e-6 + 14e-6)
    assert sixteen.within_nodes().all_gather(360e9) == pytest.approx(7 / 8 + 7 * 3.4e-6)
    # Each GPU of a node has an eighth of its network, and talks to one other.
    assert sixteen.across_nodes().all_reduce(40e9) == pytest.approx(1 + 2 * 14e-6)
    # A single GPU of a node cannot use eight adapters.
    pair = Network(H100, 2, 1)
    assert pair.all_reduce(40e9) == pytest.approx(1 + 2 * 14e-6)
    assert Estimate(TrainingStep(TINY, 64, 5), H100, "ddp", 1, 1, 1).communication == 0


@pytest.mark.parametrize("seconds, shown", [(0.5, 0.5), (1, 1), (3, 5)])
def test_buckets_hide_under_the_backward_pass(monkeypatch, seconds, shown):
    # Two buckets are there after 1 and 2 seconds of a backward pass of 2.
    step = TrainingStep(TINY, 64, 5)
    step.parameter_sizes = [2**23, 2**23]
    estimate = Estimate(step, H100, "ddp", 1, 2, 1)
    estimate.micro_batch_seconds = 3.0
    monkeypatch.setattr(Network, "all_reduce", lambda self, size: seconds)
    assert estimate.ddp_communication() == pytest.approx(shown)


def test_ddp_closes_its_first_bucket_early():
    tensors = [2**23, 2**20, 2**21, 2**22, 2**18]  # the last has exactly 1 MiB
    assert [size / 2**20 for size in bucket_sizes(tensors)] == [1, 16 + 8 + 4, 32]


def test_fsdp_gathers_a_layer_while_another_computes():
    step = TrainingStep(TINY, 64, 5)
    step.units = [1, 1, 1]
    estimate = Estimate(step, H100, "fsdp", 1, 2, 1)
    estimate.micro_batch_seconds = 9.0  # a unit takes 1 second there, and 2 back
    none = [0, 0, 0]
    assert estimate.pipeline(none, none, none) == pytest.approx(0)
    # What the first two units wait for, nothing hides: the root, then the first layer.
    assert estimate.pipeline([1, 1, 1], none, none) == pytest.approx(2)
    # After the backward pass: the first layer's gradient, and the root's.
    assert estimate.pipeline([1, 1, 1], [1, 1, 1], none) == pytest.approx(4)
    # Over the nodes the sums of one go on while the next is summed within them.
    assert estimate.pipeline([1, 1, 1], [1, 1, 1], [1, 1, 1]) == pytest.approx(5)
    # Nothing can hide gathers that take longer than to compute.
    assert estimate.pipeline([10, 10, 10], none, none) == pytest.approx(6 + 50 - 9, rel=0.2)


def test_delays_are_counted_by_collective():
    def wait(mode: str, accumulate: int) -> float:
        plain, slow = (
            Estimate(
                TrainingStep(TINY, 64, 5, delay=delay), HARDWARE["cpu"], mode, 1, 2, accumulate
            )
            for delay in (0, 1)
        )
        return round(slow.seconds - plain.seconds)

    assert wait("cpu", 1) == wait("cpu", 4) == 2  # gradients, sums
    assert wait("ddp", 1) == wait("ddp", 4) == 2  # one bucket, sums
    assert wait("fsdp", 1) == 5 + 3 + 1 + 1  # 3 gathers there, 2 back, 3 scatters, norm, sums
    assert wait("fsdp", 4) == 4 * 5 + 3 + 1 + 1
    assert wait("hsdp", 1) == 5 + 3 + 3 + 1 + 1  # and each unit's sum over the nodes


def all_reduce_bucket(_, bucket):
    """What DDP does with a bucket by itself; but the fake group's futures have no value."""
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
    with network_delay.delayed_collectives(1e-6):
        yield found
    count = len(found)
    dist.all_reduce(torch.ones(1))
    assert len(found) == count  # the block has ended, and with it the delays
    dist.destroy_process_group()


@pytest.mark.parametrize(
    "mode, accumulate, precision",
    [
        *(("ddp", 1, precision) for precision in ("fp32", "fp16")),
        *product(("fsdp", "hsdp"), (1, 2), ("fp32", "fp16")),
        *product(["tp"], (1, 2), ["fp32"]),
    ],
)
def test_a_step_waits_as_often_as_planned(waits, mode, accumulate, precision):
    model = Transformer(TINY)
    ids = torch.ones(2, 5, dtype=torch.int64)
    names = {"hsdp": ("nodes", "within"), "tp": ("data", "tensor")}.get(mode, ("all",))
    shape = (2, 2) if mode in ("hsdp", "tp") else (4,)
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if mode == "tp":
        for part in model.layers():
            parallelize_module(part, mesh["tensor"], tensor_parallel_plan())
        mesh = mesh["data"]
    if mode == "ddp":
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
        model.register_comm_hook(None, all_reduce_bucket)
    else:
        for part in [*model.layers(), model]:
            fully_shard(part, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    waits.clear()
    for left in reversed(range(accumulate)):
        if mode != "ddp":
            model.set_requires_gradient_sync(not left)
        scaler.scale(model(ids, ids, ids, torch.arange(ids.numel()))[0]).backward()
    scaler.unscale_(optimizer)
    clip_gradients(model.parameters(), 1.0)
    plain, slowly = (
        Estimate(
            TrainingStep(TINY, 64, 5, precision, delay=delay),
            HARDWARE["cpu"],
            mode,
            2,
            2,
            accumulate,
        )
        for delay in (0, 1)
    )
    assert len(waits) + 1 == round(slowly.seconds - plain.seconds)  # and once for the sums


def test_tensor_parallelism_is_not_planned_in_fp16():
    """train_tp.py refuses it."""
    step = TrainingStep(TINY, 64, 5, "fp16")
    args = SimpleNamespace(nodes=1, gpus_per_node=2, hardware="v100")
    assert batch_plan.find_modes(args, step) == ["ddp", "fsdp"]
    assert batch_plan.find_modes(args, replace(step, precision="fp32")) == ["ddp", "fsdp", "tp"]


def test_processes_take_turns_on_cores():
    step = TrainingStep(TINY, 64, 5, cpu=True)
    hardware = replace(HARDWARE["cpu"], cores=2)
    one, two, four = (
        Estimate(step, hardware, "cpu", 1, n, 1).micro_batch_seconds for n in (1, 2, 4)
    )
    assert two == pytest.approx(one / 2) and four == pytest.approx(one / 2)


@pytest.mark.parametrize("sentences", [8, 32, 64])
def test_a_single_gpu_waits_for_nothing(sentences):
    step = TrainingStep(ModelConfig(8000), sentences, 128, "bf16")
    for mode in ("ddp", "fsdp", "hsdp", "tp"):
        assert best(step, H100, mode, 1, 1).communication == 0


def test_more_gpus_are_faster_and_use_their_peak_less(large):
    estimates = [best(large, H100, "fsdp", nodes, 8) for nodes in (2, 4, 16, 64)]
    assert all(few.seconds > many.seconds for few, many in zip(estimates, estimates[1:]))
    assert estimates[-1].mfu < 0.9 * estimates[0].mfu < estimates[0].mfu < H100.efficiency


def test_the_best_is_the_fastest_that_fits(large):
    tried = [Estimate(large, H100, "fsdp", 2, 8, count) for count in (1, 2, 4, 8, 16, 32)]
    fitting = [estimate.seconds for estimate in tried if estimate.fits]
    assert best(large, H100, "fsdp", 2, 8).seconds == min(fitting)


# --- The command


def run_plan(capsys, monkeypatch, flags: str) -> tuple[int, str, str]:
    """Runs batch/plan.py in this process; returns its status, output and errors."""
    monkeypatch.setattr(sys, "argv", ["plan.py", *shlex.split(flags)])
    status = 0
    try:
        run_main(batch_plan.main)
    except SystemExit as end:
        status = end.code
    return status, *capsys.readouterr()


@pytest.mark.parametrize(
    "flags, part",
    [
        ("--hardware h1000", "invalid choice: 'h1000'"),
        ("--data klingon", "invalid choice: 'klingon'"),
        ("--layers -3", "--layers -3: it must be from 1 to 1000"),
        ("--d-model 30 --heads 4", "d_model 30 cannot be split over 4 heads"),
        ("--nodes 0", "--nodes 0: it must be from 1"),
        ("--nodes 300", "2,400 GPUs are too many: choose at most 1,024"),
        ("--memory-gb -1", "--memory-gb -1.0: it must be from 0"),
        ("--tflops nan", "--tflops nan"),
        ("--total-tokens -5", "--total-tokens -5.0"),
        ("--efficiency 1.5", "from 0.001 to 1"),
        ("--efficiency 1e-320", "from 0.001 to 1"),
        ("--tflops 1e-320", "from 0.001"),
        ("--layers many", "invalid int value"),
        ("--colour red", "unrecognized arguments"),
        (
            "--precision fp32",
            "--precision fp32: the peak of h100 is known only in bf16 and fp16; pass --tflops",
        ),
        ("--hardware cpu --tflops 1 --precision tf32", "--precision tf32: only GPUs have it"),
        ("--measure", "--hardware cpu --nodes 1"),
        (f"--plot {ROOT}/README.md/a.png", "README.md"),
        (
            "--layers 40 --d-model 16384 --heads 64 --d-ff 65536 --hardware l4 "
            "--gpus-per-node 1",
            "nor on any number",
        ),
        (
            "--hardware l4 --gpus-per-node 4 "
            "--layers 10 --d-model 4096 --heads 32 --d-ff 16384",
            "FSDP fits on",
        ),
    ],
)
def test_bad_input_is_one_line(capsys, monkeypatch, flags, part):
    status, output, errors = run_plan(capsys, monkeypatch, flags)
    assert status == 2
    assert errors.count("\n") == 1 and errors.startswith("error: ") and part in errors
    assert not output or flags.startswith("--plot")


def test_a_plan_from_end_to_end(capsys, monkeypatch, tmp_path):
    path = tmp_path / "plan.png"
    status, output, _ = run_plan(
        capsys,
        monkeypatch,
        "--hardware a100-40 --nodes 2 --gpus-per-node 4 --layers 12 --d-model 1024 --heads 16 "
        f"--d-ff 4096 --batch-tokens 262144 --total-tokens 1e10 --plot {path}",
    )
    assert status == 0
    rows = {line[:30].strip(): line[30:].split() for line in output.splitlines()}
    assert rows["parameters"][0] == "1.44" and "yes" in rows["fits in 36"]
    assert float(rows["seconds of a step"][0]) == pytest.approx(
        float(rows["computing"][0]) + float(rows["exposed communication"][0]), rel=0.01
    )
    # The lines are those of the file that it names, and all flags are the script's own.
    name = output.split("In batch/")[1].split(":")[0]
    lines = [line for line in output.splitlines() if line.startswith("#SBATCH")]
    text = (ROOT / "batch" / name).read_text()
    assert len(lines) >= 4 and all(line.split("=")[0] + "=" in text for line in lines)
    assert "--d-model 1024" in output and "--steps " in output
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "nodes, meet",
    [
        (1, "torchrun --standalone --nproc-per-node"),
        (
            2,
            "torchrun --nnodes 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
            "--nproc-per-node",
        ),
    ],
)
def test_its_command_says_where_nodes_without_gpus_meet(capsys, monkeypatch, nodes, meet):
    flags = f"--hardware cpu --nodes {nodes} --gpus-per-node 2 --layers 12"
    if nodes == 1:  # too little for any mode but FSDP
        flags += " --memory-gb 0.4"
    status, output, _ = run_plan(capsys, monkeypatch, flags)
    assert status == 0 and f" {meet} 2 train_" in output


@pytest.mark.parametrize("size", ["--batch-tokens 4096", "--batch-size 64"])
@pytest.mark.parametrize("corpus", ["", " --data phrasebook"])
def test_its_command_gives_the_size_of_a_step_once(capsys, monkeypatch, corpus, size):
    _, output, _ = run_plan(capsys, monkeypatch, size + corpus)
    assert size in output and output.count("--batch-") == 1


def test_the_readme_shows_what_the_command_prints(capsys, monkeypatch):
    text = (ROOT / "batch" / "README.md").read_text().split("## A plan")[1]
    command, shown = (block.replace("\\\n", " ") for block in text.split("```")[1:4:2])
    flags = command.split("batch/plan.py")[1]
    status, output, _ = run_plan(capsys, monkeypatch, flags)
    assert (status, output.split()) == (0, shown.split())


def test_the_lesson_says_what_is_planned(large):
    """Seconds of a step of FSDP, HSDP and TP, and which is least."""
    lesson = (ROOT / "docs" / "lesson.md").read_text()
    _, _, section = lesson.partition("\n## Which of the four")
    section, _, _ = section.partition("\n## ")
    rows = re.findall(r"^\| (\d+) \| ([\d.]+) \| (.+) \|$", section, re.MULTILINE)
    assert len(rows) == 5
    for pairs, network, cells in rows:
        step = replace(large, sentences=int(pairs))
        hardware = replace(H100, adapter_bandwidth=float(network) * 1e9 / H100.adapters)
        seconds = [best(step, hardware, mode, 2, 8).seconds for mode in ("fsdp", "hsdp", "tp")]
        shown = [f"{each:.3g}" for each in seconds]
        least = f"{min(seconds):.3g}"
        assert cells.split(" | ") == [
            f"**{each}**" if each == least else each for each in shown
        ]


def test_given_figures_take_the_place_of_known_ones(capsys, monkeypatch):
    status, output, _ = run_plan(capsys, monkeypatch, "--memory-gb 10 --gpus-per-node 1")
    assert status == 0 and "fits in 9 " in output
    known = "--nodes 2 --data multi30k"
    _, output_of_known, _ = run_plan(capsys, monkeypatch, known)
    for flag in ("--tflops 20", "--bandwidth-inside 900", "--bandwidth-between 100"):
        assert run_plan(capsys, monkeypatch, f"{known} {flag}")[1] != output_of_known, flag


def test_given_figures_take_the_place_of_measured_ones(capsys, monkeypatch):
    monkeypatch.setattr(measure, "measure", lambda step, processes: HARDWARE["cpu"])
    status, output, _ = run_plan(
        capsys, monkeypatch, "--hardware cpu --gpus-per-node 2 --measure --memory-gb 3"
    )
    assert status == 0 and re.search(r"fits in 3 +yes", output), output


@pytest.mark.parametrize(
    "quarter, recompute, seconds",
    [(1.0, False, 4), (2.5, False, 4), (1.0, True, None), (4.5, False, 4)],
)
def test_what_was_measured_is_what_is_planned(quarter, recompute, seconds):
    """Also where noise makes a quarter of the sentences slower than all of them.

    --recompute costs more than was measured.
    """
    timings = measure.Timings(step=4.0, quarter=quarter, adam=1.0, peak_flops=1e9)
    step = TrainingStep(TINY, 4, 5, recompute=recompute, cpu=True)
    hardware = measure.fit(timings, step, processes=1)
    assert 0 < hardware.efficiency <= 1
    expected = seconds or 4 * step.hardware_flops / step.flops
    estimate = Estimate(step, hardware, "cpu", 1, 1, 1)
    assert estimate.micro_batch_seconds == pytest.approx(expected)


def run_script(*command: str) -> subprocess.CompletedProcess:
    """Runs a script of this repository in a process of its own."""
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, timeout=600, cwd=ROOT
    )


@pytest.mark.slow
def test_measured_rates_are_those_of_a_cpu(monkeypatch, capsys):
    measured = []

    def measure_and_keep(step, processes):
        measured.append(measure_rates(step, processes))
        return measured[0]

    measure_rates = measure.measure
    monkeypatch.setattr(measure, "measure", measure_and_keep)
    flags = "--hardware cpu --gpus-per-node 2 --measure"
    flags += " --layers 1 --batch-size 2 --vocab-size 300"
    monkeypatch.setattr(sys, "argv", ["plan.py", *flags.split()])
    batch_plan.main()
    assert "train_cpu.py" in capsys.readouterr().out
    [hardware] = measured
    assert hardware.cpu and hardware.cores >= 1
    assert 0 < hardware.efficiency <= 1 and hardware.peak_flops > 1e9
    assert hardware.node_bandwidth > 1e7 and 0 < hardware.node_latency < 0.1
    assert 5e7 < hardware.base_memory < 2e9


def test_every_flag_of_the_models_shape_is_one_of_the_planner():
    planned = batch_plan.SHAPE
    for name, field in flags_of(Settings).items():
        if field.metadata["is_shape"] and field.metadata["task"] != CLASSIFY:
            assert name in planned, f"see `A flag` in docs/extending.md: {name}"


@pytest.mark.slow
def test_predicted_memory_is_the_measured_one():
    flags = "--only memory --skip-glibc --processes 2 --modes fsdp,tp"
    done = run_script("tests/measure/plan.py", *flags.split())
    rows = re.findall(r"train_(\w+)\.py \| 2 \| ([\d,]+) \| ([\d,]+) ", done.stdout)
    assert [mode for mode, *_ in rows] == ["fsdp", "tp"], done.stderr
    for mode, *figures in rows:
        predicted, measured = (float(figure.replace(",", "")) for figure in figures)
        assert predicted == pytest.approx(measured, rel=0.1), mode


def test_collectives_are_planned_as_they_were_measured():
    measured = dict(latency=1e-3, all_reduce=0.5, all_gather=0.2, reduce_scatter=0.3)
    timings = measure.Timings(step=4.0, quarter=1.0, adam=1.0, peak_flops=1e9, **measured)
    step = TrainingStep(TINY, 4, 5, cpu=True)
    hardware = measure.fit(timings, step, processes=3)
    network = Network(hardware, nodes=1, per_node=3)
    assert network.all_reduce(4 * measure.SENT) == pytest.approx(0.5)
    largest = network.all_gather(4 * max(step.units))
    assert hardware.gather_factor * largest == pytest.approx(0.2)
    assert hardware.scatter_factor * largest == pytest.approx(0.3)
    assert hardware.memory == psutil.virtual_memory().total / 3


@pytest.mark.parametrize("mode, accumulate", [("cpu", 1), ("ddp", 3), ("fsdp", 1), ("fsdp", 3)])
def test_on_cpus_a_step_waits_for_all_communication(mode, accumulate):
    step = TrainingStep(TINY, 4, 5, cpu=True)
    hardware = replace(HARDWARE["cpu"], gather_factor=2.0, scatter_factor=3.0)
    network = Network(hardware, nodes=1, per_node=2)
    expected = network.all_reduce(8)  # whether to stop
    if mode == "fsdp":
        root, *layers = (network.all_gather(4 * unit) for unit in step.units)
        expected += accumulate * 2 * (root + 2 * sum(layers))  # each layer twice
        expected += 3 * (root + sum(layers))
        expected += network.all_reduce(4)  # the norm
    else:
        expected += network.all_reduce(4 * step.parameters)
    estimate = Estimate(step, hardware, mode, 1, 2, accumulate)
    assert estimate.communication == pytest.approx(expected)
