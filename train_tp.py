r"""Trains with torchrun, on GPUs or CPUs: tensor parallelism within a node, FSDP across nodes.

    torchrun --standalone --nproc-per-node 2 train_tp.py --data multi30k
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint HOST:29500 \
        train_tp.py --data multi30k  # the same on both nodes; HOST is one of them

The four train_*.py compute the same step. They differ only in how processes divide it.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import parallelize_module

from model import initialize, tensor_parallel_plan
from support.common.hardware import autocast_dtype
from support.distributed.clip import clip_gradients
from support.distributed.launch import rank_0_first, run_under_torchrun
from support.distributed.signals import stop_requested
from support.training.command_line import parse_arguments
from support.training.optim import learning_rate, parameter_groups, seed_step, set_learning_rate
from support.training.run import Run
from support.training.settings import TpSettings
from support.training.tasks import prepare_task


def train(rank: int, world_size: int, args: TpSettings) -> None:
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
    with torch.device("meta"):  # shapes, but no memory yet
        model = task.build_model()
    mesh_shape = (world_size // args.tensor, args.tensor)  # groups of --tensor N ranks
    mesh = init_device_mesh(device.type, mesh_shape, mesh_dim_names=("data", "tensor"))
    data_mesh, tensor_mesh = mesh["data"], mesh["tensor"]  # FSDP across groups, TP within each
    data_rank, data_size = data_mesh.get_local_rank(), data_mesh.size()
    for layer in model.layers():
        parallelize_module(layer, tensor_mesh, tensor_parallel_plan())
    # Parameters are gathered in `dtype`, gradients summed in fp32; the shards stay in fp32.
    precision = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for module in [*model.layers(), model]:  # layer by layer; the rest of the model comes last
        fully_shard(module, mesh=data_mesh, mp_policy=precision)
    model.to_empty(device=device)  # allocates the shards, which initialize() fills
    initialize(model, args.seed)
    groups = parameter_groups(model, args)
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9, fused=True)
    run = Run(args, task, rank, world_size)
    step = run.start(model, optimizer)  # 0, or that of the checkpoint

    # --- The loop: each iteration is one step of all ranks
    num_micro_batches = data_size * args.accumulate  # of a step, in all TP groups
    stopping = False
    while step < run.last_step and not stopping:
        seed_step(args.seed, step, data_rank)  # dropout differs between TP groups
        num_targets = task.batches.num_targets(step)  # tokens or labels, in all micro-batches
        nll = torch.zeros((), dtype=torch.float64, device=device)
        for micro_step in range(args.accumulate):
            # Micro-batch i of m has the step's examples i, i + m, i + 2m, ...
            index = micro_step * data_size + data_rank
            batch = task.batches.micro_batch(step, index, num_micro_batches, device)
            is_last = micro_step == args.accumulate - 1
            model.set_requires_gradient_sync(is_last)  # only then are gradients sent
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                loss, batch_nll = model(*batch)  # sums over targets; nll is for the log
            (loss * data_size / num_targets).backward()  # FSDP averages over TP groups
            nll += batch_nll

        # --- Step: each rank updates the weights that it has
        norm = clip_gradients(model.parameters(), args.clip)  # as clip_grad_norm_, more exactly
        set_learning_rate(optimizer, learning_rate(step + 1, args, run.last_step))
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        stopping = stop_requested()  # an all-reduce: all ranks stop after the same step
        run.record(step, nll, num_targets, norm)  # to log a row it sums nll over ranks

        # --- Evaluate and save: all ranks take part, rank 0 writes
        if run.should_evaluate(step):
            metrics = task.evaluate(model, "valid", data_rank, data_size)
            run.record_evaluation(step, model, metrics)
        if run.should_save(step, stopping):
            run.save_checkpoint(step, model, optimizer)

    # --- The end: score the best weights or, after a signal, say how to resume
    run.finish(step, model, stopping)


if __name__ == "__main__":
    run_under_torchrun(train, parse_arguments(__doc__, TpSettings))
