"""What no hardware mode changes: flags, learning rate, evaluation, the checkpoint file.

The training loop is not here: it stands in train_cpu.py, train_ddp.py and train_fsdp.py, top to bottom.
"""

import argparse
import copy
import importlib.util
import itertools
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from corpora import BadInput, find_corpus
from data import BPE, Pairs, group_by_length, prepare
from decode import translate_batch, translate_lines
from model import ModelConfig, Transformer, fast_dtype, load_checkpoint

LOGS = Path("logs")

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
        ("--peak-tflops", float, 0.0, "of one device, for MFU; 0: that of a known GPU, else measured"),
    ],
    "run": [
        ("--run", str, "", "name of the run's folder under logs/; else made from the corpus"),
        ("--resume", str, "", "logs/RUN to go on with, with the flags it was started with"),
        ("--eval-every", int, 0, "steps between evaluations; 0: every epoch"),
        ("--save-every", int, 0, "steps between checkpoints; 0: at every evaluation"),
        ("--log-every", int, 10, "steps between rows of metrics.csv"),
        ("--device", ("auto", "cpu", "cuda"), "auto", "where to train"),
        ("--tensorboard", bool, False, "write the metrics for TensorBoard too, to logs/RUN/"),
        ("--wandb", str, "", "send them to this project of Weights & Biases too (WANDB_MODE=offline: keep them here)"),
        ("--timeout", int, 600, "seconds to wait for another process before giving it up"),
    ],
}
# What --resume may change; all else would make it another curve.
CHANGEABLE = {"accumulate", "average", "benchmark", "compile", "delay_ms", "device", "epochs", "eval_every", "log_every",
              "netem", "offload", "peak_tflops", "precision", "procs", "recompute", "resume", "save_every", "sharded", "steps",
              "tensorboard", "timeout", "wandb"}


def parse_arguments(doc: str, devices: tuple = ("cpu", "cuda"), **extra) -> argparse.Namespace:
    """The flags of a training script; `extra` adds flags, name=(type, default, help). Raises BadInput.

    A flag's value is, in this order: what the command line says, what the resumed run was started with,
    what is best for the corpus, the default.
    """
    parser = argparse.ArgumentParser(description=doc, usage="%(prog)s [FLAGS]", argument_default=argparse.SUPPRESS,
                                     allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     epilog="In brackets: what holds where a flag is not given. For phrasebook and\n"
                                            "multi30k some others are better (PRESETS in training.py).")
    parser.error = lambda message: (print(f"error: {message}; --help lists the flags", file=sys.stderr), sys.exit(2))
    added = [(f"--{name.replace('_', '-')}", *flag) for name, flag in extra.items()]
    defaults = {}
    for heading, flags in (FLAGS | {"run": FLAGS["run"] + added}).items():
        group = parser.add_argument_group(heading)
        for name, kind, default, text in flags:
            how = ({"action": "store_true"} if kind is bool else {"choices": kind} if isinstance(kind, tuple)
                   else {"type": kind, "metavar": {str: "TEXT", int: "N", float: "X"}[kind]})
            shown = text if kind is bool or default == "" else f"{text} [{default}]"
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
        here = {name: defaults[name] for name in ("device", "sharded", "peak_tflops", "delay_ms", "netem") if name in defaults}
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
    for name in ("steps", "lr", "clip", "seed", "eval_every", "save_every", "peak_tflops", *extra):
        if not 0 <= getattr(args, name) < 2**31:
            raise BadInput(f"--{name.replace('_', '-')} {getattr(args, name)}: it must be 0 or more, below 2^31")
    for name in ("tensorboard", "wandb"):
        if getattr(args, name) and not importlib.util.find_spec(name):
            raise BadInput(f"--{name}: it is not installed here: pip install {name}")
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


# --- Evaluation --------------------------------------------------------------------------------------------


@torch.inference_mode()
def validation_loss(model: Transformer, pairs: Pairs, args, rank: int, world_size: int) -> tuple[float, float]:
    """Per target token: negative log-likelihood in nats, and how often the most likely token is the right one.

    Each process works on its own batches of `pairs`.
    """
    device = next(model.parameters()).device
    sums = torch.zeros(3, dtype=torch.float64)
    batches = group_by_length(*pairs.lengths(np.arange(len(pairs))), 4096, np.random.default_rng(0))
    for rows in batches[rank::world_size]:
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bf16"):
            batch = [part.to(device) for part in pairs.batch(rows)]
            sums += torch.tensor(model.score(*batch), dtype=torch.float64)
    sums = sums.to(device)
    dist.all_reduce(sums)
    return float(sums[0] / sums[2]), float(sums[1] / sums[2])


def translate_part(model: Transformer, bpe: BPE, sources: list[str], args, beam: int, rank: int, world_size: int) -> list[str]:
    """Translations of all `sources`, each process doing its own batches."""
    fast = copy.deepcopy(model).to(torch.bfloat16 if args.precision == "bf16" else torch.float32)

    def search(batches: list[list[list[int]]]) -> list:
        shares = [None] * world_size
        dist.all_gather_object(shares, [translate_batch(fast, batch, beam) for batch in batches[rank::world_size]])
        return [shares[i % world_size][i // world_size] for i in range(len(batches))]

    answers = translate_lines(bpe, sources, model.config.max_length - 1, search, quiet=True)
    return [hypotheses[0][1] for hypotheses in answers]


def bleu(hypotheses: list[str], references: list[str]) -> tuple[float, str]:
    """Corpus BLEU and its signature (Post, 2018): cased, tokenized by sacreBLEU's 13a."""
    import sacrebleu

    assert len(hypotheses) == len(references)              # sacreBLEU would not say
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())


@torch.inference_mode()
def evaluate(model: Transformer, corpus: Path, bpe: BPE, args, rank: int, world_size: int) -> dict:
    """Validation loss, token accuracy and greedy BLEU of a plain model, all processes sharing the work.

    The batches are the same for any number of processes, so the figures are too. The BLEU is known to
    rank 0 only; the others get 0.
    """
    was_training = model.training
    model.eval()
    loss, accuracy = validation_loss(model, Pairs(corpus, "valid"), args, rank, world_size)
    hypotheses = translate_part(model, bpe, read_text(corpus, "valid", "src"), args, 1, rank, world_size)
    model.train(was_training)
    score = bleu(hypotheses, read_text(corpus, "valid", "tgt"))[0] if rank == 0 else 0.0
    return {"valid_loss": loss, "valid_bleu": score, "token_accuracy": accuracy}


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
