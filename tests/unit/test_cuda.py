"""--device cuda without a GPU: the tensors of two GPUs are kept on the CPU, or on "meta"."""

import json
import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import gpu
import kernels
import parity
import pytest
import torch
from conftest import ROOT, SMALL, run_script

from model import ModelConfig, Transformer
from support.classification.classifier import Classifier, ClassifierConfig
from support.common.errors import UserError
from support.common.hardware import configure_backends, find_device
from support.common.kernels import speed_up
from support.distributed import weights
from support.distributed.launch import report_out_of_memory
from support.translation import task
from support.translation.beam import Decoder

# Python runs this before a script. It makes a GPU's tensors on the CPU; Gloo replaces NCCL.
TWO_GPUS = """
import os
if "RANK" in os.environ:
    import torch, torch.distributed as dist, torch.distributed.device_mesh as device_mesh

    def to_cpu(value):
        if isinstance(value, torch.device) and value.type == "cuda":
            return "cpu"
        return value

    class OnCPU(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if function is not torch.device:
                args = [to_cpu(value) for value in args]
                if "cuda" in str(kwargs.get("device")):
                    kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    def init_process_group(backend, start=dist.init_process_group, **kwargs):
        start({"cpu:gloo,cuda:nccl": "gloo"}[backend], **kwargs)

    def init_device_mesh(device, shape, make=device_mesh.init_device_mesh, **kwargs):
        return make({"cuda": "cpu"}[device], shape, **kwargs)

    def set_device(device):
        # One write: what torchrun's processes print without a buffer can be interleaved.
        os.write(1, f"process {os.environ['RANK']} has {device}\\n".encode())

    OnCPU().__enter__()
    torch.cuda.is_available = lambda: True
    # Optimizers ask these, the second one before PyTorch 2.13.
    torch.accelerator.current_accelerator = lambda *_, **__: None
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.device_count = lambda: 2
    torch.version.cuda = "13.0"
    torch.cuda.get_arch_list = lambda: ["sm_75", "sm_90"]
    torch.cuda.get_device_name = lambda *_: "NVIDIA H100 80GB HBM3"
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.cuda.set_device = set_device
    torch.Tensor.pin_memory = torch.Tensor.clone
    dist.init_process_group = init_process_group
    device_mesh.init_device_mesh = init_device_mesh
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has GPUs and torchrun")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_run_on_two_gpus_comes_to_its_end(tmp_path, corpus_flags, mode):
    (tmp_path / "sitecustomize.py").write_text(TWO_GPUS)
    flags = [*corpus_flags, *SMALL, *shlex.split("--precision auto --steps 4 --name gpus")]
    flags += ["--eval-every", "2", "--average-checkpoints", "2"]
    run = subprocess.run(
        parity.command(mode, 2, *flags, device="cuda"),
        cwd=tmp_path,
        timeout=240,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0, run.stderr
    assert all(f"process {rank} has cuda:{rank}\n" in run.stdout for rank in range(2))
    about = json.loads((tmp_path / "logs/gpus/config.json").read_text())
    assert about["devices"] == ["NVIDIA H100 80GB HBM3"]
    assert (about["flags"]["device"], about["flags"]["precision"]) == ("cuda", "bf16")


# Trains with tensors on the meta device, which have no values, in place of a GPU's: whatever
# asks for one raises an error, where a GPU would have to be waited for.
ON_META = """
import os
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg  # whose collectives do nothing

import train_ddp
from support.distributed.launch import ThisProcess
from support.distributed.signals import Signals
from support.training.command_line import parse_arguments
from support.training.run import Run
from support.training.settings import Settings

def to_meta(value):
    is_gpu = isinstance(value, torch.device) and value.type == "cuda"
    return torch.device("meta") if is_gpu else value

