"""Floating-point operations of a step of training, worked out from the model's shape."""

from torch import Tensor

from model import LayerConfig


def flops(
    config: LayerConfig, src_lengths: Tensor, tgt_lengths: Tensor | None = None, frozen: int = 0
) -> float:
    """Floating-point operations to train on sentences of these lengths in tokens, without padding.

    A product of (a, b) and (b, c) counts 2abc; the backward pass counts twice the forward pass.
    Without tgt_lengths: those of a Classifier's layers and stem. The rest are few, and not counted.
    frozen: so many of a Classifier's lower layers, and the stem, have a forward pass only.
    """
    s, d = src_lengths.double(), config.d_model
    t = s * 0 if tgt_lengths is None else tgt_lengths.double()
    ffn, memory = 2 * d * config.d_ff, 0 if tgt_lengths is None else 2 * d * d  # its k and v
    weights = s * (4 * d * d + ffn + memory) + t * (6 * d * d + ffn)  # a layer's
    scores = 2 * d * (s * s + t * (t + 1) / 2 + t * s)  # q k^T, and as much for v
    projection = t * d * getattr(config, "vocab_size", 0)
    stem = getattr(config, "stem_channels", 0)  # its two convolutions of 3 x 3 pixels
    pixels = 9 * stem * (config.channels + stem / 2) * config.image_size**2 if stem else 0
    layers, pixels = config.layers - 2 / 3 * frozen, pixels / 3 if frozen else pixels
    return float(3 * 2 * (layers * (weights + scores) + projection + pixels).sum())
