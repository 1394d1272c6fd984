"""Classifies with a trained model: a prompt, a text or image, a file, or a test set to score.

Examples:
    python classify.py                          # a prompt, until q
    python classify.py "Wo wohnt der Mann?"     # one text
    python classify.py shirt.png                # one image, or several, with a model of images
    python classify.py < in.txt > out.txt       # label, tab, probability of each line
    python classify.py --score test.csv         # precision, recall, F1 and accuracy
    python classify.py --export FOLDER          # for Hugging Face's transformers
"""

import argparse
import os
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from data import group_by_length
from support.classification.classifier import Classifier, ClassifierConfig
from support.classification.corpus import MAX_CLASSES, Labelled, Reader, normalize_name
from support.classification.encoding import encode_texts, hold_out_labelled, longest_text
from support.classification.images import ImageTransform, read_image
from support.classification.labelled import find_labelled
from support.classification.metrics import confusion_matrix, metrics_table
from support.common.checkpoint import find_checkpoint
from support.common.errors import UserError, as_user_error, make_parser, run_main
from support.common.hardware import available_cores, configure_backends, find_device
from support.common.kernels import speed_up
from support.common.prompt import prompt, warn_if_path
from support.common.streams import readable
from support.common.text_table import pad_right, text_width
from support.corpora.archives import PARTS
from support.corpora.class_folders import IMAGES
from support.corpora.encoded import in_order
from support.corpora.pairs import find_part_tables
from support.corpora.tables import blocks, find_table, lines_of
from support.pretrained.export import export

BATCH_TOKENS = {"cpu": 4096, "cuda": 65_536}  # a GPU needs more of them to be busy
BLOCK = 1024  # examples classified at a time, so that memory does not grow with the file
MAX_CLASSES_SHOWN = 5
BAR_WIDTH = 30  # characters of a bar that stands for probability 1


# --- Command line -----------------------------------------------------------------------------


def parse_arguments() -> argparse.Namespace:
    """Returns the command line's arguments. Raises UserError."""
    parser = make_parser(__doc__, "[TEXT]")
    add = parser.add_argument
    add_action = parser.add_mutually_exclusive_group().add_argument
    add_action(
        "examples",
        nargs="*",
        default=[],
        metavar="TEXT",
        help="a text, or the paths of images [a prompt, or standard input]",
    )
    add_action(
        "--score",
        metavar="FILE",
        help="labelled examples to classify: a .csv, .tsv, .json or .jsonl file, a folder of "
        "class folders, or valid, test or train for this part of the training corpus",
    )
    add_action(
        "--export",
        metavar="FOLDER",
        help="write a model trained with --pretrained for Hugging Face's transformers, which "
        "cuts the end of long texts",
    )
    add(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="a .pt file or a run's folder [best.pt of the newest classifier in logs/]",
    )
    for flag, content in (("--text", "text"), ("--label", "classes")):
        hint = f"column of the {content} in --score's file [as in training]"
        add(flag, default="", metavar="COLUMN", help=hint)
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run [auto]")
    add("--threads", type=int, default=0, help="CPU cores to use; 0 means all [0]")
    args = parser.parse_args()
    if (args.text or args.label) and not args.score:
        raise UserError(
            "--text and --label name columns of --score's file, so pass --score, too"
        )
    if "" in (args.score, args.export):  # as of a variable that is not set
        raise UserError("--score and --export need a name")
    if args.threads < 0:
        raise UserError(f"--threads {args.threads}: it must not be negative")
    if args.export and Path(args.export, "config.json").exists():
        raise UserError(f"--export {args.export}: the folder has a model already")
    args.device = find_device(args.device)
    return args


# --- The classifier ---------------------------------------------------------------------------


