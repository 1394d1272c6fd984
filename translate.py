"""Translates with a trained model: at a prompt, one sentence, a file, or a test set with its BLEU.

python translate.py                                   # a prompt, until q
python translate.py "Ein Hund läuft im Park."         # one sentence
python translate.py < in.de > out.en                  # as many lines out as in
python translate.py --score test.de test.en           # BLEU with its sacreBLEU signature
python translate.py --checkpoint A --checkpoint B …   # the mean of several models: an ensemble
python translate.py --attention out.png "Ein Hund."   # a picture of what each word comes from
python translate.py --engine ctranslate2 < in.de      # in int8: pip install ctranslate2
"""

import argparse
import sys
import time
from pathlib import Path

import torch

from support.common.checkpoint import find_checkpoint
from support.common.errors import UserError, make_parser, refuse, run_main
from support.common.hardware import available_cores, find_device
from support.common.kernels import fast_precision
from support.common.prompt import prompt, readable
from support.corpora.pairs import read_lines, read_parallel
from support.corpora.tables import blocks
from support.translation.attention_picture import draw_attention
from support.translation.beam import translate_lines
from support.translation.pool import Pool
from support.translation.task import bleu, load_translator

AT_ONCE = 20_000  # lines: a file of any size needs no more memory than these


def parse_arguments() -> argparse.Namespace:
    """The command line, checked. Raises UserError."""
    parser = make_parser(__doc__, "[TEXT]")
    add = parser.add_argument
    add("text", nargs="?", metavar="TEXT", help="a sentence [a prompt, or standard input]")
    add(
        "--checkpoint",
        action="append",
        type=Path,
        metavar="PATH",
        default=[],
        help="a .pt file or a run's folder; several with one vocabulary: an ensemble "
        "[logs/'s newest translator's best.pt]",
    )
    add("--beam", type=int, default=4, help="hypotheses kept while searching; 1 is greedy [4]")
    add("--n-best", type=int, default=1, help="translations to show, with their scores [1]")
    add(
        "--score",
        nargs=2,
        metavar=("SRC", "REF"),
        help="translate SRC and score it against REF",
    )
    add("--attention", metavar="PNG", help="draw what each word of the translation attends to")
    add(
        "--engine",
        choices=("own", "ctranslate2"),
        default="own",
        help="what decodes: support/translation/beam.py, or CTranslate2 in int8 on the CPU [own]",
    )
    add("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run [auto]")
    add("--procs", type=int, default=0, help="processes for a file, of a core each [all cores]")
    add(
        "--precision",
        choices=("auto", "bf16", "fp32"),
        default="auto",
        help="of products [auto: bf16 on a GPU that has it, else fp32]",
    )
    args = parser.parse_args()
    ctranslate2 = args.engine == "ctranslate2"
    for wrong, message in [
        (args.beam < 1, f"--beam {args.beam}: it is at least 1"),
        (
            not 1 <= args.n_best <= args.beam,
            f"--n-best {args.n_best} with --beam {args.beam}: it is from 1 to the beam",
        ),
        (args.score and args.text is not None, "one thing at a time: a sentence or --score"),
        (
            args.score and args.n_best > 1,
            "--score takes the best translation: leave out --n-best",
        ),
        (
            args.attention
            and (not args.text or args.score or args.n_best > 1 or len(args.checkpoint) > 1),
            "--attention draws one model's best translation of one sentence: "
            "name it, and leave out --score, --n-best and a second --checkpoint",
        ),
        (
            args.procs < 0,
            f"--procs {args.procs}: a number of processes, or 0 for one on each core",
        ),
        (
            ctranslate2
            and (
                len(args.checkpoint) > 1
                or args.attention
                or args.device == "cuda"
                or args.precision != "auto"
            ),
            "--engine ctranslate2 decodes one --checkpoint, in int8 on the CPU; "
            "it goes without --attention, --precision and --device cuda",
        ),
    ]:
        if wrong:
            refuse(message)
    args.device = find_device(args.device, ("cpu",) if ctranslate2 else ("cpu", "cuda"))
    if args.precision == "auto":
        args.precision = fast_precision("cuda") if args.device == "cuda" else "fp32"
    return args


