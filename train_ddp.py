"""Trains under torchrun: a process per GPU or core, each with a copy of the model (DDP).

    torchrun --standalone --nproc-per-node 2 train_ddp.py --data multi30k

The three train_*.py do the same step, and differ only in how processes share it: see README.md.
"""

import math
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from model import initialize
from support.distributed.launch import rank_0_first, torchrun
from support.distributed.signals import stop_requested
from support.training.flags import parse_arguments
from support.training.run import Run
from support.training.schedule import learning_rate, parameter_groups, seed_step
from support.training.tasks import find_task


def train(rank: int, world_size: int, store: dist.Store, args) -> bool:
    """One process's part of a run. Returns whether it was asked to stop.

    store: where processes find each other. args: the same flags in all of them.
    """
    # --- Processes: who takes part
    device, backend = torch.device("cpu"), "gloo"
    if args.device == "cuda":
        # LOCAL_RANK: each node counts its GPUs from 0. Gloo sends CPU tensors, NCCL GPU ones.
        device, backend = (
            torch.device("cuda", int(os.environ["LOCAL_RANK"])),
            "cpu:gloo,cuda:nccl",
        )
        torch.cuda.set_device(device)
    dist.init_process_group(
        backend,
        store=store,
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=args.timeout),
    )

    # --- Task: what is trained, and on what data
    with rank_0_first(store, rank):  # it prepares the data for the others
        task = find_task(args)

    # --- Model and optimizer: in every process from the same seed or checkpoint
    model = task.model().to(device)
    initialize(model, args.seed)
    parameters = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(
        parameter_groups(model, args), betas=(0.9, 0.98), eps=1e-9, fused=True
    )
    run = Run(args, task, rank, world_size)
    step = run.restore(model, optimizer)
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True)
    compiled = torch.compile(replica) if args.compile else replica

    # --- The loop: each turn is one step of all processes; left: micro-batches still to come
    stopping = False
    while step < run.last and not stopping:
        seed_step(args.seed, step, rank)  # dropout differs between processes
        lr = learning_rate(step + 1, args, run.last)
        targets = task.targets(step)  # how many the whole step has
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nll, requests to stop
        for left, batch in task.batches(step, rank, world_size, args.accumulate, device):
            replica.require_backward_grad_sync = not left  # only the last one sends gradients
            with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                loss, nll = compiled(*batch)  # sums; nll: without label smoothing
            (loss * world_size / targets).backward()  # DDP and FSDP average the gradients
            sums[0] += nll

        # --- Synchronize: sums over all processes
        sums[1] = stop_requested()  # one asks, and all stop together
        dist.all_reduce(sums)
        nll, stopping = sums.tolist()

        # --- Step: each process updates what it keeps; --clip 0 measures the norm, clips nothing
        norm = float(clip_grad_norm_(parameters, args.clip or math.inf))
        for group in optimizer.param_groups:
            group["lr"] = lr * group["scale"]  # of a head: --head-lr / --lr; else 1
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        run.record(step, nll, targets, norm)

        # --- Evaluate and save: all take part, rank 0 writes
        if run.should_evaluate(step):
            run.save_best(step, model, task.evaluate(model, "valid", rank, world_size))
        if run.should_save(step, stopping):
            run.save_checkpoint(step, *get_state_dict(model, optimizer, options=run.options))

    # --- The end
    run.finish(step, model, stopping)
    return bool(stopping)


if __name__ == "__main__":
    args = parse_arguments(__doc__)
    torchrun(train, args)  # started by the command torchrun
