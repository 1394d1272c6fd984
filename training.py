"""What no hardware mode changes: flags, learning rate, evaluation, the log of a run, the checkpoint file.

The training loop is not here: it stands in train_cpu.py, train_ddp.py and train_fsdp.py, top to bottom.
"""

import argparse
import copy
import csv
import fcntl
import itertools
import json
import math
import os
import platform
import resource
import shutil
import signal
import socket
import statistics
import struct
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from data import ALLOCATOR, BPE, BadInput, Pairs, find_corpus, group_by_length, prepare, sort_into_batches, translate_lines
from model import ModelConfig, Transformer, fast_dtype, flops, load_checkpoint

LOGS = Path("logs")
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)

# --- Flags -------------------------------------------------------------------------------------------------

# What is best for a corpus of this size, found on its validation part; a flag on the command line wins.
PRESETS = {
    "phrasebook": dict(vocab_size=3000, layers=2, batch_tokens=3072, epochs=5, warmup=300, lr=3e-3, dropout=0.05,
                       average=2),
    "multi30k": dict(vocab_size=6000, d_ff=512, batch_tokens=3072, epochs=25, warmup=500, lr=2.5e-3, dropout=0.3,
                     average=6),
}

FLAGS = {
    "corpus": [
        ("--data", str, "phrasebook", "phrasebook, multi30k, a folder, PREFIX of two files, .tsv or .csv"),
        ("--valid", str, "", "PREFIX or table to validate on; else some 1,000 pairs are held out"),
        ("--test", str, "", "PREFIX or table to score at the end"),
        ("--src", str, "de", "source language: ending of its file, or column by name or position"),
        ("--tgt", str, "en", "target language, likewise"),
        ("--vocab-size", int, 8000, "tokens in the BPE that both languages share"),
        ("--max-length", int, 128, "longest sentence, in tokens; longer ones are left out and counted"),
    ],
    "model": [
        ("--layers", int, 3, "encoder layers, and as many decoder layers"),
        ("--d-model", int, 256, "width of the model"),
        ("--heads", int, 4, "attention heads"),
        ("--d-ff", int, 1024, "width inside the feed-forward layers"),
        ("--dropout", float, 0.1, "share of activations dropped in training"),
        ("--norm", ("pre", "post"), "pre", "layer norm before each sub-layer, or after it as in the paper"),
    ],
    "optimisation": [
        ("--batch-tokens", int, 4096, "tokens a side in one step, over all processes and micro-batches"),
        ("--accumulate", int, 1, "micro-batches that each process splits its share of a step into"),
        ("--epochs", int, 10, "times through the corpus"),
        ("--steps", int, 0, "stop after this many steps instead"),
        ("--lr", float, 2e-3, "peak learning rate, reached at the end of the warm-up"),
        ("--warmup", int, 1000, "warm-up steps"),
        ("--label-smoothing", float, 0.1, "share of the target spread over the whole vocabulary"),
        ("--clip", float, 1.0, "largest norm of the gradient; 0: no limit"),
        ("--average", int, 5, "at the end, try the mean of the weights at the last N evaluations"),
        ("--seed", int, 1, "seed of weights, order and dropout"),
    ],
    "speed": [
        ("--precision", ("auto", "fp32", "bf16"), "auto", "of matrix products; auto: bf16 where the hardware has it"),
        ("--compile", bool, False, "torch.compile the model"),
        ("--benchmark", bool, False, "time 200 steps, print tokens/s and MFU, save nothing"),
    ],
    "run": [
        ("--run", str, "", "name of the run's folder under logs/; else made from the corpus"),
        ("--resume", str, "", "logs/RUN to go on with, with the flags it was started with"),
        ("--eval-every", int, 0, "steps between evaluations; 0: every epoch"),
        ("--save-every", int, 0, "steps between checkpoints; 0: at every evaluation"),
        ("--log-every", int, 10, "steps between rows of metrics.csv"),
        ("--device", ("auto", "cpu", "cuda"), "auto", "where to train"),
        ("--timeout", int, 600, "seconds to wait for another process before giving it up"),
    ],
}
# What --resume may change; all else would make it another curve.
CHANGEABLE = {"accumulate", "average", "benchmark", "compile", "device", "epochs", "eval_every", "log_every",
              "offload", "precision", "procs", "recompute", "resume", "save_every", "sharded", "steps", "timeout"}