class OnMeta(torch.overrides.TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = {name: to_meta(value) for name, value in (kwargs or {}).items()}
        return function(*map(to_meta, args), **kwargs)

def init_process_group(_, start=dist.init_process_group, **kwargs):
    start("cpu:gloo,meta:fake", store=dist.HashStore(), rank=0, world_size=1)

def record(run, step, *args, record=Run.record):
    print("step", step, flush=True)
    record(run, step, *args)

args = parse_arguments("", Settings).complete()
args.device = "cuda"
os.environ["LOCAL_RANK"] = "0"
ThisProcess.store = dist.HashStore()
Signals.parent = os.getppid()
Run.record = record
torch.cuda.set_device = lambda _: None
torch.cuda.get_device_name = lambda: "H100"
torch.Tensor.pin_memory = torch.Tensor.clone
torch.autocast = lambda *_, **__: nullcontext()
torch.is_autocast_enabled = lambda _: False
AdamW = torch.optim.AdamW
torch.optim.AdamW = lambda *args, fused, **kwargs: AdamW(*args, **kwargs)
dist.init_process_group = init_process_group
train_ddp.DistributedDataParallel = lambda model, **_: model
with OnMeta():
    train_ddp.train(0, 1, args)
"""


@pytest.mark.parametrize("flags", ["--accumulate 1", "--accumulate 3", "--plain"])
def test_no_value_is_read_from_a_gpu_between_rows_of_the_log(tmp_path, corpus_flags, flags):
    flags = [*corpus_flags, *SMALL, "--device", "cpu", "--hardware-tflops", "1", *flags.split()]
    flags += ["--steps", "9", "--log-every", "4", "--eval-every", "9", "--name", "meta"]
    run = subprocess.run(
        [sys.executable, "-c", ON_META, *flags],
        cwd=tmp_path,
        timeout=240,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert "step 4\n" in run.stdout and "step 5\n" not in run.stdout, run.stderr[-900:]
    assert "in read_back" in run.stderr and "meta tensor; no data" in run.stderr


@pytest.mark.parametrize(
    "cuda, is_there, capability, message",
    [
        (None, False, None, "this PyTorch is built without CUDA"),
        ("13.0", False, None, "nvidia-smi has to show one and CUDA 13.0 or newer"),
        ("13.0", True, (7, 0), "no code for the Tesla V100, which is sm_70, older than sm_75"),
    ],
)
def test_a_gpu_that_cannot_be_used(monkeypatch, cuda, is_there, capability, message):
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: is_there)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla V100")
    monkeypatch.setattr(
        torch.cuda, "get_arch_list", lambda: ["sm_100", "sm_75", "sm_90a", "compute_120"]
    )
    with pytest.raises(UserError, match=message):
        find_device("cuda")


def test_out_of_memory_is_one_line():
    message = "^process 3 is out of its GPU's memory.*--accumulate"
    with pytest.raises(UserError, match=message), report_out_of_memory(3, "cuda"):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nand more")
    message = "^process 3 is out of the CPU's memory"
    with pytest.raises(UserError, match=message), report_out_of_memory(3, "cpu"):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    with pytest.raises(RuntimeError, match="another"), report_out_of_memory(3, "cpu"):
        raise RuntimeError("another")


def test_models_make_all_their_tensors_where_their_input_is(monkeypatch):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda _: False)  # "meta" has none
    shape = dict(layers=1, d_model=16, heads=2, d_ff=32)
    with torch.device("meta"):  # the other device that is everywhere
        ids = torch.ones(3, 5).long()
        images = torch.ones(3, 3, 8, 8)
        label = torch.ones(3).long()
        weight = torch.ones(3)
        translator = speed_up(Transformer(ModelConfig(40, **shape)), "cuda", torch.bfloat16)
        vision = dict(
            patch=4, image_size=8, stem_channels=4, num_prefix_tokens=1, positions="learned"
        )
        classifiers = [
            (Classifier(ClassifierConfig(classes=3, **shape, **config)), x)
            for config, x in ((dict(vocab_size=40), ids), (vision, images))
        ]
    for model, x in classifiers:
        speed_up(model, "cuda", torch.bfloat16)(x, label, weight)[0].backward()
        assert all(parameter.grad.is_meta for parameter in model.parameters())
    assert (
        translator.decode(ids, *translator.encode(ids)).is_meta
        and Decoder(translator, ids, beam=2).step(ids[:, :2]).is_meta
    )


def test_a_step_takes_no_more_kernels_than_it_took():
    """The numbers are those in logs/reference/gpu/README.md."""
    passes = kernels.count(layers=6)
    totals = [counter.lines.total() for counter in passes.values()]
    casts = [counter.casts.total() for counter in passes.values()]
    assert 200 < totals[0] <= 268 and 250 < totals[1] <= 341, totals
    assert 0 < casts[0] <= 5 and 0 < casts[1] <= 2, casts


def test_measuring_goes_on_after_a_section_that_fails(tmp_path, monkeypatch, capsys):
    def fail(_):
        yield "a line before"
        raise RuntimeError("the reason")

    monkeypatch.setitem(gpu.SECTIONS, "speed", fail)
    assert not gpu.run_section("speed", gpu.Bench("cpu", True, tmp_path, tmp_path / "report"))
    expected = "## speed\n\na line before\n\nerror: the reason\n"
    assert (tmp_path / "report/speed.md").read_text() == expected
    assert capsys.readouterr().out.strip() == expected.strip()


@pytest.mark.slow
def test_what_measures_a_gpu_runs_on_a_cpu():
    """Some sections: all of them take minutes."""
    names = ["memory", "profile"]
    flags = ["--device", "cpu", "--small", "--only", ",".join(names)]
    done = run_script("tests/measure/gpu.py", *flags, cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert re.findall("^## (.*)", done.stdout, re.M) == names
    assert re.search(r"`train_ddp.py` \| fp32 \| [\d,]+ \| [\d,]+ \| [+-]\d+%", done.stdout)
    assert re.search(r"cpu_op \| [1-9]\d{3}", done.stdout)


@pytest.mark.slow
def test_without_a_gpu_there_is_nothing_to_measure():
    done = run_script("tests/measure/gpu.py", cwd=ROOT)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("error: --device cuda: ")


def test_tf32_is_for_products_of_matrices_and_only_if_asked_for(monkeypatch):
    before = torch.get_float32_matmul_precision()
    try:
        for precision, expected in (("fp32", "highest"), ("tf32", "high")):
            monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
            configure_backends(precision)
            assert torch.get_float32_matmul_precision() == expected
            assert not torch.backends.cudnn.allow_tf32  # convolutions
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", None), ("cuda", torch.bfloat16)])
def test_an_evaluation_on_a_gpu_translates_in_the_runs_precision(monkeypatch, device, dtype):
    used = []
    monkeypatch.setattr(task, "read_text", lambda *_: ["a"])
    monkeypatch.setattr(weights, "gather_model", lambda model, new_model: model)
    monkeypatch.setattr(task, "shared_search", lambda model, beam, dtype: used.append(dtype))
    monkeypatch.setattr(task, "translate_lines", lambda *_, **flags: [[(0.0, "b")]])
    monkeypatch.setattr(task.dist, "get_world_size", lambda: 1)
    args = SimpleNamespace(device=device, precision="bf16")
    translation = SimpleNamespace(args=args, folder=None, bpe=None, config=ModelConfig(10))
    translate_part = task.Translation.translate_part
    assert translate_part(translation, None, "valid", beam=4, max_lines=sys.maxsize) == {0: "b"}
    assert used == [dtype]


def test_a_profile_says_how_long_the_kernels_take():
    events = [
        {"cat": "kernel", "name": "product", "ts": 0.0, "dur": 600.0},
        {"cat": "kernel", "name": "sum", "ts": 700.0, "dur": 200.0},
        {"cat": "kernel", "name": "product", "ts": 900.0, "dur": 100.0},
        {"cat": "cpu_op", "name": "product", "ts": 0.0, "dur": 5000.0},
    ]
    lines = list(gpu.kernel_times(events))
    assert "90% of the 1.0 ms" in lines[0]
    assert lines[2:] == ["| `product` | 0.70 | 78% |", "| `sum` | 0.20 | 22% |"]
    assert not list(gpu.kernel_times(events[3:]))
