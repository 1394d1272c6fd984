"""The task of classification: labelled texts or images in, a Classifier and its metrics out.

The interface of a task is `Task` in support/training/tasks.py.
"""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import Unigram, WordLevel
from torch import Tensor, nn

from data import evaluation_batches
from support.classification.classifier import Classifier, ClassifierConfig, classifier_flops
from support.classification.corpus import Labelled, warnings_of_classes
from support.classification.encoding import longest_text, prepare_labelled
from support.classification.examples import ExampleBatches, Images, Texts
from support.classification.images import ImageTransform
from support.classification.labelled import find_labelled
from support.classification.metrics import (
    compute_metrics,
    confusion_matrix,
    metrics_table,
    per_class,
)
from support.classification.starting_weights import adapt, check_fits
from support.common.checkpoint import check_corpus
from support.common.errors import UserError
from support.common.files import read_json, write_csv
from support.common.flops import StepCost
from support.common.hardware import autocast_dtype
from support.common.kernels import speed_up
from support.common.paths import CACHE, script_path
from support.common.shape import make_config
from support.corpora.encoded import read_tokenizer
from support.corpora.held_out import warnings_of_parts
from support.distributed.collectives import sum_over_data

EVALUATION_TOKENS = 4096  # in a batch of an evaluation
FEW_EXAMPLES = 10_000  # training examples, up to which pretrained weights are advised
MANY_PATCHES = 400  # of an image: attention takes the square of their number
PRETRAINED_WEIGHTS = {"text": "a BERT of their language", "image": "a ViT or a DeiT"}


