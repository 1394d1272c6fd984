"""--device cuda without a GPU: the tensors of two GPUs are kept on the CPU, or on "meta"."""

import json
import os
import subprocess
import sys

import pytest
import torch
from conftest import ROOT, SMALL

from model import ModelConfig, Transformer
from support.classification.classifier import Classifier, ClassifierConfig
from support.common.kernels import speed_up
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
    torch.cuda.device_count = lambda: 2
    torch.cuda.get_device_name = lambda *_: "H100"
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.is_bf16_supported = lambda *_, **__: True
    torch.cuda.set_device = set_device
    torch.Tensor.pin_memory = torch.Tensor.clone
    dist.init_process_group = init_process_group
    device_mesh.init_device_mesh = init_device_mesh
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_a_run_on_two_gpus_comes_to_its_end(tmp_path, corpus_flags, mode):
    (tmp_path / "sitecustomize.py").write_text(TWO_GPUS)
    flags = [
        *corpus_flags,
        *SMALL,
        "--precision",
        "auto",
        "--steps",
        "4",
        "--eval-every",
        "2",
        "--average-checkpoints",
        "2",
        "--name",
        "gpus",
    ]
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        ROOT / f"train_{mode}.py",
    ]
    run = subprocess.run(
        [*command, "--device", "cuda", *flags],
        cwd=tmp_path,
        timeout=240,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
    )
    assert run.returncode == 0 and all(
        f"process {rank} has cuda:{rank}\n" in run.stdout for rank in range(2)
    ), run.stderr
    about = json.loads((tmp_path / "logs/gpus/config.json").read_text())
    assert about["devices"] == ["H100"] and [
        about["flags"]["device"],
        about["flags"]["precision"],
    ] == ["cuda", "bf16"]


def test_models_make_all_their_tensors_where_their_input_is():
    shape = dict(layers=1, d_model=16, heads=2, d_ff=32)
    with torch.device("meta"):  # the other device that is everywhere
        ids = torch.ones(3, 5).long()
        images = torch.ones(3, 3, 8, 8)
        label = torch.ones(3).long()
        weight = torch.ones(3)
        translator = speed_up(Transformer(ModelConfig(40, **shape)), "cuda", bf16=True)
        vision = dict(
            patch=4, image_size=8, stem_channels=4, num_prefix_tokens=1, positions="learned"
        )
        classifiers = [
            (Classifier(ClassifierConfig(classes=3, **shape, **config)), x)
            for config, x in ((dict(vocab_size=40), ids), (vision, images))
        ]
    for model, x in classifiers:
        speed_up(model, "cuda", bf16=True)(x, label, weight)[0].backward()
        assert all(parameter.grad.is_meta for parameter in model.parameters())
    assert (
        translator.decode(ids, *translator.encode(ids)).is_meta
        and Decoder(translator, ids, beam=2).step(ids[:, :2]).is_meta
    )
