"""Decoding speed beside CTranslate2 (pip install ctranslate2): one checkpoint, one file, all cores, in turn.

    python tests/decoding.py logs/RUN/best.pt test.de test.en

Sentences a second of the whole file by greedy and by beam search with 4 hypotheses, best of three after a warm-up;
BLEU; milliseconds for one sentence, the median of 50. CTranslate2 in each of its compute types, with its two ways to
use all cores: a worker for each, or one worker with a thread for each; in this process, so that glibc keeps its memory
too. With --joeynmt PYTHON, another environment's, JoeyNMT too, with our weights: once through the file, in the same
batches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import ctranslate2
import numpy as np
import sacrebleu
import torch

from corpora import read_parallel
from data import BPE, available_cores
from decode import sort_into_batches
from model import Transformer, load_checkpoint
from translate import Translator, parse_arguments


def convert(model: Transformer, vocabulary: list[str], folder: str) -> None:
    """Writes our weights as a model of CTranslate2's."""
    config = model.config
    spec = ctranslate2.specs.TransformerSpec.from_config(config.layers, config.heads, pre_norm=config.norm == "pre")
    plain = lambda weight: weight.detach().float().numpy()

    def linear(to, *weights, bias=None):
        to.weight = np.concatenate([plain(weight) for weight in weights])
        if bias is not None:
            to.bias = plain(bias)

    def norm(to, layer_norm):
        to.gamma, to.beta = plain(layer_norm.weight), plain(layer_norm.bias)

    def own(to, attention, residual):
        linear(to.linear[0], attention.query.weight, attention.key_value.weight)
        linear(to.linear[1], attention.out.weight)
        norm(to.layer_norm, residual.norm)

    def feed_forward(to, layer, residual):
        linear(to.linear_0, layer[0].weight, bias=layer[0].bias)
        linear(to.linear_1, layer[2].weight, bias=layer[2].bias)
        norm(to.layer_norm, residual.norm)

    for to, layer in zip(spec.encoder.layer, model.encoder):
        own(to.self_attention, layer.attention, layer.residuals[0])
        feed_forward(to.ffn, layer.feed_forward, layer.residuals[1])
    for to, layer in zip(spec.decoder.layer, model.decoder):
        own(to.self_attention, layer.self_attention, layer.residuals[0])
        linear(to.attention.linear[0], layer.cross_attention.query.weight)
        linear(to.attention.linear[1], layer.cross_attention.key_value.weight)
        linear(to.attention.linear[2], layer.cross_attention.out.weight)
        norm(to.attention.layer_norm, layer.residuals[1].norm)
        feed_forward(to.ffn, layer.feed_forward, layer.residuals[2])
    norm(spec.encoder.layer_norm, model.encoder_norm)
    norm(spec.decoder.layer_norm, model.decoder_norm)
    for part in (spec.encoder, spec.decoder):
        part.position_encodings.encodings = plain(model.positions)
    spec.encoder.embeddings[0].weight = spec.decoder.embeddings.weight = plain(model.embedding.weight)
    spec.decoder.projection.weight = plain(model.embedding.weight)
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token, spec.config.eos_token, spec.config.unk_token = "<bos>", "<eos>", "<pad>"
    spec.config.decoder_start_token = "<bos>"
    spec.validate()
    os.mkdir(folder)
    spec.save(folder)


def timed(call, times: int = 3) -> tuple[float, list]:
    """The shortest time of several, in seconds, after one that is not counted, and what came out."""
    result, seconds = call(), []
    for _ in range(times):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return min(seconds), result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("checkpoint", "src", "tgt"):
        parser.add_argument(name)
    parser.add_argument("--joeynmt", metavar="PYTHON", help="of an environment with JoeyNMT 2.3")
    given = parser.parse_args()
    path, src, tgt = given.checkpoint, given.src, given.tgt
    sources, references = map(list, zip(*read_parallel(Path(src), Path(tgt))))
    model, checkpoint = load_checkpoint(path)
    bpe, cores = BPE(checkpoint["bpe"]), available_cores()
    names = [bpe.tokenizer.id_to_token(i) for i in range(bpe.vocab_size)]
    # Byte-level tokens may hold characters that end a line of a vocabulary file: numbers do as well.
    vocabulary = names[:3] + [f"t{i}" for i in range(3, bpe.vocab_size)]
    number = {name: i for i, name in enumerate(vocabulary)}
    bleu = lambda hypotheses: sacrebleu.corpus_bleu(hypotheses, [references]).score

    def report(what: str, beam: int, seconds: float, hypotheses: list[str], alone: list[float]) -> None:
        print(f"| {what} | {beam} | {len(sources) / seconds:,.0f} | {bleu(hypotheses):.2f} | {1e3 * statistics.median(alone):.1f} |", flush=True)

    print(f"{len(sources):,} sentences, {cores} cores\n\n| | beam | sentences/s | BLEU | ms for one sentence |\n|" + " --- |" * 5)
    for beam in (1, 4):
        sys.argv = ["translate.py", "--checkpoint", path, "--beam", str(beam), "--device", "cpu"]
        ours = Translator(parse_arguments())
        seconds, hypotheses = timed(lambda: ours(sources))
        ours.pool, pool = None, ours.pool
        alone = [timed(lambda: ours([source]), 1)[0] for source in sources[:50]]
        report("this project", beam, seconds, hypotheses, alone)
        if pool:
            pool.shutdown()
    with tempfile.TemporaryDirectory() as folder:
        convert(model, vocabulary, folder + "/model")
        for kind in sorted(ctranslate2.get_supported_compute_types("cpu")):
            for workers, threads in ((cores, 1), (1, cores)):
                translator = ctranslate2.Translator(folder + "/model", device="cpu", compute_type=kind, inter_threads=workers, intra_threads=threads)

                def translate(lines: list[str], beam: int) -> list[str]:
                    tokens = [[vocabulary[i] for i in ids] + ["<eos>"] for ids in bpe.encode(lines)]
                    found = translator.translate_batch(tokens, beam_size=beam, max_batch_size=2048, batch_type="tokens", max_decoding_length=128,
                                                       length_penalty=2.0)
                    return [bpe.decode([number[token] for token in one.hypotheses[0]]) for one in found]

                for beam in (1, 4):
                    seconds, hypotheses = timed(lambda: translate(sources, beam))
                    alone = [timed(lambda: translate([source], beam), 1)[0] for source in sources[:50]]
                    report(f"CTranslate2, {kind}, {workers} x {threads}", beam, seconds, hypotheses, alone)
        if given.joeynmt:
            ids = bpe.encode(sources)
            batches = sort_into_batches(ids)
            torch.save(model.state_dict(), folder + "/weights.pt")
            Path(folder, "shape.json").write_text(json.dumps({"model": asdict(model.config)}))
            Path(folder, "batches.json").write_text(json.dumps([[ids[i] for i in batch] for batch in batches]))
            subprocess.run([given.joeynmt, str(Path(__file__).with_name("peers.py")), "joeynmt_search", folder], check=True, stderr=subprocess.DEVNULL)
            for beam, found in json.loads(Path(folder, "found.json").read_text()).items():
                texts = {i: bpe.decode(ids) for batch, answers in zip(batches, found["ids"]) for i, ids in zip(batch, answers)}
                report("JoeyNMT, fp32", int(beam), found["seconds"], [texts[i] for i in range(len(sources))], found["alone"])


if __name__ == "__main__":
    main()