class Predictor:
    """A trained Classifier, ready to use: texts or images in, probabilities out."""

    def __init__(self, path: Path, checkpoint: dict[str, Any], device: str):
        """path, checkpoint: a file and its content; device: "cpu" or "cuda".

        Raises UserError.
        """
        self.path = path
        self.device = device
        self.flags = checkpoint["flags"]  # of the run that trained the model
        self.state = checkpoint["task"]
        self.transform = None
        with as_user_error(f"{path}: not a complete checkpoint of a classifier"):
            self.classes = self.state["classes"]
            self.windows = self.flags["windows"]  # of a text, at most
            if self.state["transform"]:
                self.transform = ImageTransform(**self.state["transform"])
            else:
                self.tokenizer = Tokenizer.from_str(self.state["tokenizer"])
            self.model = Classifier(ClassifierConfig(**self.state["config"]), self.transform)
            self.model.load_state_dict(checkpoint["model"])
        speed_up(self.model.eval().to(device), device)
        self.modality = "image" if self.transform else "text"
        self.num_examples = 0
        self.num_cut = 0  # texts that were longer than the model allows

    @torch.inference_mode()
    def __call__(self, examples: list) -> Tensor:
        """Returns probabilities, (examples, classes), on the CPU.

        examples: texts, or images, (channels, height, width) bytes.
        """
        if isinstance(examples, str):
            raise TypeError("a Predictor takes a list of texts, not one string")
        config = self.model.config
        if self.transform:
            lengths = np.full(len(examples), config.num_prefix_tokens + config.num_patches)
        else:
            limits = (config.max_length, self.windows)
            ids, num_cut = encode_texts(self.tokenizer, examples, *limits)
            self.num_cut += num_cut
            lengths = np.array([max(1, len(text)) for text in ids])
        self.num_examples += len(examples)
        logits = torch.empty(len(examples), config.classes)
        batch_tokens = BATCH_TOKENS[self.device]
        for rows in group_by_length([lengths], batch_tokens, np.random.default_rng(0)):
            if self.transform:
                x = torch.from_numpy(np.stack([examples[row] for row in rows]))
            else:
                texts = [torch.tensor(ids[row] or [config.pad]) for row in rows]
                x = pad_sequence(texts, batch_first=True, padding_value=config.pad)
            logits[rows.tolist()] = self.model(x.to(self.device)).cpu()
        return logits.softmax(-1)


# --- Predictions ------------------------------------------------------------------------------


def read_example(predictor: Predictor, line: str) -> str | np.ndarray:
    """Returns the line or, if the model is for images, the image whose path it is."""
    if predictor.transform:
        # A terminal puts quotes around the name of a file that is dragged into it.
        path = os.path.expanduser(line.strip().strip("'\""))
        return read_image(Path(path), predictor.transform)
    name = line.strip()
    if Path(name).suffix.lower() in IMAGES and os.path.isfile(name):
        raise UserError(
            f"{line}: an image, but {predictor.path} is a model of texts; --checkpoint names "
            f"one of images"
        )
    return readable(line)


def label_lines(predictor: Predictor, examples: Sequence[str | np.ndarray | None]) -> list[str]:
    """Returns the likeliest class of each example, a tab and its probability; "" for None."""
    lines = [""] * len(examples)
    rows = [i for i, example in enumerate(examples) if example is not None]
    probabilities, labels = predictor([examples[i] for i in rows]).max(-1)
    for i, p, label in zip(rows, probabilities.tolist(), labels.tolist()):
        lines[i] = f"{predictor.classes[label]}\t{p:.4f}"
    return lines


def bar_chart(predictor: Predictor, line: str) -> str:
    """Returns a line with a bar for each of the likeliest classes of a text or image."""
    num_shown = min(MAX_CLASSES_SHOWN, len(predictor.classes))
    probabilities, labels = predictor([read_example(predictor, line)])[0].topk(num_shown)
    names = [predictor.classes[label] for label in labels.tolist()]
    columns = max(map(text_width, names))
    lines = []
    for name, p in zip(names, probabilities.tolist()):
        bar = "=" * round(BAR_WIDTH * p)
        lines.append(f"{pad_right(name, columns)}  {p:6.1%}  {bar}")
    return "\n".join(lines)