class Translator:
    """A model, or an ensemble, that is ready to translate: text in, text out."""

    def __init__(self, args: argparse.Namespace):
        """args: the command line, as `parse_arguments` gives it. Raises UserError."""
        self.args, cores = args, available_cores()
        procs = args.procs or cores
        torch.set_num_threads(min(procs, cores))  # for one sentence, by this process
        self.paths = [find_checkpoint(p, "translation") for p in args.checkpoint or [None]]
        models, bpes, tasks = zip(*map(load_translator, self.paths))
        self.model, self.bpe, self.task = models[0], bpes[0], tasks[0]
        config = self.model.config
        shapes = {(bpe.serialized, each.config.max_length) for each, bpe in zip(models, bpes)}
        directions = [(task["src"], task["tgt"]) for task in tasks]
        if len(shapes) > 1 or directions[0][::-1] in directions:
            raise UserError(
                "--checkpoint: the models of an ensemble need one vocabulary, direction "
                "and --max-length; these have different ones"
            )
        if 2 * args.beam > config.vocab_size:
            raise UserError(
                f"--beam {args.beam}: more than half the vocabulary, {config.vocab_size}"
            )
        sizes = args.beam, args.n_best, procs
        if args.engine == "own":
            self.engine = Pool(models, *sizes, args.device, args.precision == "bf16")
        else:
            try:
                from support.ctranslate.engine import Engine  # only here: it needs the package
            except ImportError:
                raise UserError(
                    "--engine ctranslate2 needs a package: pip install ctranslate2"
                ) from None
            self.engine = Engine(self.paths[0], self.model, *sizes)

    def __call__(self, lines: list[str]) -> list[str]:
        """One translation for each line; or its n best, a line each: score, tab, translation."""
        longest = self.model.config.max_length - 1
        answers, n = (
            translate_lines(self.bpe, lines, longest, self.engine.search),
            self.args.n_best,
        )
        if n == 1:
            return [hypotheses[0][1] for hypotheses in answers]
        # n lines for each, also where it has one translation: it is blank, or came in pieces.
        return [
            "\n".join(f"{score:.3f}\t{text}" for score, text in (hypotheses * n)[:n])
            for hypotheses in answers
        ]


def score(args: argparse.Namespace) -> None:
    """Prints the BLEU of the translation of a file, how it was computed, and how long it took."""
    pairs = list(read_parallel(*map(Path, args.score)))
    if not pairs:
        raise UserError(f"{args.score[0]} and {args.score[1]} are empty")
    sources, references = map(list, zip(*pairs))
    translator, began = Translator(args), time.perf_counter()
    hypotheses = translator(sources)
    seconds = time.perf_counter() - began
    figure, signature = bleu(hypotheses, references)
    print(
        f"BLEU {figure:.2f}  {signature}\n{len(sources):,} sentences, beam {args.beam}, "
        f"{seconds:.1f} s, {len(sources) / seconds:,.0f} sentences/s"
    )


def talk(translator: Translator) -> None:
    """Translates what is typed at a prompt."""
    src, tgt = translator.task["src"], translator.task["tgt"]
    names = ", ".join(map(str, translator.paths))
    prompt(
        f"{names}: {src} to {tgt}. Type a sentence; q ends.",
        f"{src}> ",
        lambda line: "\n".join(f"{tgt}> {text}" for text in translator([line])[0].split("\n")),
    )


def main() -> None:
    args = parse_arguments()
    if args.score:
        score(args)
    elif args.attention:
        translator, text = Translator(args), readable(args.text)
        answer = draw_attention(
            translator.model, translator.bpe, text, args.beam, args.attention
        )
        print(f"{args.attention}: {answer}")
    elif args.text is not None:
        print(Translator(args)([readable(args.text)])[0])
    elif sys.stdin.isatty():
        talk(Translator(args))
    else:
        translator, lines = Translator(args), read_lines("standard input", sys.stdin.buffer)
        for block in blocks(lines, AT_ONCE):
            print("\n".join(translator(block)), flush=True)


if __name__ == "__main__":
    run_main(main)