def parse_arguments(doc: str, devices: tuple = ("cpu", "cuda"), **extra) -> argparse.Namespace:
    """The flags of a training script; `extra` adds flags, name=(type, default, help). Raises BadInput.

    A flag's value is, in this order: what the command line says, what the resumed run was started with,
    what is best for the corpus, the default.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     argument_default=argparse.SUPPRESS, allow_abbrev=False)
    parser.error = lambda message: (print(f"error: {message}; --help lists the flags", file=sys.stderr), sys.exit(2))
    added = [(f"--{name}", *flag) for name, flag in extra.items()]
    defaults = {}
    for heading, flags in (FLAGS | {"run": FLAGS["run"] + added}).items():
        group = parser.add_argument_group(heading)
        for name, kind, default, text in flags:
            how = ({"action": "store_true"} if kind is bool else {"choices": kind} if isinstance(kind, tuple)
                   else {"type": kind, "metavar": {str: "TEXT", int: "N", float: "X"}[kind]})
            shown = text if kind is bool or default == "" else f"{text} (default {default})"
            # torchrun takes a --run for its own --run-path.
            group.add_argument(name, *(["--name"] if name == "--run" else []), help=shown, **how)
            defaults[name[2:].replace("-", "_")] = default
    given = vars(parser.parse_args())
    if given.get("resume"):
        stored = load_run(given["resume"], "sharded" in extra)["flags"]
        for name, value in given.items():
            if name not in CHANGEABLE and value != stored.get(name):
                raise BadInput(f"--{name.replace('_', '-')} {value}: "
                               f"{given['resume']} was started with {stored.get(name)}")
        here = {name: defaults[name] for name in ("device", "sharded") if name in defaults}
        flags = defaults | stored | here | ({"steps": 0} if "epochs" in given else {}) | given
    else:
        where = {name: given.get(name, defaults[name]) for name in ("data", "valid", "test", "src", "tgt")}
        flags = defaults | PRESETS.get(find_corpus(**where).name, {}) | given
    args = argparse.Namespace(**flags)
    if args.benchmark:
        args.steps = args.steps or 200
    if args.benchmark and args.resume:
        raise BadInput("--benchmark saves nothing, so there is nothing for it to --resume")
    for name in ("batch_tokens", "accumulate", "epochs", "warmup", "log_every", "vocab_size", "average", "timeout"):
        if getattr(args, name) < 1:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)}: it must be at least 1")
    for name in ("steps", "lr", "clip", "seed", "eval_every", "save_every", *extra):
        if not 0 <= getattr(args, name) < 2**31:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)}: it must be 0 or more, below 2^31")
    if args.device == "auto":
        args.device = "cuda" if "cuda" in devices and torch.cuda.is_available() else "cpu"
    if args.device not in devices:
        raise BadInput(f"--device {args.device}: this script trains on {devices[0]} only")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: there is no GPU here that PyTorch can use; --device cpu does without")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if args.device == "cuda" and local > torch.cuda.device_count():
        raise BadInput(f"--nproc-per-node {local}: there are {torch.cuda.device_count()} GPUs here, one for each process; "
                       f"--device cpu does without")
    if args.precision == "auto":
        args.precision = "bf16" if fast_dtype(args.device) == torch.bfloat16 else "fp32"
    return args


def model_config(args: argparse.Namespace, vocab_size: int) -> ModelConfig:
    """The model's shape from the flags. Raises BadInput for one that cannot be."""
    shared = ("layers", "d_model", "heads", "d_ff", "dropout", "label_smoothing", "norm", "max_length")
    try:
        return ModelConfig(vocab_size, **{name: getattr(args, name) for name in shared})
    except ValueError as problem:
        raise BadInput(problem)


