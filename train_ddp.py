"""Trains a German-to-English Transformer under torchrun: one process per GPU (or CPU core), one node or many.

    torchrun --standalone --nproc-per-node 4 train_ddp.py --data multi30k
    torchrun --standalone --nproc-per-node 2 train_ddp.py --device cpu
    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint HOST:PORT train_ddp.py
    torchrun --standalone --nproc-per-node 4 train_ddp.py --resume logs/RUN

Data parallelism by DistributedDataParallel: every process has a copy of the model, and the gradients are
summed while the backward pass still runs. --max-restarts N goes on by itself when a process has died.
"""

import math
import os
import signal
import time
from contextlib import nullcontext
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from data import BPE, Batches, Pairs, answer_bad_input, keep_memory
from model import Transformer
from processes import Stop, exchange, join_torchrun, leave, name_lost_processes, shared_table, this_attempt
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
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"    # not by rank: nodes are many
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
    parameters = list(model.parameters())
    optimizer = torch.optim.Adam(parameters, betas=(0.9, 0.98), eps=1e-9, fused=True)
    resumed = load_run(args.resume) if args.resume else None
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    if resumed:
        set_state_dict(model, optimizer, model_state_dict=resumed["model"],
                       optim_state_dict=resumed["optimizer"], options=options)
    step = resumed["step"] if resumed else 0
    one_node = backend == "gloo" and 1 < world_size == int(os.environ.get("LOCAL_WORLD_SIZE", 0))
    # One node's CPUs need no socket, and with nothing to hide behind the backward pass one bucket is enough.
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True, bucket_cap_mb=1 << 20 if one_node else None)
    replica.broadcast_buffers = False                      # before each step: the only one, positions, never changes
    table = shared_table(store, rank, world_size, sum(p.numel() for p in parameters)) if one_node else None
    if one_node or args.delay_ms and not args.netem:
        replica.register_comm_hook((table, args.delay_ms / 1000), exchange)
    compiled = torch.compile(replica) if args.compile else replica
    run = Run(args, config, batches, last, rank, world_size, resumed)

    # --- The loop: one step of the whole group a turn
    stopping = False
    while step < last and not stopping:
        began = time.perf_counter()
        seed_step(args.seed, step, rank)
        lr = learning_rate(step + 1, args.lr, args.warmup)
        sums = torch.zeros(3, dtype=torch.float64, device=device)      # loss, target tokens, wishes to stop
        for left, batch in batches.step(step, rank, world_size, args.accumulate, device):
            # Only the last micro-batch's backward pass sums over the processes; no_sync covers forward too.
            with (replica.no_sync() if left else nullcontext(),
                  torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16")):
                loss, nll, tokens = compiled(*batch)
                loss.backward()
            sums[0] += nll
            sums[1] += tokens

        # --- Synchronise: gradients are averages over the processes; back to sums, divided once
        sums[2] = bool(stop)
        dist.all_reduce(sums)
        nll, tokens, stopping = sums.tolist()
        torch._foreach_mul_([p.grad for p in parameters], world_size / tokens)
        norm = float(clip_grad_norm_(parameters, args.clip or math.inf))
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
            valid = evaluate(model, corpus, bpe, args, rank, world_size)
            run.keep(step, bpe, model.state_dict(), valid)
        run.record(step, seconds, nll, tokens, lr, norm, valid)
        if not args.benchmark and (step % args.save_every == 0 or step == last or stopping):
            weights, state = get_state_dict(model, optimizer, options=options)
            if rank == 0:
                save_file(run.folder / "last.pt", run.checkpoint(step, bpe, weights, state))

    # --- The end
    if stopping:
        run.stop(step)
    else:
        run.finish(model, corpus, bpe)
    dist.barrier()                                         # torchrun ends all as soon as one has left in error
    dist.destroy_process_group()
    leave(128 + (stop.received or signal.SIGTERM) if stopping else 0)


def main() -> None:
    with answer_bad_input(int(os.environ.get("LOCAL_RANK", 0))):
        store, rank, world_size = join_torchrun()
        args = parse_arguments(__doc__, delay_ms=(float, 0.0, "milliseconds to wait before each exchange of gradients"),
                               netem=(bool, False, "batch/netem.sh delays the network itself: do not wait"))
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
