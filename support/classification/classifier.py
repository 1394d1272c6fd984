"""The Classifier: an encoder, a pooling and a classification head, for texts or images.

model = Classifier(ClassifierConfig(classes=4, vocab_size=8000))
loss, nll = model(ids, label, weight)              # sums over the batch's examples
logits = model(ids)                                # (batch, classes)

model = Classifier(ClassifierConfig(classes=4, patch=4, image_size=32), transform)
logits = model(pixels)                             # pixels: bytes, which it normalizes
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import EncoderLayer, LayerConfig, sinusoids
from support.classification.images import ImageTransform
from support.common.flops import TRAINING, encoder_flops


@dataclass
class ClassifierConfig(LayerConfig):
    """The shape of a Classifier: for texts if vocab_size > 0, for images if patch > 0."""

    classes: int
    vocab_size: int = 0
    patch: int = 0  # pixels per side of the squares that an image is divided into
    channels: int = 3
    image_size: int = 0  # pixels per side
    stem_channels: int = 0  # of the first of two convolutions before the patches; 0: no stem
    num_prefix_tokens: int = 0  # learned tokens before an image's patches, as in ViT
    positions: str = "sinusoidal"  # or "learned", as in BERT and ViT
    pool: str = "mean"  # how the tokens become one vector: see Classifier.pool
    head: str = ""  # a hidden layer before the last: "tanh" as in BERT, or "relu"
    head_dropout: float = 0.1
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **LayerConfig.CHOICES,
        "pool": ("mean", "first", "first+second", "first+mean"),
        "positions": ("sinusoidal", "learned"),
        "head": ("", "tanh", "relu"),
    }

    def __post_init__(self):
        super().__post_init__()
        if self.classes < 2:
            raise ValueError(f"classes is {self.classes}: it must be at least 2")
        if not 0 <= self.head_dropout < 1:
            raise ValueError(f"head_dropout {self.head_dropout} is not in [0, 1)")
        if self.patch and (self.image_size < 1 or self.image_size % self.patch):
            raise ValueError(
                f"image_size {self.image_size} is not a multiple of patch {self.patch}"
            )
        if self.stem_channels and self.patch % 4:
            raise ValueError(
                f"patch {self.patch} is not a multiple of 4, which a stem requires: each of "
                f"its two max-poolings halves the image (--stem-channels 0: no stem)"
            )

    @property
    def num_patches(self) -> int:
        """The patches of an image."""
        return (self.image_size // self.patch) ** 2


class Classifier(nn.Module):
    """Classifies texts, as BERT (arXiv 1810.04805), or images, as ViT (arXiv 2010.11929)."""

    def __init__(self, config: ClassifierConfig, transform: ImageTransform | None = None):
        """transform: how it normalizes images that are given as bytes."""
        super().__init__()
        self.config = config
        self.transform = transform
        d_model = config.d_model
        if config.patch:
            self.stem = make_stem(config)
            self.patch = config.patch
            channels = config.channels
            if config.stem_channels:  # the stem's output is a quarter as high and as wide
                self.patch = config.patch // 4
                channels = 2 * config.stem_channels
            self.embedding: nn.Module = nn.Linear(channels * self.patch**2, d_model)
            if config.num_prefix_tokens:
                self.prefix_tokens = nn.Parameter(
                    torch.empty(config.num_prefix_tokens, d_model)
                )
            length = config.num_prefix_tokens + config.num_patches
        else:
            self.embedding = nn.Embedding(config.vocab_size, d_model)
            length = config.max_length
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(length, d_model))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        # Post-norm normalizes the input of the layers, pre-norm their output.
        self.norm = nn.LayerNorm(d_model, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        self.head = make_head(config)

    def layers(self) -> list[nn.Module]:
        """Returns the encoder's layers in order of use; FSDP gathers one at a time."""
        return list(self.encoder)

    def embed(self, x: Tensor) -> Tensor:
        """Returns (batch, length, d_model), without dropout.

        x: (batch, length) ids or (batch, channels, height, width) pixels: see `forward`.
        """
        if self.config.patch:
            if self.transform and x.dtype == torch.uint8:
                x = normalize(x, self.transform)
            x = self.stem(x)
            x = F.unfold(x, self.patch, stride=self.patch).transpose(1, 2)
            x = self.embedding(x)  # (batch, patches, d_model)
            if self.config.num_prefix_tokens:
                prefix = self.prefix_tokens.to(x.dtype).expand(len(x), -1, -1)
                x = torch.cat([prefix, x], dim=1)
        else:
            x = self.embedding(x)
        if self.config.positions == "learned":
            return x + self.positions[: x.shape[1]]
        positions = torch.arange(x.shape[1], device=x.device)
        return x * math.sqrt(self.config.d_model) + sinusoids(positions, self.config.d_model)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (batch, length, d_model), and (batch, length): False where there is padding.

        x: (batch, length) ids or (batch, channels, height, width) pixels: see `forward`.
        """
        y = self.embed(x)
        if self.config.patch:
            is_token = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
        else:
            is_token = x != self.config.pad
        if self.config.norm == "post":
            # With FSDP in bf16, y may be in fp32, but the weight is in bf16.
            y = self.norm(y.to(self.norm.weight.dtype))
        y = self.dropout(y)
        for layer in self.encoder:
            y = layer(y, is_token[:, None, None])
        if self.config.norm == "pre":
            y = self.norm(y)
        return y, is_token

    def pool(self, x: Tensor, is_token: Tensor) -> Tensor:
        """Returns one vector for all tokens: (batch, d_model), or twice as wide with a "+".

        x: (batch, length, d_model); is_token: (batch, length), False where there is padding.
        """
        if self.config.pool == "first":  # BERT, ViT
            return x[:, 0]
        if self.config.pool == "first+second":  # DeiT
            return x[:, :2].flatten(1)
        if self.config.pool == "first+mean":  # DINOv2
            return torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=-1)
        num_tokens = is_token.sum(1, keepdim=True).clamp(min=1)
        return (x * is_token[..., None]).sum(1) / num_tokens

    def logits(self, x: Tensor) -> Tensor:
        """Returns (batch, classes), in fp32. x: see `forward`; of ids, at most max_length."""
        y, is_token = self.encode(x)
        return self.head(self.pool(y, is_token)).float()

    def mean_over_windows(self, x: Tensor) -> Tensor:
        """Returns the logits of texts in windows of max_length tokens, (batch, classes).

        The encoder gets each window alone. A text's logits are the mean over its windows.
        x: (batch, length) ids, as `encode_texts` in encoding.py puts windows one after another.
        """
        length = self.config.max_length
        x = F.pad(x, (0, -x.shape[1] % length), value=self.config.pad)
        x = x.view(len(x), -1, length)  # (batch, windows, length)
        is_window = (x != self.config.pad).any(-1)  # (batch, windows): False after a text's end
        is_window[:, 0] = True  # also of an empty text
        logits = self.logits(x.flatten(0, 1)).view(*is_window.shape, -1)
        logits = logits.masked_fill(~is_window[..., None], 0.0)
        return logits.sum(1) / is_window.sum(1, keepdim=True)

    def forward(
        self, x: Tensor, label: Tensor | None = None, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor] | Tensor:
        """Returns (loss, nll) of a batch, sums over its examples.

        x: (batch, length) ids or (batch, channels, height, width) pixels, either bytes or
        normalized fp32; label: (batch,); weight: (batch,), a factor of each example's loss. If
        it is 0, the nll leaves the example out, too. Without label and weight, it returns the
        logits, (batch, classes), in fp32. Ids beyond max_length are further windows of a text:
        see `mean_over_windows`.
        """
        is_long = not self.config.patch and x.shape[1] > self.config.max_length
        logits = self.mean_over_windows(x) if is_long else self.logits(x)
        if label is None or weight is None:
            return logits
        log_p = logits.log_softmax(-1)
        nll = -log_p.gather(1, label[:, None])[:, 0]  # (batch,)
        smoothing = self.config.label_smoothing
        loss = (1 - smoothing) * nll - smoothing * log_p.mean(-1)
        return (loss * weight).sum(), (nll * (weight > 0)).sum().detach()


def normalize(pixels: Tensor, transform: ImageTransform) -> Tensor:
    """Returns images of bytes, (images, channels, height, width), normalized and in fp32."""
    values = pixels.float()
    # Python numbers need no copy to the device, which would make the CPU wait for the GPU.
    for channel, mean, std in zip(values.unbind(1), transform.mean, transform.std):
        channel.sub_(255 * mean).div_(255 * std)
    return values


def make_stem(config: ClassifierConfig) -> nn.Sequential:
    """Returns two convolutions with max-pooling (Hassani et al., 2021), or no layers."""
    if not config.stem_channels:
        return nn.Sequential()
    return nn.Sequential(
        nn.Conv2d(config.channels, config.stem_channels, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(config.stem_channels, 2 * config.stem_channels, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
    )


def make_head(config: ClassifierConfig) -> nn.Sequential:
    """Returns the layers from the pooled vector to the logits."""
    width = 2 * config.d_model if "+" in config.pool else config.d_model
    layers: list[nn.Module] = []
    if config.head:
        activation = nn.Tanh() if config.head == "tanh" else nn.ReLU()
        layers += [nn.Linear(width, width), activation]
    layers += [nn.Dropout(config.head_dropout), nn.Linear(width, config.classes)]
    return nn.Sequential(*layers)


def classifier_flops(config: ClassifierConfig, lengths: Tensor, frozen: int = 0) -> float:
    """Returns the FLOPs to train a Classifier's layers and stem on sequences of these lengths.

    lengths: tokens or patches of each example, (batch,). frozen: the number of lowest layers
    that are not trained: they, and then also the stem, have only a forward pass. The projection
    of patches and the head are small and not counted.
    """
    layer = encoder_flops(config, lengths.double())
    # Of the stem's two 3 x 3 convolutions, the second makes twice as many channels of an image
    # half as high and half as wide.
    inputs = config.channels + 2 * config.stem_channels / 4
    stem = 2 * 9 * inputs * config.stem_channels * config.image_size**2
    layer_passes = TRAINING * (config.layers - frozen) + frozen
    stem_passes = 1 if frozen else TRAINING
    return float((layer_passes * layer + stem_passes * stem).sum())
