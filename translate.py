"""Translates with a trained model: at a prompt, one sentence, a file, or a test set with its BLEU score.

    python translate.py                                   # a prompt, until q; the newest run's best checkpoint
    python translate.py "Ein Hund läuft im Park."         # one sentence
    python translate.py < in.de > out.en                  # as many lines out as in
    python translate.py --score test.de test.en           # BLEU with its sacreBLEU signature
    python translate.py --checkpoint A --checkpoint B …   # the mean of two models, or more: an ensemble
    python translate.py --attention out.png "Ein Hund."   # a picture of what each word comes from
"""

import argparse
import atexit
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from corpora import CACHE, BadInput, read_lines, read_parallel
from data import BOS, BPE, EOS, answer_bad_input, available_cores, keep_memory
from decode import CONTROL, alignment, has_int8, translate_batch, translate_lines
from model import load_checkpoint, to_decode

BLOCK = 20_000               # lines read at a time, so that a file of any size needs no more memory


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="?", help="a sentence to translate; without it: a prompt, or standard input")
    parser.add_argument("--checkpoint", action="append", metavar="FILE",
                        help="a .pt file of a run; several of one vocabulary: an ensemble (default: best.pt of the newest run in logs/)")
    parser.add_argument("--beam", type=int, default=4, help="hypotheses kept while searching; 1 is greedy (default 4)")
    parser.add_argument("--n-best", type=int, default=1, help="translations to show, with their scores (default 1)")
    parser.add_argument("--score", nargs=2, metavar=("SRC", "REF"), help="translate SRC and score it against REF")
    parser.add_argument("--attention", metavar="PNG", help="draw what each word of the translation attends to")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="where to run (default auto)")
    parser.add_argument("--procs", type=int, default=0, help="processes for a file (default: one a core)")
    parser.add_argument("--precision", choices=("auto", "int8", "bf16", "fp32"), default="auto",
                        help="what to multiply in (default auto: the fastest here; training evaluates in its own)")
    parser.error = lambda message: (print(f"error: {message}; --help lists the flags", file=sys.stderr), sys.exit(2))
    args = parser.parse_args()
    if not 1 <= args.n_best <= args.beam:
        raise BadInput(f"--n-best {args.n_best} with --beam {args.beam}: it takes at least 1, and a beam no smaller")
    if args.score and args.n_best > 1:
        raise BadInput("--score takes the best translation: leave out --n-best")
    if args.attention and (not args.text or args.score or args.n_best > 1):
        raise BadInput("--attention draws the best translation of one sentence: name it, and leave out --score and --n-best")
    if args.device == "auto":
        args.device = "cuda" if torch.cuda.is_available() else "cpu"
    elif args.device == "cuda" and not torch.cuda.is_available():
        raise BadInput("--device cuda: there is no GPU here that PyTorch can use; --device cpu does without")
    if args.precision == "int8" and (args.device == "cuda" or not has_int8()):
        raise BadInput(f"--precision int8: not on this {'GPU' if args.device == 'cuda' else 'CPU'}; auto takes the fastest that is")
    return args


class Translator:
    """A model ready to translate: text in, text out; many lines on all cores, a process for each, or on the GPU."""

    def __init__(self, args: argparse.Namespace):
        newest = sorted(Path("logs").glob("*/best.pt"), key=lambda p: p.stat().st_mtime)[-1:]
        self.args, self.paths = args, args.checkpoint or newest
        if not self.paths:
            raise BadInput("there is no checkpoint under logs/ yet; train one, in a few minutes: python train_cpu.py")
        try:
            models, checkpoints = zip(*(load_checkpoint(str(path)) for path in self.paths))
        except (OSError, ValueError) as problem:
            raise BadInput(problem)
        if len({(checkpoint["bpe"], checkpoint["config"]["max_length"]) for checkpoint in checkpoints}) > 1:
            raise BadInput("--checkpoint: the models of an ensemble need one vocabulary and --max-length; these have different ones")
        if 2 * args.beam > models[0].config.vocab_size:
            raise BadInput(f"--beam {args.beam}: more than half the vocabulary, {models[0].config.vocab_size}")
        self.languages, self.bpe = [checkpoints[0]["flags"][side] for side in ("src", "tgt")], BPE(checkpoints[0]["bpe"])
        self.model, *others = (to_decode(model, args.device, args.precision) for model in models)
        self.here = partial(translate_batch, self.model, beam=args.beam, n_best=args.n_best, others=others)
        self.pool = None
        keep_memory()                                      # before the pool forks

    def __call__(self, lines: list[str]) -> list[str]:
        """One translation for each line, or its n best, tab-separated from their scores, a line each."""
        answers = translate_lines(self.bpe, lines, self.model.config.max_length - 1, self.search)
        if self.args.n_best == 1:
            return [hypotheses[0][1] for hypotheses in answers]
        return ["\n".join(f"{score:.3f}\t{text}" for score, text in hypotheses) for hypotheses in answers]

    def search(self, batches: list[list[list[int]]]) -> Iterator[list]:
        """What `translate_lines` asks for."""
        procs = 1 if self.args.device == "cuda" else min(self.args.procs or available_cores(), len(batches))
        if procs > 1 and self.pool is None:
            # A fork has the model at once; but what macOS multiplies matrices with does not survive one.
            how = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
            self.pool = ProcessPoolExecutor(procs, how, start_worker, (self.here,))
            atexit.register(self.pool.shutdown)            # which keeps it until then: to be collected at the end, it may fail
        try:
            yield from self.pool.map(search_there, batches) if self.pool else map(self.here, batches)
        except BrokenProcessPool:
            raise BadInput("a process that translated has died (out of memory?); fewer of them: --procs N")


