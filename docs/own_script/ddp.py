"""Trains the model of one_gpu.py on several devices; each has a copy of it (DDP).

torchrun --standalone --nproc-per-node 2 docs/own_script/ddp.py
"""

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
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

CHECKPOINT = Path("ddp.pt")


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
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    epoch = 0
    if CHECKPOINT.exists():  # each rank loads it: DDP does not send the optimizer's state
        saved = torch.load(CHECKPOINT, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        epoch = saved["epoch"]
        if rank == 0:
            print(f"{CHECKPOINT}: {epoch} epochs are done")
    ddp_model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    sampler = DistributedSampler(train_set, seed=1, drop_last=True)
    assert BATCH_SIZE % (ACCUMULATE * world_size) == 0
    own_size = BATCH_SIZE // (ACCUMULATE * world_size)  # of a micro-batch on one rank
    loader = DataLoader(train_set, own_size, sampler=sampler, drop_last=True)
    own_valid_set = Subset(valid_set, range(rank, len(valid_set), world_size))
    while epoch < EPOCHS:
        sampler.set_epoch(epoch)
        torch.manual_seed(epoch * world_size + rank)  # dropout differs between ranks
        batches = iter(loader)
        while micro_batches := list(islice(batches, ACCUMULATE)):
            num_targets = sum((y != IGNORED).sum() for _, y in micro_batches).to(device)
            dist.all_reduce(num_targets)
            step_loss = torch.zeros((), device=device)
            for index, (x, y) in enumerate(micro_batches):
                ddp_model.require_backward_grad_sync = index == len(micro_batches) - 1
                loss = sum_of_losses(ddp_model(x.to(device)), y.to(device))
                (loss * world_size / num_targets).backward()  # DDP averages over ranks
                step_loss += loss.detach()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)  # sets gradients to 0: they stay views
        epoch += 1
        counts = count_right(model, own_valid_set, device)
        dist.all_reduce(counts)
        dist.all_reduce(step_loss)
        right, targets = counts.tolist()
        loss = step_loss / num_targets  # of the epoch's last step, as is the norm
        accuracy = right / targets
        if rank == 0:
            print(f"epoch {epoch}: loss {loss:.6f}, norm {norm:.6f}, accuracy {accuracy:.4f}")
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            partial = CHECKPOINT.with_suffix(".partial")
            torch.save(states | {"epoch": epoch}, partial)
            partial.replace(CHECKPOINT)  # so that there is always a whole file
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
