"""What is only faster, not clearer: skip this file on first reading.

    model = speed_up(Transformer(config), "cpu", bf16=True)      # the same mathematics

`speed_up` puts a faster twin in the place of a part of the model that model.py writes as one would
read it. tests/unit/test_fast.py compares the twins; tests/measure/tricks.py measures what each of them brings.
"""

import ctypes
import math
import os
import sys
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model import Attention, Transformer, scaled_dot_product

# On an H100 PyTorch would take cuDNN's attention, which makes a plan for each new shape of a batch.
torch.backends.cuda.enable_cudnn_sdp(False)
# Convolutions: fp32 is fp32, and the same sums come in the same order each time.
torch.backends.cudnn.allow_tf32, torch.backends.cudnn.deterministic = False, True
# oneDNN makes a plan for each new shape and keeps 1,024; an epoch has several times as many.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")


def speed_up(model: nn.Module, device: str, bf16: bool, recompute: bool = False) -> nn.Module:
    """Changes `model`, which is to run on `device`, so that it computes the same in less time.

    recompute: keeps only the inputs of each layer, which takes less memory, and more time.
    """
    for module in list(model.modules()):
        if isinstance(module, Attention):
            # PyTorch's fused kernel; but in bf16 on a CPU it is far slower for short sentences.
            on_cpu = device == "cpu" and bf16
            module.attend = short_attention if on_cpu else F.scaled_dot_product_attention
        if isinstance(module, nn.MaxPool2d) and device == "cpu":
            module.register_forward_pre_hook(channels_last)
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout) and device == "cpu":
                setattr(module, name, FastDropout(child.p).train(child.training))
    if isinstance(model, Transformer):
        model.loss = SummedCrossEntropy.apply
    for layer in model.layers() if recompute else ():
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return model


def fast_precision(device: str) -> str:
    """bf16 where the hardware multiplies in it, else fp32: in software bf16 is slower."""
    if device == "cuda":
        return "bf16" if torch.cuda.get_device_capability()[0] >= 8 else "fp32"
    has = getattr(torch.cpu, "get_capabilities", dict)()
    return "bf16" if any(map(has.get, ("avx512_bf16", "amx_bf16", "bf16"))) else "fp32"


def keep_memory() -> None:
    """Has glibc keep the memory of freed tensors, which it would give back and fault in again.

    It makes decoding faster by some 5 %, but training no faster: there it is not used. Other C
    libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt:
        # M_MMAP_THRESHOLD: smaller tensors come from the heap; old glibc allows 32 MiB at most.
        if not mallopt(-3, 1 << 30):
            mallopt(-3, 1 << 25)
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: the heap never shrinks
        mallopt(-2, 1 << 28)  # M_TOP_PAD: it grows by 256 MiB at a time


def short_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`scaled_dot_product` in bf16 on a CPU.

    It scales q, which is smaller than the scores; has the softmax read and write bf16 (inside, it
    is in fp32); and makes rows of scores fill whole vectors of the processor, since softmax takes
    what is left over number by number. The mask is added: the backward pass has no work for that,
    and comes to the same but for a sentence that is all padding.
    """
    if not mask.any(-1).all():
        return scaled_dot_product(q, k, v, mask)
    more, least = -k.shape[-2] % 32, torch.finfo(q.dtype).min  # 32 numbers in a vector
    k, v = (F.pad(x, (0, 0, 0, more)) for x in (k, v))  # (batch, heads, src + more, …)
    away = torch.zeros(mask.shape, dtype=q.dtype).masked_fill_(~mask, least)
    with torch.autocast("cpu", enabled=False):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return scores.add_(F.pad(away, (0, more), value=-math.inf)).softmax(dim=-1) @ v


def channels_last(module: nn.Module, pictures: tuple[Tensor]) -> Tensor:
    """A pixel's channels side by side, as max-pooling, and convolutions after it, go faster."""
    return pictures[0].contiguous(memory_format=torch.channels_last)


class FastDropout(nn.Dropout):
    """Dropout on a CPU, where random bits are what it costs: one 64-bit draw makes eight of them.

    A byte less than 256 p is dropped. That is no whole number, so each row (the last dimension)
    rounds it up or down at random: on average p is exact. Under autocast what it returns is bf16,
    and so is the sum that runs through all layers.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        if self.p > 0.99:  # 256 would be no byte
            return super().forward(x)
        dropped = torch.rand(*x.shape[:-1], 1).add_(256 * self.p).to(torch.uint8)
        draws = torch.empty(x.numel() // 8 + 1, dtype=torch.int64).random_(-(2**63), None)
        keep = draws.view(torch.uint8)[: x.numel()].view(x.shape).ge_(dropped)
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))


class SummedCrossEntropy(torch.autograd.Function):
    """`cross_entropy` of model.py that keeps neither logits nor probabilities.

    (tokens, vocabulary) is by far the largest tensor of the model. The gradient of a sum needs only
    a factor from above, so it is worked out at once, a block of rows at a time, and in the place of
    the logits. The softmax is in fp32: on a CPU for so few rows that they stay in the cache.
    """

    @staticmethod
    def forward(
        ctx, x: Tensor, weight: Tensor, target: Tensor, smoothing: float, block: int = 4096
    ) -> tuple[Tensor, Tensor]:
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        few = 64 if kind == "cpu" else block
        with torch.autocast(kind, enabled=False):
            x, w, uniform = x.to(dtype), weight.to(dtype), smoothing / len(weight)
            d_x, d_weight = torch.empty_like(x), torch.zeros_like(weight)
            nll = loss = torch.zeros((), device=x.device)
            for rows, d_rows, targets in zip(
                x.split(block), d_x.split(block), target.split(block)
            ):
                logits = rows @ w.t()  # (block, vocabulary)
                for part, t in zip(logits.split(few), targets.split(few)):
                    log_p = part.float().log_softmax(-1)
                    at = torch.arange(len(t), device=t.device), t
                    nll_t = -log_p[at].sum()
                    nll, loss = nll + nll_t, loss + (1 - smoothing) * nll_t
                    if smoothing:
                        loss = loss - uniform * log_p.sum()
                    d_logits = log_p.exp_().sub_(uniform)
                    d_logits[at] -= 1 - smoothing
                    part.copy_(d_logits)
                torch.mm(logits, w, out=d_rows)
                d_weight += logits.t() @ rows
        ctx.save_for_backward(d_x, d_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx, d_loss: Tensor, _):
        d_x, d_weight = ctx.saved_tensors
        return d_x * d_loss, d_weight * d_loss, None, None, None
