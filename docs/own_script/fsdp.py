"""Trains the model of one_gpu.py on several devices; each has a shard of it (FSDP).

torchrun --standalone --nproc-per-node 2 docs/own_script/fsdp.py
"""

import math
import os
from itertools import islice
from pathlib import Path

import torch
import torch.distributed as dist
from one_gpu import (
    ACCUMULATE,
    BATCH_SIZE,
    EPOCHS,
    IGNORED,
    Model,
    count_right,
    make_data,
    sum_of_losses,
)
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler, Subset

CHECKPOINT = Path("fsdp.pt")
IN_RANK_0 = StateDictOptions(full_state_dict=True, cpu_offload=True)  # in its main memory
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def main() -> None:
    device = torch.device("cpu")
    backend = "gloo"
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        backend = "cpu:gloo,cuda:nccl"  # Gloo for CPU tensors, NCCL for GPU tensors
    dist.init_process_group(backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)  # the same data and the same initial weights on all ranks
    train_set, valid_set = make_data(1500), make_data(155)
    model = Model().to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)  # all parameters that are not in a block
    # After fully_shard, which replaces the parameters: otherwise it would update the old ones.
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    saved = {"model": {}, "optimizer": {}, "epoch": 0}
    if rank == 0 and CHECKPOINT.exists():  # the others get their shards from rank 0
        saved = torch.load(CHECKPOINT, map_location="cpu")
        print(f"{CHECKPOINT}: {saved['epoch']} epochs are done")
    epochs_done = torch.tensor(saved["epoch"], device=device)
    dist.broadcast(epochs_done, src=0)
    epoch = int(epochs_done)
    if epoch > 0:
        set_model_state_dict(model, saved["model"], options=FROM_RANK_0)
        set_optimizer_state_dict(model, optimizer, saved["optimizer"], options=FROM_RANK_0)

    sampler = DistributedSampler(train_set, seed=1, drop_last=True)
    assert BATCH_SIZE % (ACCUMULATE * world_size) == 0
    own_size = BATCH_SIZE // (ACCUMULATE * world_size)  # of a micro-batch on one rank
    loader = DataLoader(train_set, own_size, sampler=sampler, drop_last=True)
    own_valid_set = Subset(valid_set, range(rank, len(valid_set), world_size))
    own_batches = math.ceil(len(own_valid_set) / BATCH_SIZE)
    most_batches = math.ceil(math.ceil(len(valid_set) / world_size) / BATCH_SIZE)
    while epoch < EPOCHS:
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch * world_size + rank)  # dropout differs between ranks
        batches = iter(loader)
        while micro_batches := list(islice(batches, ACCUMULATE)):
            num_targets = sum((y != IGNORED).sum() for _, y in micro_batches).to(device)
            dist.all_reduce(num_targets)
            step_loss = torch.zeros((), device=device)
            for index, (x, y) in enumerate(micro_batches):
                model.set_requires_gradient_sync(index == len(micro_batches) - 1)
                loss = sum_of_losses(model(x.to(device)), y.to(device))
                (loss * world_size / num_targets).backward()  # FSDP averages over ranks
                step_loss += loss.detach()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).full_tensor()
            optimizer.step()
            optimizer.zero_grad()
        epoch += 1
        counts = count_right(model, own_valid_set, device)
        if own_batches < most_batches:  # each forward pass gathers the layers: a collective
            count_right(model, Subset(valid_set, [0]), device)  # one that does not count
        dist.all_reduce(counts)
        dist.all_reduce(step_loss)
        right, targets = counts.tolist()
        loss = step_loss / num_targets  # of the epoch's last step, as is the norm
        accuracy = right / targets
        weights, state = get_state_dict(model, optimizer, options=IN_RANK_0)  # on all ranks
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, norm {norm:.6f}, accuracy {accuracy:.4f}")
            states = {"model": weights, "optimizer": state}
            partial = CHECKPOINT.with_suffix(".partial")
            torch.save(states | {"epoch": epoch}, partial)
            partial.replace(CHECKPOINT)  # so that there is always a whole file
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
