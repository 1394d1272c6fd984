"""Trains a German-to-English Transformer too large for one GPU: parameters and optimizer are split over all.

    torchrun --standalone --nproc-per-node 4 train_fsdp.py --data multi30k --accumulate 4
    torchrun --standalone --nproc-per-node 2 train_fsdp.py --device cpu
    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT train_fsdp.py
    torchrun --standalone --nproc-per-node 4 train_fsdp.py --resume logs/RUN

Fully sharded data parallelism (FSDP2): every process keeps one part of each layer, gathers the whole layer
when its turn comes, and gets the sum of its part of the gradient. --max-restarts N goes on by itself when a
process has died.
"""

import math
import os
import signal
import time
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import load, save
from torch.distributed.checkpoint.state_dict import (StateDictOptions, get_model_state_dict, get_state_dict,
                                                     set_state_dict)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.utils import clip_grad_norm_
from torch.utils.checkpoint import checkpoint

from data import BPE, Batches, Pairs, answer_bad_input, keep_memory
from model import Transformer
from processes import Stop, join_torchrun, leave, name_lost_processes, this_attempt
from runs import Run
from training import (evaluate, learning_rate, load_run, model_config, name_run, parse_arguments, prepare_corpus,
                      save_file, seed_step)


def train(rank: int, world_size: int, args, store, corpus) -> None:
    """One process: its share of every step, from the first to the last."""
    # --- Processes: who takes part
    stop = Stop()
    keep_memory()
    device, backend = torch.device("cpu"), "gloo"
    if args.device == "cuda":
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "cpu:gloo,cuda:nccl"
        torch.cuda.set_device(device)
    patience = timedelta(seconds=args.timeout)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=patience)

    # --- Corpus: mapped from disk, shared by all
    batches = Batches(Pairs(corpus, "train"), args.batch_tokens, args.seed)
    bpe = BPE((corpus / "bpe.json").read_text(encoding="utf-8"))
    last = args.steps or args.epochs * len(batches)
    args.eval_every = args.eval_every or len(batches)
    args.save_every = args.save_every or args.eval_every

    # --- Model and optimizer: the same everywhere, from the same seed or the same file
    config = model_config(args, bpe.vocab_size)
    torch.manual_seed(args.seed)
    model = Transformer(config).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    # What is gathered travels in bf16, what is summed in fp32; the shards stay in fp32.
    how = {"mesh": mesh, "mp_policy": MixedPrecisionPolicy(torch.bfloat16 if args.precision == "bf16" else None, torch.float32),
           "offload_policy": CPUOffloadPolicy(args.device == "cuda") if args.offload else OffloadPolicy()}
    for layer in [*model.encoder, *model.decoder]:
        if args.recompute:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        fully_shard(layer, **how)
    fully_shard(model, **how)
    whole = Transformer(config).to(device)                 # to evaluate: each process translates on its own
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, betas=(0.9, 0.98), eps=1e-9, fused=True)
    resumed = load_run(args.resume, sharded=True) if args.resume else None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    if resumed and "sharded" in resumed:
        model_state, optimizer_state = get_state_dict(model, optimizer)
        parts = {"model": model_state, "optimizer": optimizer_state}
        load(parts, checkpoint_id=f"{args.resume}/{resumed['sharded']}")
        set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    elif resumed:
        set_state_dict(model, optimizer, model_state_dict=resumed["model"],
                       optim_state_dict=resumed["optimizer"], options=options)
    step = resumed["step"] if resumed else 0
    compiled = torch.compile(model) if args.compile else model
    run = Run(args, config, batches, last, rank, world_size, resumed)

    # --- The loop: one step of the whole group a turn
    stopping = False
    while step < last and not stopping:
        began = time.perf_counter()
        seed_step(args.seed, step, rank)
        lr = learning_rate(step + 1, args.lr, args.warmup)
        sums = torch.zeros(3, dtype=torch.float64, device=device)      # loss, target tokens, wishes to stop
        for left, batch in batches.step(step, rank, world_size, args.accumulate, device):
            model.set_requires_gradient_sync(not left)     # only the last micro-batch's backward pass sums
            with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                loss, nll, tokens = compiled(*batch)
            loss.backward()
            sums[0] += nll
            sums[1] += tokens

        # --- Synchronise: gradients are averages over the processes; back to sums, divided once
        sums[2] = bool(stop)
        dist.all_reduce(sums)
        nll, tokens, stopping = sums.tolist()
        torch._foreach_mul_([p.grad for p in parameters], world_size / tokens)
        norm = float(clip_grad_norm_(parameters, args.clip or math.inf).full_tensor())
        run.check_finite(step + 1, nll, norm)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        seconds = time.perf_counter() - began

        # --- Evaluate and save
        valid = {}
        if not args.benchmark and (step % args.eval_every == 0 or step == last):
            whole.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
            valid = evaluate(whole, corpus, bpe, args, rank, world_size)
            run.keep(step, bpe, whole.state_dict(), valid)
        run.record(step, seconds, nll, tokens, lr, norm, valid)
        if not args.benchmark and (step % args.save_every == 0 or step == last or stopping):
            weights, state = get_state_dict(model, optimizer, options=None if args.sharded else options)
            if args.sharded:
                save({"model": weights, "optimizer": state}, checkpoint_id=run.folder / f"sharded-{step:07d}")
                run.keep_parts(step, bpe)
            elif rank == 0:
                save_file(run.folder / "last.pt", run.checkpoint(step, bpe, weights, state))

    # --- The end
    if stopping:
        run.stop(step)
    else:
        run.finish(whole, corpus, bpe)
    dist.barrier()                                         # torchrun ends all as soon as one has left in error
    dist.destroy_process_group()
    leave(128 + (stop.received or signal.SIGTERM) if stopping else 0)


def main() -> None:
    with answer_bad_input(int(os.environ.get("LOCAL_RANK", 0))):
        store, rank, world_size = join_torchrun()
        args = parse_arguments(__doc__, offload=(bool, False, "keep the shards in the memory of the CPU"),
                               sharded=(bool, False, "checkpoints in parts, each process its own, gathered by none"),
                               recompute=(bool, False, "keep no activations, compute them again in the backward pass"))
        model_config(args, args.vocab_size)
        args.threads = torch.get_num_threads()             # torchrun sets OMP_NUM_THREADS=1 where nothing else is set
        if rank == 0:                                      # first, and alone: the others find what it made
            corpus = prepare_corpus(args)
            name_run(args)
            store.set("run", args.resume or f"logs/{args.run}")
        store.wait(["run"], timedelta(days=1))
        if rank > 0:
            args.run = store.get("run").decode().removeprefix("logs/")
            corpus = prepare_corpus(args, rank)
        store = this_attempt(store, rank, world_size)
        with name_lost_processes(store, rank, world_size):
            train(rank, world_size, args, store, corpus)


if __name__ == "__main__":
    main()
