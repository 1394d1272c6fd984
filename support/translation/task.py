"""The task of translation: sentence pairs in, a Transformer and its scores out.

The interface of a task is `Task` in support/training/tasks.py.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from data import BOS, BPE, EOS, PAD, Batches, Pairs, evaluation_batches
from model import ModelConfig, Transformer
from support.common.checkpoint import check_corpus
from support.common.errors import UserError, as_user_error
from support.common.files import read_json, write_text
from support.common.flops import StepCost, transformer_flops
from support.common.hardware import autocast_dtype
from support.common.kernels import speed_up
from support.common.paths import CACHE, script_path
from support.common.shape import make_config
from support.corpora.encoded import read_tokenizer
from support.corpora.held_out import warnings_of_parts
from support.corpora.pairs import find_corpus
from support.distributed.collectives import (
    all_gather_objects,
    broadcast_object,
    long_barrier,
    sum_over_data,
)
from support.translation.beam import Batch, Hypothesis, translate_batch
from support.translation.encoding import prepare, read_text
from support.translation.lines import Search, translate_lines
from support.translation.scores import Score, bleu, chrf

BEAM = 4  # hypotheses of the last evaluations; those during training are greedy
EVALUATION_TOKENS = 2048  # a side in a batch of an evaluation, whose logits are all kept
EXAMPLES_SHOWN = 5  # at most, at the end of a run


def load_translator(
    path: Path, checkpoint: dict[str, Any]
) -> tuple[Transformer, BPE, dict[str, Any]]:
    """Returns a checkpoint's model, ready to translate, its BPE, and the state of its task.

    path, checkpoint: the file and its content. Raises UserError.
    """
    state = checkpoint["task"]
    with as_user_error(f"{path}: not a whole checkpoint of a translator"):
        model = Transformer(ModelConfig(**state["config"]))
        model.load_state_dict(checkpoint["model"])
        bpe = BPE(state["bpe"])
    return model.eval(), bpe, state


class Outputs(NamedTuple):
    """What a model made of a part, and how good it is."""

    translations: dict[int, str]  # by line number
    bleu: Score
    chrf: Score


class Translation:
    """Sentence pairs, encoded on disk, and how a Transformer is trained on them and scored."""

    metrics: tuple[str, ...] = ("bleu",)
    unit = "pairs"
    speed_unit = "source+target tokens"

    def __init__(self, args):
        """args: the run's settings."""
        state = args.task_state
        self.args = args
        self.pretrained_weights: dict[str, Tensor] | None = None
        corpus = find_corpus(args.data, args.valid, args.test, args.src, args.tgt)
        self.checksum = corpus.checksum
        if state:
            check_corpus(self.checksum, state, args.data, args.folder)
        bpe = state["bpe"] if state else ""
        self.folder = prepare(corpus, CACHE / "encoded", args.vocab_size, args.max_length, bpe)
        self.bpe = BPE(read_tokenizer(self.folder))
        ids = {"vocab_size": self.bpe.vocab_size, "pad": PAD, "bos": BOS, "eos": EOS}
        self.config = make_config(ModelConfig, args, **ids)
        self.make_batches()

    def make_batches(self) -> None:
        args = self.args
        train = Pairs(self.folder, "train")
        self.batches = Batches(train, args.batch_tokens, args.seed, args.batch_size)

    def __str__(self) -> str:
        meta = read_json(self.folder / "meta.json")
        lines = []
        for part, counts in meta["parts"].items():
            line = f"{meta['name']}, {part}: {counts['examples']:,} pairs"
            line += f", {counts['tokens']:,} tokens"
            if counts["too_long"]:
                line += f"; left out: {counts['too_long']:,} over {self.args.max_length} tokens"
            if counts["empty"]:
                line += f"; left out: {counts['empty']:,} with an empty side"
            if meta["held_out"] and part == "valid":
                line += "; held out of training"
            lines.append(line)
        pairs = [read_text(self.folder, "valid", side) for side in ("src", "tgt")]
        equal = sum(source == target != "" for source, target in zip(*pairs))
        if equal > meta["parts"]["valid"]["examples"] / 2:
            lines.append(
                f"warning: {equal:,} pairs of the valid set have equal sides; perhaps both "
                f"sides are of one language"
            )
        return "\n".join(lines + warnings_of_parts(meta["parts"], self.unit))

    def step_cost(self, step: int) -> StepCost:
        rows = self.batches.rows(step)
        lengths = self.batches.examples.lengths(rows)
        src_lengths, tgt_lengths = map(torch.from_numpy, lengths)
        tokens = int(src_lengths.sum() + tgt_lengths.sum())
        flops = transformer_flops(self.config, src_lengths, tgt_lengths)
        return StepCost(len(rows), tokens, flops)

    def build_model(self) -> Transformer:
        args = self.args
        dtype = autocast_dtype(args.precision)
        model = Transformer(self.config)
        return speed_up(model, args.device, dtype, args.recompute, args.compile)

    @property
    def has_test_set(self) -> bool:
        """Whether the corpus has a part "test"."""
        return (self.folder / "test.src.txt").is_file()

    @torch.no_grad()  # FSDP cannot gather in inference mode
    def evaluate(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> dict[str, float]:
        """Returns the loss and the metrics of a part; see `Task.evaluate`.

        loss: the negative log-likelihood per target token, in nats; token_accuracy: how often
        the most likely token is the right one; bleu: of greedy translations of at most
        --bleu-sentences pairs. Pairs with an empty side or more than --max-length tokens do not
        count.
        """
        model.eval()
        metrics = self.metrics_of_tokens(model, part, data_rank, data_size)
        # A loss that is not finite ends the run.
        if self.args.bleu_sentences and math.isfinite(metrics["loss"]):
            translations = self.translate_part(model, part, 1, self.args.bleu_sentences)
            (score,) = self.compute_scores(part, translations, [self.bleu])
            metrics["bleu"] = score.value
        model.train()
        return metrics

    def standard_error(self, value: float) -> float:
        """Returns 0: the standard error of BLEU has no simple formula."""
        return 0.0

    @torch.no_grad()
    def final_evaluation(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> tuple[dict[str, float], Outputs]:
        """Returns the metrics and the outputs of a part; see `Task.final_evaluation`.

        As `evaluate`, but BLEU and chrF are of beam search over all pairs. Raises UserError if
        the loss is not finite.
        """
        model.eval()
        metrics = self.metrics_of_tokens(model, part, data_rank, data_size)
        if not math.isfinite(metrics["loss"]):
            raise UserError(f"the loss on the {part} set is not finite; try --precision fp32")
        translations = self.translate_part(model, part, BEAM, sys.maxsize)
        scores = self.compute_scores(part, translations, [self.bleu, chrf])
        outputs = Outputs(translations, *scores)
        model.train()
        return metrics | {"bleu": outputs.bleu.value, "chrf": outputs.chrf.value}, outputs

    def bleu(self, translations: Sequence[str], references: Sequence[str]) -> Score:
        return bleu(translations, references, self.args.tgt)

    def compute_scores(
        self, part: str, translations: dict[int, str], functions: Sequence[Callable[..., Score]]
    ) -> list[Score]:
        """Returns what each function says of translations by line number. A collective."""
        scores = None
        if dist.get_rank() == 0:
            _, texts, references = zip(*self.lines_of(part, translations))
            scores = [function(texts, references) for function in functions]
        long_barrier()  # rank 0 has computed the scores
        return broadcast_object(scores)

    def lines_of(self, part: str, translations: dict[int, str]) -> list[tuple[str, str, str]]:
        """Returns (source, translation, reference) of the pairs that were translated."""
        sources = read_text(self.folder, part, "src")
        references = read_text(self.folder, part, "tgt")
        return [(sources[i], text, references[i]) for i, text in translations.items()]

    def metrics_of_tokens(
        self, model: nn.Module, part: str, data_rank: int, data_size: int
    ) -> dict[str, float]:
        """Returns "loss" and "token_accuracy" of a part, over all ranks."""
        pairs = Pairs(self.folder, part)
        device = next(model.parameters()).device
        dtype = autocast_dtype(self.args.precision)
        sums = torch.zeros(3, dtype=torch.float64, device=device)
        batches = evaluation_batches(pairs, EVALUATION_TOKENS, data_rank, data_size, device)
        for _, (src, tgt_in, tgt_out, token_indices) in batches:
            with torch.autocast(device.type, dtype, enabled=dtype is not None):
                logits = model(src, tgt_in).flatten(0, 1)[token_indices]  # (tokens, vocabulary)
            target = tgt_out.flatten()[token_indices]
            sums[0] += F.cross_entropy(logits, target, reduction="sum")
            sums[1] += (logits.argmax(-1) == target).sum()
            sums[2] += len(target)
        sum_over_data(sums, data_size)
        nll, correct, targets = sums.tolist()
        return {"loss": nll / targets, "token_accuracy": correct / targets}

    def translate_part(
        self, model: nn.Module, part: str, beam: int, max_lines: int
    ) -> dict[int, str]:
        """Returns translations by line number, of at most `max_lines` lines spread over a part.

        Each rank translates some, and all ranks get all. Empty lines, which stand for pairs
        left out, have none.
        """
        # Slow to import, and translate.py does not need it.
        from support.distributed.weights import gather_model

        def new_model() -> Transformer:
            return speed_up(Transformer(self.config), self.args.device).eval()

        dtype = None  # on a CPU it translates in fp32, as translate.py does
        if self.args.device == "cuda":
            dtype = autocast_dtype(self.args.precision)
        sources = read_text(self.folder, part, "src")
        numbers = [i for i, source in enumerate(sources) if source]
        numbers = numbers[:: math.ceil(len(numbers) / max_lines)]
        whole_model = cast(Transformer, gather_model(model, new_model))
        answers = translate_lines(
            self.bpe,
            [sources[i] for i in numbers],
            self.config.max_length - 1,
            shared_search(whole_model, beam, dtype),
            device=self.args.device,
            ranks=dist.get_world_size(),
            quiet=True,
        )
        best = [best_first[0][1] for best_first in answers]
        return dict(zip(numbers, best))

    def report(
        self, part: str, metrics: dict[str, float], outputs: Outputs
    ) -> tuple[dict[str, Any], str]:
        """Writes translations.txt to the run's folder; see `Task.report`.

        The line of a pair that is not scored is empty there.
        """
        count = len(read_text(self.folder, part, "src"))
        text = "".join(outputs.translations.get(i, "") + "\n" for i in range(count))
        write_text(Path(self.args.folder) / "translations.txt", text)
        scored = self.lines_of(part, outputs.translations)
        text = (
            f"BLEU {outputs.bleu.value:.1f}, chrF {outputs.chrf.value:.1f} "
            f"on {len(scored):,} sentences of the {part} set, beam {BEAM}\n"
            f"{outputs.bleu.note}"
            f"BLEU's signature: {outputs.bleu.signature}\n"
            f"chrF's signature: {outputs.chrf.signature}\n\n"
        )
        stride = math.ceil(len(scored) / EXAMPLES_SHOWN)
        for source, translation, reference in scored[::stride]:
            text += (
                f"  source       {source}\n"
                f"  translation  {translation}\n"
                f"  reference    {reference}\n\n"
            )
        text += f"Now talk to it:\n\n  python {script_path('translate.py')}\n"
        summary = {
            "beam": BEAM,
            f"{part}_bleu": round(outputs.bleu.value, 2),
            "bleu_signature": outputs.bleu.signature,
            f"{part}_chrf": round(outputs.chrf.value, 2),
            "chrf_signature": outputs.chrf.signature,
        }
        return summary, text

    def state(self) -> dict[str, Any]:
        return {
            "type": "translation",
            "config": asdict(self.config),
            "bpe": self.bpe.serialized,
            "src": self.args.src,
            "tgt": self.args.tgt,
            "checksum": self.checksum,
        }


def shared_search(model: Transformer, beam: int, dtype: torch.dtype | None) -> Search:
    """Returns a search for `translate_lines` in which the ranks take turns: a collective.

    dtype: that of autocast, if it is used.
    """
    rank = dist.get_rank()
    ranks = dist.get_world_size()

    def search(batches: list[Batch]) -> list[list[list[Hypothesis]]]:
        hypotheses = []
        # One batch a rank at a time: --timeout is for one turn, not for the whole part.
        for first in range(0, len(batches), ranks):
            turn = batches[first : first + ranks]
            own = None
            if rank < len(turn):
                own = translate_batch([model], turn[rank], beam, dtype=dtype)
            hypotheses += all_gather_objects(own)[: len(turn)]
        return hypotheses

    return search
