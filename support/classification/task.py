"""The task "classify": labelled texts or pictures in, a Classifier and its figures out.

support/translation/task.py says what the interface of a task is.
"""

import csv
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from tokenizers import Tokenizer
from torch import nn

from data import group_by_length
from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.examples import (
    ExampleBatches,
    Pictures,
    Texts,
    class_weights,
    prepare,
)
from support.classification.flops import classifier_flops
from support.classification.images import Picture
from support.classification.labelled import find_labelled
from support.classification.metrics import figures, per_class, table
from support.common.errors import UserError
from support.common.kernels import speed_up
from support.common.paths import CACHE
from support.pretrained.pretrained import read_folder

# What to begin with for a corpus; a flag that is given wins.
ANY = dict(
    schedule="linear",
    warmup=0,
    label_smoothing=0.0,
    average_checkpoints=1,
    weight_decay=0.01,
    epochs=5,
    lr=1e-3,
    batch_tokens=4096,
    vocab_size=8000,
    max_length=256,
    patch=4,
)
FINE_TUNED = ANY | dict(lr=1.5e-4, epochs=2, batch_size=64, max_length=128)
PRESETS = {
    "kinds": dict(
        vocab_size=1000, layers=1, d_model=64, d_ff=128, epochs=2, lr=3e-3, batch_tokens=2048
    ),
    "agnews": dict(
        layers=1,
        d_ff=512,
        dropout=0.3,
        epochs=8,
        average_checkpoints=5,
        label_smoothing=0.1,
        vocab_size=30_000,
        token_dropout=0.5,
        warmup=200,
    ),
    "fashion-mnist": dict(
        layers=2,
        d_model=128,
        heads=4,
        d_ff=512,
        patch=4,
        stem_channels=64,
        lr=1e-3,
        crop=1,
        flip="yes",
        epochs=38,
        batch_size=64,
        schedule="cosine",
        average_checkpoints=5,
        warmup=200,
        label_smoothing=0.1,
    ),
}
CORPUS_FLAGS = ("data", "valid", "test", "text", "label", "image_size")


def presets(flags: dict) -> dict:
    """What is best for the corpus and the weights that the flags name. Raises UserError."""
    corpus = find_labelled(*(flags[name] for name in CORPUS_FLAGS))
    # Texts: a step changes few embeddings, and processes would exchange all of them.
    alone = {"procs": 1} if corpus.kind == "text" else {}
    return alone | (FINE_TUNED if flags["pretrained"] else ANY | PRESETS.get(corpus.name, {}))


