"""The Transformer of "Attention Is All You Need" (Vaswani et al., 2017), written out by hand.

    model = Transformer(ModelConfig(vocab_size=8000))
    loss, nll, tokens = model(src, tgt_in, tgt_out)        # sums over the batch: the trainer divides, once
    best = model.translate(src, beam=4)                    # token ids and scores, decoded with a KV cache

Section numbers are those of the paper, https://arxiv.org/abs/1706.03762. Shapes stand in comments:
batch, src and tgt (lengths in tokens), heads, d_model, d_head = d_model / heads.
"""

import math
import pickle
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import decode

# On an H100 PyTorch would take cuDNN's attention, which makes a plan for each new shape: batches have many.
torch.backends.cuda.enable_cudnn_sdp(False)


@dataclass
class ModelConfig:
    """The shape of a model. Raises ValueError, in one line, for a shape that cannot be."""

    vocab_size: int
    layers: int = 3            # encoder layers, and as many decoder layers
    d_model: int = 256
    heads: int = 4
    d_ff: int = 1024
    dropout: float = 0.1
    label_smoothing: float = 0.1
    norm: str = "pre"          # "post" is the paper's; "pre" trains without a long warm-up
    max_length: int = 128      # positions: the longest sentence, in tokens, its end mark included
    pad: int = 0
    bos: int = 1
    eos: int = 2

    def __post_init__(self):
        for name in ("vocab_size", "layers", "d_model", "heads", "d_ff", "max_length"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.d_model % self.heads:
            raise ValueError(f"d_model {self.d_model} cannot be split over {self.heads} heads")
        if self.d_model % 2:
            raise ValueError(f"d_model {self.d_model} is odd: positions need pairs of sine and cosine")
        for name in ("dropout", "label_smoothing"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} {getattr(self, name)} is not in [0, 1)")
        if self.norm not in ("pre", "post"):
            raise ValueError(f"norm {self.norm!r} is neither 'pre' nor 'post'")


class Dropout(nn.Module):
    """Dropout where the paper has it (section 5.4): on embeddings and on what each sub-layer adds.

    On a CPU the random bits are its cost: here one 64-bit draw makes eight of them.
    """

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if x.device.type != "cpu":
            return F.dropout(x, self.p)
        dropped = min(round(self.p * 256), 255)             # of the 256 values of a byte: p is exact to 1/512
        draws = torch.empty(x.numel() // 8 + 1, dtype=torch.int64).random_(-2**63, None)
        keep = draws.view(torch.uint8)[: x.numel()].view(x.shape).ge_(dropped)
        return x * keep.to(x.dtype).mul_(256 / (256 - dropped))


def scaled_dot_product(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d_head)) v (section 3.2.1), written out.

    q: (batch, heads, tgt, d_head); k, v: (batch, heads, src, d_head); mask: True where attention is
    allowed, broadcastable to (batch, heads, tgt, src). Returns (batch, heads, tgt, d_head).
    """
    scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)            # (batch, heads, tgt, src)
    # The lowest finite number, not -inf: a sentence that is all padding gets equal weights, not NaN.
    scores = scores.where(mask, torch.finfo(scores.dtype).min)
    # Padded to a vector, softmax of short rows is up to ten times as fast.
    src = scores.shape[-1]
    if src < 16 and not torch.compiler.is_compiling():
        scores = F.pad(scores, (0, 16 - src), value=-math.inf)
    # In fp32: that is more exact, and for rows this short several times as fast as in bf16.
    p = scores.softmax(dim=-1, dtype=torch.float32)
    return p[..., :src].to(v.dtype) @ v


class Attention(nn.Module):
    """Multi-head attention (section 3.2.2), of a sentence to itself or to the encoder's memory."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.d_model, config.d_model, bias=False)
        self.key_value = nn.Linear(config.d_model, 2 * config.d_model, bias=False)
        self.out = nn.Linear(config.d_model, config.d_model, bias=False)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What may be attended to, x: (batch, src, d_model), as keys and values (batch, heads, src, d_head)."""
        k, v = self.key_value(x).chunk(2, dim=-1)
        return tuple(y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (k, v))

    def forward(self, x: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        """x: (batch, tgt, d_model) attends to k, v of `keys_values` where `mask` allows; same shape out."""
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)   # (batch, heads, tgt, d_head)
        if q.device.type == "cpu" and q.dtype == torch.bfloat16:            # where the fused kernel is far slower
            y = scaled_dot_product(q, k, v, mask)
        else:
            y = F.scaled_dot_product_attention(q, k, v, mask)
        return self.out(y.transpose(1, 2).flatten(2))                       # (batch, tgt, d_model)


def feed_forward(config: ModelConfig) -> nn.Sequential:
    """max(0, x W1 + b1) W2 + b2, at every position alike (section 3.3)."""
    return nn.Sequential(nn.Linear(config.d_model, config.d_ff), nn.ReLU(), nn.Linear(config.d_ff, config.d_model))


class Residual(nn.Module):
    """The connection around each sub-layer (section 3.1): post-norm as in the paper, or pre-norm."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.pre = config.norm == "pre"
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, x: Tensor, sublayer) -> Tensor:
        if self.pre:
            return x + self.dropout(sublayer(self.norm(x)))
        return self.norm(x + self.dropout(sublayer(x)))


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(2))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """x: (batch, src, d_model); mask: see `scaled_dot_product`. Returns the shape of x."""
        attend = self.attention
        x = self.residuals[0](x, lambda y: attend(y, *attend.keys_values(y), mask))
        return self.residuals[1](x, self.feed_forward)


