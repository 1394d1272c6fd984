"""Floating-point operations (FLOPs) of a Classifier; see support/common/flops.py."""

from torch import Tensor

from support.classification.classifier import ClassifierConfig
from support.common.flops import TRAINING, encoder_flops


def stem_flops(config: ClassifierConfig) -> float:
    """Returns the FLOPs of the stem's forward pass over one image: two 3 x 3 convolutions."""
    pixels = config.image_size**2
    first = 9 * config.channels * config.stem_channels * pixels
    # It makes twice as many channels, and sees half of the pixels in each direction.
    second = 9 * config.stem_channels * 2 * config.stem_channels * pixels / 4
    return 2 * (first + second)


def classifier_flops(config: ClassifierConfig, lengths: Tensor, frozen: int = 0) -> float:
    """Returns the FLOPs to train a Classifier's layers and stem on sequences of these lengths.

    lengths: tokens or patches of each example, (batch,). frozen: how many of the lower layers
    are not trained; they and the stem then have a forward pass only. The projection of patches
    and the head are small and not counted.
    """
    layer = encoder_flops(config, lengths.double())
    layer_passes = TRAINING * (config.layers - frozen) + frozen
    stem_passes = 1 if frozen else TRAINING
    return float((layer_passes * layer + stem_passes * stem_flops(config)).sum())
