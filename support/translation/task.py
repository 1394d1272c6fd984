"""The task "translate": sentence pairs in, a Transformer and its BLEU out.

A task is what a page trains; the pages know nothing else of it. Its interface:

    batches(step, rank, world_size, accumulate, device)   # (micro-batches left, batch), one by one
    targets(step)                                          # of the whole step, over all processes
    size(step)                                           # examples, tokens, FLOPs of the whole step
    model()                                                # model(*batch) gives (loss, nll), sums
    evaluate(model, part, rank, world_size, final)         # figures by name; final: at the end
    report(model, rank, world_size, folder)                # the last figures, and what to show
    saved()                                                # what the checkpoint needs of it
    figures, unit, epoch_steps, plan, weights              # what support/training/run.py asks for besides
"""

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from data import BPE, PAD, Batches, Pairs, group_by_length, prepare, read_bpe, read_text
from model import ModelConfig, Transformer
from support.common.checkpoint import load
from support.common.errors import UserError, first_line
from support.common.flops import flops
from support.common.hardware import available_cores
from support.common.kernels import speed_up
from support.common.paths import CACHE
from support.corpora.pairs import find_corpus
from support.distributed.collectives import all_gather_objects, broadcast_object
from support.translation.beam import translate_batch
from support.translation.lines import translate_lines

# What is best for a corpus of this size, found on its validation part; a flag that is given wins.
PRESETS = {
    "phrasebook": dict(
        vocab_size=3000,
        layers=2,
        d_model=128,
        d_ff=512,
        batch_tokens=3072,
        epochs=5,
        warmup=300,
        lr=4e-3,
        dropout=0.05,
        average_checkpoints=2,
    ),
    "multi30k": dict(
        vocab_size=6000,
        d_ff=512,
        batch_tokens=3072,
        epochs=30,
        warmup=500,
        lr=2.5e-3,
        dropout=0.3,
        weight_decay=0.1,
        average_checkpoints=8,
    ),
}
BEAM = 4
CORPUS_FLAGS = ("data", "valid", "test", "src", "tgt")


def presets(flags: dict) -> dict:
    """What is best for the corpus that the flags name. Raises UserError if it is not there."""
    return PRESETS.get(find_corpus(*(flags[name] for name in CORPUS_FLAGS)).name, {})


def model_config(args, vocab_size: int) -> ModelConfig:
    """The model's shape from the flags. Raises UserError for an impossible one."""
    names = (
        "layers",
        "d_model",
        "heads",
        "d_ff",
        "dropout",
        "label_smoothing",
        "norm",
        "max_length",
    )
    try:
        return ModelConfig(vocab_size, **{name: getattr(args, name) for name in names})
    except ValueError as problem:
        raise UserError(problem) from problem


def load_translator(path: Path) -> tuple[Transformer, BPE, dict]:
    """The model of a checkpoint, ready to translate, its BPE, and what else the task saved."""
    saved = (content := load(path))["task"]
    try:
        model = Transformer(ModelConfig(**saved["config"]))
        model.load_state_dict(content["model"])
        bpe = BPE(saved["bpe"])
    except Exception as problem:  # tokenizers raises Exception itself
        raise UserError(
            f"{path}: not a whole checkpoint of a translator ({first_line(problem)})"
        ) from problem
    return model.eval(), bpe, saved


