"""Floating-point operations (FLOPs) of a model, computed from its shape.

The product of an (a, b) and a (b, c) matrix counts as 2abc FLOPs. Norms, softmax, activations
and the lookup of embeddings are few and not counted, and neither is padding.
"""

from typing import NamedTuple

from torch import Tensor

from model import LayerConfig, ModelConfig

TRAINING = 3  # times the forward pass: the backward pass costs twice as much


class StepCost(NamedTuple):
    """How much all ranks compute in a step."""

    examples: int
    tokens: int  # without padding; of translators on both sides
    flops: float


def encoder_flops(config: LayerConfig, lengths: Tensor) -> Tensor:
    """Returns the FLOPs of one encoder layer's forward pass over each sequence, (batch,).

    lengths: tokens of each sequence, (batch,), as float64, which is exact up to 2^53.
    """
    d = config.d_model
    projections = 4 * d * d  # query, key, value and output
    feed_forward = 2 * d * config.d_ff
    scores = lengths * lengths
    attention = 2 * d * scores  # the scores, and the weighted sums of the values
    return 2 * (lengths * (projections + feed_forward) + attention)


def decoder_flops(config: LayerConfig, src_lengths: Tensor, tgt_lengths: Tensor) -> Tensor:
    """Returns the FLOPs of one decoder layer's forward pass over each sentence pair, (batch,).

    Causal attention counts only the scores that are used, half of the square.
    """
    d = config.d_model
    tgt_projections = 6 * d * d  # four of self-attention, query and output of cross-attention
    src_projections = 2 * d * d  # key and value of cross-attention
    feed_forward = 2 * d * config.d_ff
    scores = tgt_lengths * (tgt_lengths + 1) / 2 + tgt_lengths * src_lengths
    attention = 2 * d * scores
    of_tgt = tgt_lengths * (tgt_projections + feed_forward)
    return 2 * (of_tgt + src_lengths * src_projections + attention)


def transformer_flops(config: ModelConfig, src_lengths: Tensor, tgt_lengths: Tensor) -> float:
    """Returns the FLOPs to train a Transformer on sentence pairs of these lengths, (batch,)."""
    src = src_lengths.double()
    tgt = tgt_lengths.double()
    layers = config.layers * (encoder_flops(config, src) + decoder_flops(config, src, tgt))
    logits = 2 * tgt * config.d_model * config.vocab_size
    return float(TRAINING * (layers + logits).sum())
