"""--compile: a graph for each kind of layer and one for the loss, whatever the shapes are."""

import pytest
import torch
from test_model import make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

from data import Batches, Pairs
from model import tensor_parallel_plan
from support.common.kernels import speed_up
from support.corpora.pairs import find_corpus
from support.translation.encoding import prepare

pytestmark = pytest.mark.slow


@pytest.fixture
def graphs(monkeypatch):
    """The graphs that are compiled, with a backend that generates no code."""
    from torch._dynamo.backends.debugging import aot_eager

    compiled = []

    def backend(graph, inputs):
        function = aot_eager(graph, inputs)  # may raise, to be called again in another way
        compiled.append(graph)
        return function

    compile = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda *args, **flags: compile(*args, backend=backend, **flags)
    )
    torch._dynamo.reset()
    return compiled


@pytest.fixture(scope="module")
def batches(tmp_path_factory, pairs, small_corpus):
    corpus = find_corpus(str(small_corpus))
    return Batches(Pairs(prepare(corpus, tmp_path_factory.mktemp("x"), 300), "train"), 1024, 1)


def as_it_is(model):
    return model


def with_ddp(model):
    return DistributedDataParallel(model, gradient_as_bucket_view=True)


PRECISION = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def with_fsdp(model):
    mesh = init_device_mesh("cpu", (1,))
    for module in [*model.layers(), model]:
        fully_shard(module, mesh=mesh, mp_policy=PRECISION)
    return model


def with_tp(model):
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("data", "tensor"))
    tensor = mesh["tensor"]
    for layer in model.layers():
        parallelize_module(layer, tensor, tensor_parallel_plan())
    for module in [*model.layers(), model]:
        fully_shard(module, mesh=mesh["data"], mp_policy=PRECISION)
    return model


@pytest.mark.parametrize(
    "wrap, device, recompute",  # device: whose fast parts are taken
    [
        (as_it_is, "cpu", False),
        (with_ddp, "cuda", False),
        (with_fsdp, "cuda", True),
        (with_tp, "cuda", False),
    ],
)
def test_an_epoch_has_three_graphs_at_most(graphs, batches, alone, wrap, device, recompute):
    model = make_model(vocab_size=300, max_length=128, dropout=0.1)
    speed_up(model, device, torch.bfloat16, recompute, compiled=True)
    train_model = wrap(model)
    for step in range(len(batches)):
        for index in range(2):
            batch = batches.micro_batch(step, index, 2, torch.device("cpu"))
            with torch.autocast("cpu", torch.bfloat16):
                loss, _ = train_model(*batch)
            loss.backward()
    assert 2 <= len(graphs) <= 3