class DecoderLayer(nn.Module):
    """Self-attention to what is already written, attention to the source, feed-forward (section 3.1)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.self_attention = Attention(config)
        self.cross_attention = Attention(config)
        self.feed_forward = feed_forward(config)
        self.residuals = nn.ModuleList(Residual(config) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """x: (batch, tgt, d_model); memory: (batch, src, d_model). Returns the shape of x."""
        past, source = self.self_attention, self.cross_attention
        x = self.residuals[0](x, lambda y: past(y, *past.keys_values(y), mask))
        x = self.residuals[1](x, lambda y: source(y, *source.keys_values(memory), memory_mask))
        return self.residuals[2](x, self.feed_forward)


class SummedCrossEntropy(torch.autograd.Function):
    """Label-smoothed cross-entropy (section 5.4) summed over tokens, without keeping the logits.

    (tokens, vocabulary) is by far the largest tensor of the model. The gradient of a sum needs nothing
    from above but one factor, so it is worked out at once, a block of rows at a time, and only what is
    (tokens, d_model) and (vocabulary, d_model) is kept.
    """

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, target: Tensor, smoothing: float, block: int = 1024):
        """x: (tokens, d_model); weight: (vocabulary, d_model); target: (tokens,). Returns (loss, nll)."""
        with torch.autocast(x.device.type, enabled=False):
            w, uniform = weight.to(x.dtype), smoothing / len(weight)
            block = block if x.device.type == "cpu" else 4 * block              # what fits a cache; fewer kernels
            d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
            nll = log_z = torch.zeros((), device=x.device)
            for rows, d_rows, t in zip(x.split(block), d_x.split(block), target.split(block)):
                logits = rows @ w.t()                                       # (block, vocabulary)
                at = torch.arange(len(t), device=t.device), t
                d_logits = p = logits.softmax(-1)
                nll_t = -p[at].float().clamp_min(1e-38).log()
                nll, log_z = nll + nll_t.sum(), log_z + (nll_t + logits[at]).sum()
                d_logits.sub_(uniform)[at] -= 1 - smoothing
                torch.mm(d_logits, w, out=d_rows)
                d_weight += d_logits.t() @ rows
            # -log p averaged over the whole vocabulary: log z less the mean of the logits, x . mean(w).
            mean_logits = x.sum(0, dtype=torch.float32) @ weight.float().mean(0)
            loss = (1 - smoothing) * nll + smoothing * (log_z - mean_logits)
        ctx.save_for_backward(d_x, d_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx, d_loss: Tensor, _):
        d_x, d_weight = ctx.saved_tensors
        return d_x * d_loss.to(d_x.dtype), d_weight * d_loss.to(d_weight.dtype), None, None, None


def sinusoids(length: int, d_model: int) -> Tensor:
    """Positional encodings (section 3.5): (length, d_model), sines in even columns, cosines in odd."""
    position = torch.arange(length)[:, None]
    frequency = torch.exp(torch.arange(0, d_model, 2) * (-math.log(10000.0) / d_model))
    return torch.stack([(position * frequency).sin(), (position * frequency).cos()], dim=-1).flatten(1)


def lower(x: Tensor) -> Tensor:
    """Under autocast, x in its precision: the sum that runs through all layers, and on GPUs norms, else stay in fp32."""
    kind = x.device.type
    return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x


class Transformer(nn.Module):
    """Encoder and decoder (figure 1), with one matrix for both embeddings and the projection (3.4)."""

    translate = decode.translate                           # beam search: a file of its own

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.encoder = nn.ModuleList(EncoderLayer(config) for _ in range(config.layers))
        self.decoder = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers))
        # Pre-norm leaves the sum of all sub-layers as it is, so it wants one norm more at the end.
        last = nn.LayerNorm if config.norm == "pre" else nn.Identity
        self.encoder_norm, self.decoder_norm = last(config.d_model), last(config.d_model)
        self.dropout = Dropout(config.dropout)
        # One more than the longest sentence: batches may be padded to even widths.
        self.register_buffer("positions", sinusoids(config.max_length + 1, config.d_model), persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
        nn.init.normal_(self.embedding.weight, std=config.d_model**-0.5)
        self.projection = None                                              # see `decode.quantize`

    def embed(self, ids: Tensor, first: int = 0) -> Tensor:
        """ids: (batch, length), at positions from `first` on, to (batch, length, d_model)."""
        x = self.embedding(ids) * self.config.d_model**0.5
        return lower(self.dropout(x + self.positions[first : first + ids.shape[1]]))

    def encode(self, src: Tensor) -> tuple[Tensor, Tensor]:
        """src: (batch, src) ids. Returns the memory (batch, src, d_model) and its mask (batch, 1, 1, src)."""
        mask = (src != self.config.pad)[:, None, None]
        x = self.embed(src)
        for layer in self.encoder:
            x = layer(x, mask)
        return lower(self.encoder_norm(x)), mask

    def states(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> tuple[Tensor, Tensor]:
        """What the projection makes each target token from, (tokens, d_model), and these tokens; see `forward`."""
        # First of all: on a GPU the program waits here until it knows how many they are.
        real = (tgt_out != self.config.pad).flatten().nonzero()[:, 0]
        memory, memory_mask = self.encode(src)
        length = tgt_in.shape[1]
        # Padding comes last, so hiding what comes later hides it too from every token that counts.
        causal = torch.ones(length, length, dtype=torch.bool, device=src.device).tril()
        x = self.embed(tgt_in)
        for layer in self.decoder:
            x = layer(x, causal, memory, memory_mask)
        x = lower(self.decoder_norm(x))
        return x.flatten(0, 1).index_select(0, real), tgt_out.flatten().index_select(0, real)

    def forward(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> tuple[Tensor, Tensor, int]:
        """One batch with its answers: (loss, nll, tokens), each a sum over the target tokens.

        src: (batch, src); tgt_in: (batch, tgt), begins with bos; tgt_out: (batch, tgt), the same one
        token further, ends with eos. loss is label-smoothed and has the gradient; nll, the negative
        log-likelihood in nats, is what gets reported; tokens counts the targets that are not padding.
        """
        x, target = self.states(src, tgt_in, tgt_out)
        loss, nll = SummedCrossEntropy.apply(x, self.embedding.weight, target, self.config.label_smoothing)
        return loss, nll, target.numel()

    def score(self, src: Tensor, tgt_in: Tensor, tgt_out: Tensor) -> tuple[float, int, int]:
        """To evaluate: (nll, how many targets are the most likely token, targets); sums over the batch, see `forward`."""
        nll, correct = 0.0, 0
        x, target = self.states(src, tgt_in, tgt_out)
        for rows, t in zip(x.split(1024), target.split(1024)):
            logits = F.linear(rows, self.embedding.weight).float()
            nll += float(F.cross_entropy(logits, t, reduction="sum"))
            correct += int((logits.argmax(-1) == t).sum())
        return nll, correct, target.numel()


def flops(config: ModelConfig, src_lengths: Tensor, tgt_lengths: Tensor) -> float:
    """Floating-point operations to train on sentences of these lengths in tokens, padding left out.

    A product of (a, b) and (b, c) counts 2abc; the backward pass counts twice the forward pass.
    """
    s, t, d = src_lengths.double(), tgt_lengths.double(), config.d_model
    ffn = 2 * d * config.d_ff
    weights = s * (4 * d * d + ffn + 2 * d * d) + t * (6 * d * d + ffn)     # per layer
    scores = 2 * d * (s * s + t * (t + 1) / 2 + t * s)                      # q k^T, and the same again for v
    return float(3 * 2 * (config.layers * (weights + scores) + t * d * config.vocab_size).sum())


def fast_dtype(device: str) -> torch.dtype:
    """bf16 where the hardware multiplies in it, else fp32: without such instructions bf16 is slower."""
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.get_device_capability()[0] >= 8 else torch.float32
    has = getattr(torch.cpu, "get_capabilities", dict)()
    return torch.bfloat16 if any(has.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16")) else torch.float32


def to_decode(model: Transformer, device: str, precision: str = "auto") -> Transformer:
    """The model on `device`, changed so that it translates in int8, bf16 or fp32; "auto" is the fastest there."""
    if precision == "auto" and device == "cpu" and decode.has_int8() or precision == "int8":
        return decode.quantize(model)
    return model.to(device, {"auto": fast_dtype(device), "bf16": torch.bfloat16, "fp32": torch.float32}[precision])


def load_checkpoint(path: str, sharded: bool = False) -> tuple[Transformer | None, dict]:
    """The model in a checkpoint file of any training script, in evaluation mode, and all else it holds.

    Where the weights are in a folder beside it (train_fsdp.py --sharded), only `sharded` accepts that, and
    the model is None. Raises OSError where the file cannot be read, ValueError where it is no whole
    checkpoint. Nothing in the file is run: it may hold tensors, numbers and text only.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        if not isinstance(checkpoint, dict) or not {"config", "model", "bpe", "flags"} <= checkpoint.keys():
            raise KeyError("parts are missing")
        if "sharded" in checkpoint:
            if not sharded:
                raise ValueError(f"{path}: its weights are in {checkpoint['sharded']}/; train_fsdp.py goes on with it, "
                                 f"and without --sharded writes one file")
            return None, checkpoint
        model = Transformer(ModelConfig(**checkpoint["config"]))
        model.load_state_dict(checkpoint["model"])
    except pickle.UnpicklingError:
        raise ValueError(f"{path}: refused, it is not a plain checkpoint (it may hold code, or be no checkpoint)")
    except (RuntimeError, EOFError, KeyError, TypeError, AttributeError) as problem:
        reason = str(problem).strip().splitlines()[0] if str(problem) else type(problem).__name__
        raise ValueError(f"{path}: not a whole checkpoint ({reason[:90]})")
    return model.eval(), checkpoint