class Translation:
    """Sentence pairs, encoded on disk, and how a Transformer is trained on them and scored."""

    figures = ("bleu",)  # the first decides which weights are best
    weights = None  # none to begin with
    unit = "source+target tokens"  # of what its speed is

    def __init__(self, args, saved: dict | None):
        corpus = find_corpus(*(getattr(args, name) for name in CORPUS_FLAGS))
        self.args, self.checksum = args, corpus.checksum()
        if saved and saved["checksum"] != self.checksum:
            raise UserError(f"the corpus {corpus.name} has changed since the run was started")
        self.folder = prepare(
            corpus, CACHE / "encoded", args.vocab_size, args.max_length, saved and saved["bpe"]
        )
        self.bpe = BPE(read_bpe(self.folder))
        self.config = model_config(args, self.bpe.vocab_size)
        self.pairs = Pairs(self.folder, "train")
        self.plan = Batches(self.pairs, args.batch_tokens, args.seed, args.batch_size)
        self.batches, self.targets = self.plan.step, self.plan.targets
        self.epoch_steps = len(self.plan)

    def __str__(self) -> str:
        """What each part of the corpus holds, a line for each."""
        meta, lines = json.loads((self.folder / "meta.json").read_text()), []
        for part, counts in meta["parts"].items():
            left_out = [
                f"{counts[name]:,} {text}"
                for name, text in (
                    ("too_long", f"over {self.args.max_length} tokens"),
                    ("empty", "with an empty side"),
                )
                if counts[name]
            ]
            lines.append(
                f"{meta['name']}, {part}: {counts['pairs']:,} pairs, "
                f"{counts['tokens']:,} tokens"
                + (f"; left out: {', '.join(left_out)}" if left_out else "")
                + "; held out of training" * (meta["held_out"] and part == "valid")
            )
        return "\n".join(lines)

    def size(self, step: int) -> tuple[int, int, float]:
        """Sentence pairs, tokens on both sides without padding, and FLOPs of a whole step."""
        rows = self.plan.rows(step)
        lengths = [torch.from_numpy(side) for side in self.pairs.lengths(rows)]
        return len(rows), int(sum(side.sum() for side in lengths)), flops(self.config, *lengths)

    def model(self) -> Transformer:
        """The model to train, with fast parts in place, its weights not yet initialized."""
        args = self.args
        return speed_up(
            Transformer(self.config), args.device, args.precision == "bf16", args.recompute
        )

    @torch.no_grad()  # FSDP cannot gather in inference mode
    def evaluate(
        self, model: nn.Module, part: str, rank: int, world_size: int, final: bool = False
    ) -> dict[str, float]:
        """Figures of the part "valid" or "test"; every sentence is scored once, by one process.

        bleu: sacreBLEU's, of greedy translations, or if `final` of those that beam search finds;
        loss: negative log-likelihood a target token, in nats; token_accuracy: how often the most
        likely token is the right one. All processes take part, and all get the same figures.
        """
        was_training = model.training
        model.eval()
        pairs = Pairs(self.folder, part)
        device, nobody = next(model.parameters()).device, np.arange(0)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        batches = group_by_length(
            pairs.lengths(np.arange(len(pairs))), 4096, np.random.default_rng(0)
        )
        # As many batches for each process: a sharded model is gathered by all of them at once.
        for first in range(0, len(batches), world_size):
            rows = batches[first + rank] if first + rank < len(batches) else nobody
            batch = [side.to(device) for side in pairs.batch(rows)]
            with torch.autocast(
                device.type, torch.bfloat16, enabled=self.args.precision == "bf16"
            ):
                nll, correct = model.score(*batch)
            sums += torch.stack(
                [nll.double(), correct.double(), (batch[2] != PAD).sum().double()]
            )
        dist.all_reduce(sums)
        nll, correct, targets = sums.tolist()
        figures = {"bleu": 0.0, "loss": nll / targets, "token_accuracy": correct / targets}
        self.translations = self.translate(model, part, BEAM if final else 1, rank, world_size)
        if rank == 0:
            references = read_text(self.folder, part, "tgt")
            figures["bleu"], self.signature = bleu(self.translations, references)
        model.train(was_training)
        return broadcast_object(figures)

    def translate(
        self, model: nn.Module, part: str, beam: int, rank: int, world_size: int
    ) -> list[str]:
        """Translations of a part, shared out among the processes that can hold a whole model."""
        from support.distributed.weights import (
            gather_model,  # slow to import: not for translate.py
        )

        whole = gather_model(
            model, lambda: speed_up(Transformer(self.config), "cpu", False).eval()
        )
        holding = all_gather_objects(whole is not None)
        holders = [r for r in range(world_size) if holding[r]]

        def search(batches: list[list[list[int]]]) -> list:
            found = []
            for first in range(0, len(batches), len(holders)):  # --timeout is for one turn
                turn = dict(zip(holders, batches[first : first + len(holders)]))
                mine = translate_batch(whole, turn[rank], beam) if rank in turn else None
                shares = all_gather_objects(mine)
                found += [shares[holder] for holder in turn]
            return found

        threads = torch.get_num_threads()
        if len(holders) < world_size:  # the others wait: their cores are free
            torch.set_num_threads(available_cores())
        sources, longest = read_text(self.folder, part, "src"), self.config.max_length - 1
        found = translate_lines(self.bpe, sources, longest, search, quiet=True)
        torch.set_num_threads(threads)
        return [hypotheses[0][1] for hypotheses in found]

    def report(
        self, model: nn.Module, rank: int, world_size: int, folder: Path
    ) -> tuple[dict, str]:
        """Scores the test part, or without one the validation part, as translate.py translates.

        Writes translations.txt to `folder`. Returns entries for summary.json and text to show.
        """
        part = "test" if (self.folder / "test.src.txt").is_file() else "valid"
        figures = self.evaluate(model, part, rank, world_size, final=True)
        if rank > 0:
            return {}, ""
        text = "\n".join(self.translations) + "\n"
        (folder / "translations.txt").write_text(text, encoding="utf-8")
        sources, references = (read_text(self.folder, part, side) for side in ("src", "tgt"))
        lines = [
            f"BLEU {figures['bleu']:.1f} on {len(sources):,} sentences of the {part} part, "
            f"beam {BEAM} ({self.signature})",
            "",
        ]
        for i in range(0, len(sources), max(1, len(sources) // 5)):
            lines += [
                f"  source       {sources[i]}",
                f"  translation  {self.translations[i]}",
                f"  reference    {references[i]}",
                "",
            ]
        summary = {
            "beam": BEAM,
            f"{part}_bleu": round(figures["bleu"], 2),
            "bleu_signature": self.signature,
        }
        return summary, "\n".join([*lines, "Now talk to it:", "", "  python translate.py", ""])

    def saved(self) -> dict:
        """What translate.py, and a run that goes on, need besides the weights."""
        return {
            "kind": "translation",
            "config": asdict(self.config),
            "bpe": self.bpe.serialized,
            "src": self.args.src,
            "tgt": self.args.tgt,
            "checksum": self.checksum,
        }


def bleu(hypotheses: list[str], references: list[str]) -> tuple[float, str]:
    """Corpus BLEU and its signature (Post, 2018): cased, tokenized by sacreBLEU's 13a."""
    import sacrebleu

    assert len(hypotheses) == len(references)  # sacreBLEU would not say
    metric = sacrebleu.BLEU()
    score = metric.corpus_score(hypotheses, [references]).score
    return score, str(metric.get_signature())
