"""The same model built from PyTorch's own layers: what ours is checked against, and timed against."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model import ModelConfig, Transformer, sinusoids


class TorchTransformer(nn.Module):
    """nn.TransformerEncoder and nn.TransformerDecoder as in PyTorch's tutorials; called like `Transformer`."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        shape = dict(d_model=config.d_model, nhead=config.heads, dim_feedforward=config.d_ff, dropout=config.dropout,
                     batch_first=True, norm_first=config.norm == "pre")
        norm = (lambda: nn.LayerNorm(config.d_model)) if config.norm == "pre" else lambda: None
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(**shape), config.layers, norm(), enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(**shape), config.layers, norm())
        self.dropout = nn.Dropout(config.dropout)
        self.register_buffer("positions", sinusoids(config.max_length, config.d_model), persistent=False)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor):
        pad, length = self.config.pad, tgt_in.shape[1]
        embed = lambda ids: self.dropout(self.embedding(ids) * self.config.d_model**0.5 + self.positions[: ids.shape[1]])
        causal = torch.ones(length, length, dtype=torch.bool).triu(1)
        memory = self.encoder(embed(src), src_key_padding_mask=src == pad)
        x = self.decoder(embed(tgt_in), memory, tgt_mask=causal, tgt_key_padding_mask=tgt_in == pad, memory_key_padding_mask=src == pad)
        logits = F.linear(x, self.embedding.weight).flatten(0, 1)
        loss = F.cross_entropy(logits, tgt_out.flatten(), ignore_index=pad, reduction="sum", label_smoothing=self.config.label_smoothing)
        return loss, loss.detach(), int((tgt_out != pad).sum())

    def copy_from(self, ours: Transformer) -> "TorchTransformer":
        """Takes over the weights; the biases that ours does without become zero."""

        def attention(theirs: nn.MultiheadAttention, mine) -> None:
            theirs.in_proj_weight.copy_(torch.cat([mine.query.weight, mine.key_value.weight]))
            theirs.out_proj.weight.copy_(mine.out.weight)
            theirs.in_proj_bias.zero_()
            theirs.out_proj.bias.zero_()

        with torch.no_grad():
            self.embedding.weight.copy_(ours.embedding.weight)
            for theirs, mine in zip([*self.encoder.layers, *self.decoder.layers], [*ours.encoder, *ours.decoder]):
                is_decoder = hasattr(mine, "cross_attention")
                attention(theirs.self_attn, mine.self_attention if is_decoder else mine.attention)
                if is_decoder:
                    attention(theirs.multihead_attn, mine.cross_attention)
                theirs.linear1.load_state_dict(mine.feed_forward[0].state_dict())
                theirs.linear2.load_state_dict(mine.feed_forward[2].state_dict())
                for norm, residual in zip([theirs.norm1, theirs.norm2, getattr(theirs, "norm3", None)], mine.residuals):
                    norm.load_state_dict(residual.norm.state_dict())
            if self.config.norm == "pre":
                self.encoder.norm.load_state_dict(ours.encoder_norm.state_dict())
                self.decoder.norm.load_state_dict(ours.decoder_norm.state_dict())
        return self
