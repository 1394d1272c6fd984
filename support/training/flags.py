"""The flags of the training scripts: what a command line says, completed and checked.

    args = parse_arguments(__doc__)                       # reads the command line, and nothing else
    args = complete(args)                           # rank 0 alone: reads checkpoints, names the run

A flag's value is, in this order: what the command line says, what the --config file does, what the
resumed run was started with but for MACHINE_FLAGS, what is best for the corpus (PRESETS of the
task), the default.
"""

import argparse
import importlib.util
import os
import sys
import time
from pathlib import Path

from support.common.checkpoint import load_run
from support.common.errors import UserError
from support.common.hardware import find_device
from support.common.kernels import fast_precision
from support.common.paths import LOGS
from support.common.prompt import readable
from support.training import tasks
from support.training.config_file import MACHINE_FLAGS, SHAPE, read_config
from support.training.run_folder import check_name, make_folder

FLAGS = {
    "corpus": [
        (
            "--data",
            str,
            "phrasebook",
            "phrasebook, multi30k, a folder, PREFIX, .tsv, .csv, .jsonl, "
            ".zip; to classify: agnews, fashion-mnist, kinds, class folders, a table and --label",
        ),
        (
            "--valid",
            str,
            "",
            "PREFIX, table, class folders to validate on; else some are held out",
        ),
        ("--test", str, "", "PREFIX, table, class folders to score at the end"),
        (
            "--src",
            str,
            "de",
            "source language: ending of its file, or column by name or position",
        ),
        ("--tgt", str, "en", "target language, likewise"),
        ("--vocab-size", int, 8000, "tokens in the BPE that both languages share"),
        ("--max-length", int, 128, "tokens; longer sentence pairs are left out, texts are cut"),
        (
            "--label",
            str,
            "",
            "classify: column of a table, by name or position, with the class",
        ),
        ("--text", str, "", "columns with the text, joined by commas"),
        (
            "--image-size",
            int,
            0,
            "pixels a side; 0: as --pretrained or an IDX file has them, or 32",
        ),
    ],
    "model": [
        ("--layers", int, 3, "encoder layers, and as many decoder layers"),
        ("--d-model", int, 256, "width of the model"),
        ("--heads", int, 4, "attention heads"),
        ("--d-ff", int, 1024, "width inside the feed-forward layers"),
        ("--dropout", float, 0.1, "share of activations dropped in training"),
        ("--norm", ("pre", "post"), "pre", "layer norm before each sub-layer, or after it"),
        ("--patch", int, 4, "pixels a side of a picture's patches"),
        (
            "--stem-channels",
            int,
            0,
            "channels of the first of two convolutions of a picture; 0: none",
        ),
        (
            "--pretrained",
            str,
            "",
            "begin with the weights in this Hugging Face folder (BERT, ViT ...)",
        ),
        (
            "--pool",
            ("pretrained", "mean"),
            "pretrained",
            "for --pretrained: its head, or the mean of all tokens",
        ),
        ("--freeze", int, 0, "the embeddings and so many lower layers do not learn"),
    ],
    "optimisation": [
        ("--batch-tokens", int, 4096, "tokens a side in a step, over all processes"),
        ("--batch-size", int, 0, "examples in a step; 0: as many as --batch-tokens holds"),
        (
            "--accumulate",
            int,
            1,
            "micro-batches that each process splits its share of a step into",
        ),
        ("--epochs", int, 10, "times through the corpus"),
        ("--steps", int, 0, "stop after this many steps instead"),
        ("--lr", float, 2e-3, "peak learning rate, reached at the end of the warm-up"),
        (
            "--warmup",
            int,
            1000,
            "warm-up steps; 0: a tenth of the run, also of one made longer",
        ),
        ("--schedule", ("noam", "linear", "cosine"), "noam", "how the rate falls after that"),
        ("--head-lr", float, 0.0, "peak rate of a classifier's head; 0: --lr"),
        ("--weight-decay", float, 0.0, "of AdamW; biases and norms never decay"),
        ("--class-weights", bool, False, "all classes count alike, the rare ones too"),
        (
            "--token-dropout",
            float,
            0.0,
            "share of a text's tokens that are not seen in training",
        ),
        ("--crop", int, 0, "move pictures by up to so many pixels"),
        ("--flip", ("no", "yes"), "no", "mirror half of the pictures"),
        (
            "--label-smoothing",
            float,
            0.1,
            "share of the target spread over all tokens, or classes",
        ),
        ("--clip", float, 1.0, "largest norm of the gradient; 0: no limit"),
        (
            "--average-checkpoints",
            int,
            5,
            "at the end, try the mean of the weights at the last N evaluations",
        ),
        ("--patience", int, 0, "stop after so many evaluations that were no better; 0: never"),
        ("--seed", int, 1, "seed of weights, order and dropout"),
    ],
    "speed": [
        ("--precision", ("auto", "fp32", "bf16"), "auto", "of products; auto: bf16 where fast"),
        ("--compile", bool, False, "torch.compile the model"),
        (
            "--recompute",
            bool,
            False,
            "keep few activations; the backward pass computes them again",
        ),
        ("--profile", bool, False, "record three steps: step.png, memory.png and a trace"),
        ("--benchmark", bool, False, "time 200 steps, save nothing; MFU: share of peak FLOP/s"),
        (
            "--hardware-tflops",
            float,
            0.0,
            "of a process's GPU or cores, for MFU; 0: known or measured",
        ),
    ],
    "run": [
        (
            "--config",
            str,
            "",
            "take flags from this YAML or JSON file; a run's config.json too",
        ),
        ("--name", str, "", "make the run logs/NAME, or go on with it; else a new name"),
        ("--resume", str, "", "logs/RUN to go on with; its flags are remembered"),
        ("--eval-every", int, 0, "steps between evaluations; 0: every epoch"),
        ("--save-every", int, 0, "steps between checkpoints; 0: at every evaluation"),
        ("--log-every", int, 10, "steps between rows of metrics.csv"),
        ("--device", ("auto", "cpu", "cuda"), "auto", "where to train"),
        ("--tensorboard", bool, False, "write the metrics for TensorBoard too, to logs/RUN/"),
        ("--wandb", str, "", "and to this project of Weights & Biases (see WANDB_MODE)"),
        ("--timeout", int, 600, "seconds to wait for another process before giving it up"),
        ("--delay-ms", float, 0.0, "milliseconds to wait before each exchange: a slow network"),
        ("--netem", bool, False, "batch/netem.sh delays the network itself: do not wait"),
    ],
}
# What may change when a run goes on; with any other flag it would be another run.
CHANGEABLE = {
    "accumulate",
    "average_checkpoints",
    "benchmark",
    "compile",
    "config",
    "delay_ms",
    "device",
    "epochs",
    "eval_every",
    "log_every",
    "replicas",
    "name",
    "netem",
    "patience",
    "hardware_tflops",
    "precision",
    "procs",
    "profile",
    "recompute",
    "resume",
    "save_every",
    "sharded",
    "steps",
    "tensorboard",
    "threads",
    "timeout",
    "wandb",
}
MOST = 2**31 - 1
# The least and the most of each number; others are checked by ModelConfig.
BOUNDS = {
    "vocab_size": (1, 10**7),
    "max_length": (1, 32_767),
    "d_model": (1, 65_536),
    "d_ff": (1, 10**6),
    "layers": (1, 1000),
    "batch_tokens": (1, 10**9),
    "accumulate": (1, 10_000),
    "batch_size": (0, 10**8),
    "image_size": (0, 4096),
    "token_dropout": (0, 0.9),
    "patch": (1, 4096),
    "stem_channels": (0, 4096),
    "freeze": (0, 1000),
    "crop": (0, 1000),
    "head_lr": (0, MOST),
    "weight_decay": (0, 1),
    "patience": (0, MOST),
    "epochs": (1, MOST),
    "warmup": (0, MOST),
    "log_every": (1, MOST),
    "average_checkpoints": (1, 1000),
    "timeout": (1, 10**7),
    "steps": (0, MOST),
    "lr": (0, MOST),
    "clip": (0, MOST),
    "seed": (0, MOST),
    "eval_every": (0, MOST),
    "save_every": (0, MOST),
    "replicas": (1, 10_000),
    "hardware_tflops": (0, MOST),
    "delay_ms": (0, 10**6),
    "procs": (0, 10_000),
}