def prepare_corpus(args, rank: int = 0) -> Path:
    """The folder of the encoded corpus, made if it is not there; rank 0 says what is in it. Raises BadInput."""
    bpe = load_run(args.resume, True)["bpe"] if args.resume else None
    corpus = find_corpus(args.data, args.valid, args.test, args.src, args.tgt)
    checksum, args.checksum = getattr(args, "checksum", ""), corpus.checksum()
    if args.resume and checksum != args.checksum:
        raise BadInput(f"--resume {args.resume}: the corpus {corpus.name} has changed since the run was started")
    folder = prepare(corpus, args.vocab_size, args.max_length, bpe)
    meta = json.loads((folder / "meta.json").read_text())
    for part, counts in meta["parts"].items() if rank == 0 else ():
        left_out = [f"{counts[name]:,} {text}" for name, text in (("too_long", f"over {args.max_length} tokens"),
                                                                  ("empty", "with an empty side")) if counts[name]]
        print(f"{corpus.name}, {part}: {counts['pairs']:,} pairs, {counts['tokens']:,} tokens"
              + (f"; left out: {', '.join(left_out)}" if left_out else "")
              + ("; held out of training" if meta["held_out"] and part == "valid" else ""), flush=True)
    return folder


def name_run(args) -> None:
    """Makes the run's folder under logs/, so that no other run takes its name. Raises BadInput."""
    if args.resume or args.benchmark:
        return
    if args.run and (LOGS / args.run / "last.pt").is_file():
        raise BadInput(f"logs/{args.run} is there already: go on with it by --resume logs/{args.run}, "
                       f"or choose another --run")
    try:
        LOGS.mkdir(exist_ok=True)
    except OSError as problem:
        raise BadInput(f"{LOGS}: cannot be written ({problem.strerror})")
    corpus = Path(args.data).name.split(".")[0]
    for name in [args.run] if args.run else (f"{corpus}-{n}" for n in itertools.count(1)):
        try:
            (LOGS / name).mkdir(parents=True, exist_ok=bool(args.run))
        except OSError as problem:
            if isinstance(problem, FileExistsError) and not args.run:
                continue
            raise BadInput(f"{LOGS / name}: cannot be written ({problem.strerror})")
        args.run = name
        return


# --- The training step -------------------------------------------------------------------------------------


def learning_rate(step: int, peak: float, warmup: int) -> float:
    """Section 5.3: up in a straight line for `warmup` steps, then down with the root of the step, from 1.

    The paper's peak is (d_model * warmup) ** -0.5.
    """
    return peak * min(step / warmup, (warmup / step) ** 0.5)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seeds dropout for one step of one process, so that a resumed run draws what an unbroken one would."""
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)


class Stop:
    """True after Ctrl-C, SIGTERM, SIGUSR1 or the parent's death: the loop then saves and leaves."""

    received = 0                                           # the last signal, in this process

    def __init__(self):
        self.parent = os.getppid()
        for number in STOPPING:
            signal.signal(number, self.receive)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)     # the parent may have them wait until here

    def receive(self, number: int, _frame) -> None:
        Stop.received = number

    def __bool__(self) -> bool:
        return bool(self.received) or os.getppid() != self.parent


# --- Processes ---------------------------------------------------------------------------------------------


def join_torchrun() -> tuple[dist.Store | None, int, int]:
    """The store that torchrun's processes share, this one's rank, and how many they are. Raises BadInput.

    When one has died, torchrun (--max-restarts) starts all again with the same command: they then go on
    with the run that the store has the folder of.
    """
    if "RANK" not in os.environ:
        if {"-h", "--help"} & {*sys.argv}:
            return None, 0, 1
        raise BadInput(f"start it with torchrun: torchrun --standalone --nproc-per-node 2 {' '.join(sys.argv)}")
    signal.signal(signal.SIGINT, signal.SIG_DFL)           # until there is something to save
    if not torch.cuda.is_available() and not os.environ.keys() >= ALLOCATOR.keys():
        os.environ.update(ALLOCATOR)
        os.execv(sys.executable, sys.orig_argv)            # begins again, as these count from a process's start
    if name := interface_to(os.environ["MASTER_ADDR"]):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    store, rank, world_size = next(dist.rendezvous("env://"))
    if store.check(["run"]):
        run = store.get("run").decode()
        sys.argv += ["--resume", run] if os.path.isfile(f"{run}/last.pt") else ["--run", run.removeprefix("logs/")]
    return store, rank, world_size


