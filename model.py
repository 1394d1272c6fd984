"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), written out by hand.

    model = Transformer(ModelConfig(vocab_size=8000))
    initialize(model, seed=1)
    loss, nll = model(src, tgt_in, tgt_out, token_indices)  # sums over the target's tokens
    ids = model.eval().greedy(src)                          # translations, as token ids

Section numbers are those of the paper, https://arxiv.org/abs/1706.03762. Comments give shapes:
batch, heads, d_model, d_head = d_model / heads, src and tgt. The last two are lengths in
tokens: in attention, src of the keys and tgt of the queries.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:  # slow to import, and only train_tp.py needs it
    from torch.distributed.tensor.parallel import ParallelStyle


@dataclass(kw_only=True)  # so that ModelConfig can add a field without a default
class LayerConfig:
    """The shape of a stack of layers. Raises ValueError for an impossible one."""

    layers: int = 3  # encoder layers; the Transformer has as many decoder layers
    d_model: int = 256
    heads: int = 4
    d_ff: int = 1024
    dropout: float = 0.1
    label_smoothing: float = 0.1
    norm: str = "pre"  # "post" is the paper's; "pre" trains without a long warm-up
    max_length: int = 128  # the longest sentence, in tokens, eos included
    pad: int = 0
    bias: bool = False  # in attention's projections
    activation: str = "relu"  # between the two matrices of a feed-forward layer
    epsilon: float = 1e-5  # of layer norm
    plain: bool = False  # True: no part is replaced by those of support/common/kernels.py
    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        "norm": ("pre", "post"),
        "activation": ("relu", "gelu"),
    }

    def __post_init__(self):
        for name in ("layers", "d_model", "heads", "d_ff", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} cannot be split over {self.heads} heads")
        if self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} is odd: sines and cosines need pairs")
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1)")
        for name, choices in self.CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} {getattr(self, name)!r} is not in {choices}")


