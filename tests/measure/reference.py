"""The same model from PyTorch's own layers: what ours is checked against, and timed against."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import ModelConfig, Transformer, sinusoids
from support.common.key_value_order import to_keys_then_values


class TorchTransformer(nn.Module):
    """nn.TransformerEncoder and nn.TransformerDecoder as in PyTorch's tutorials.

    It is called like `Transformer`; its nll is the smoothed loss.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        shape = dict(
            d_model=config.d_model,
            nhead=config.heads,
            dim_feedforward=config.d_ff,
            dropout=config.dropout,
            batch_first=True,
            norm_first=config.norm == "pre",
        )
        encoder_norm, decoder_norm = (
            nn.LayerNorm(config.d_model) if config.norm == "pre" else None for _ in range(2)
        )
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(**shape),
            config.layers,
            encoder_norm,
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(**shape), config.layers, decoder_norm
        )
        self.dropout = nn.Dropout(config.dropout)
        places = torch.arange(config.max_length)
        self.register_buffer("positions", sinusoids(places, config.d_model), persistent=False)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)

    def embed(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) * self.config.d_model**0.5
        return self.dropout(x + self.positions[: ids.shape[1]])

    def forward(
        self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor, token_indices: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Returns (loss, nll), as ours does; `token_indices` is not needed."""
        pad = self.config.pad
        length = tgt_in.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        memory = self.encoder(self.embed(src), src_key_padding_mask=src == pad)
        x = self.decoder(
            self.embed(tgt_in),
            memory,
            tgt_mask=causal,
            tgt_key_padding_mask=tgt_in == pad,
            memory_key_padding_mask=src == pad,
        )
        logits = F.linear(x, self.embedding.weight).flatten(0, 1)
        loss = F.cross_entropy(
            logits,
            tgt_out.flatten(),
            ignore_index=pad,
            reduction="sum",
            label_smoothing=self.config.label_smoothing,
        )
        return loss, loss.detach()

    def matches(self, ours: Transformer) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Each parameter with those of ours that it is made of: see `joined`."""

        def attention(theirs: nn.MultiheadAttention, mine: nn.Module):
            yield theirs.in_proj_weight, [mine.query.weight, mine.key_value.weight]
            yield theirs.out_proj.weight, [mine.out.weight]

        def same(theirs: nn.Module, mine: nn.Module):
            for a, b in zip(theirs.parameters(), mine.parameters(), strict=True):
                yield a, [b]

        yield from same(self.embedding, ours.embedding)
        for theirs, mine in zip([*self.encoder.layers, *self.decoder.layers], ours.layers()):
            if hasattr(mine, "cross_attention"):
                yield from attention(theirs.self_attn, mine.self_attention)
                yield from attention(theirs.multihead_attn, mine.cross_attention)
            else:
                yield from attention(theirs.self_attn, mine.attention)
            yield from same(theirs.linear1, mine.feed_forward[0])
            yield from same(theirs.linear2, mine.feed_forward[2])
            for number, residual in enumerate(mine.residuals, 1):
                yield from same(getattr(theirs, f"norm{number}"), residual.norm)
        if self.config.norm == "pre":
            yield from same(self.encoder.norm, ours.encoder_norm)
            yield from same(self.decoder.norm, ours.decoder_norm)

    def joined(self, parts: list[Tensor]) -> Tensor:
        """Parts, or their gradients, in one: a query and a key_value, or one part alone."""
        if len(parts) == 1:
            return parts[0]
        query, key_value = parts
        return torch.cat([query, to_keys_then_values(key_value, self.config.heads)])

    @torch.no_grad()
    def copy_from(self, ours: Transformer) -> "TorchTransformer":
        """Takes over the weights; the biases that ours does without become zero."""
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
        for parameter, parts in self.matches(ours):
            parameter.copy_(self.joined(parts))
        return self
