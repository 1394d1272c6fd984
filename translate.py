"""Translates with a trained model: a prompt, a sentence, a file, or a test set to score.

Examples:
    python translate.py                                   # a prompt, until q
    python translate.py "Ein Hund läuft im Park."         # one sentence
    python translate.py < in.de > out.en                  # as many lines out as in
    python translate.py --score test.de test.en           # BLEU and chrF, with signatures
    python translate.py --checkpoint A --checkpoint B …   # an ensemble of several models
    python translate.py --attention out.png "Ein Hund."   # plots what each word attends to
    python translate.py --engine ctranslate2 < in.de      # in int8: pip install ctranslate2
"""

import argparse
import sys
import time
from itertools import takewhile
from pathlib import Path

import torch

from support.common.checkpoint import find_checkpoint
from support.common.errors import UserError, make_parser, require, run_main
from support.common.hardware import autocast_dtype, available_cores, fast_precision, find_device
from support.common.prompt import prompt, warn_if_path
from support.common.streams import readable
from support.corpora.pairs import read_parallel
from support.corpora.tables import blocks, lines_of
from support.translation.lines import translate_lines
from support.translation.pool import Pool
from support.translation.scores import bleu, chrf
from support.translation.task import load_translator

FIGURES = (".png", ".svg", ".pdf")
LINES_AT_ONCE = 20_000  # of a file: the memory that it takes does not grow with its size


# --- The command line -------------------------------------------------------------------------


