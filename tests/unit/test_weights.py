"""Copied, sharded and split weights in two processes: gathered, broadcast, saved, restored."""

import faulthandler
import gc
import multiprocessing
import os
import sys
from datetime import timedelta

import pytest
import torch
import torch._dynamo  # slow to import: here once, not in every fork
import torch.distributed as dist
from test_model import CONFIG, make_batch, make_model
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.utils import clip_grad_norm_

from model import ModelConfig, Transformer, initialize, tensor_parallel_plan
from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.task import freeze
from support.common.errors import UserError
from support.distributed import weights
from support.distributed.clip import clip_gradients, norms_of
from support.distributed.collectives import all_gather_objects
from support.profiling import memory


def in_forks(folder, part, procs=2) -> None:
    """Calls part(rank) in `procs` forks that share a Gloo group, for at most two minutes."""
    if sys.platform != "linux":
        pytest.skip("it needs forks, and a loopback interface called lo")

    def one(rank):
        faulthandler.dump_traceback_later(120, exit=True, file=2)  # if it hangs, show where
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group(
            "gloo",
            store=dist.FileStore(str(folder / "store"), procs),
            rank=rank,
            world_size=procs,
            timeout=timedelta(minutes=1),
        )
        part(rank)
        dist.destroy_process_group()

    # Otherwise a fork may collect a store that an earlier test has left in this process, and
    # wait for ever for the store's thread, which the fork does not have.
    gc.collect()
    gc.freeze()
    forks = [
        multiprocessing.get_context("fork").Process(target=one, args=(rank,))
        for rank in range(procs)
    ]
    for fork in forks:
        fork.start()
    gc.unfreeze()
    for fork in forks:
        fork.join(150)
        fork.kill()  # if it has not ended
        fork.join()
    assert [fork.exitcode for fork in forks] == [0] * procs


