"""Trains a German-to-English Transformer on the CPU: several processes, one copy of the model in each.

    python train_cpu.py                                   # the built-in phrasebook, a few minutes
    python train_cpu.py --data multi30k --procs 2         # image captions, fetched once
    python train_cpu.py --data corpus/train --valid corpus/dev
    python train_cpu.py --resume logs/RUN                 # goes on exactly where it stopped

Data parallelism by hand: every process works out the gradient of its share of a step, an all-reduce adds
them up, and all take the same step. DistributedDataParallel does the same behind the scenes.
"""

import math
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.nn.utils import clip_grad_norm_

from data import BPE, Batches, Pairs, answer_bad_input, available_cores, keep_memory
from model import Transformer
from processes import Stop, add_up, hold_signals, look_after, name_lost_processes, shared_table
from runs import Run
from training import (evaluate, learning_rate, load_run, model_config, name_run, parse_arguments, prepare_corpus,
                      save_file, seed_step)


def train(rank: int, world_size: int, args, store, corpus) -> None:
    """One process: its share of every step, from the first to the last."""
    # --- Processes: who takes part
    stop = Stop()
    keep_memory()
    device, backend = torch.device("cpu"), "gloo"
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
    # Every .grad is a view into one flat tensor, this process's row of a table that all have in memory.
    table = shared_table(store, rank, world_size, sum(p.numel() for p in parameters))
    gradients = table[rank]
    for parameter, view in zip(parameters, gradients.split([p.numel() for p in parameters])):
        parameter.grad = view.view_as(parameter)
    compiled = torch.compile(model) if args.compile else model
    run = Run(args, config, batches, last, rank, world_size, resumed)

    # --- The loop: one step of the whole group a turn
    stopping = False
    while step < last and not stopping:
        began = time.perf_counter()
        seed_step(args.seed, step, rank)
        lr = learning_rate(step + 1, args.lr, args.warmup)
        sums = torch.zeros(3, dtype=torch.float64, device=device)      # loss, target tokens, wishes to stop
        for _, batch in batches.step(step, rank, world_size, args.accumulate, device):
            with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
                loss, nll, tokens = compiled(*batch)
            loss.backward()
            sums[0] += nll
            sums[1] += tokens

        # --- Synchronise: sums over all processes, divided once
        sums[2] = bool(stop)
        dist.all_reduce(sums)                              # when it is through, all gradients are there
        nll, tokens, stopping = sums.tolist()
        add_up(table, rank, 1 / tokens)
        norm = float(clip_grad_norm_(parameters, args.clip or math.inf))
        run.check_finite(step + 1, nll, norm)
        for group in optimizer.param_groups:
            group["lr"] = lr
        optimizer.step()
        gradients.zero_()
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
    dist.destroy_process_group()


def main() -> None:
    cores = available_cores()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))        # so that what is half-made goes
    with answer_bad_input():
        args = parse_arguments(__doc__, devices=("cpu",), procs=(int, 0, "processes; 0: one a core, up to 8"))
        # One thread in each of several processes beats several threads in one: nothing waits inside an
        # operation. Past 8, or with few tokens for each, the sum over the processes costs more than it brings.
        args.procs = args.procs or max(1, min(cores, 8, args.batch_tokens // 512))
        args.threads = max(1, cores // args.procs)
        model_config(args, args.vocab_size)
        corpus = prepare_corpus(args)
        name_run(args)

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    hold_signals()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)    # port 0: a free one
    workers = mp.spawn(worker, (args, store.port, corpus), nprocs=args.procs, join=False)
    look_after(workers, args.resume or f"logs/{args.run}")


def worker(rank: int, args, port: int, corpus) -> None:
    with answer_bad_input(rank):
        torch.set_num_threads(args.threads)
        store = dist.TCPStore("127.0.0.1", port, is_master=False)
        with name_lost_processes(store, rank, args.procs):
            train(rank, args.procs, args, store, corpus)


if __name__ == "__main__":
    main()