@dataclass
class ModelConfig(LayerConfig):
    """The shape of a Transformer."""

    vocab_size: int
    bos: int = 1
    eos: int = 2

    def __post_init__(self):
        super().__post_init__()
        if self.vocab_size < 1:
            raise ValueError(f"vocab_size is {self.vocab_size}: it must be at least 1")


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Returns softmax(q k^T / sqrt(d_head)) v (section 3.2.1), (batch, heads, tgt, d_head).

    q: (batch, heads, tgt, d_head); k, v: (batch, heads, src, d_head); mask: True where
    attention is allowed, broadcastable to (batch, heads, tgt, src).
    """
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # (batch, heads, tgt, src)
    # The lowest finite number, not -inf: a row that is all padding gets equal weights, not NaN.
    scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1) @ v


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2), of a sentence to itself or to another sequence."""

    # Unless the model is trained with --plain, support/common/kernels.py replaces `attend` by
    # a faster function, and `forward`, on GPUs in bf16 or fp16, by one that calls
    # `attend_projected`.
    attend: Callable = staticmethod(scaled_dot_product)

    def __init__(self, config: LayerConfig):
        super().__init__()
        self.d_head = config.d_model // config.heads
        self.query = nn.Linear(config.d_model, config.d_model, bias=config.bias)
        # Rows: the keys of the first head, its values, the keys of the second head, ...
        # In this order train_tp.py can split them by heads.
        self.key_value = nn.Linear(config.d_model, 2 * config.d_model, bias=config.bias)
        self.out = nn.Linear(config.d_model, config.d_model, bias=config.bias)

    def split(self, x: Tensor) -> Tensor:
        """Splits (batch, length, d_model) into heads: (batch, heads, length, d_head)."""
        return x.unflatten(-1, (-1, self.d_head)).transpose(1, 2)

    def split_key_value(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Splits (batch, length, 2 * d_model) into k and v, (batch, heads, length, d_head)."""
        k, v = x.unflatten(-1, (-1, 2, self.d_head)).unbind(-2)
        return k.transpose(1, 2), v.transpose(1, 2)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """x: (batch, tgt, d_model) attends to source: (batch, src, d_model) where mask is True.

        Returns (batch, tgt, d_model).
        """
        return self.attend_projected(self.query(x), self.key_value(source), mask)

    def attend_projected(self, query: Tensor, key_value: Tensor, mask: Tensor) -> Tensor:
        """Does the rest of `forward`, after its first products.

        query: (batch, tgt, d_model), self.query(x); key_value: (batch, src, 2 * d_model),
        self.key_value(source). Returns (batch, tgt, d_model). In self-attention, a beam search
        passes the query of the last position alone, with the keys and values of all so far.
        """
        k, v = self.split_key_value(key_value)
        y = self.attend(self.split(query), k, v, mask)  # (batch, heads, tgt, d_head)
        return self.out(y.transpose(1, 2).flatten(2))  # (batch, tgt, d_model)


def feed_forward(config: LayerConfig) -> nn.Sequential:
    """Returns max(0, x W1 + b1) W2 + b2 (section 3.3) as a module, perhaps with GELU."""
    activation = nn.GELU() if config.activation == "gelu" else nn.ReLU()
    return nn.Sequential(
        nn.Linear(config.d_model, config.d_ff),
        activation,
        nn.Linear(config.d_ff, config.d_model),
    )


class Residual(nn.Module):
    """The residual connection around a sub-layer: section 3.1, or pre-norm."""

    def __init__(self, config: LayerConfig):
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)  # section 5.4

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, config: LayerConfig):
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (batch, src, d_model); mask: (batch, 1, 1, src), or for a decoder without
        an encoder (src, src). Returns the shape of x.
        """
        x = self.residuals[0](x, lambda y: self.attention(y, y, mask))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the encoder's output, feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.self_attention = Attention(config)
        self.cross_attention = Attention(config)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """x: (batch, tgt, d_model); mask: (tgt, tgt); memory: (batch, src, d_model).

        memory_mask: (batch, 1, 1, src). Returns the shape of x.
        """
        x = self.residuals[0](x, lambda y: self.self_attention(y, y, mask))
        x = self.residuals[1](x, lambda y: self.cross_attention(y, memory, memory_mask))
        return self.residuals[2](x, self.feed_forward)


def linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Returns (loss, nll): the cross-entropy of x @ weight^T (section 3.4), summed over tokens.

    x: (tokens, d_model); weight: (vocabulary, d_model); target: (tokens,). loss: with label
    smoothing (section 5.4); nll: without it, in nats, and detached from the graph.
    """
    log_p = F.linear(x, weight).float().log_softmax(-1)  # (tokens, vocabulary)
    nll = F.nll_loss(log_p, target, reduction="sum")
    return (1 - smoothing) * nll - smoothing * log_p.mean(-1).sum(), nll.detach()


def sinusoids(positions: Tensor, d_model: int) -> Tensor:
    """Returns positional encodings (section 3.5), (length, d_model), of positions (length,)."""
    even = torch.arange(0, d_model, 2, device=positions.device)
    angle = positions[:, None] * torch.exp(even * (-math.log(10000.0) / d_model))
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)


class Transformer(nn.Module):
    """Encoder and decoder (figure 1), whose embeddings share a matrix (section 3.4)."""

    # Without --plain, support/common/kernels.py replaces both by faster functions.
    loss: Callable = staticmethod(linear_cross_entropy)
    sinusoids: Callable = staticmethod(sinusoids)

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        # Pre-norm does not normalize the sum of all sub-layers, so it needs a norm at the end.
        final_norm = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm = final_norm(config.d_model, eps=config.epsilon)
        self.decoder_norm = final_norm(config.d_model, eps=config.epsilon)
        self.dropout = nn.Dropout(config.dropout)

    def layers(self) -> list[nn.Module]:
        """Returns all layers in order of use: the units that FSDP gathers one by one."""
        return [*self.encoder, *self.decoder]

    def embed(self, ids: Tensor, first: int = 0) -> Tensor:
        """ids: (batch, length), at positions `first`, ... Returns (batch, length, d_model)."""
        positions = torch.arange(first, first + ids.shape[1], device=ids.device)
        x = self.embedding(ids) * math.sqrt(self.config.d_model)
        return self.dropout(x + self.sinusoids(positions, self.config.d_model))

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """src: (batch, src) ids. Returns memory, (batch, src, d_model), and its mask.

        mask: (batch, 1, 1, src), True where there is no padding.
        """
        mask = (src != self.config.pad)[:, None, None]
        x = self.embed(src)
        for layer in self.encoder:
            x = layer(x, mask)
        return self.encoder_norm(x), mask

    def decode(self, tgt_in: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """tgt_in: (batch, tgt) ids; memory, memory_mask: as `encode` returns them.

        Returns (batch, tgt, d_model), for the projection.
        """
        # Padding comes last, so the mask of later positions hides it from real tokens, too.
        length = tgt_in.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=tgt_in.device).tril()
        x = self.embed(tgt_in)
        for layer in self.decoder:
            x = layer(x, causal, memory, memory_mask)
        return self.decoder_norm(x)

    def forward(
        self,
        src: Tensor,
        tgt_in: Tensor,
        tgt_out: Tensor | None = None,
        token_indices: Tensor | None = None,
    ) -> tuple[Tensor, Tensor] | Tensor:
        """Returns `linear_cross_entropy` of a batch: (loss, nll), sums over its target tokens.

        src: (batch, src), ends with eos; tgt_in: (batch, tgt), begins with bos; tgt_out:
        (batch, tgt), the same shifted by one token, ends with eos; token_indices: (tokens,),
        which elements of tgt_out.flatten() are not padding. Padding is at the end and counts
        for nothing. Without tgt_out and token_indices it returns the logits in fp32, (batch,
        tgt, vocabulary). They are no method of their own, since FSDP gathers weights only
        around `forward`.
        """
        memory, memory_mask = self.encode(src)
        x = self.decode(tgt_in, memory, memory_mask)  # (batch, tgt, d_model)
        if tgt_out is None:
            return F.linear(x, self.embedding.weight).float()
        assert token_indices is not None, "token_indices come with tgt_out"
        # Padding is left out before the projection, the largest product. The indices come with
        # the batch, because finding the tokens here would make the CPU wait for a GPU.
        x = x.flatten(0, 1).index_select(0, token_indices)  # (tokens, d_model)
        target = tgt_out.flatten().index_select(0, token_indices)
        return self.loss(x, self.embedding.weight, target, self.config.label_smoothing)

    @torch.inference_mode()
    def greedy(self, src: Tensor) -> Tensor:
        """Returns translations, taking the most likely next token each time.

        src: (batch, src) ids that end with eos. Returns (batch, tgt) ids, padded after eos,
        without bos. Call `eval()` first, or dropout changes the result. Training and
        translate.py use beam search instead, which caches earlier positions:
        support/translation/beam.py.
        """
        memory, memory_mask = self.encode(src)
        ids = torch.full((len(src), 1), self.config.bos, device=src.device)
        ended = torch.zeros(len(src), dtype=torch.bool, device=src.device)
        while ids.shape[1] <= self.config.max_length and not ended.all():
            x = self.decode(ids, memory, memory_mask)[:, -1]  # (batch, d_model)
            logits = F.linear(x, self.embedding.weight)
            token = logits.argmax(-1).masked_fill(ended, self.config.pad)
            ids = torch.cat([ids, token[:, None]], dim=1)
            ended = ended | (token == self.config.eos)
        return ids[:, 1:]


# Parameters that make the input vectors: token embeddings (for images the projection of
# patches), learned positions and prefix tokens. The last two are a classifier's.
EMBEDDINGS = ("embedding.weight", "positions", "prefix_tokens")


@torch.no_grad()
def initialize(model: nn.Module, seed: int) -> None:
    """Initializes all parameters from a seed, the same in every process and script.

    Biases are 0. One parameter is made at a time, so that a process that keeps only a shard of
    each parameter, as in train_fsdp.py, never holds the whole model. Raises ValueError for a
    model with buffers, whose values would be lost there.
    """
    buffers = [name for name, _ in model.named_buffers()]
    if buffers:
        raise ValueError(
            f"{buffers[0]} is a buffer, whose values train_fsdp.py and train_tp.py would lose: "
            f"compute them in forward() instead"
        )
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.zeros(parameter.shape)  # biases stay 0
        if name.endswith("norm.weight"):
            values.fill_(1)
        elif name in EMBEDDINGS:
            nn.init.normal_(values, std=values.shape[1] ** -0.5, generator=generator)
        elif values.dim() == 4:  # of a convolution, which a ReLU follows
            nn.init.kaiming_uniform_(values, nonlinearity="relu", generator=generator)
        elif values.dim() > 1:
            nn.init.xavier_uniform_(values, generator=generator)
        elif not name.endswith("bias"):
            raise ValueError(f"{name}: neither the weight of a norm nor a bias")
        if hasattr(parameter, "placements"):  # FSDP's DTensor: every process keeps its shard
            values = shard_like(parameter, values)
        parameter.copy_(values)


def shard_like(parameter: Tensor, values: Tensor) -> Tensor:
    """Returns `values` as a DTensor that is sharded like `parameter`."""
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(parameter, DTensor)
    return distribute_tensor(
        values.to(parameter.device),
        parameter.device_mesh,
        parameter.placements,
        src_data_rank=None,  # every process has the same values: nothing is sent
    )


def tensor_parallel_plan() -> dict[str, "ParallelStyle"]:
    """Returns how train_tp.py splits the matrices of an encoder or decoder layer.

    A matrix that is split by columns (rows of `weight`) takes the whole input and returns some
    of the outputs: some of the heads, or some of d_ff. The next matrix is split by rows: it
    takes these and returns a partial sum of every output. An all-reduce adds these up.
    """
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

    return {
        "*attention.query": ColwiseParallel(),
        "*attention.key_value": ColwiseParallel(),
        "*attention.out": RowwiseParallel(),
        "feed_forward.0": ColwiseParallel(),
        "feed_forward.2": RowwiseParallel(),
    }