class Classification:
    """Labelled examples, encoded on disk, and how a Classifier is trained on them and scored."""

    figures = ("accuracy", "f1")  # the first decides which weights are best
    unit = "tokens"  # of what its speed is

    def __init__(self, args, saved: dict | None):
        self.args, self.weights = args, None  # weights: those to begin with, by name
        if saved:
            tokenizer, self.config = saved["tokenizer"], ClassifierConfig(**saved["config"])
            picture = Picture(**saved["picture"]) if saved["picture"] else None
        elif args.pretrained:
            found = read_folder(args.pretrained, image_size=args.image_size)
            tokenizer, picture = found.tokenizer, found.picture
        else:
            tokenizer, picture = "", None
            if args.pool != "pretrained":
                raise UserError(
                    f"--pool {args.pool}: it is for the weights that --pretrained names"
                )
        corpus = find_labelled(*(getattr(args, name) for name in CORPUS_FLAGS), picture)
        self.name, self.checksum = corpus.name, corpus.checksum()
        if saved and saved["checksum"] != self.checksum:
            raise UserError(f"the corpus {self.name} has changed since the run was started")
        self.picture = corpus.picture if corpus.kind == "picture" else None
        self.folder = prepare(
            corpus,
            self.checksum,
            CACHE / "encoded",
            tokenizer,
            args.max_length,
            self.picture,
            args.vocab_size,
        )
        self.meta = json.loads((self.folder / "meta.json").read_text(encoding="utf-8"))
        self.classes, self.tokenizer = self.meta["classes"], ""
        if not self.picture:
            if (
                args.stem_channels
                or args.image_size
                or args.patch != ANY["patch"]
                and not saved
            ):
                raise UserError(
                    "--patch, --stem-channels and --image-size are for pictures, and these are "
                    "texts"
                )
            self.tokenizer = (self.folder / "tokenizer.json").read_text(encoding="utf-8")
        if args.pretrained and not saved:
            self.take(found)
        elif not saved:
            self.config = self.shape()
        train = self.part("train")
        self.plan = ExampleBatches(
            train,
            args.batch_tokens,
            args.seed,
            args.batch_size,
            class_weights(train.labels, len(self.classes), args.class_weights),
            args.crop,
            args.flip == "yes",
            args.token_dropout,
        )
        self.batches, self.targets = self.plan.step, self.plan.targets
        self.epoch_steps = len(self.plan)

    def shape(self) -> ClassifierConfig:
        """The shape of a model from nothing, from the flags. Raises UserError."""
        args = self.args
        shape = {
            name: getattr(args, name)
            for name in (
                "layers",
                "d_model",
                "heads",
                "d_ff",
                "dropout",
                "label_smoothing",
                "norm",
            )
        }
        shape["head_dropout"] = args.dropout
        if self.picture:
            shape |= {
                "patch": args.patch,
                "stem_channels": args.stem_channels,
                "channels": self.picture.channels,
                "image_size": self.picture.crop or self.picture.size,
                "max_length": 1,
                "positions": "learned",
            }
        else:
            size = Tokenizer.from_str(self.tokenizer).get_vocab_size()
            shape |= {"vocab_size": size, "max_length": args.max_length}
        try:
            return ClassifierConfig(classes=len(self.classes), **shape)
        except ValueError as problem:
            raise UserError(problem) from problem

    def take(self, found) -> None:
        """Begins with published weights; says which are new, and which were left out."""
        args, config = self.args, found.config
        if bool(config.patch) != bool(self.picture):
            raise UserError(
                f"--pretrained {args.pretrained}: weights for "
                f"{'pictures' if config.patch else 'texts'}; {self.name} has none"
            )
        if not self.picture:
            least = Tokenizer.from_str(self.tokenizer).num_special_tokens_to_add(False) + 1
            if not least <= args.max_length <= config.max_length:
                raise UserError(
                    f"--max-length {args.max_length}: with the weights of {args.pretrained} "
                    f"it is from {least} to {config.max_length}"
                )
        mean = {"pool": "mean", "head": ""} if args.pool == "mean" else {}
        try:
            self.config = replace(
                config,
                classes=len(self.classes),
                dropout=args.dropout,
                head_dropout=args.dropout,
                label_smoothing=args.label_smoothing,
                max_length=config.max_length if config.patch else args.max_length,
                **mean,
            )
        except ValueError as problem:
            raise UserError(problem) from problem
        with torch.device("meta"):
            names = Classifier(self.config).state_dict().keys()
        self.weights = {name: value for name, value in found.weights.items() if name in names}
        found.left_out += [found.names[name] for name in found.weights.keys() - names]
        if "positions" in names and not config.patch:
            self.weights["positions"] = self.weights["positions"][: args.max_length]
        last = max(name.rsplit(".", 1)[0] for name in names if name.startswith("head."))
        labels = [] if mean else found.labels
        order = [labels.index(name) for name in self.classes if name in labels]
        for name in [name for name in self.weights if name.startswith(last)]:
            if len(order) == len(self.classes) and max(order) < len(self.weights[name]):
                self.weights[name] = self.weights[name][order]
            else:  # made for other classes, or no mean
                found.left_out.append(found.names[name])
                del self.weights[name]
        new = sorted(names - self.weights.keys())
        self.started = (
            f"{args.pretrained}: new are {', '.join(new) or 'no weights'}; left out: "
            f"{', '.join(sorted(found.left_out)) or 'none'}"
        )

    def part(self, part: str) -> Texts | Pictures:
        """The examples of train, valid or test, mapped from disk."""
        if self.picture:
            tokens = (
                self.config.num_prefix_tokens
                + (self.config.image_size // self.config.patch) ** 2
            )
            return Pictures(self.folder, part, self.picture, tokens)
        return Texts(self.folder, part, self.config.pad)

    def __str__(self) -> str:
        """What each part of the corpus holds, a line for each."""
        lines, most = [f"{self.name}: {len(self.classes)} classes"], self.args.max_length
        for part, counts in self.meta["parts"].items():
            held_out = "; held out of training" * (self.meta["held_out"] and part == "valid")
            cut = f"; {counts['cut']:,} cut at {most} tokens" if counts.get("cut") else ""
            lines.append(
                f"{self.name}, {part}: {counts['examples']:,} "
                f"{self.meta['kind']}s{cut}{held_out}"
            )
        return "\n".join([*lines, self.started] if self.weights else lines)

    def size(self, step: int) -> tuple[int, int, float]:
        """Examples, tokens without padding, and FLOPs of a whole step."""
        rows = self.plan.rows(step)
        lengths = torch.from_numpy(self.plan.examples.lengths(rows)[0])
        return (
            len(rows),
            int(lengths.sum()),
            classifier_flops(self.config, lengths, frozen=self.args.freeze),
        )

    def model(self) -> Classifier:
        """The model to train, with fast parts in place, its weights not yet initialized."""
        args = self.args
        model = speed_up(
            Classifier(self.config), args.device, args.precision == "bf16", args.recompute
        )
        freeze(model, args.freeze)
        return model

    @torch.no_grad()
    def evaluate(
        self, model: nn.Module, part: str, rank: int, world_size: int, final: bool = False
    ) -> dict[str, float]:
        """Figures of the part "valid" or "test"; every example is scored once, by one process.

        What is added up over the processes are counts: the confusion matrix, from which all figures
        follow, and the sum of the loss. So they are the same for any number of processes. If
        `final`, the probabilities are kept, for `report`.
        """
        was_training, device = model.training, next(model.parameters()).device
        model.eval()
        examples, n = self.part(part), len(self.classes)
        batches = group_by_length(
            examples.lengths(np.arange(len(examples))), 4096, np.random.default_rng(0)
        )
        counts = torch.zeros(n * n + 1, dtype=torch.float64, device=device)
        self.scored = []  # (rows, probabilities) of this process
        # As many batches for each process: a sharded model is gathered by all of them at once.
        for first in range(0, len(batches), world_size):
            mine = first + rank < len(batches)
            rows = batches[first + rank] if mine else np.arange(0)
            x, label, weight = (side.to(device) for side in examples.batch(rows))
            with torch.autocast(
                device.type, torch.bfloat16, enabled=self.args.precision == "bf16"
            ):
                log_p = model.score(x).log_softmax(-1)
            if mine:
                counts[:-1] += torch.bincount(label * n + log_p.argmax(-1), minlength=n * n)
                counts[-1] -= log_p.gather(1, label[:, None]).sum()
                if final:
                    self.scored.append((rows, log_p.exp().cpu().numpy()))
        dist.all_reduce(counts)
        model.train(was_training)
        self.confusion = counts[:-1].round().long().view(n, n).cpu()
        return figures(self.confusion) | {"loss": float(counts[-1]) / len(examples)}

    def report(
        self, model: nn.Module, rank: int, world_size: int, folder: Path
    ) -> tuple[dict, str]:
        """Scores the test part, or without one the validation part.

        Writes predictions.csv to `folder`; its rows are numbered from 0, as the part has them.
        Returns entries for summary.json and text to show.
        """
        part = "test" if "test" in self.meta["parts"] else "valid"
        found = self.evaluate(model, part, rank, world_size, final=True)
        shares = [None] * world_size if rank == 0 else None
        dist.gather_object(self.scored, shares)
        if rank > 0:
            return {}, ""
        labels = self.part(part).labels
        scored = sorted(
            (int(row), p) for share in shares for rows, ps in share for row, p in zip(rows, ps)
        )
        with open(folder / "predictions.csv", "w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["row", "label", "prediction", *self.classes])
            rows.writerows(
                [
                    row,
                    self.classes[labels[row]],
                    self.classes[p.argmax()],
                    *(f"{value:.6f}" for value in p),
                ]
                for row, p in scored
            )
        summary = {f"{part}_{name}": round(value, 6) for name, value in found.items()}
        summary |= {
            "classes": self.classes,
            "confusion": self.confusion.tolist(),
            "per_class": per_class(self.confusion, self.classes),
        }
        return summary, "\n".join(
            [
                f"the {part} part, {len(labels):,} examples:",
                "",
                table(self.confusion, self.classes),
                "",
                "Now try it:",
                "",
                "  python classify.py",
                "",
            ]
        )

    def saved(self) -> dict:
        """What classify.py, and a run that goes on, need besides the weights."""
        return {
            "kind": "classification",
            "config": asdict(self.config),
            "classes": self.classes,
            "tokenizer": self.tokenizer,
            "checksum": self.checksum,
            "picture": asdict(self.picture) if self.picture else None,
        }


def freeze(model: Classifier, layers: int) -> None:
    """Keeps the lowest `layers` layers, and all below them, as they are; 0: nothing is kept.

    Raises UserError.
    """
    config, below = model.config, tuple(f"encoder.{i}." for i in range(layers))
    if not layers:
        return
    if layers > config.layers:
        raise UserError(f"--freeze {layers}: there are {config.layers} layers")
    if config.norm == "post":  # it comes before the layers
        below += ("norm.",)
    for name, parameter in model.named_parameters():
        frozen = name.startswith(("stem.", "embedding", "positions", "first", *below))
        parameter.requires_grad_(not frozen)