def make_sharded(seed=2) -> Transformer:
    """`make_model`, as train_fsdp.py makes it."""
    with torch.device("meta"):
        model = Transformer(ModelConfig(**CONFIG))
    for part in [*model.layers(), model]:
        fully_shard(part, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model.to_empty(device="cpu")
    initialize(model, seed)
    return model


def make_split(seed=2) -> Transformer:
    """`make_model`, as train_tp.py makes it with --tensor 2."""
    with torch.device("meta"):
        model = Transformer(ModelConfig(**CONFIG))
    mesh = init_device_mesh(
        "cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("data", "tensor")
    )
    for part in model.layers():
        parallelize_module(part, mesh["tensor"], tensor_parallel_plan())
    for part in [*model.layers(), model]:
        fully_shard(part, mesh=mesh["data"])
    model.to_empty(device="cpu")
    initialize(model, seed)
    return model


ALL = pytest.mark.parametrize("make", [make_model, make_sharded, make_split])


def take_a_step(model):
    """An optimizer that has something to remember."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5
    optimizer.step()
    return optimizer


def whole(tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def assert_equal(model, optimizer, other, its) -> None:
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(whole(one), whole(two))
        for name, value in optimizer.state[one].items():
            assert torch.equal(whole(value), whole(its.state[two][name])), name
    assert its.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]


@ALL
def test_rank_0_has_the_whole_weights(tmp_path, make):
    def part(rank):
        model = make(3)
        found, expected = weights.full_state_dict(model), make_model(3).state_dict()
        assert found.keys() == (expected.keys() if rank == 0 else set())
        assert all(torch.equal(weight, expected[name]) for name, weight in found.items())
        copy = weights.gather_model(model, lambda: make_model(4))
        if make is make_model:
            assert copy is model
        else:
            assert all(
                torch.equal(weight, expected[name])
                for name, weight in copy.state_dict().items()
            )

    in_forks(tmp_path, part)


@ALL
def test_all_get_the_weights_that_rank_0_has(tmp_path, make):
    def part(rank):
        model = make(3 + rank)
        given = make_model(5).state_dict()
        names = set(given)
        weights.load_full_state_dict(model, given if rank == 0 else None)
        assert set(given) == names
        for name, parameter in model.named_parameters():
            assert torch.equal(whole(parameter), given[name]), name

    in_forks(tmp_path, part)


@ALL
def test_rank_0_gives_some_weights_and_the_others_stay(tmp_path, make):
    """As those of --pretrained, which lack the last layer."""

    def part(rank):
        model = make(3)
        before = make_model(3).state_dict()
        given = make_model(5).state_dict()
        some = {name: weight for name, weight in given.items() if "encoder" in name}
        weights.load_some_weights(model, some if rank == 0 else {}, rank)
        for name, parameter in model.named_parameters():
            assert torch.equal(whole(parameter), (before | some)[name]), name

    in_forks(tmp_path, part)


@ALL
def test_weights_that_come_after_an_evaluation_are_used(tmp_path, make):
    """FSDP leaves the root's weights gathered after it."""

    def part(rank):
        batch = make_batch()
        model = make(3).eval()
        other = make_model(5).eval()
        with torch.no_grad():
            before, _ = model(*batch)
            weights.load_full_state_dict(model, other.state_dict())
            after, _ = model(*batch)
            expected, _ = other(*batch)
        assert after != before
        torch.testing.assert_close(after, expected)

    in_forks(tmp_path, part)


@pytest.mark.parametrize(
    "make, into",
    [
        (make_model, make_sharded),
        (make_sharded, make_split),
        (make_split, make_model),
    ],
)
def test_a_checkpoint_of_copies_or_parts_goes_into_copies_and_parts(tmp_path, make, into):
    """Rank 0 alone has read it."""

    def part(rank):
        model = make(3)
        optimizer = take_a_step(model)
        found, state = weights.state_dicts(model, optimizer, sharded=False)
        other = into(4 + rank)
        its = torch.optim.AdamW(other.parameters(), lr=1.0)
        weights.restore(other, its, {"model": found, "optimizer": state} if rank == 0 else None)
        assert_equal(model, optimizer, other, its)

    in_forks(tmp_path, part)


@pytest.mark.parametrize(
    "make, into",
    [(make_sharded, make_sharded), (make_split, make_split), (make_sharded, make_split)],
)
def test_every_process_saves_its_part_and_reads_it_again(tmp_path, make, into):
    def part(rank):
        model = make(3)
        optimizer = take_a_step(model)
        weights.save_sharded(
            tmp_path, "parts", *weights.state_dicts(model, optimizer, sharded=True)
        )
        other = into(4)
        its = torch.optim.AdamW(other.parameters(), lr=1.0)
        weights.restore(other, its, None, str(tmp_path / "parts"))
        assert_equal(model, optimizer, other, its)
        assert len(list((tmp_path / "parts").glob("*.distcp"))) == 2

    in_forks(tmp_path, part)


@pytest.mark.parametrize("shape", [(4000, 128), (2048,)])
def test_the_norm_of_a_large_gradient_is_that_of_its_shards(shape):
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.zeros(shape))
    weight.grad = torch.rand(shape) ** 4
    expected = weight.grad.double().norm()
    shards = norms_of(list(weight.grad.chunk(4)))
    assert float(shards.norm()) == pytest.approx(float(expected), rel=1e-6)
    for max_norm in (0.0, 1.0):  # 0 only measures
        norm = clip_gradients([weight], max_norm)
        assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    assert float(weight.grad.double().norm()) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("procs", [2, 4])
def test_gradients_of_two_meshes_are_clipped_by_one_norm(tmp_path, procs):
    def part(_):
        split, plain = make_split(3), make_model(3)
        for model in (split, plain):
            for parameter in model.parameters():
                parameter.grad = parameter.detach() * 0.5
        expected = clip_grad_norm_(plain.parameters(), 1.0)
        assert expected > 1
        norm = clip_gradients(split.parameters(), 1.0)
        assert float(norm) == pytest.approx(float(expected), rel=1e-5)
        for max_norm in (1.0, 1.5):  # the second clips nothing
            clip_gradients(split.parameters(), max_norm)
            for one, two in zip(split.parameters(), plain.parameters(), strict=True):
                torch.testing.assert_close(whole(one.grad), two.grad)

    in_forks(tmp_path, part, procs)


