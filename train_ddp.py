r"""Trains with torchrun, on GPUs or CPUs: each process has a copy of the model (DDP).

    torchrun --standalone --nproc-per-node 2 train_ddp.py --data multi30k
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        train_ddp.py --data multi30k  # the same on both nodes; HOST is one of them

The four train_*.py compute the same step. They differ only in how processes divide it.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from model import initialize
from support.common.hardware import autocast_dtype
from support.distributed.clip import clip_gradients
from support.distributed.launch import rank_0_first, run_under_torchrun
from support.distributed.signals import stop_requested
from support.training.command_line import parse_arguments
from support.training.optim import learning_rate, parameter_groups, seed_step, set_learning_rate
from support.training.run import Run
from support.training.settings import Settings
from support.training.tasks import prepare_task


def train(rank: int, world_size: int, args: Settings) -> None:
    """Runs in each of `world_size` processes, with the same args and its own rank from 0."""
    # --- Process group: reads rank, world size and address from the environment
    device = torch.device("cpu")
    backend = "gloo"
    if args.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))  # from 0 on each node
        backend = "cpu:gloo,cuda:nccl"  # Gloo for CPU tensors, NCCL for GPU tensors
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=args.timeout))

    # --- Task: what is trained, and on what data
    with rank_0_first():  # it prepares the data for the other ranks
        task = prepare_task(args)  # on GPUs it may raise args.batch_tokens and args.lr

    # --- Model and optimizer: on every rank from the same seed or checkpoint
    dtype = autocast_dtype(args.precision)  # bf16, fp16, or None for fp32
    model = task.build_model().to(device)
    initialize(model, args.seed)
    groups = parameter_groups(model, args)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=True)
    scaler = torch.amp.GradScaler(device.type, enabled=args.precision == "fp16")
    run = Run(args, task, rank, world_size)
    step = run.start(model, optimizer, scaler)  # 0, or that of the checkpoint
    ddp_model = DistributedDataParallel(model, gradient_as_bucket_view=True)

    # --- The loop: each iteration is one step of all ranks
    num_micro_batches = world_size * args.accumulate  # of a step, on all ranks
    stopping = False
    while step < run.last_step and not stopping:
        seed_step(args.seed, step, rank)  # dropout differs between ranks
        num_targets = task.batches.num_targets(step)  # tokens or labels, in all micro-batches
        nll = torch.zeros((), dtype=torch.float64, device=device)
        for micro_step in range(args.accumulate):
            # Micro-batch i of m has the step's examples i, i + m, i + 2m, ...
            index = micro_step * world_size + rank
            batch = task.batches.micro_batch(step, index, num_micro_batches, device)
            is_last = micro_step == args.accumulate - 1
            ddp_model.require_backward_grad_sync = is_last  # only then are gradients sent
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                loss, batch_nll = ddp_model(*batch)  # sums over targets; nll is for the log
            scaler.scale(loss * world_size / num_targets).backward()  # DDP averages over ranks
            nll += batch_nll

        # --- Step: each rank updates the weights that it has
        scaler.unscale_(optimizer)  # only --precision fp16 scales the loss
        norm = clip_gradients(model.parameters(), args.clip)  # as clip_grad_norm_, more exactly
        set_learning_rate(optimizer, learning_rate(step + 1, args, run.last_step))
        scaler.step(optimizer)  # optimizer.step(), unless an fp16 gradient overflowed
        scaler.update()  # halves the scale after an overflow, doubles it after 2,000 steps
        optimizer.zero_grad(set_to_none=False)  # sets gradients to 0: they stay views
        step += 1
        stopping = stop_requested()  # an all-reduce: all ranks stop after the same step
        run.record(step, nll, num_targets, norm)  # to log a row it sums nll over ranks

        # --- Evaluate and save: all ranks take part, rank 0 writes
        if run.should_evaluate(step):
            metrics = task.evaluate(model, "valid", rank, world_size)
            run.record_evaluation(step, model, metrics)
        if run.should_save(step, stopping):
            run.save_checkpoint(step, model, optimizer)

    # --- The end: score the best weights or, after a signal, say how to resume
    run.finish(step, model, stopping)


if __name__ == "__main__":
    run_under_torchrun(train, parse_arguments(__doc__, Settings))