def parse_arguments(doc: str, devices: tuple = ("cpu", "cuda"), **extra) -> argparse.Namespace:
    """What the command line of a page says: the `given` flags, and the `defaults` of all.

    devices: where the script can train; extra: its own flags, name=(type, default, help).
    """
    parser = argparse.ArgumentParser(
        description=doc,
        usage="%(prog)s [FLAGS]",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="In brackets: the default. Classifiers and some corpora begin with others (PRESETS\n"
        "in support/translation/task.py and support/classification/task.py).",
    )

    def error(message: str) -> None:
        time.sleep(0 if os.environ.get("RANK", "0") == "0" else 4)  # rank 0 says it, for all
        print(f"error: {message}; --help lists the flags", file=sys.stderr)
        sys.exit(2)

    parser.error = error
    added = [(f"--{name.replace('_', '-')}", *flag) for name, flag in extra.items()]
    defaults, kinds = {}, {}
    for heading, flags in (FLAGS | {"run": FLAGS["run"] + added}).items():
        group = parser.add_argument_group(heading)
        for flag, kind, default, text in flags:
            name = add_flag(group, flag, kind, default, text)
            defaults[name], kinds[name] = default, kind
    return argparse.Namespace(
        given=vars(parser.parse_args()), defaults=defaults, kinds=kinds, devices=devices
    )


