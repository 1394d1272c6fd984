"""The Classifier: an encoder and a choice among classes, of texts or of images.

model = Classifier(ClassifierConfig(classes=4, vocab_size=8000))
loss, nll = model(ids, label, weight)          # sums over the batch's examples
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import EncoderLayer, LayerConfig, sinusoids


@dataclass
class ClassifierConfig(LayerConfig):
    """The shape of a Classifier: of texts where vocab_size > 0, of pictures where patch > 0."""

    classes: int
    vocab_size: int = 0
    patch: int = 0  # pixels a side of the squares that a picture is cut into
    channels: int = 3
    image_size: int = 0  # pixels a side
    stem_channels: int = 0  # channels of the first of two convolutions before patches; 0: none
    num_prefix_tokens: int = 0  # learned tokens put before a picture's patches, as in ViT
    positions: str = "sinusoidal"  # or "learned", as in BERT and ViT
    pool: str = "mean"  # what stands for all tokens: see Classifier.pool
    head: str = ""  # a hidden layer before the last: "tanh" as in BERT, or "relu"
    head_dropout: float = 0.1
    CHOICES = {
        **LayerConfig.CHOICES,
        "pool": ("mean", "first", "first+second", "first+mean"),
        "positions": ("sinusoidal", "learned"),
        "head": ("", "tanh", "relu"),
    }

    def __post_init__(self):
        super().__post_init__()
        if self.classes < 2:
            raise ValueError(f"there is {self.classes} class: at least two are needed")
        if self.patch and (self.image_size < 1 or self.image_size % self.patch):
            raise ValueError(
                f"image_size {self.image_size} is no multiple of patch {self.patch}"
            )
        if self.stem_channels and self.patch % 4:
            raise ValueError(
                f"patch {self.patch}: with a stem, which halves twice, 4, 8, 12, ..."
            )


class Classifier(nn.Module):
    """An encoder and a choice among classes, of texts (as BERT) or pictures (as ViT).

    Devlin et al., 2019, arxiv.org/abs/1810.04805; Dosovitskiy et al., arxiv.org/abs/2010.11929.
    """

    def __init__(self, config: ClassifierConfig):
        super().__init__()
        self.config = config
        d, length = config.d_model, config.max_length
        if config.patch:
            self.cut, channels, self.stem = config.patch, config.channels, nn.Sequential()
            if (
                config.stem_channels
            ):  # each max-pooling halves the picture (Hassani et al., 2021)
                self.cut, channels = config.patch // 4, 2 * config.stem_channels
                self.stem = nn.Sequential(
                    nn.Conv2d(config.channels, config.stem_channels, 3, padding=1),
                    nn.MaxPool2d(2),
                    nn.ReLU(),
                    nn.Conv2d(config.stem_channels, channels, 3, padding=1),
                    nn.MaxPool2d(2),
                    nn.ReLU(),
                )
            self.embedding = nn.Linear(channels * self.cut**2, d)
            if config.num_prefix_tokens:
                self.first = nn.Parameter(torch.empty(config.num_prefix_tokens, d))
            length = config.num_prefix_tokens + (config.image_size // config.patch) ** 2
        else:
            self.embedding = nn.Embedding(config.vocab_size, d)
        if config.positions == "learned":
            self.positions = nn.Parameter(torch.empty(length, d))
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        # Post-norm normalizes what goes in, pre-norm what comes out.
        self.norm = nn.LayerNorm(d, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)
        pooled = 2 * d if "+" in config.pool else d
        hidden = [nn.Linear(pooled, pooled), nn.Tanh() if config.head == "tanh" else nn.ReLU()]
        self.head = nn.Sequential(
            *hidden if config.head else [],
            nn.Dropout(config.head_dropout),
            nn.Linear(pooled, config.classes),
        )

    def layers(self) -> list[nn.Module]:
        """The encoder's, in order of use: FSDP gathers one at a time."""
        return list(self.encoder)

    def embed(self, x: Tensor) -> Tensor:
        """(batch, length) ids or (batch, channels, height, width) to (batch, length, d_model)."""
        if self.config.patch:
            x = F.unfold(self.stem(x), self.cut, stride=self.cut).transpose(1, 2)
            x = self.embedding(x)  # (batch, patches, d_model)
            if self.config.num_prefix_tokens:
                x = torch.cat([self.first.to(x.dtype).expand(len(x), -1, -1), x], dim=1)
        else:
            x = self.embedding(x)
        if self.config.positions == "learned":
            return x + self.positions[: x.shape[1]]
        at = torch.arange(x.shape[1], device=x.device)
        return x * math.sqrt(self.config.d_model) + sinusoids(at, self.config.d_model)

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        """What stands for all tokens of an example, (batch, d_model), or two of them side by side.

        x: (batch, length, d_model); real: (batch, length), False where there is padding.
        """
        if self.config.pool == "first":  # BERT, ViT
            return x[:, 0]
        if self.config.pool == "first+second":  # DeiT
            return x[:, :2].flatten(1)
        if self.config.pool == "first+mean":  # DINOv2
            return torch.cat([x[:, 0], x[:, 1:].mean(1)], dim=-1)
        return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of ids or pictures: (batch, length, d_model); and (batch, length), False at padding."""
        y = self.embed(x)
        real = (
            torch.ones_like(y[..., 0], dtype=bool)
            if self.config.patch
            else x != self.config.pad
        )
        y = self.dropout(self.norm(y.to(self.norm.weight)) if self.config.norm == "post" else y)
        for layer in self.encoder:
            y = layer(y, real[:, None, None])
        return (self.norm(y) if self.config.norm == "pre" else y), real

    def logits(self, x: Tensor) -> Tensor:
        """Logits in fp32, (batch, classes), of ids (batch, length) or pictures."""
        return self.head(self.pool(*self.encode(x))).float()

    score = logits  # evaluation's name for it: FSDP gathers before it, as before forward

    def forward(self, x: Tensor, label: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, nll) of a batch, each a sum over its examples; label, weight: (batch,).

        weight: a factor of an example's loss; where it is 0, nll leaves the example out as well.
        """
        log_p, smoothing = self.logits(x).log_softmax(-1), self.config.label_smoothing
        nll = -log_p.gather(1, label[:, None])[:, 0]
        loss = (1 - smoothing) * nll - smoothing * log_p.mean(-1)
        return (loss * weight).sum(), (nll * (weight > 0)).sum().detach()
