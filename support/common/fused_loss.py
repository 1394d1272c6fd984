"""The loss of model.py without storing logits or probabilities: skip it on first reading.

`FusedLinearCrossEntropy` computes the gradient together with the loss, block by block.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor

LOSS_BLOCK = 4096  # tokens whose logits are in memory at once
SOFTMAX_ROWS = 64  # of logits, on a CPU: they stay in its cache


def in_parts(tensors: Sequence[Tensor], size: int) -> Iterator[tuple[Tensor, ...]]:
    """Yields parts of at most `size` rows of the tensors, which have equally many rows.

    The parts have equally many rows, or differ by one. Parts of `size` rows could leave a last
    one of a single row, for which torch.compile makes a graph of its own.
    """
    number = max(1, math.ceil(len(tensors[0]) / size))
    return zip(*(tensor.tensor_split(number) for tensor in tensors))


def overwrite_by_gradient(
    logits: Tensor, target: Tensor, smoothing: float
) -> tuple[Tensor, Tensor]:
    """Overwrites logits, (rows, vocabulary), by the gradient of the loss; returns (loss, nll).

    target: (rows,). The gradient is the probabilities minus the smoothed targets.
    """
    uniform = smoothing / logits.shape[1]
    log_p = logits.float().log_softmax(-1)
    targets = (torch.arange(len(target), device=target.device), target)
    nll = -log_p[targets].sum()
    loss = (1 - smoothing) * nll
    if smoothing:
        loss = loss - uniform * log_p.sum()
    gradient = log_p.exp_().sub_(uniform)
    gradient[targets] -= 1 - smoothing
    logits.copy_(gradient)
    return loss, nll


def gradient_in_place(
    logits: Tensor, target: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (loss, nll, gradient) of a block; the gradient is in the memory of the logits."""
    rows = SOFTMAX_ROWS if logits.device.type == "cpu" else LOSS_BLOCK
    results = [
        overwrite_by_gradient(row_logits, row_targets, smoothing)
        for row_logits, row_targets in in_parts([logits, target], rows)
    ]
    losses, nlls = zip(*results)
    return reduce(add, losses), reduce(add, nlls), logits


def gradient_in_one_kernel(
    logits: Tensor, target: Tensor, smoothing: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`gradient_in_place`, written for torch.compile.

    Indexing would cut the compiled code into several kernels. Without it, a single kernel reads
    the logits for the sum of a row, reads them again, and writes the gradient. The gradient has
    memory of its own: the code that PyTorch 2.11 compiles for a CPU would read some logits
    after it has overwritten them, and the loss would be wrong.
    """
    uniform = smoothing / logits.shape[1]
    log_p = logits.float().log_softmax(-1)
    is_target = torch.arange(logits.shape[1], device=target.device) == target[:, None]
    nll = -log_p.where(is_target, 0.0).sum()
    loss = (1 - smoothing) * nll
    if smoothing:
        loss = loss - uniform * log_p.sum()
    gradient = log_p.exp() - uniform - (1 - smoothing) * is_target
    return loss, nll, gradient.to(logits.dtype)


class FusedLinearCrossEntropy(torch.autograd.Function):
    """`linear_cross_entropy` of model.py without storing logits or probabilities.

    (tokens, vocabulary) would be by far the largest tensor of the model. The gradient of a sum
    needs only a factor from above, so the forward pass computes it at once, block by block. The
    softmax is in fp32.

    In fp16 it rounds this gradient before `backward` multiplies it by the scale of the loss.
    Entries below 3e-8 become 0, which hardly matters: it is the gradient of a sum, and reaches
    1 for the target's logit.
    """

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        weight: Tensor,
        target: Tensor,
        smoothing: float,
        block: int = LOSS_BLOCK,
        gradient: Callable = gradient_in_place,
    ) -> tuple[Tensor, Tensor]:
        """x: (tokens, d_model); weight: (vocabulary, d_model); target: (tokens,).

        block: tokens whose logits are in memory at once; gradient: computes the loss of a block
        and its gradient, as `gradient_in_place` does. Returns (loss, nll), sums over tokens.
        """
        device = x.device.type
        dtype = x.dtype
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            x = x.to(dtype)
            low_precision_weight = weight.to(dtype)
            d_x = torch.empty_like(x)
            d_weight = torch.zeros_like(weight, dtype=torch.float32)  # FSDP's may be bf16
            loss = nll = torch.zeros((), device=x.device)
            blocks = in_parts([x, d_x, target], block)
            for x_block, d_x_block, target_block in blocks:
                logits = x_block @ low_precision_weight.t()  # (block, vocabulary)
                block_loss, block_nll, d_logits = gradient(logits, target_block, smoothing)
                loss = loss + block_loss
                nll = nll + block_nll
                torch.mm(d_logits, low_precision_weight, out=d_x_block)
                d_weight += d_logits.t() @ x_block
        ctx.weight_dtype = weight.dtype
        ctx.save_for_backward(d_x, d_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx, d_loss: Tensor, _):
        d_x, d_weight = ctx.saved_tensors
        d_weight = (d_weight * d_loss).to(ctx.weight_dtype)
        return d_x * d_loss, d_weight, None, None, None, None


def compiled_linear_cross_entropy() -> Callable:
    """Returns `FusedLinearCrossEntropy` with one kernel between the products of a block."""
    gradient = torch.compile(gradient_in_one_kernel, fullgraph=True, dynamic=True)

    def loss(x: Tensor, weight: Tensor, target: Tensor, smoothing: float):
        return FusedLinearCrossEntropy.apply(x, weight, target, smoothing, LOSS_BLOCK, gradient)

    return loss
