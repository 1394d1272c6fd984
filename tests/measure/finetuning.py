"""Fine-tuning beside Hugging Face's Trainer: same weights or shape, same rows, on all cores.

    python tests/measure/finetuning.py --data agnews --pretrained FOLDER --epochs 2
    python tests/measure/finetuning.py --data agnews --layers 2 --d-ff 512  # from scratch

All other flags are those of train_cpu.py, with its default settings. Needs `pip install
transformers accelerate`. The Trainer runs after this project, with its own defaults: one
process with a thread per core, batches of 8 as they come, padded to their longest, AdamW at
5e-5 (--trainer-lr). It runs in fp32 and, if the CPU is fast in bf16, with bf16=True; each also
with this project's batch size, and a learning rate that grows with its square root. Prints a
table: samples per second in training, and the accuracy on rows of the test set; with --rounds,
the medians of several turns. This project holds out one row in 20 to validate, and trains on
the rest.
"""

import argparse
import csv
import json
import math
import os
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch
from printed import header, row

from support.classification.corpus import Labelled, classes_of
from support.classification.labelled import find_labelled
from support.common.hardware import available_cores, device_name, fast_precision

TRAINER_BATCH = 8  # the Trainer's defaults
TRAINER_LR = 5e-5


def train_by_trainer(folder: Path) -> None:
    """Trains what told.json in `folder` describes; prints its speed and accuracy."""
    from transformers import (
        AutoModelForSequenceClassification,
        AutoTokenizer,
        BertConfig,
        BertForSequenceClassification,
        PreTrainedTokenizerFast,
        Trainer,
        TrainingArguments,
    )

    told = json.loads((folder / "told.json").read_text())
    torch.set_num_threads(available_cores())
    if told["pretrained"]:
        tokenizer = AutoTokenizer.from_pretrained(told["pretrained"])
        model = AutoModelForSequenceClassification.from_pretrained(
            told["pretrained"], num_labels=told["classes"]
        )
    else:
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=told["tokenizer"], pad_token="<pad>")
        model = BertForSequenceClassification(
            BertConfig(
                vocab_size=len(tokenizer),
                num_labels=told["classes"],
                pad_token_id=0,
                **told["shape"],
            )
        )
    parts = {}
    for part in ("train", "test"):
        with open(folder / f"{part}.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        ids = tokenizer(
            [row["text"] for row in rows],
            truncation=True,
            max_length=told["max_length"],
            return_token_type_ids=False,
        )
        parts[part] = [
            {"input_ids": tokens, "attention_mask": mask, "labels": int(row["number"])}
            for tokens, mask, row in zip(ids["input_ids"], ids["attention_mask"], rows)
        ]
    how = TrainingArguments(
        str(folder / "trained"),
        num_train_epochs=told["epochs"],
        bf16=told["bf16"],
        learning_rate=told["lr"],
        per_device_train_batch_size=told["batch_size"],
        use_cpu=True,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    trainer = Trainer(model, how, train_dataset=parts["train"], processing_class=tokenizer)
    speed = trainer.train().metrics["train_samples_per_second"]
    predicted = trainer.predict(parts["test"])
    accuracy = (predicted.predictions.argmax(-1) == predicted.label_ids).mean()
    print(f"{speed:.2f} samples/s, accuracy {accuracy:.4f}")


def write_rows(folder: Path, corpus: Labelled, most: int) -> int:
    """Writes some rows of the corpus to train.csv and test.csv; returns how many classes."""
    classes = classes_of(corpus)
    for part, count in (("train", most), ("test", most // 3)):
        rows = list(corpus.parts[part]())
        random.Random(1).shuffle(rows)
        with open(folder / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["text", "class", "number"])
            table.writerows((text, name, classes.index(name)) for text, name in rows[:count])
    return len(classes)


def run(command: list[str], folder: Path) -> str:
    """What a command prints; ends where it fails."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)}:\n{done.stderr[-2000:]}")
    return done.stdout


def train_ours(folder: Path, flags: list[str], name: str) -> tuple[float, float, dict]:
    """Samples per second and accuracy of train_cpu.py, and all flags of this run."""
    run([str(ROOT / "train_cpu.py"), "--name", name, *flags], folder)
    summary, config = (
        json.loads((folder / "logs" / name / file).read_text())
        for file in ("summary.json", "config.json")
    )
    speeds = [epoch["samples_per_second"] for epoch in summary["epochs"]]
    return statistics.mean(speeds), summary["test_accuracy"], config["flags"]


def train_theirs(folder: Path, told: dict) -> tuple[float, float]:
    """Samples per second and accuracy of the Trainer, in a process of its own."""
    (folder / "told.json").write_text(json.dumps(told))
    said = run([__file__, "--trainer", str(folder)], folder)
    speed, accuracy = re.search(r"([\d.]+) samples/s, accuracy ([\d.]+)", said).groups()
    return float(speed), float(accuracy)


def what_is_told(args: dict, classes: int, folder: Path) -> dict:
    """What the Trainer has in common with our run, whose flags are `args`."""
    told = {
        "pretrained": args["pretrained"],
        "classes": classes,
        "epochs": args["epochs"],
        "max_length": args["max_length"],
        "shape": {
            "num_hidden_layers": args["layers"],
            "hidden_size": args["d_model"],
            "num_attention_heads": args["heads"],
            "intermediate_size": args["d_ff"],
            "max_position_embeddings": args["max_length"],
            "hidden_dropout_prob": args["dropout"],
            "attention_probs_dropout_prob": args["dropout"],
        },
    }
    if not args["pretrained"]:
        checkpoint = torch.load(folder / "logs/ours-1/best.pt", weights_only=True)
        serialized = checkpoint["task"]["tokenizer"]
        (folder / "tokenizer.json").write_text(serialized, encoding="utf-8")
        told["tokenizer"] = str(folder / "tokenizer.json")
    return told


def print_table(found: dict[str, list[tuple[float, float]]]) -> None:
    print(f"\n{device_name('cpu')}, {available_cores()} cores\n")
    titles = ["samples/s in training", "range", "ours is faster by", "accuracy, test set"]
    print(header("", *titles))
    medians = {
        name: [statistics.median(column) for column in zip(*values)]
        for name, values in found.items()
    }
    ours = next(iter(medians.values()))[0]
    for name, (speed, accuracy) in medians.items():
        speeds = [speed for speed, _ in found[name]]
        span = f"{min(speeds):.1f} - {max(speeds):.1f}"
        print(row(name, f"{speed:.1f}", span, f"{ours / speed:.1f}", f"{accuracy:.1%}"))


def main() -> None:
    own = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument(
        "--rows",
        metavar="N",
        type=int,
        default=3000,
        help="rows to train on; a third as many test",
    )
    own.add_argument("--rounds", metavar="N", type=int, default=1)
    own.add_argument(
        "--trainer-lr",
        metavar="X",
        type=float,
        default=TRAINER_LR,
        help=f"the Trainer's learning rate with batches of {TRAINER_BATCH}",
    )
    own.add_argument("--data", required=True, help="the corpus, as train_cpu.py takes it")
    own.add_argument("--pretrained", default="", help="folder of weights to begin with")
    for name in ("test", "text", "label"):
        own.add_argument(f"--{name}", default="", help="as train_cpu.py takes it")
    if sys.argv[1:2] == ["--trainer"]:
        train_by_trainer(Path(sys.argv[2]))
        return
    given, flags = own.parse_known_args()
    found: dict[str, list[tuple[float, float]]] = {}

    def record(name: str, speed: float, accuracy: float) -> None:
        found.setdefault(name, []).append((speed, accuracy))
        line = f"{name}: {speed:.1f} samples/s, accuracy {accuracy:.4f}"
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = find_labelled(given.data, test=given.test, text=given.text, label=given.label)
        if "test" not in corpus.parts:
            sys.exit(f"error: {given.data} has no test set: name one with --test")
        classes = write_rows(folder, corpus, given.rows)
        mine = shlex.split("--data train.csv --test test.csv --text text --label class")
        # As the Trainer, it reads the first --max-length tokens of a text: no further windows.
        mine += ["--windows", "1", *flags]
        if given.pretrained:
            mine += ["--pretrained", str(Path(given.pretrained).resolve())]
        for turn in range(1, given.rounds + 1):
            speed, accuracy, args = train_ours(folder, mine, f"ours-{turn}")
            size = args["batch_size"]
            if not size:
                sys.exit("error: pass --batch-size, not --batch-tokens")
            record(f"this project, {args['precision']}, batches of {size}", speed, accuracy)
            told = what_is_told(args, classes, folder)
            for precision in sorted({"fp32", fast_precision("cpu")}, reverse=True):
                for batch_size in sorted({TRAINER_BATCH, size}):
                    told["bf16"] = precision == "bf16"
                    told["batch_size"] = batch_size
                    told["lr"] = given.trainer_lr * math.sqrt(batch_size / TRAINER_BATCH)
                    name = f"Trainer, {precision}, batches of {batch_size}"
                    record(name, *train_theirs(folder, told))
    print_table(found)


if __name__ == "__main__":
    main()