def this_attempt(store: dist.Store, rank: int, world_size: int) -> dist.Store:
    """A part of torchrun's store for this start of the processes: keys of a start that failed are not in it.

    torchrun's own count of restarts differs from node to node. So rank 0 names the start, and tells the name
    to each process that asks, by a name that nobody but this process has.
    """
    own = uuid.uuid4().hex
    store.set(f"asks/{rank}", own)
    if rank > 0:
        attempt = dist.PrefixStore(store.get(f"told/{own}").decode(), store)
        attempt.set(f"joined/{rank}", "")
        return attempt
    attempt = dist.PrefixStore(own, store)
    while waiting := [r for r in range(1, world_size) if not attempt.check([f"joined/{r}"])]:
        for asking in [f"asks/{r}" for r in waiting]:
            if store.check([asking]):                      # perhaps a process that is dead: then a new one will follow
                store.set(f"told/{store.get(asking).decode()}", own)
        time.sleep(0.02)
    return attempt


def interface_to(address: str) -> str | None:
    """The network interface through which `address` is reached; None where Linux does not say.

    Gloo would take the one that this machine's name stands for, which often is a loopback address.
    """
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 1))                    # of a datagram socket: nothing is sent
            for _, name in socket.if_nameindex():
                try:
                    answer = fcntl.ioctl(probe, 0x8915, struct.pack("256s", name.encode()))      # SIOCGIFADDR
                except OSError:                            # it has no address
                    continue
                if socket.inet_ntoa(answer[20:24]) == probe.getsockname()[0]:
                    return name
    except OSError:
        pass
    return None


@contextmanager
def name_lost_processes(store: dist.Store, rank: int, world_size: int):
    """If the processes lose one of them, says which: all that notice sign in the store, who is missing is lost."""
    try:
        yield
    except RuntimeError as problem:
        if "gloo" not in str(problem) and not isinstance(problem, dist.DistError):
            raise
        signal.signal(signal.SIGTERM, signal.SIG_DFL)      # who started a process that died ends the others so,
        if Stop.received:                                  # and says itself who it was
            sys.exit(128 + Stop.received)
        store.set(f"noticed/{rank}", "")
        time.sleep(2)
        lost = [r for r in range(world_size) if not store.check([f"noticed/{r}"])]
        if not lost:
            raise
        raise BadInput(f"process {', '.join(map(str, lost))} of {world_size} has died or does not answer "
                       f"({str(problem).splitlines()[0][:200]})")


def leave(status: int) -> None:
    """Ends this process at once: at Python's own end a thread of Gloo's may still hold a tensor, and abort."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# --- Evaluation --------------------------------------------------------------------------------------------


@torch.inference_mode()
def validation_loss(model: Transformer, pairs: Pairs, args, rank: int, world_size: int) -> float:
    """Negative log-likelihood per target token, in nats, each process on its own batches of `pairs`."""
    device = next(model.parameters()).device
    sums = torch.zeros(2, dtype=torch.float64)
    batches = group_by_length(pairs.src_lengths, pairs.tgt_lengths, 4096, np.random.default_rng(0))
    for rows in batches[rank::world_size]:
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            _, nll, tokens = model(*(part.to(device) for part in pairs.batch(rows)))
        sums += torch.tensor([float(nll), tokens], dtype=torch.float64)
    sums = sums.to(device)
    dist.all_reduce(sums)
    return float(sums[0] / sums[1])


def translate_part(model: Transformer, bpe: BPE, sources: list[str], args, beam: int, rank: int, world_size: int):
    """Translations of all `sources` on rank 0 (None elsewhere), each process doing its own batches."""
    fast = copy.deepcopy(model).to(torch.bfloat16 if args.precision == "bf16" else torch.float32)
    mine = {}
    for batch in sort_into_batches(sources)[rank::world_size]:
        answers = translate_lines(fast, bpe, [sources[i] for i in batch], beam)
        mine |= {i: hypotheses[0][1] for i, hypotheses in zip(batch, answers)}
    shares = [None] * world_size if rank == 0 else None
    dist.gather_object(mine, shares)
    if rank == 0:
        together = {i: text for share in shares for i, text in share.items()}
        return [together[i] for i in range(len(sources))]


def bleu(hypotheses: list[str], references: list[str]) -> tuple[float, str]:
    """Corpus BLEU and its signature (Post, 2018): cased, tokenized by sacreBLEU's 13a."""
    import sacrebleu

    assert len(hypotheses) == len(references)              # sacreBLEU would not say
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


