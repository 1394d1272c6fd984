"""Decodes with CTranslate2 (pip install ctranslate2), in int8 and C++, instead of beam.py.

    engine = Engine(model, beam=4, n_best=1, threads=2)
    answers = translate_lines(bpe, lines, max_tokens, engine.search)

An `Engine` first converts the model to CTranslate2's format. See
https://opennmt.net/CTranslate2.
"""

import tempfile
from collections.abc import Iterator
from itertools import groupby

import ctranslate2
import torch
from torch import nn

from model import Attention, Transformer, sinusoids
from support.common.errors import UserError
from support.common.key_value_order import to_keys_then_values
from support.translation.beam import LENGTH_PENALTY, Batch, Hypothesis

# --- The conversion


def convert(model: Transformer) -> ctranslate2.specs.TransformerSpec:
    """Returns CTranslate2's description of the model, with its weights in fp32."""
    config = model.config
    pre_norm = config.norm == "pre"
    spec = ctranslate2.specs.TransformerSpec.from_config(
        config.layers, config.heads, pre_norm=pre_norm
    )
    for to, layer in zip(spec.encoder.layer, model.encoder):
        copy_attention(to.self_attention, layer.attention, layer.residuals[0].norm)
        copy_feed_forward(to.ffn, layer.feed_forward, layer.residuals[1].norm)
    for to, layer in zip(spec.decoder.layer, model.decoder):
        copy_attention(to.self_attention, layer.self_attention, layer.residuals[0].norm)
        copy_attention(to.attention, layer.cross_attention, layer.residuals[1].norm)
        copy_feed_forward(to.ffn, layer.feed_forward, layer.residuals[2].norm)
    for to, norm in ((spec.encoder, model.encoder_norm), (spec.decoder, model.decoder_norm)):
        positions = torch.arange(config.max_length)
        to.position_encodings.encodings = sinusoids(positions, config.d_model)
        if pre_norm:
            copy_norm(to.layer_norm, norm)
    spec.encoder.embeddings[0].weight = model.embedding.weight
    spec.decoder.embeddings.weight = model.embedding.weight
    spec.decoder.projection.weight = model.embedding.weight
    # A token's name is its number, as its text might contain a line break.
    vocabulary = [str(i) for i in range(config.vocab_size)]
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.bos_token = str(config.bos)
    spec.config.decoder_start_token = str(config.bos)
    spec.config.eos_token = str(config.eos)
    spec.config.unk_token = str(config.pad)  # CTranslate2 needs one; our BPE does not
    spec.validate()
    return spec


def copy_attention(to, attention: Attention, norm: nn.LayerNorm) -> None:
    query = attention.query.weight
    key_value = attention.key_value.weight
    key_value = to_keys_then_values(key_value, heads=len(query) // attention.d_head)
    products = [query, key_value]
    if len(to.linear) == 2:  # self-attention has one product for all three
        products = [torch.cat(products)]
    for linear, weight in zip(to.linear, [*products, attention.out.weight]):
        linear.weight = weight
    copy_norm(to.layer_norm, norm)


def copy_feed_forward(to, layers: nn.Sequential, norm: nn.LayerNorm) -> None:
    for linear, ours in ((to.linear_0, layers[0]), (to.linear_1, layers[2])):
        linear.weight = ours.weight
        linear.bias = ours.bias
    copy_norm(to.layer_norm, norm)


def copy_norm(to, norm: nn.LayerNorm) -> None:
    to.gamma = norm.weight
    to.beta = norm.bias


# --- The search


class Engine:
    """A model converted for CTranslate2, ready to decode on the CPU."""

    def __init__(
        self, model: Transformer, beam: int, n_best: int, threads: int, compute_type="int8"
    ):
        """Converts the model and loads it.

        beam, n_best: as for `beam_search`; threads: how many batches are decoded at once;
        compute_type: one of CTranslate2's, replaced by float32 if this CPU does not support it.
        Raises UserError for a model of --plain, whose model.py may have been changed.
        """
        if model.config.plain:
            raise UserError(
                "--engine ctranslate2 computes the usual Transformer; this model was trained "
                "with --plain, so perhaps with changes: leave out --engine"
            )
        self.config = model.config
        self.options = dict(
            beam_size=beam,
            num_hypotheses=n_best,
            length_penalty=LENGTH_PENALTY,
            return_scores=True,
            min_decoding_length=0,
            max_input_length=0,
            suppress_sequences=[[str(self.config.pad)], [str(self.config.bos)]],
        )
        if compute_type not in ctranslate2.get_supported_compute_types("cpu"):
            compute_type = "float32"
        with tempfile.TemporaryDirectory() as folder:
            convert(model).save(folder)
            self.translator = ctranslate2.Translator(
                folder, compute_type=compute_type, inter_threads=threads, intra_threads=1
            )

    def search(self, batches: list[Batch]) -> Iterator[list[list[Hypothesis]]]:
        """Yields for each batch of token ids, sorted by length, what `beam_search` returns."""
        # A call returns once its batch is in the queue, from which idle threads take it.
        queued = [self.enqueue(batch) for batch in batches]
        for results in queued:
            yield [self.read_hypotheses(result.result()) for result in results]

    def enqueue(self, batch: Batch) -> list[ctranslate2.AsyncTranslationResult]:
        """Starts to decode a batch. Returns a future for each sentence."""
        results = []
        # A call has one limit on the length, and the limit depends on the source's length.
        for length, sentences in groupby(batch, key=len):
            tokens = [[*map(str, ids), str(self.config.eos)] for ids in sentences]
            limit = min(2 * (length + 1) + 8, self.config.max_length)
            results += self.translator.translate_batch(
                tokens, asynchronous=True, max_decoding_length=limit, **self.options
            )
        return results

    def read_hypotheses(self, result: ctranslate2.TranslationResult) -> list[Hypothesis]:
        return [
            (score, [int(name) for name in names])
            for score, names in zip(result.scores, result.hypotheses)
        ]
