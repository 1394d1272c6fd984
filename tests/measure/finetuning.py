"""Fine-tuning beside Hugging Face's Trainer: same weights or shape, same rows, on all cores.

    python tests/measure/finetuning.py --data agnews --pretrained FOLDER --epochs 2
    python tests/measure/finetuning.py --data agnews --layers 2 --d-ff 512  # from scratch

All other flags are those of train_cpu.py, with its default settings. Needs `pip install
transformers accelerate`. The Trainer runs after this project, with its own defaults: one
process with a thread per core, batches of 8 as they come, padded to their longest, AdamW at
5e-5 (--trainer-lr), fp32; then, if the CPU is fast in bf16, the same with bf16=True. Prints a
table: samples per second in training, and the accuracy on rows of the test set. This project
holds out one row in 20 to validate, and trains on the rest.
"""

import argparse
import csv
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch

from support.classification.corpus import Labelled, classes_of
from support.classification.labelled import find_labelled
from support.common.hardware import available_cores, device_name, fast_precision


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


def report(name: str, speed: float, accuracy: float) -> None:
    print(
        f"{name}: {speed:.1f} samples/s, accuracy {accuracy:.4f}", file=sys.stderr, flush=True
    )


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
    own.add_argument(
        "--trainer-lr",
        metavar="X",
        type=float,
        default=5e-5,
        help="the Trainer's learning rate",
    )
    own.add_argument("--data", required=True, help="the corpus, as train_cpu.py takes it")
    for name in ("test", "text", "label", "pretrained"):
        own.add_argument(f"--{name}", default="", help="as train_cpu.py takes it")
    if sys.argv[1:2] == ["--trainer"]:
        train_by_trainer(Path(sys.argv[2]))
        return
    given, flags = own.parse_known_args()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        corpus = find_labelled(given.data, test=given.test, text=given.text, label=given.label)
        if "test" not in corpus.parts:
            sys.exit(f"error: {given.data} has no test set: name one with --test")
        classes = write_rows(folder, corpus, given.rows)
        mine = [
            *shlex.split("--data train.csv --test test.csv --text text --label class"),
            *flags,
        ]
        if given.pretrained:
            mine += ["--pretrained", str(Path(given.pretrained).resolve())]
        run([str(ROOT / "train_cpu.py"), "--name", "ours", *mine], folder)
        summary, config = (
            json.loads((folder / "logs/ours" / name).read_text())
            for name in ("summary.json", "config.json")
        )
        speeds = [epoch["samples_per_second"] for epoch in summary["epochs"]]
        found.append(("this project", sum(speeds) / len(speeds), summary["test_accuracy"]))
        report(*found[-1])
        args = config["flags"]
        told = {
            "pretrained": args["pretrained"],
            "lr": given.trainer_lr,
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
            serialized = torch.load(folder / "logs/ours/best.pt", weights_only=True)["task"][
                "tokenizer"
            ]
            (folder / "tokenizer.json").write_text(serialized, encoding="utf-8")
            told["tokenizer"] = str(folder / "tokenizer.json")
        for bf16 in (False, True) if fast_precision("cpu") == "bf16" else (False,):
            (folder / "told.json").write_text(json.dumps(told | {"bf16": bf16}))
            said = run([__file__, "--trainer", str(folder)], folder)
            speed, right = re.search(r"([\d.]+) samples/s, accuracy ([\d.]+)", said).groups()
            found.append((f"Trainer, {'bf16' if bf16 else 'fp32'}", float(speed), float(right)))
            report(*found[-1])
    print(
        f"\n{device_name('cpu')}, {available_cores()} cores\n\n"
        "| | samples/s in training | ours is faster by | accuracy, test set |\n|" + " --- |" * 4
    )
    for name, speed, right in found:
        print(f"| {name} | {speed:.1f} | {found[0][1] / speed:.1f} | {100 * right:.1f} % |")


if __name__ == "__main__":
    main()