@torch.inference_mode()
def evaluate(model: Transformer, corpus: Path, bpe: BPE, args, rank: int, world_size: int) -> dict:
    """Validation loss and greedy BLEU of a plain model, all processes sharing the work.

    The batches are the same for any number of processes, so the figures are too. The BLEU is known to
    rank 0 only; the others get 0.
    """
    was_training = model.training
    model.eval()
    loss = validation_loss(model, Pairs(corpus, "valid"), args, rank, world_size)
    hypotheses = translate_part(model, bpe, read_text(corpus, "valid", "src"), args, 1, rank, world_size)
    model.train(was_training)
    score = bleu(hypotheses, read_text(corpus, "valid", "tgt"))[0] if rank == 0 else 0.0
    return {"valid_loss": loss, "valid_bleu": score}


def read_text(corpus: Path, part: str, side: str) -> list[str]:
    """Its lines; read as bytes, since in text mode a lone carriage return would end one as well."""
    return (corpus / f"{part}.{side}.txt").read_bytes().decode().split("\n")[:-1]


# --- The checkpoint file -----------------------------------------------------------------------------------


def save_file(path: Path, checkpoint: dict) -> None:
    """Writes under another name, syncs, renames: a file of this name is always whole. Raises BadInput."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
    except (OSError, RuntimeError) as problem:             # torch.save turns a full disk into RuntimeError
        partial.unlink(missing_ok=True)
        kept = "; the one from before is whole" if path.is_file() else ""
        raise BadInput(f"{path}: the checkpoint cannot be written ({str(problem).splitlines()[0]}){kept}")


def load_run(folder: str, sharded: bool = False) -> dict:
    """The checkpoint logs/RUN/last.pt that a run goes on from, also one in parts if `sharded`. Raises BadInput."""
    path = Path(folder) / "last.pt"
    if not path.is_file():
        raise BadInput(f"{path}: no such file; --resume takes the folder of a run, logs/RUN")
    try:
        checkpoint = load_checkpoint(str(path), sharded)[1]
    except (OSError, ValueError) as problem:
        raise BadInput(problem)
    if "optimizer" not in checkpoint and "sharded" not in checkpoint:
        raise BadInput(f"{path}: it has weights but no optimizer state to go on from")
    return checkpoint


def mean_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean, weight by weight, of several checkpoints (section 6.1)."""
    states = [load_checkpoint(str(path))[1]["model"] for path in paths]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def share_weights(model: nn.Module, state: dict[str, Tensor], rank: int) -> None:
    """Rank 0's `state` becomes the weights of every process's `model`."""
    if rank == 0:
        model.load_state_dict(state)
    for parameter in model.parameters():
        dist.broadcast(parameter.detach(), 0)


# --- The log of a run --------------------------------------------------------------------------------------

COLUMNS = ["step", "epoch", "seconds", "tokens", "train_loss", "learning_rate", "grad_norm", "tokens_per_second",
           "mfu", "valid_loss", "valid_bleu"]