@pytest.mark.parametrize("same", [True, False])
def test_ranks_of_a_layer_keep_equal_copies_if_they_drop_the_same(tmp_path, same):
    """Norms and embeddings are never sent to the other ranks of a layer."""

    def part(rank):
        model = make_split(3)
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.2
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        batch = make_batch()
        for step in range(2):
            torch.manual_seed(step if same else 2 * step + rank)
            model(*batch)[0].backward()
            clip_gradients(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        norm = model.encoder[0].residuals[0].norm.weight.to_local()
        one, two = all_gather_objects(norm)
        assert torch.equal(one, two) == same

    in_forks(tmp_path, part)


@pytest.mark.parametrize("wrong", ["cut", "missing", "no metadata"])
def test_a_sharded_checkpoint_that_is_not_whole_is_refused_in_one_line(tmp_path, wrong):
    def part(rank):
        model = make_sharded(3)
        optimizer = take_a_step(model)
        state = weights.state_dicts(model, optimizer, sharded=True)
        weights.save_sharded(tmp_path, "parts", *state)
        dist.barrier()
        if rank == 0:
            one = (
                min((tmp_path / "parts").glob("*.distcp"))
                if wrong != "no metadata"
                else tmp_path / "parts/.metadata"
            )
            one.unlink() if wrong != "cut" else one.write_bytes(one.read_bytes()[:100])
            (tmp_path / "file").write_text("")
            (tmp_path / "again").mkdir()
            (tmp_path / "again/last.pt").write_text("")
            (tmp_path / "again/parts").write_text("")
        dist.barrier()
        with pytest.raises(
            UserError, match=r"parts: not a whole checkpoint \(process \d: .+\)$"
        ) as problem:
            weights.restore(model, optimizer, None, str(tmp_path / "parts"))
        assert "\n" not in str(problem.value)
        for folder, end in (("file", ""), ("again", "; the previous one is intact")):
            message = (
                rf"{folder}/parts: the checkpoint cannot be written \(process \d: .+\){end}$"
            )
            with pytest.raises(UserError, match=message):
                weights.save_sharded(tmp_path / folder, "parts", *state)

    in_forks(tmp_path, part)


def test_what_does_not_fit_the_model_is_refused_in_one_line(tmp_path):
    def part(_):
        model = make_model()
        optimizer = take_a_step(model)
        found, state = weights.state_dicts(model, optimizer, sharded=False)
        wider = {name: torch.zeros(3, 3) for name in found}
        for wrong in ({"model": wider, "optimizer": state}, {"model": {}, "optimizer": state}):
            with pytest.raises(
                UserError,
                match=r"^the checkpoint does not fit the model "
                r"\(.*(loading state_dict for|Missing).*\)$",
            ) as problem:
                weights.restore(model, optimizer, wrong)
            assert "\n" not in str(problem.value) and len(str(problem.value)) < 250

    in_forks(tmp_path, part, procs=1)


def test_a_process_that_dies_meanwhile_is_no_fault_of_the_checkpoint(monkeypatch):
    def send(*_, **__):
        raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer")

    monkeypatch.setattr(weights, "set_model_state_dict", send)
    with pytest.raises(RuntimeError, match="closed by peer"):
        weights.restore(model := make_model(), torch.optim.AdamW(model.parameters()), None)


@pytest.mark.parametrize("frozen", [0, 1, 2, 3])
def test_fsdp_gathers_a_classifiers_layers_twice_and_all_else_once(tmp_path, frozen):
    """Layers below the lowest that learns are gathered once, but for the one next to it.

    FSDP prefetches that one in vain.
    """

    def part(_):
        model = Classifier(
            ClassifierConfig(2, vocab_size=30, layers=3, d_model=16, heads=2, d_ff=32)
        )
        freeze(model, frozen)
        for each in [*model.layers(), model]:
            fully_shard(each, mesh=init_device_mesh("cpu", (2,)))
        with CommDebugMode() as sent:
            model(
                torch.ones(4, 5, dtype=torch.long),
                torch.ones(4, dtype=torch.long),
                torch.ones(4),
            )[0].backward()
        gathers = sum(
            times for what, times in sent.get_comm_counts().items() if "allgather" in str(what)
        )
        assert gathers == 1 + 3 + 3 - max(0, frozen - 1)
        layer = sum(weight.numel() for weight in model.encoder[0].parameters())
        numbers = [
            sum(
                weight.numel() for weight in model.parameters() if weight.requires_grad >= least
            )
            for least in (0, 1)
        ]
        formula = memory.formula(model, micro_batches=1, precision="fp32", world_size=2)
        assert formula["sent"] == 4 * (numbers[0] + (gathers - 4) * layer + numbers[1]) / 2

    in_forks(tmp_path, part)