def start_worker(parents) -> None:
    """Makes a pool's process ready: one thread, Ctrl-C left to the parent."""
    global here
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    here = parents


def search_there(batch: list[list[int]]) -> list:
    return here(batch)


def prompt(translator: Translator) -> None:
    """Reads and answers until q, Ctrl-D or Ctrl-C; arrow keys edit the line and find earlier ones."""
    try:
        import readline

        history = CACHE / "history"
        readline.set_history_length(1000)
        if history.exists():
            readline.read_history_file(history)
    except (ImportError, OSError):                         # no such library, or another's file: no history
        readline = None
    src, tgt = translator.languages
    print(f"{', '.join(map(str, translator.paths))}: {src} to {tgt}. Type a sentence; q ends.")
    try:
        while (line := input(f"{src}> ")).strip() != "q":
            if line.strip():
                for answer in translator([readable(line)])[0].split("\n"):
                    print(f"{tgt}> {answer}")
    except (EOFError, KeyboardInterrupt):
        print()
    finally:
        with suppress(OSError):
            if readline:
                history.parent.mkdir(parents=True, exist_ok=True)
                readline.write_history_file(history)


def readable(text: str) -> str:
    """Text that was typed or passed as an argument, with what is not UTF-8 in it replaced."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def draw_attention(translator: Translator, text: str, path: str) -> None:
    """A heat map: a row for each word of the translation, a column for each of the source, dark where it attends to.

    It is the decoder's last layer, mean over heads; the parts that BPE cuts a word into are taken together.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("--attention needs a package to draw with: pip install matplotlib")
    bpe, model = translator.bpe, translator.model
    if len(bpe.encode([text])[0]) >= model.config.max_length:
        raise BadInput(f"--attention: a sentence of more than {model.config.max_length - 1} tokens")
    src = torch.tensor([bpe.encode([text])[0] + [EOS]], device=model.embedding.weight.device)
    ids = model.translate(src, translator.args.beam)[0][0][1] + [EOS]
    weights = alignment(model, src, torch.tensor([[BOS, *ids[:-1]]], device=src.device))[0].float().cpu()
    rows, columns = ([(CONTROL.sub(" ", word), tokens) for word, tokens in bpe.words(of)] for of in (ids, src[0].tolist()))
    weights = torch.stack([weights[tokens].mean(0) for _, tokens in rows])
    weights = torch.stack([weights[:, tokens].sum(1) for _, tokens in columns], dim=1)      # (words, words)
    longest = [max(len(word) for word, _ in words) for words in (rows, columns)]             # labels need room, in inches
    size = 1.5 + 0.35 * len(columns) + 0.1 * longest[0], 0.5 + 0.3 * len(rows) + 0.1 * longest[1]
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), [word for word, _ in columns], rotation=90, parse_math=False)
    axes.set_yticks(range(len(rows)), [word for word, _ in rows], parse_math=False)
    axes.set(xlabel="source", ylabel="translation")
    axes.xaxis.tick_top()
    figure.colorbar(image, label="attention")
    figure.savefig(path, dpi=200, format="png")
    print(f"{path}: {CONTROL.sub(' ', bpe.decode(ids))}")


def score(args: argparse.Namespace) -> None:
    """Prints the BLEU of the translation of a file, how it was computed, and how long it took."""
    import sacrebleu

    pairs = list(read_parallel(*map(Path, args.score)))
    if not pairs:
        raise BadInput(f"{args.score[0]} and {args.score[1]} are empty")
    sources, references = zip(*pairs)
    translator = Translator(args)
    began = time.perf_counter()
    hypotheses = translator(list(sources))
    seconds = time.perf_counter() - began
    metric = sacrebleu.BLEU()
    print(f"BLEU {metric.corpus_score(hypotheses, [references]).score:.2f}  {metric.get_signature()}\n"
          f"{len(sources):,} sentences, beam {args.beam}, {seconds:.1f} s, {len(sources) / seconds:,.0f} sentences/s")


def main() -> None:
    args = parse_arguments()
    if args.score:
        score(args)
    elif args.attention:
        draw_attention(Translator(args), readable(args.text), args.attention)
    elif args.text is not None:
        print(Translator(args)([readable(args.text)])[0])
    elif sys.stdin.isatty():
        prompt(Translator(args))
    else:
        translator, lines = Translator(args), read_lines("standard input", sys.stdin.buffer)
        while block := list(islice(lines, BLOCK)):
            print("\n".join(translator(block)), flush=True)


if __name__ == "__main__":
    with answer_bad_input():
        try:
            main()
        except BrokenPipeError:                            # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
