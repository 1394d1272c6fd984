"""Classifies with a trained model: at a prompt, one text or picture, a file, or a test set.

python classify.py                                    # a prompt, until q
python classify.py "Wo wohnt der Mann?"               # one text
python classify.py picture.png                        # one picture, with a model of pictures
python classify.py < in.txt > out.txt                 # label, tab, probability of each line
python classify.py --score test.csv                   # precision, recall, F1 and accuracy
python classify.py --export FOLDER                    # for Hugging Face's transformers
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from support.classification.images import Picture, read_picture
from support.classification.labelled import find_labelled
from support.classification.metrics import table
from support.classification.predict import load_classifier, logits
from support.classification.splits import hold_out
from support.common.checkpoint import find_checkpoint, load
from support.common.errors import make_parser, refuse, run_main
from support.common.hardware import available_cores, find_device
from support.common.kernels import configure_backends, speed_up
from support.common.prompt import prompt, readable
from support.corpora.pairs import PARTS, read_lines
from support.corpora.tables import TABLES, blocks, ending
from support.pretrained.pretrained import export

AT_ONCE = 1024  # examples: a file of any size needs no more memory than these


def parse_arguments() -> argparse.Namespace:
    """The command line, checked. Raises UserError."""
    parser = make_parser(__doc__, "[TEXT]")
    add = parser.add_argument
    add(
        "example",
        nargs="?",
        metavar="TEXT",
        help="a text, or the path of a picture [a prompt, or standard input]",
    )
    add(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="a .pt file or a run's folder [logs/'s newest classifier's best.pt]",
    )
    add(
        "--score",
        metavar="FILE",
        help="classify labelled examples: a .csv, .tsv or .jsonl file, "
        "a folder of class folders, or of what the model was trained on valid, test or train",
    )
    add("--text", metavar="COLUMN", help="of --score's file [as in training]")
    add("--label", metavar="COLUMN", help="of --score's file [as in training]")
    add("--export", metavar="FOLDER", help="write the model as transformers reads it")
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run [auto]")
    add("--threads", type=int, default=0, help="cores to compute on [all]")
    args = parser.parse_args()
    for wrong, message in [
        (
            sum(given is not None for given in (args.example, args.score, args.export)) > 1,
            "one thing at a time: a text or a picture, --score or --export",
        ),
        (
            (args.text or args.label) and not args.score,
            "--text and --label name columns of the file to --score",
        ),
        (
            args.export and (Path(args.export) / "config.json").exists(),
            f"--export {args.export}: there is a model already",
        ),
        (args.threads < 0, f"--threads {args.threads}: a number of cores, or 0 for all"),
    ]:
        if wrong:
            refuse(message)
    args.device = find_device(args.device)
    return args


class Labeller:
    """A model that is ready to classify: texts or pictures in, probabilities out."""

    def __init__(self, args: argparse.Namespace):
        """args: the command line, as `parse_arguments` gives it. Raises UserError."""
        configure_backends()
        torch.set_num_threads(min(args.threads or available_cores(), available_cores()))
        self.path = find_checkpoint(args.checkpoint, "classification")
        model, self.saved = load_classifier(self.path)
        self.model = speed_up(model.to(args.device), args.device, bf16=False)
        self.classes, picture = self.saved["classes"], self.saved["picture"]
        self.kind, self.picture = ("picture", Picture(**picture)) if picture else ("text", None)
        self.seen = self.cut = 0  # texts, and those that were too long

    def __call__(self, examples: list[str] | list[np.ndarray]) -> Tensor:
        """Probabilities, (examples, classes), of texts or of pictures from `read_picture`."""
        found, cut = logits(self.model, self.saved, examples)
        self.seen, self.cut = self.seen + len(examples), self.cut + cut
        return found.softmax(-1)

    def read(self, line: str) -> str | np.ndarray:
        """What a line stands for: itself, or the picture that it is the path of."""
        return read_picture(Path(line.strip()), self.picture) if self.picture else line

    def best(self, examples: list[str | np.ndarray | None]) -> list[str]:
        """Of each example its likeliest class, tab, probability; of None an empty line."""
        filled = [i for i, example in enumerate(examples) if example is not None]
        found, answers = [""] * len(examples), self([examples[i] for i in filled]).max(-1)
        for i, p, label in zip(filled, *(answer.tolist() for answer in answers)):
            found[i] = f"{self.classes[label]}\t{p:.4f}"
        return found

    def bars(self, line: str) -> str:
        """The likeliest classes of one text or picture, at most five, with their probabilities."""
        found = self([self.read(line)])[0].topk(min(5, len(self.classes)))
        rows = [
            (self.classes[label], p) for p, label in zip(*(side.tolist() for side in found))
        ]
        wide = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:{wide}}  {p:6.1%}  {'=' * round(30 * p)}" for name, p in rows)


def find_examples(args: argparse.Namespace, labeller: Labeller) -> tuple[Callable, str]:
    """The reader of what --score names, and which of several parts it is. Raises UserError."""
    flags = load(labeller.path)["flags"]
    is_part = args.score in PARTS and not Path(args.score).exists()
    columns = flags if is_part or ending(Path(args.score)) in TABLES else {}
    given = {name: getattr(args, name) or columns.get(name, "") for name in ("text", "label")}
    data = [flags[name] for name in ("data", "valid", "test")] if is_part else [args.score]
    corpus = find_labelled(*data, **given, picture=labeller.picture)
    parts = hold_out(corpus)[0] if is_part and args.score != "test" else corpus.parts
    part = args.score if is_part else [name for name in PARTS if name in parts][-1]
    if corpus.kind != labeller.kind:
        refuse(
            f"--score {args.score}: {corpus.kind}s, but {labeller.path} knows {labeller.kind}s"
        )
    if part not in parts:
        refuse(
            f"--score {part}: {corpus.name} has no such part, only "
            f"{', '.join(hold_out(corpus)[0])}"
        )
    if is_part and part != "test" and corpus.checksum() != labeller.saved["checksum"]:
        refuse(f"--score {part}: {corpus.name} has changed since the model was trained on it")
    same = Path(args.score).resolve() == Path(flags.get("data", "")).resolve()
    if same and part == "train" and not is_part:
        return parts[part], ", with those that the model was trained on"
    return parts[part], f" of the {part} part" if len(parts) > 1 else ""


def score(args: argparse.Namespace, labeller: Labeller) -> None:
    """Prints what a confusion matrix says of the model, and how long it took."""
    classes, (read, part) = labeller.classes, find_examples(args, labeller)
    number, n = {name: i for i, name in enumerate(classes)}, len(classes)
    counts, began = torch.zeros(n * n, dtype=torch.int64), time.perf_counter()
    for block in blocks(read(), AT_ONCE):
        given, names = map(list, zip(*block))
        if strange := set(names) - number.keys():
            refuse(
                f"--score {args.score}: the label {min(strange)!r} is none of the model's: "
                f"{', '.join(classes)[:120]}"
            )
        true = torch.tensor([number[name] for name in names])
        counts += torch.bincount(n * true + labeller(given).argmax(-1), minlength=n * n)
    seconds = time.perf_counter() - began
    if not (total := int(counts.sum())):
        refuse(f"--score {args.score}: there is no example in it")
    print(
        f"{table(counts.view(n, n), classes)}\n\n{total:,} {labeller.kind}s{part}, "
        f"{seconds:.1f} s, {total / seconds:,.0f} {labeller.kind}s/s"
    )


def talk(labeller: Labeller) -> None:
    """Classifies what is typed at a prompt."""
    kind = "the path of a picture" if labeller.picture else "a text"
    prompt(
        f"{labeller.path}: {len(labeller.classes)} classes. Type {kind}; q ends.",
        "> ",
        labeller.bars,
    )


def main() -> None:
    args = parse_arguments()
    labeller = Labeller(args)
    if args.score is not None:
        score(args, labeller)
    elif args.export:
        export(args.export, labeller.model, labeller.saved)
        print(f"{args.export}: {labeller.path}, as transformers reads it")
    elif args.example is not None:
        print(labeller.bars(readable(args.example)))
    elif sys.stdin.isatty():
        talk(labeller)
    else:
        examples = (
            labeller.read(line) if line.strip() else None
            for line in read_lines("standard input", sys.stdin.buffer)
        )
        for block in blocks(examples, AT_ONCE):
            print("\n".join(labeller.best(block)), flush=True)
    if labeller.cut:
        print(
            f"warning: {labeller.cut:,} of {labeller.seen:,} texts were cut at the "
            f"{labeller.model.config.max_length} tokens that the model takes",
            file=sys.stderr,
        )


if __name__ == "__main__":
    run_main(main)