class Run:
    """Counts what a run does; on rank 0 it also keeps logs/RUN/ and shows progress."""

    def __init__(self, args, config: ModelConfig, batches, last: int, rank: int, world_size: int, resumed: dict | None):
        self.args, self.config, self.batches, self.last = args, config, batches, last
        self.rank, self.world_size = rank, world_size
        self.folder = Path(args.resume) if args.resume else LOGS / args.run
        self.writes = rank == 0 and not args.benchmark
        # Travels in the checkpoint: nll and targets are the sums since the last row of metrics.csv.
        self.progress = {"seconds": 0.0, "tokens": 0, "nll": 0.0, "targets": 0.0, "best": [-1.0, 0.0]}
        self.progress |= resumed["progress"] if resumed else {}
        self.best = self.progress["best"]
        self.began = time.perf_counter() - self.progress["seconds"]
        self.since = [0.0, 0, 0.0]                         # training seconds, tokens, FLOPs since the last row
        self.timed, self.bar = [], None                    # (tokens/s, MFU) of each row
        self.peak = matrix_rate(args.device, args.precision) * world_size
        if self.writes:
            self.open(resumed)
        if rank == 0 and sys.stderr.isatty():
            from tqdm import tqdm
            self.bar = tqdm(total=last, initial=resumed["step"] if resumed else 0, unit="step", dynamic_ncols=True)

    def is_logged(self, step: int) -> bool:
        """Whether metrics.csv has a row for this step, apart from the last one of a run."""
        return step % self.args.log_every == 0 or step % self.args.eval_every == 0

    def open(self, resumed: dict | None) -> None:
        """Makes the folder, or cuts its metrics.csv back to the step that the checkpoint is of."""
        path, partial, rows = self.folder / "metrics.csv", self.folder / "metrics.partial", []
        if resumed and resumed["step"] > self.last:
            raise BadInput(f"{self.folder} is at step {resumed['step']} already, past the last one wanted, {self.last}")
        try:
            self.claim()
            for left in self.folder.glob("*.partial"):     # by a run that was killed while it wrote
                left.unlink()
            if resumed and path.is_file():
                rows = [row for row in path.read_text().splitlines()[1:] if row.count(",") == len(COLUMNS) - 1]
                numbers = [int(row.split(",")[0]) for row in rows]
                # What the stopped run did at its last step for being the last, a row and weights, goes again.
                every = resumed["flags"]["log_every"], resumed["flags"]["eval_every"]
                end = resumed["step"] - all(resumed["step"] % n for n in every)
                rows = [row for row, n in zip(rows, numbers) if n <= end]
                for kept in self.folder.glob("step-*.pt"):
                    number = int(kept.stem[5:])
                    if number > resumed["step"] or number % self.args.eval_every:
                        kept.unlink()
            partial.write_text("\n".join([",".join(COLUMNS), *rows]) + "\n")
            partial.rename(path)
            self.metrics = open(path, "a", buffering=1)    # line by line, so that others can watch it grow
            write_json(self.folder / "config.json", {
                "flags": vars(self.args), "model": asdict(self.config), "world_size": self.world_size,
                "parameters": sum(p.numel() for p in Transformer(self.config).parameters()),
                "host": socket.gethostname(), "device": device_name(self.args.device),
                "threads": torch.get_num_threads(), "python": platform.python_version(), "torch": torch.__version__,
                "started": time.strftime("%Y-%m-%d %H:%M:%S")})
        except OSError as problem:
            raise BadInput(f"{self.folder}: cannot be written ({problem.strerror or problem})")

    def claim(self) -> None:
        """Holds the folder's lock until this process ends, so that two runs never write to one folder."""
        self.lock = open(self.folder / ".lock", "w")
        for _ in range(200):                               # a run that was just killed may still be saving
            try:
                return fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.1)
        raise BadInput(f"{self.folder}: another run is writing to it")

    def record(self, step: int, seconds: float, nll: float, targets: float, lr: float, norm: float, valid: dict):
        """One step is done: its training seconds, and its loss and target tokens over all processes."""
        progress, pairs, rows = self.progress, self.batches.pairs, self.batches.rows(step - 1)
        lengths = [torch.from_numpy(side[rows]) for side in (pairs.src_lengths, pairs.tgt_lengths)]
        tokens = int(sum(side.sum() for side in lengths))
        progress["seconds"] = time.perf_counter() - self.began
        progress["tokens"] += tokens
        progress["nll"] += nll
        progress["targets"] += targets
        self.since = [a + b for a, b in zip(self.since, (seconds, tokens, flops(self.config, *lengths)))]
        loss, speed = progress["nll"] / progress["targets"], self.since[1] / self.since[0]
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
            self.bar.update()
        if not (self.is_logged(step) or step == self.last):
            return
        self.timed.append((speed, self.since[2] / self.since[0] / self.peak))
        self.since = [0.0, 0, 0.0]
        if self.is_logged(step):                           # a last row between two others leaves their sums alone
            progress["nll"] = progress["targets"] = 0.0
        if not self.writes:
            return
        epoch = (step - 1) // len(self.batches)
        found = [f"{valid[name]:.6f}" if valid else "" for name in ("valid_loss", "valid_bleu")]
        self.metrics.write(f"{step},{epoch},{progress['seconds']:.2f},{progress['tokens']},{loss:.6f},{lr:.4e},"
                           f"{norm:.6f},{speed:.0f},{self.timed[-1][1]:.4f},{','.join(found)}\n")
        if valid or self.bar is None and step % (10 * self.args.log_every) == 0:
            found = f", validation loss {valid['valid_loss']:.3f}, BLEU {valid['valid_bleu']:.1f}" if valid else ""
            left = (self.last - step) * progress["seconds"] / step
            self.say(f"step {step}/{self.last}, epoch {epoch + 1}: loss {loss:.3f}{found}, {speed:,.0f} tokens/s, "
                     f"{minutes(progress['seconds'])} gone, {minutes(left)} left")

    def say(self, text: str) -> None:
        """A line from rank 0, above the progress bar."""
        if self.rank == 0:
            (self.bar.write if self.bar is not None else print)(text)
            sys.stdout.flush()

    def checkpoint(self, step: int, bpe: BPE, model: dict, optimizer: dict | None = None) -> dict:
        """What every mode's checkpoint file holds; `model` and `optimizer` by plain parameter names."""
        return {"format": 1, "step": step, "config": asdict(self.config), "model": model, "bpe": bpe.serialized,
                "flags": vars(self.args), "progress": self.progress} | ({"optimizer": optimizer} if optimizer else {})

    def keep(self, step: int, bpe: BPE, model: dict, valid: dict) -> None:
        """After an evaluation: weights that are the best so far go to best.pt, those to be averaged to step-N.pt.

        The best have the highest BLEU on validation, and of the same BLEU the lowest loss.
        """
        reached, checkpoint = [valid["valid_bleu"], -valid["valid_loss"]], self.checkpoint(step, bpe, model)
        if self.writes and reached > self.best:
            self.best = reached
            if step % self.args.eval_every == 0:           # an evaluation for being last is not one if resumed
                self.progress["best"] = reached
            save_file(self.folder / "best.pt", checkpoint | {"averaged": 1})
        if self.writes and self.args.average > 1 and self.last - step < self.args.average * self.args.eval_every:
            save_file(self.folder / f"step-{step:07d}.pt", checkpoint)

    def keep_parts(self, step: int, bpe: BPE) -> None:
        """Writes last.pt for the weights that are now in sharded-STEP/, and removes those of other steps."""
        if not self.writes:
            return
        name = f"sharded-{step:07d}"
        save_file(self.folder / "last.pt", self.checkpoint(step, bpe, {}) | {"sharded": name})
        for other in self.folder.glob("sharded-*"):
            if other.name != name:
                shutil.rmtree(other)

    def check_finite(self, step: int, nll: float, norm: float) -> None:
        """Ends the run if its loss or gradient is no number; what was saved before is as it was. Raises BadInput."""
        if not math.isfinite(nll + norm):
            saved = f"{self.folder}/last.pt is from before" if (self.folder / "last.pt").is_file() else "nothing was saved"
            raise BadInput(f"step {step}: the {'loss' if not math.isfinite(nll) else 'gradient'} is not finite; {saved} "
                           f"(a lower --lr, a longer --warmup or --precision fp32 may help)")

    def finish(self, model: Transformer, corpus: Path, bpe: BPE) -> None:
        """Averages, scores the best weights on the test part, sums up. `model` is a plain one, and is changed."""
        args, rank, world_size = self.args, self.rank, self.world_size
        if args.benchmark:
            speed, mfu = (statistics.median(column) for column in zip(*self.timed[len(self.timed) // 4 :]))
            return self.say(f"{speed:,.0f} source+target tokens/s, MFU {mfu:.1%} of {self.peak / 1e9:,.0f} GFLOP/s; "
                            f"processes x threads: {world_size} x {torch.get_num_threads()}, {args.precision}")
        def translate(part: str, weights: dict | None) -> tuple[list[str], float, str]:
            """As the model will be used, with beam search: translations and BLEU, on rank 0."""
            share_weights(model, weights, rank)
            hypotheses = translate_part(model.eval(), bpe, read_text(corpus, part, "src"), args, 4, rank, world_size)
            return hypotheses, *(bleu(hypotheses, read_text(corpus, part, "tgt")) if rank == 0 else (0.0, ""))

        best = load_checkpoint(str(self.folder / "best.pt"))[1] if self.writes else {"model": None}
        valid_bleu = translate("valid", best["model"])[1]
        if args.average > 1:
            paths = sorted(self.folder.glob("step-*.pt"))[-args.average :] if self.writes else []
            mean = mean_weights(paths) if self.writes else None
            mean_bleu = translate("valid", mean)[1]
            if mean_bleu > valid_bleu:
                valid_bleu, best = mean_bleu, self.checkpoint(self.last, bpe, mean) | {"averaged": len(paths)}
                save_file(self.folder / "best.pt", best)
        part = "test" if (corpus / "test.src.txt").is_file() else "valid"
        hypotheses, score, signature = translate(part, best["model"])
        memory = [None] * world_size if rank == 0 else None
        unit = 2**20 if sys.platform == "darwin" else 2**10
        dist.gather_object(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, memory)
        if not self.writes:
            return
        sources, references = read_text(corpus, part, "src"), read_text(corpus, part, "tgt")
        (self.folder / "translations.txt").write_text("\n".join(hypotheses) + "\n", encoding="utf-8")
        with open(self.folder / "metrics.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        seconds = time.perf_counter() - self.began
        write_json(self.folder / "summary.json", {
            "steps": self.last, "tokens": self.progress["tokens"], "wall_seconds": round(seconds, 1),
            "median_tokens_per_second": statistics.median(float(row["tokens_per_second"]) for row in rows),
            "median_mfu": statistics.median(float(row["mfu"]) for row in rows),
            "best_step": best["step"], "averaged_checkpoints": best["averaged"], "beam": 4,
            "valid_bleu": round(valid_bleu, 2), f"{part}_bleu": round(score, 2), "bleu_signature": signature,
            "peak_memory_mib": {"largest_process": round(max(memory)), "all_processes": round(sum(memory))}})
        if self.bar is not None:
            self.bar.close()
        print(f"\nBLEU {score:.1f} on {len(sources):,} sentences of the {part} part, beam 4 ({signature})\n")
        for i in range(0, len(sources), max(1, len(sources) // 5)):
            print(f"  source       {sources[i]}\n  translation  {hypotheses[i]}\n  reference    {references[i]}\n")
        print(f"{minutes(seconds)} in all; {self.folder}/ has the log and the checkpoints. Now talk to it:\n\n"
              f"  python translate.py\n", flush=True)


def matrix_rate(device: str, precision: str) -> float:
    """FLOP/s of a large matrix product on this device, in this process: what MFU is a share of."""
    size, times = (8192 if device == "cuda" else 1024), []
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    for _ in range(6):
        began = time.perf_counter()
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return 2 * size**3 / min(times)


def device_name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name", platform.machine())


def write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def minutes(seconds: float) -> str:
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