class Classification:
    """Labelled examples, encoded on disk, on which a Classifier is trained and scored."""

    metrics: tuple[str, ...] = ("accuracy", "f1")
    speed_unit = "tokens"

    def __init__(self, args, pretrained=None):
        """args: the run's settings; pretrained: weights to begin with, if any.

        See support/pretrained/load.py for them.
        """
        state = args.task_state
        self.args = args
        self.pretrained_weights: dict[str, Tensor] | None = None
        self.summary_of_weights = ""
        tokenizer = ""
        transform = None
        if state:
            tokenizer = state["tokenizer"]
            transform = ImageTransform(**state["transform"]) if state["transform"] else None
        elif pretrained:
            tokenizer = pretrained.tokenizer
            transform = pretrained.transform
        elif args.pool != "pretrained":
            raise UserError(f"--pool {args.pool} requires --pretrained")
        corpus = find_labelled(
            args.data, args.valid, args.test, args.text, args.label, args.image_size, transform
        )
        if pretrained:
            check_fits(pretrained, args, corpus)
        self.encode(corpus, tokenizer, state)
        if state:
            self.config = ClassifierConfig(**state["config"])
        elif pretrained:
            adapted = adapt(pretrained, args, self.classes)
            self.config, self.pretrained_weights, self.summary_of_weights = adapted
        else:
            self.config = self.new_config()
        if args.freeze > self.config.layers:
            raise UserError(
                f"--freeze {args.freeze}: the model has {self.config.layers} layers"
            )
        self.make_batches()

    def make_batches(self) -> None:
        """Divides the training set into batches of the size that the flags set."""
        args = self.args
        train = self.examples_of("train")
        if args.windows > 1 and isinstance(train, Texts):
            train = Texts(self.folder, "train", self.config.pad, self.config.max_length)
        weights = np.ones(len(self.classes))
        if args.class_weights:  # all classes count as if they were equally frequent
            counts = np.bincount(train.labels, minlength=len(self.classes))
            weights = len(train) / len(self.classes) / np.maximum(counts, 1)
        self.batches = ExampleBatches(
            train,
            args.batch_tokens,
            args.seed,
            args.batch_size,
            weights,
            crop=args.crop,
            flip=args.flip == "yes",
            token_dropout=args.token_dropout,
        )

    def encode(self, corpus: Labelled, tokenizer: str, state: dict[str, Any] | None) -> None:
        """Encodes the corpus on disk, or finds it there, and keeps what describes it.

        state: of the run that is resumed. Raises UserError for another corpus than that run's,
        and for flags of another modality.
        """
        args = self.args
        self.name = corpus.name
        self.checksum = corpus.checksum
        self.left_out_line = corpus.left_out_line()
        self.transform = corpus.transform if corpus.modality == "image" else None
        if state:
            check_corpus(self.checksum, state, args.data, args.folder)
        else:
            self.check_flags()
        self.folder = prepare_labelled(
            corpus,
            CACHE / "encoded",
            tokenizer,
            max_length=args.max_length,
            vocab_size=args.vocab_size,
            kind=args.tokenizer,
            windows=args.windows,
        )
        self.meta = read_json(self.folder / "meta.json")
        self.unit = f"{corpus.modality}s"
        self.classes = self.meta["classes"]
        self.tokenizer = "" if self.transform else read_tokenizer(self.folder)

    def check_flags(self) -> None:
        """Raises UserError for flags of images if the corpus has texts, or the reverse."""
        args = self.args

        def has_set(*names: str) -> bool:
            return any(getattr(args, name) != getattr(type(args), name) for name in names)

        if not self.transform:
            if has_set("patch", "stem_channels", "image_size", "crop", "flip"):
                raise UserError(
                    f"--patch, --stem-channels, --image-size, --crop and --flip are for "
                    f"images, but {self.name} has texts"
                )
            return
        if has_set("token_dropout", "tokenizer", "windows"):
            raise UserError(
                f"--token-dropout, --tokenizer and --windows are for texts, but {self.name} "
                f"has images"
            )
        size = self.transform.output_size
        if args.crop >= size:
            raise UserError(f"--crop {args.crop}: images have {size} pixels a side")
        if not args.pretrained and size % args.patch:
            multiple = max(1, size // args.patch) * args.patch
            raise UserError(
                f"--patch {args.patch}: images have {size} pixels a side, which it does not "
                f"divide; --image-size {multiple} would do"
            )

    def new_config(self) -> ClassifierConfig:
        """Returns the shape of a model that begins with random weights. Raises UserError."""
        args = self.args
        if self.transform:
            kwargs = {
                "patch": args.patch,
                "stem_channels": args.stem_channels,
                "channels": self.transform.channels,
                "image_size": self.transform.output_size,
                "max_length": 1,
                "positions": "learned",
            }
        else:
            vocab_size = Tokenizer.from_str(self.tokenizer).get_vocab_size()
            kwargs = {"vocab_size": vocab_size}
        return make_config(
            ClassifierConfig,
            args,
            classes=len(self.classes),
            head_dropout=args.dropout,
            **kwargs,
        )

    def examples_of(self, part: str) -> Texts | Images:
        """Returns the examples of train, valid or test, mapped from disk."""
        if not self.transform:
            return Texts(self.folder, part, self.config.pad)
        length = self.config.num_prefix_tokens + self.config.num_patches
        return Images(self.folder, part, length)

    def __str__(self) -> str:
        """Returns what each part of the corpus holds, a line for each."""
        line = f"{self.name}: {len(self.classes)} classes"
        if not self.transform:
            tokenizer = Tokenizer.from_str(self.tokenizer)
            kinds = {WordLevel: "words", Unigram: "words and phrases"}
            kind = kinds.get(type(tokenizer.model), "tokens")
            line += f", a vocabulary of {tokenizer.get_vocab_size():,} {kind}"
        lines = [line]
        for part, counts in self.meta["parts"].items():
            line = f"{self.name}, {part}: {counts['examples']:,} {self.unit}"
            if counts.get("empty"):
                line += f"; {counts['empty']:,} empty"
            if counts.get("cut"):
                longest = longest_text(self.args.max_length, self.args.windows)
                line += f"; {counts['cut']:,} cut to {longest}"
            if self.meta["held_out"] and part == "valid":
                line += "; held out of training"
            lines.append(line)
        return "\n".join(lines + self.notes())

    def notes(self) -> list[str]:
        """Returns what is remarkable about the corpus and the weights, a line for each."""
        lines = []
        trained = np.unique(self.examples_of("train").labels)
        for part in self.meta["parts"]:
            labels = self.examples_of(part).labels
            unknown = labels[~np.isin(labels, trained)]
            if len(unknown):
                names = ", ".join(self.classes[label] for label in np.unique(unknown))
                lines.append(
                    f"warning: {len(unknown):,} of the {part} set's {len(labels):,} examples "
                    f"have classes that the training set lacks; no model can learn these, "
                    f"but they count in all metrics: {names[:120]}"
                )
        examples = self.meta["parts"]["train"]["examples"]
        lines += warnings_of_classes(self.classes, examples)
        lines += warnings_of_parts(self.meta["parts"], self.unit)
        lines += filter(None, [self.left_out_line, self.summary_of_weights])
        is_new = not (self.args.pretrained or self.args.is_resumed)
        if is_new and examples <= FEW_EXAMPLES:
            lines.append(
                f"few {self.unit}: pretrained weights would do better, such as "
                f"{PRETRAINED_WEIGHTS[self.meta['modality']]}: --pretrained FOLDER"
            )
        if self.transform and self.config.num_patches > MANY_PATCHES:
            lines.append(
                f"warning: {self.config.num_patches:,} patches an image make this slow; a "
                f"larger --patch, or a smaller --image-size, makes fewer"
            )
        return lines

    def step_cost(self, step: int) -> StepCost:
        rows = self.batches.rows(step)
        lengths = torch.from_numpy(self.batches.examples.lengths(rows)[0])
        flops = classifier_flops(self.config, lengths, frozen=self.args.freeze)
        return StepCost(len(rows), int(lengths.sum()), flops)

    def build_model(self) -> Classifier:
        """Returns the model to train, sped up. Its weights are not yet initialized."""
        args = self.args
        model = Classifier(self.config, self.transform)
        freeze(model, args.freeze)
        dtype = autocast_dtype(args.precision)
        return speed_up(model, args.device, dtype, args.recompute, args.compile)

    def evaluate(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> dict[str, float]:
        """Returns the loss and the metrics of a part; see `Task.evaluate`."""
        metrics, _ = self.final_evaluation(model, part, data_rank, data_size)
        return metrics

    def standard_error(self, value: float) -> float:
        """Returns the standard error of the accuracy in validation; see `Task`."""
        n = len(self.examples_of("valid"))
        share = (value * n + 1) / (n + 2)  # so that all right of few examples has an error, too
        return math.sqrt(max(0.0, share * (1 - share)) / n)

    @torch.no_grad()  # FSDP cannot gather in inference mode
    def final_evaluation(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> tuple[dict[str, float], np.ndarray]:
        """Returns the metrics, and the probabilities of all classes, (examples, classes).

        See `Task.final_evaluation`. Each rank fills in the rows of its examples, and the ranks
        add these arrays up. All metrics follow from the sum, so they are the same for any
        number of processes.
        """
        model.eval()
        device = next(model.parameters()).device
        examples = self.examples_of(part)
        dtype = autocast_dtype(self.args.precision)
        num_classes = len(self.classes)
        log_p = torch.zeros(len(examples), num_classes, device=device)
        batches = evaluation_batches(examples, EVALUATION_TOKENS, data_rank, data_size, device)
        for rows, (x, _, _) in batches:
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                values = model(x).log_softmax(-1)
            if len(rows):  # otherwise the batch is one example that is not to be counted
                log_p[rows.tolist()] = values
        sum_over_data(log_p, data_size)
        model.train()
        log_p = log_p.cpu()
        labels = torch.from_numpy(examples.labels.astype(np.int64))
        loss = -log_p.gather(1, labels[:, None]).double().mean().item()
        probabilities = log_p.exp_().numpy()
        confusion = confusion_matrix(examples.labels, probabilities.argmax(1), num_classes)
        return compute_metrics(confusion) | {"loss": loss}, probabilities

    @property
    def has_test_set(self) -> bool:
        """Whether the corpus has a part "test"."""
        return "test" in self.meta["parts"]

    def report(
        self, part: str, metrics: dict[str, float], outputs: np.ndarray
    ) -> tuple[dict[str, Any], str]:
        """Writes predictions.csv to the run's folder; see `Task.report`."""
        labels = self.examples_of(part).labels
        path = Path(self.args.folder) / "predictions.csv"
        self.write_predictions(path, part, outputs)
        confusion = confusion_matrix(labels, outputs.argmax(1), len(self.classes))
        summary = {
            **{f"{part}_{name}": round(value, 6) for name, value in metrics.items()},
            "classes": self.classes,
            "confusion": confusion.tolist(),
            "per_class": per_class(confusion, self.classes),
        }
        table = metrics_table(confusion, self.classes)
        text = f"the {part} set, {len(labels):,} examples:\n\n{table}\n\n"
        return summary, text + f"Now try it:\n\n  python {script_path('classify.py')}\n"

    def write_predictions(self, path: Path, part: str, probabilities: np.ndarray) -> None:
        """Writes a line for each example.

        It has the name of its file or, of a text and of an image in an IDX file, its number
        from 0 in the part; its class, the likeliest class, and all probabilities.
        """
        labels = self.examples_of(part).labels
        files = self.folder / f"{part}.files.json"
        rows = read_json(files) if files.is_file() else range(len(labels))
        columns = ["file" if files.is_file() else "row", "label", "prediction"]
        table: list[list] = [[*columns, *(f"p({name})" for name in self.classes)]]
        for row, label, values in zip(rows, labels, probabilities):
            line = [row, self.classes[label], self.classes[values.argmax()]]
            table.append([*line, *(f"{value:.6f}" for value in values)])
        write_csv(path, table)

    def state(self) -> dict[str, Any]:
        """Returns what classify.py and a resumed run need besides the weights."""
        return {
            "type": "classification",
            "config": asdict(self.config),
            "classes": self.classes,
            "tokenizer": self.tokenizer,
            "checksum": self.checksum,
            "transform": asdict(self.transform) if self.transform else None,
        }


def freeze(model: Classifier, layers: int) -> None:
    """Excludes the lowest `layers` layers, and all below them, from training."""
    if not layers:
        return
    frozen = ["stem.", "embedding", "positions", "prefix_tokens"]
    frozen += [f"encoder.{i}." for i in range(layers)]
    if model.config.norm == "post":  # then the norm comes before the layers
        frozen.append("norm.")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith(tuple(frozen)))
