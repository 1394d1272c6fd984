"""--device cuda where there is no GPU: the pages, with the tensors of two GPUs kept on the CPU; the models, on another device."""

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

# Python runs this before a script. What is a GPU's is made on the CPU, and Gloo is in NCCL's place.
TWO_GPUS = """
import os
if "RANK" in os.environ:
    import torch, torch.distributed as dist, torch.distributed.device_mesh as mesh
    class OnCPU(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            if function is not torch.device:
                args = ["cpu" if isinstance(x, torch.device) and x.type == "cuda" else x for x in args]
                kwargs = {name: "cpu" if name == "device" and x and "cuda" in str(x) else x for name, x in (kwargs or {}).items()}
            return function(*args, **kwargs or {})
    OnCPU().__enter__()
    for name, answer in dict(is_available=True, device_count=2, get_device_name="H100", get_device_capability=(9, 0), is_bf16_supported=True).items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    torch.cuda.set_device = lambda device: print(f"process {os.environ['RANK']} has {device}", flush=True)
    torch.Tensor.pin_memory = torch.Tensor.clone
    dist.init_process_group = lambda backend, start=dist.init_process_group, **how: start({"cpu:gloo,cuda:nccl": "gloo"}[backend], **how)
    mesh.init_device_mesh = lambda kind, shape, make=mesh.init_device_mesh, **how: make({"cuda": "cpu"}[kind], shape, **how)
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
        ids, pictures, label, weight = (
            torch.ones(3, 5).long(),
            torch.ones(3, 3, 8, 8),
            torch.ones(3).long(),
            torch.ones(3),
        )
        translator = speed_up(Transformer(ModelConfig(40, **shape)), "cuda", bf16=True)
        picture = dict(
            patch=4, image_size=8, stem_channels=4, num_prefix_tokens=1, positions="learned"
        )
        readers = [
            (Classifier(ClassifierConfig(classes=3, **shape, **kind)), x)
            for kind, x in ((dict(vocab_size=40), ids), (picture, pictures))
        ]
    for model, x in readers:
        speed_up(model, "cuda", bf16=True)(x, label, weight)[0].backward()
        assert all(parameter.grad.is_meta for parameter in model.parameters())
    assert (
        translator.decode(ids, *translator.encode(ids)).is_meta
        and Decoder(translator, ids, beam=2).step(ids[:, :2]).is_meta
    )