# --- Labelled examples ------------------------------------------------------------------------


def find_examples(args: argparse.Namespace, predictor: Predictor) -> tuple[Reader, str]:
    """Returns the reader of the examples that --score names, and what follows their number.

    They are a table, a folder, or a part of the corpus that the model was trained on. Raises
    UserError, also if they are not of the model's modality.
    """
    flags = predictor.flags
    path = Path(args.score)
    is_part = args.score in PARTS and not path.exists()
    sources = {"data": args.score}
    if is_part:
        sources = {name: flags[name] for name in ("data", "valid", "test")}
    columns = {"text": args.text, "label": args.label}
    # `find_labelled` refuses columns for what is not a table.
    if is_part or find_table(path) or find_part_tables(path):
        columns = {name: value or flags[name] for name, value in columns.items()}
    corpus = find_labelled(**sources, **columns, transform=predictor.transform)
    if corpus.modality != predictor.modality:
        raise UserError(
            f"--score {args.score}: it has {corpus.modality}s, but {predictor.path} is a model "
            f"of {predictor.modality}s"
        )
    if is_part:
        read = read_part(corpus, args.score, predictor.state["checksum"])
        return read, f" of the {args.score} set"
    if corpus.left_out:
        print(corpus.left_out_line(), file=sys.stderr)
    part = in_order(corpus.parts)[-1]  # test, or valid, or train
    description = f" of the {part} set" if len(corpus.parts) > 1 else ""
    if part == "train" and path.resolve() == Path(flags["data"]).resolve():
        description = ", including those that the model was trained on"
    return corpus.parts[part], description


def read_part(corpus: Labelled, part: str, checksum: str) -> Reader:
    """Returns the reader of a part as training had it. Raises UserError.

    Without a validation set, some of the training examples are that set. checksum: that of the
    corpus when the model was trained.
    """
    parts = hold_out_labelled(corpus)
    if part not in parts:
        raise UserError(f"--score {part}: {corpus.name} has only the parts {', '.join(parts)}")
    # The choice of the held-out examples depends on all examples.
    if part != "test" and corpus.checksum != checksum:
        raise UserError(
            f"--score {part}: {corpus.name} has changed since the model was trained on it, or "
            f"an earlier version of the scripts trained it, which held out other examples"
        )
    return parts[part]


def score(args: argparse.Namespace, predictor: Predictor) -> None:
    """Prints the metrics of the model on labelled examples, and the speed. Raises UserError.

    An example of a class that the model does not know counts as wrong.
    """
    read, description = find_examples(args, predictor)
    start = time.perf_counter()
    classes, confusion = classify_labelled(args, predictor, read())
    seconds = time.perf_counter() - start
    total = confusion.sum()
    unit = f"{predictor.modality}s"
    print(metrics_table(confusion, classes))
    print(f"\n{total:,} {unit}{description}, {seconds:.1f} s, {total / seconds:,.0f} {unit}/s")
    if len(classes) > len(predictor.classes):
        warn_of_unknown(predictor, classes, confusion)


def warn_of_unknown(predictor: Predictor, classes: list[str], confusion: np.ndarray) -> None:
    """Prints which classes the model does not know, perhaps only because of their spelling.

    classes: the model's, then the others; confusion: their confusion matrix.
    """
    num_known = len(predictor.classes)
    unknown = classes[num_known:]
    counts = f"{confusion[num_known:].sum():,} of {confusion.sum():,} {predictor.modality}s"
    print(
        f"warning: {counts} have classes that the model does not know, and count as wrong: "
        f"{', '.join(unknown)[:120]}",
        file=sys.stderr,
    )
    known = {normalize_name(name): name for name in predictor.classes}
    for name in unknown:
        similar = known.get(normalize_name(name))
        if similar is not None:
            print(f"warning: is {name!r} the model's {similar!r}?", file=sys.stderr)