def add_flag(parser, flag: str, kind: type | tuple, shown, text: str) -> str:
    """Adds a flag, or a choice of the words in a tuple; returns its name as a variable.

    parser: or a group of one; shown: its default, for the help alone.
    """
    if kind is bool:
        how = {
            "action": argparse.BooleanOptionalAction
        }  # --no-FLAG takes back what is remembered
    elif isinstance(kind, tuple):
        how = {"choices": kind}
    else:
        how = {"type": kind, "metavar": {str: "TEXT", int: "N", float: "X"}[kind]}
    text = text if kind is bool or shown == "" else f"{text} [{shown}]"
    return parser.add_argument(flag, help=text, default=argparse.SUPPRESS, **how).dest


def check_bounds(args: argparse.Namespace, bounds: dict) -> None:
    """Raises UserError for a number below its least or above its most."""
    for name, (least, most) in bounds.items():
        if not least <= getattr(args, name, least) <= most:
            raise UserError(
                f"--{name.replace('_', '-')} {getattr(args, name)}: "
                f"it must be from {least} to {most}"
            )


def complete(parsed: argparse.Namespace, restarted: str = "") -> argparse.Namespace:
    """All flags of a run; `folder`, where it is kept; `saved`, what its task left there.

    One process does this, for all. restarted: the folder of the run that torchrun starts again.
    Makes the folder of a new run. Raises UserError.
    """
    given, defaults = parsed.given, parsed.defaults
    for name, value in given.items():
        if isinstance(value, str) and readable(value) != value:
            raise UserError(f"--{name} {value!r}: not UTF-8")
    if given.get("config"):
        # What the command line asks for goes before what the file says of the same in other words.
        same = {"epochs": "steps", "batch_tokens": "batch_size"}
        off = {other: 0 for name, other in same.items() if name in given}
        init = given.get("pretrained", "")
        given = read_config(given["config"], parsed.kinds, init) | off | given
    resume = given.get("resume") or restarted
    folder = Path(resume) if resume else LOGS / check_name(given.get("name", ""))
    if given.get("resume") and given.get("name"):
        raise UserError(
            "--resume and --name: one of them is enough; --name goes on with a run, too"
        )
    checkpoint, benchmark = None, given.get("benchmark", False)
    if (
        given.get("resume")
        or (folder / "last.pt").is_file()
        and folder != LOGS
        and not benchmark
    ):
        checkpoint = load_run(folder, "sharded" in defaults)
    stored = checkpoint["flags"] if checkpoint else {}
    if given.get("resume"):
        kept = {name: stored[name] for name in stored.keys() - MACHINE_FLAGS}
        steps = {"steps": 0} if "epochs" in given else {}
        flags, asked = defaults | kept | steps | given, given
    else:
        presets = {
            name: value
            for name, value in tasks.presets(defaults | given).items()
            if name in defaults
        }  # "procs" is a flag of train_cpu.py alone
        if "batch_tokens" in given:  # it was asked for: no other size wins
            presets = presets | {"batch_size": 0}
        # On another machine --name goes on in the precision that "auto" was on the first, too.
        kept = {"precision": stored["precision"]} if checkpoint else {}
        flags = asked = defaults | presets | kept | given
        for name in SHAPE if flags["pretrained"] else ():
            if name in given:
                file = "" if name in parsed.given else f"--config {given['config']}: "
                raise UserError(
                    f"{file}--{name.replace('_', '-')}: --pretrained's weights have a shape "
                    f"already"
                )
    for name in asked.keys() - CHANGEABLE if checkpoint else ():
        before = stored.get(name, defaults[name])  # a flag may be newer than the run
        if asked[name] != before:
            before = "none" if before == "" else before
            raise UserError(
                f"--{name.replace('_', '-')} {asked[name]}: {folder} was started with "
                f"{before}; --resume {folder} remembers a run's flags"
            )
    args = argparse.Namespace(**flags)
    args.saved = checkpoint["task"] if checkpoint else None
    check(args, parsed.devices, defaults)
    args.folder = "" if args.benchmark else str(folder)
    if not checkpoint and not args.benchmark:
        args.folder = make_folder(folder, Path(os.path.abspath(args.data)).name.split(".")[0])
    return args


def check(args: argparse.Namespace, devices: tuple, defaults: dict) -> None:
    """Settles what is "auto", and raises UserError for a flag that cannot be."""
    if args.benchmark:
        args.steps = args.steps or 200
    if args.head_lr and not args.lr:
        raise UserError("--head-lr with --lr 0: --freeze trains the head alone")
    if args.benchmark and args.resume:
        raise UserError("--benchmark saves nothing, so there is nothing for it to --resume")
    check_bounds(args, BOUNDS)
    for name in ("tensorboard", "wandb"):
        if getattr(args, name) and not importlib.util.find_spec(name):
            raise UserError(f"--{name}: it is not installed here: pip install {name}")
    args.device = find_device(args.device, devices)
    processes, copies = int(os.environ.get("WORLD_SIZE", 1)), getattr(args, "replicas", 1)
    if processes % copies:
        raise UserError(f"--replicas {copies}: {processes} processes are no multiple of it")
    if args.precision == "auto":
        args.precision = fast_precision(args.device)
    tasks.check(args, defaults)
