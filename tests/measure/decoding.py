"""Decoding speed of a checkpoint: our search, translate.py --engine ctranslate2, and others.

    python tests/measure/decoding.py logs/RUN/best.pt test.de test.en

Needs ctranslate2 (pip install ctranslate2). Prints a table for greedy search and for a beam of
4: sentences per second of the whole file on all cores, the best of three after a warm-up; BLEU;
and milliseconds for one sentence, the median of 30. "CTranslate2 itself" makes its own batches
of at most 2,048 tokens, without translate.py. With --joeynmt PYTHON, the interpreter of another
environment, JoeyNMT 2.3 is measured too: with our weights, once through the file, in our
batches.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import torch
from printed import header, row

from data import BPE, EOS
from model import Transformer
from support.common.checkpoint import find_checkpoint
from support.common.hardware import available_cores
from support.corpora.pairs import read_parallel
from support.ctranslate.engine import Engine
from support.translation.lines import MAX_SENTENCES, MAX_TOKENS, sort_into_batches
from support.translation.scores import bleu
from support.translation.task import load_translator
from translate import Translator, parse_arguments

BEAMS = (1, 4)
TIMES, ALONE = 3, 30
OURS = {
    "this project, fp32": ["--precision", "fp32"],
    "this project, bf16": ["--precision", "bf16"],
    "--engine ctranslate2, int8": ["--engine", "ctranslate2"],
}
Translate = Callable[[list[str]], list[str]]


def seconds_of(call: Callable, times: int) -> float:
    """The shortest of several times."""
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def measure(translate: Translate, sources: list[str]) -> tuple[float, list[str], float]:
    """Returns seconds for the file, its translations, and median seconds for one sentence."""
    translate(sources[:1])
    alone = [seconds_of(partial(translate, [source]), 1) for source in sources[:ALONE]]
    hypotheses = translate(sources)  # this also starts the processes
    seconds = seconds_of(partial(translate, sources), TIMES)
    return seconds, hypotheses, statistics.median(alone)


def ours(path: Path, beam: int, flags: list[str]) -> Translate:
    """What translate.py does with these flags."""
    torch.set_num_threads(1)  # as its `main` does
    words = ["--checkpoint", str(path), "--beam", str(beam), "--device", "cpu", *flags]
    return Translator(parse_arguments(words))


def ctranslate2_itself(model: Transformer, bpe: BPE, beam: int, kind: str) -> Translate:
    """CTranslate2 with what `Engine` has converted, but not by way of our batches."""
    engine = Engine(model, beam, 1, available_cores(), kind)

    def translate(lines: list[str]) -> list[str]:
        tokens = [[*map(str, ids), str(EOS)] for ids in bpe.encode(lines)]
        found = engine.translator.translate_batch(
            tokens,
            beam_size=beam,
            max_batch_size=2048,
            batch_type="tokens",
            length_penalty=2.0,
            max_decoding_length=model.config.max_length,
        )
        return [bpe.decode([int(name) for name in one.hypotheses[0]]) for one in found]

    return translate


def joeynmt(python: str, model: Transformer, bpe: BPE, sources: list[str]) -> dict[int, tuple]:
    """What `measure` gives, for each beam, of JoeyNMT in another environment."""
    ids = bpe.encode(sources)
    batches = sort_into_batches(ids, MAX_SENTENCES["cpu"], MAX_TOKENS["cpu"])
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.save(model.state_dict(), folder / "weights.pt")
        (folder / "shape.json").write_text(json.dumps({"model": asdict(model.config)}))
        told = {"batches": [[ids[i] for i in batch] for batch in batches], "alone": ids[:ALONE]}
        (folder / "told.json").write_text(json.dumps(told))
        peers = str(Path(__file__).with_name("peers.py"))
        command = [python, peers, "joeynmt_search", str(folder)]
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(done.stderr[-2000:])
        answers = json.loads((folder / "found.json").read_text())
    for beam, answer in answers.items():
        texts = {
            i: bpe.decode(tokens)
            for batch, sentences in zip(batches, answer["ids"])
            for i, tokens in zip(batch, sentences)
        }
        hypotheses = [texts[i] for i in range(len(sources))]
        found[int(beam)] = answer["seconds"], hypotheses, statistics.median(answer["alone"])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("checkpoint", "src", "tgt"):
        parser.add_argument(name, type=Path)
    parser.add_argument(
        "--joeynmt", metavar="PYTHON", help="of an environment with JoeyNMT 2.3"
    )
    args = parser.parse_args()
    sources, references = map(list, zip(*read_parallel(args.src, args.tgt)))
    model, bpe, state = load_translator(*find_checkpoint(args.checkpoint, "translation"))
    print(f"{len(sources):,} sentences, {available_cores()} cores\n")
    print(header("", "beam", "sentences/s", "BLEU", "ms for one sentence"))

    def report(
        what: str, beam: int, seconds: float, hypotheses: list[str], alone: float
    ) -> None:
        speed = f"{len(sources) / seconds:,.0f}"
        score = f"{bleu(hypotheses, references, state['tgt']).value:.2f}"
        print(row(what, beam, speed, score, f"{1e3 * alone:.1f}"), flush=True)

    for beam in BEAMS:
        for what, flags in OURS.items():
            report(what, beam, *measure(ours(args.checkpoint, beam, flags), sources))
        for kind in ("int8", "float32"):
            translate = ctranslate2_itself(model, bpe, beam, kind)
            report(f"CTranslate2 itself, {kind}", beam, *measure(translate, sources))
    if args.joeynmt:
        for beam, found in joeynmt(args.joeynmt, model, bpe, sources).items():
            report("JoeyNMT, fp32", beam, *found)


if __name__ == "__main__":
    main()