def classify_labelled(
    args: argparse.Namespace, predictor: Predictor, examples: Iterable[tuple[Any, str]]
) -> tuple[list[str], np.ndarray]:
    """Returns all classes, and the confusion matrix, (classes, classes).

    The classes are the model's, followed by those that only the labels have. Raises UserError
    if there is no example, and if there are too many classes.
    """
    numbers = {name: i for i, name in enumerate(predictor.classes)}
    labels: list[int] = []
    predictions: list[int] = []
    for block in blocks(examples, BLOCK):
        labels += [numbers.setdefault(name, len(numbers)) for _, name in block]
        if len(numbers) > MAX_CLASSES:
            raise UserError(
                f"--score {args.score}: {len(numbers):,} classes; does --label name the right "
                f"column?"
            )
        inputs = [example for example, _ in block]
        if predictor.transform:
            inputs = [read_image(image, predictor.transform) for image in inputs]
        predictions += predictor(inputs).argmax(-1).tolist()
    classes = list(numbers)
    if not labels:
        raise UserError(f"--score {args.score}: it has no example")
    return classes, confusion_matrix(labels, predictions, len(classes))


# --- Actions ----------------------------------------------------------------------------------


def classify_line(predictor: Predictor, line: str) -> None:
    """Prints the classes of a text, or of the image whose path it is."""
    if not line.strip():
        raise UserError("the argument is empty")
    chart = bar_chart(predictor, line)
    if predictor.modality == "text":
        warn_if_path(line)
    print(chart)


def classify_files(predictor: Predictor, paths: list[str]) -> None:
    """Prints a line for each image: its path, the likeliest class, and the probability."""
    if predictor.modality == "text":
        raise UserError("pass one text, in quotes, or several as lines of standard input")
    examples = ((path, read_example(predictor, path)) for path in paths)
    for block in blocks(examples, BLOCK):  # also those before one that cannot be read
        names, images = zip(*block)
        for path, line in zip(names, label_lines(predictor, images)):
            print(f"{path}\t{line}")


def classify_at_prompt(predictor: Predictor) -> None:
    """Classifies what is typed at a prompt."""
    expected = "a text" if predictor.modality == "text" else "the path of an image"
    greeting = f"{predictor.path}: {len(predictor.classes)} classes. Type {expected}; q ends."
    prompt(greeting, "> ", partial(bar_chart, predictor))


def classify_stdin(predictor: Predictor) -> None:
    """Classifies the lines of standard input; an empty line stays empty."""
    lines = lines_of(sys.stdin.buffer, "standard input")
    examples = (read_example(predictor, line) if line.strip() else None for line in lines)
    for block in blocks(examples, BLOCK):
        print("\n".join(label_lines(predictor, block)), flush=True)


def main() -> None:
    args = parse_arguments()
    configure_backends()
    torch.set_num_threads(min(args.threads or available_cores(), available_cores()))
    predictor = Predictor(*find_checkpoint(args.checkpoint, "classification"), args.device)
    if args.score is not None:
        score(args, predictor)
    elif args.export is not None:
        export(Path(args.export), predictor.model, predictor.state)
        print(f"{args.export}: {predictor.path} in the format of transformers")
    elif len(args.examples) > 1:
        classify_files(predictor, args.examples)
    elif args.examples:
        classify_line(predictor, args.examples[0])
    elif sys.stdin.isatty():
        classify_at_prompt(predictor)
    else:
        classify_stdin(predictor)
    if predictor.num_cut:
        longest = longest_text(predictor.model.config.max_length, predictor.windows)
        print(
            f"warning: {predictor.num_cut:,} of {predictor.num_examples:,} texts were cut to "
            f"the model's maximum of {longest}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run_main(main)