def parse_arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Returns the arguments, checked; words: None for the command line's. Raises UserError."""
    words = sys.argv[1:] if words is None else words
    parser = make_parser(__doc__, "[TEXT ...]")
    add = parser.add_argument
    add(
        "words",
        nargs="*",
        metavar="TEXT",
        help="a sentence, in quotes or not [a prompt, or standard input]",
    )
    add(
        "--checkpoint",
        action="append",
        type=Path,
        metavar="PATH",
        default=[],
        help="a .pt file or a run's folder; several with one vocabulary form an ensemble "
        "[best.pt of the newest translator in logs/]",
    )
    add("--beam", type=int, default=4, help="hypotheses in beam search; 1 is greedy [4]")
    add(
        "--n-best",
        type=int,
        default=1,
        help="translations of each line, with scores; of a line in "
        "several pieces only one, N times [1]",
    )
    add(
        "--score",
        nargs=2,
        metavar=("SRC", "REF"),
        help="translate SRC and score it against REF",
    )
    add(
        "--attention",
        metavar="FILE",
        help="plot what each word of the translation attends to [.png, .svg, .pdf]",
    )
    add(
        "--engine",
        choices=("own", "ctranslate2"),
        default="own",
        help="decoder: support/translation/beam.py, or CTranslate2 in int8 on the CPU [own]",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run [auto]")
    add("--procs", type=int, default=0, help="processes for a file of many lines [all cores]")
    add(
        "--precision",
        choices=("auto", "bf16", "fp16", "fp32"),
        default="auto",
        help="precision of matrix products [auto: bf16 on a GPU, or fp16 on one of compute "
        "capability 7; else fp32]",
    )
    # After "--" come words alone. `parse_intermixed_args` does not know it.
    flags = list(takewhile(lambda word: word != "--", words))
    args = parser.parse_intermixed_args(flags)
    args.words += words[len(flags) + 1 :]
    args.text = " ".join(args.words) if args.words else None
    check_arguments(args)
    devices = ("cpu",) if args.engine == "ctranslate2" else ("cpu", "cuda")
    args.device = find_device(args.device, devices)
    if args.precision == "auto":
        args.precision = fast_precision("cuda") if args.device == "cuda" else "fp32"
    return args


def check_arguments(args: argparse.Namespace) -> None:
    """Raises UserError for a value that is out of range, and for flags that exclude others."""
    for name, minimum in (("beam", 1), ("procs", 0)):
        value = getattr(args, name)
        if value < minimum:
            raise UserError(f"--{name} {value}: it must be at least {minimum}")
    if not 1 <= args.n_best <= args.beam:
        raise UserError(
            f"--n-best {args.n_best} with --beam {args.beam}: it must be from 1 to the beam"
        )
    is_ensemble = len(args.checkpoint) > 1
    if args.score and args.text is not None:
        raise UserError("--score translates a file: leave out the sentence")
    if args.score and args.n_best > 1:
        raise UserError("--score takes the best translation: leave out --n-best")
    if args.attention is not None:
        check_figure(args.attention)
        if not args.text or args.text.isspace():
            raise UserError("--attention needs a sentence to translate: add it to the command")
    if args.attention and (args.score or args.n_best > 1 or is_ensemble):
        raise UserError(
            "--attention plots the best translation of one model: "
            "leave out --score, --n-best and the second --checkpoint"
        )
    if args.engine == "ctranslate2" and (
        is_ensemble or args.attention or args.device == "cuda" or args.precision != "auto"
    ):
        raise UserError(
            "--engine ctranslate2 decodes with one --checkpoint, in int8 on the CPU: "
            "leave out --attention, --precision and --device cuda"
        )


def check_figure(name: str) -> None:
    """Raises UserError unless a figure can be written under this name."""
    is_device = name.startswith("/dev/")  # such as /dev/stdout
    if not is_device and Path(name).suffix.lower() not in FIGURES:
        raise UserError(f"--attention {name!r}: the name must end in {', '.join(FIGURES)}")


# --- The translator ---------------------------------------------------------------------------


class Translator:
    """A model, or an ensemble, that is ready to translate: text in, text out."""

    def __init__(self, args: argparse.Namespace):
        """args: the command line, as `parse_arguments` returns it. Raises UserError."""
        procs = args.procs or available_cores()
        self.n_best = args.n_best
        self.paths = []
        loaded = []
        for requested in args.checkpoint or [None]:
            path, checkpoint = find_checkpoint(requested, "translation")
            self.paths.append(path)
            loaded.append(load_translator(path, checkpoint))
        in_common = {  # what all models of an ensemble must have
            (bpe.serialized, model.config.max_length, task["src"], task["tgt"])
            for model, bpe, task in loaded
        }
        if len(in_common) > 1:
            raise UserError(
                "--checkpoint: the models of an ensemble need one vocabulary, direction and "
                "--max-length; these have different ones"
            )
        models = [model for model, _, _ in loaded]
        self.model, self.bpe, self.task = loaded[0]
        vocab_size = self.model.config.vocab_size
        if 2 * args.beam > vocab_size:
            raise UserError(f"--beam {args.beam}: more than half the vocabulary, {vocab_size}")
        if args.engine == "ctranslate2":
            require("ctranslate2", "--engine ctranslate2")
            from support.ctranslate.engine import Engine

            self.search = Engine(self.model, args.beam, args.n_best, procs).search
        else:
            dtype = autocast_dtype(args.precision)
            pool = Pool(models, args.beam, args.n_best, procs, args.device, dtype)
            self.search = pool.search
        self.device = args.device

    def __call__(self, lines: list[str]) -> list[str]:
        """Returns each line's translation; with --n-best, lines of score, tab, translation."""
        max_tokens = self.model.config.max_length - 1  # eos is added
        answers = translate_lines(self.bpe, lines, max_tokens, self.search, self.device)
        if self.n_best == 1:
            return [texts[0][1] for texts in answers]
        outputs = []
        for texts in answers:
            if len(texts) == 1:  # of a blank line, or one that was translated in pieces
                texts = texts * self.n_best
            outputs.append("\n".join(f"{score:.3f}\t{text}" for score, text in texts))
        return outputs


# --- What is translated -----------------------------------------------------------------------


def score_file(args: argparse.Namespace, translator: Translator) -> None:
    """Prints a file's BLEU and chrF, and the speed. Pairs with an empty side do not count."""
    src, ref = map(Path, args.score)
    pairs = list(read_parallel(src, ref))
    scored = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
    if not scored:
        raise UserError(f"{src} and {ref} have no line with text in both")
    sources, references = map(list, zip(*scored))
    start = time.perf_counter()
    hypotheses = translator(sources)
    seconds = time.perf_counter() - start
    by_words = bleu(hypotheses, references, translator.task["tgt"])
    by_characters = chrf(hypotheses, references)
    print(f"BLEU {by_words.value:.2f}  {by_words.signature}")
    print(f"chrF {by_characters.value:.2f}  {by_characters.signature}")
    print(
        f"{len(sources):,} sentences, beam {args.beam}, {seconds:.1f} s, "
        f"{len(sources) / seconds:,.0f} sentences/s"
    )
    if len(scored) < len(pairs):
        print(f"not scored: {len(pairs) - len(scored):,} lines with an empty side")
    print(by_words.note, end="")


def start_prompt(translator: Translator) -> None:
    """Translates what is typed at a prompt."""
    src = translator.task["src"]
    tgt = translator.task["tgt"]
    names = ", ".join(map(str, translator.paths))

    def answer(line: str) -> str:
        translations = translator([readable(line)])[0].split("\n")
        return "\n".join(f"{tgt}> {text}" for text in translations)

    prompt(f"{names}: {src} to {tgt}. Type a sentence; q ends.", f"{src}> ", answer)


def main() -> None:
    args = parse_arguments()
    # This process decodes what fits in one batch, such as a sentence; others decode files. With
    # more threads a sentence is no faster and, on cores with other work, many times as slow,
    # since threads wait for each other.
    torch.set_num_threads(1)
    translator = Translator(args)
    if args.score:
        score_file(args, translator)
    elif args.attention:
        from support.translation.attention_plot import draw_attention

        text = readable(args.text)
        model, bpe = translator.model, translator.bpe
        translation = draw_attention(model, bpe, text, args.beam, args.attention)
        print(f"{args.attention}: {translation}")
    elif args.text is not None:
        warn_if_path(args.text)
        print(translator([readable(args.text)])[0])
    elif sys.stdin.isatty():
        start_prompt(translator)
    else:
        lines = lines_of(sys.stdin.buffer, "standard input")
        for block in blocks(lines, LINES_AT_ONCE):
            print("\n".join(translator(block)), flush=True)


if __name__ == "__main__":
    run_main(main)
