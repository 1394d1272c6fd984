"""What replaces parts of model.py when a model is used: skip this file on first reading.

    model = speed_up(Transformer(config), "cpu")

model.py writes each part as one would read it. `speed_up` replaces attention, the loss
(fused_loss.py) and others by faster implementations, and on CPUs layer norms and embeddings by
more exact ones. With --plain it replaces nothing but what --compile and --recompute need.
tests/unit/test_fast.py compares both, and tests/measure/tricks.py measures the gain of each
part.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from model import Attention, LayerConfig, Transformer, sinusoids
from support.common.fused_loss import FusedLinearCrossEntropy, compiled_linear_cross_entropy

Model = TypeVar("Model", bound=nn.Module)


def speed_up(
    model: Model,
    device: str,
    dtype: torch.dtype | None = None,
    recompute: bool = False,
    compiled: bool = False,
) -> Model:
    """Replaces parts of `model` by faster ones, unless its configuration is plain; returns it.

    In fp32 they compute the same, up to rounding and the random numbers of dropout. Under
    autocast they also round the residual stream, as FSDP does (on a CPU only with dropout).

    device: "cpu" or "cuda", where the model will run; dtype: that of autocast, if it is used;
    recompute: keep only the inputs of each layer for the backward pass, and compute the rest
    again, which needs less memory and more time; compiled: generate code with torch.compile for
    the layers, and on a GPU for the loss; it merges many small operations into fewer.
    """
    if compiled:
        compile_layers(model)
    if not cast(LayerConfig, model.config).plain:
        replace_functions(model, device, dtype, compiled)
        if device == "cpu":
            replace_for_cpus(model)
        elif dtype:
            replace_for_gpus(model, dtype)  # after `compile_layers`: it wraps compiled code
    if recompute:
        for layer in model.layers():
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    return model


def replace_functions(
    model: nn.Module, device: str, dtype: torch.dtype | None, compiled: bool
) -> None:
    """Replaces the functions that model.py keeps as attributes: attention, loss, positions."""
    max_length = cast(LayerConfig, model.config).max_length
    attention = fastest_attention(device, dtype, max_length)
    for module in model.modules():
        if isinstance(module, Attention):
            module.attend = attention
    if isinstance(model, Transformer):
        model.loss = FusedLinearCrossEntropy.apply
        model.sinusoids = partial(look_up_sinusoids, max_length + 1)
        if compiled and device == "cuda":
            model.loss = compiled_linear_cross_entropy()


def fastest_attention(device: str, dtype: torch.dtype | None, max_length: int) -> Callable:
    """Returns what replaces `scaled_dot_product`: one of PyTorch's fused kernels, or our own.

    In bf16 on a CPU, PyTorch's kernel is far slower for short sentences.
    """
    if device == "cpu" and dtype == torch.bfloat16:
        return cpu_bf16_attention
    if device == "cuda" and dtype and max_length <= 128:
        return masked_attention
    return fused_attention


def replace_for_cpus(model: nn.Module) -> None:
    """Replaces what is slow or inexact on a CPU alone."""
    for module in list(model.modules()):
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_pre_hook(to_channels_last)
        elif isinstance(module, nn.LayerNorm) and module.bias is not None:
            module.__class__ = Fp32LayerNorm
        elif isinstance(module, nn.Embedding):
            module.__class__ = Fp32Embedding
        for name, child in module.named_children():
            if isinstance(child, nn.Dropout):
                setattr(module, name, ByteDropout(child.p).train(child.training))


def replace_for_gpus(model: nn.Module, dtype: torch.dtype) -> None:
    """Replaces what makes a GPU run more kernels under autocast than it needs."""
    for layer in model.layers():
        # Not a nested function: in a deep copy it would still use the weights of the original.
        places = places_of_weights(layer)
        layer.forward = partial(in_low_precision, layer.forward, places, dtype)
    if isinstance(model, Transformer):  # otherwise each layer of the decoder would cast it
        model.encoder_norm.register_forward_hook(cast_output)
    for module in model.modules():
        if isinstance(module, Attention):
            module.__class__ = OneProductAttention


def compile_layers(model: nn.Module) -> None:
    """Compiles the layers, one graph for each kind of layer.

    The graphs end where the layers do, so that what DDP and FSDP do between layers still
    happens as soon as it can, and six layers take no longer to compile than one.
    """
    # A size of 1 has a graph of its own, as have evaluations: more than the 8 allowed.
    torch._dynamo.config.recompile_limit = 64
    for layer in model.layers():
        for module in layer.modules():
            if isinstance(module, nn.Linear):
                module.__class__ = FlatLinear
        compiled = torch.compile(layer.forward, fullgraph=True)
        layer.forward = partial(call_with_any_shape, compiled)


class FlatLinear(nn.Linear):
    """A linear layer that flattens its input to a matrix.

    PyTorch 2.13 cannot compile a linear layer that train_tp.py has split if its input has more
    dimensions, of sizes that vary.
    """

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x.flatten(0, -2))
        return y.unflatten(0, x.shape[:-1])


def call_with_any_shape(layer: Callable, x: Tensor, *others: Tensor) -> Tensor:
    """Calls a compiled layer, whose graph is to serve for other batches and lengths, too.

    With torch.compile's own `dynamic=True`, the sizes of the weights would count as unknown,
    and those of train_tp.py could not be compiled.
    """
    d_model = x.shape[-1]
    for tensor in (x, *others):
        for dimension, size in enumerate(tensor.shape):
            if size not in (1, d_model):
                torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return layer(x, *others)


def fused_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`scaled_dot_product` by PyTorch's fused kernel: same shapes, same result.

    A mask without a batch dimension is the causal mask. With `is_causal` the kernel does not
    need it, and does not compute the scores that it hides.
    """
    if mask.dim() == 2 and mask.shape[0] > 1:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return masked_attention(q, k, v, mask)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`fused_attention` that passes the causal mask, too, as a tensor.

    On a GPU of compute capability 8.0 or higher, in bf16 or fp16, the kernel for `is_causal` is
    FlashAttention. It computes blocks of 128 positions, of which a short sentence fills little.
    The kernel that takes a mask computes blocks of 64.
    """
    if mask.dim() == 2 and mask.shape[0] == 1:  # a single position, the last, sees all
        return F.scaled_dot_product_attention(q, k, v)
    if not torch.compiler.is_compiling():  # compiled code converts the mask as it reads it
        mask = additive_mask(mask, q.dtype)
    return F.scaled_dot_product_attention(q, k, v, mask)


@lru_cache(maxsize=2)
def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns what is added to the scores: 0 where `mask` is True, else minus infinity.

    PyTorch would compute it in each layer; but all layers of a pass have the same two masks.
    """
    # The cache compares tensors by identity. It keeps the masks alive, so that no other tensor
    # gets their ids.
    keys = mask.shape[-1]
    padded = keys + -keys % 8  # a kernel of the GPU would otherwise pad it, in each layer
    shape = (*mask.shape[:-1], padded)
    # A kernel gives no weights and no gradients, not NaN, to a row that is minus infinity, as
    # of a rank without sentences. A very low number would give it wrong gradients.
    scores = torch.full(shape, -math.inf, dtype=dtype, device=mask.device)
    return scores[..., :keys].masked_fill_(mask, 0.0)


def padded_keys(keys: int) -> int:
    """Returns how many keys `cpu_bf16_attention` computes with.

    A multiple of 32, a vector of the processor, because softmax handles a remainder number by
    number; and at least one more than there are, because without padding F.pad returns another
    layout, which compiled code does not expect.
    """
    return 32 * (keys // 32 + 1)


def cpu_bf16_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`scaled_dot_product` for bf16 on a CPU: same shapes, same result.

    It scales q, which is smaller than the scores. The softmax reads and writes bf16, computing
    in fp32. It pads the keys (`padded_keys`), and adds the mask, which needs no backward pass.
    """
    padding = padded_keys(k.shape[-2]) - k.shape[-2]
    k = F.pad(k, (0, 0, 0, padding))  # (batch, heads, src + padding, d_head)
    v = F.pad(v, (0, 0, 0, padding))
    bias = torch.zeros(mask.shape, dtype=q.dtype)
    bias = bias.masked_fill_(~mask, torch.finfo(q.dtype).min)
    bias = F.pad(bias, (0, padding), value=-math.inf)
    with torch.autocast("cpu", enabled=False):
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        return scores.add_(bias).softmax(dim=-1) @ v


def look_up_sinusoids(rows: int, positions: Tensor, d_model: int) -> Tensor:
    """`sinusoids` of positions below `rows`, from a table: one kernel instead of seven."""
    if torch.compiler.is_compiling():  # the table would be a tensor of torch.export, for ever
        return sinusoids(positions, d_model)
    return table_of_sinusoids(rows, d_model, positions.device).index_select(0, positions)


@lru_cache(maxsize=8)
def table_of_sinusoids(rows: int, d_model: int, device: torch.device) -> Tensor:
    """Returns `sinusoids` of the positions 0, 1, ..., (rows, d_model)."""
    with torch.inference_mode(False):  # training will use the table, too
        return sinusoids(torch.arange(rows, device=device), d_model)


class OneProductAttention(Attention):
    """Attention that computes q, k and v of self-attention in one product.

    It joins the matrices, if they are the copies that `CastTogether` makes for a pass, and not
    parameters. The backward pass needs the joined matrix. With FSDP, which frees a layer's
    parameters after use, the joined matrices of all layers would stay in memory.
    """

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        if source is not x or isinstance(self.query.weight, nn.Parameter):
            return super().forward(x, source, mask)
        weight = torch.cat([self.query.weight, self.key_value.weight])
        bias = None
        if self.query.bias is not None:
            bias = torch.cat([self.query.bias, self.key_value.bias])
        sizes = [len(self.query.weight), len(self.key_value.weight)]
        query, key_value = F.linear(x, weight, bias).split(sizes, dim=-1)
        return self.attend_projected(query, key_value, mask)


def in_low_precision(
    forward: Callable, places: list[tuple[nn.Module, str]], dtype: torch.dtype, *inputs: Tensor
) -> Tensor:
    """Calls a layer's `forward`, which under autocast computes all in `dtype`.

    This is what FSDP's MixedPrecisionPolicy does. Autocast by itself casts each weight in a
    kernel of its own, and its gradient in another; it computes norms in fp32, and so the sums
    of the residual stream. The weights that the optimizer updates stay in fp32.

    places: where the layer's weights are, as `places_of_weights` returns them.
    """
    device = inputs[0].device.type
    if not torch.is_autocast_enabled(device):
        return forward(*inputs)
    inputs = tuple(x.to(dtype) if x.is_floating_point() else x for x in inputs)
    weights = [cast(nn.Parameter, module._parameters[name]) for module, name in places]
    with torch.autocast(device, enabled=False):
        if weights[0].dtype == dtype:  # FSDP has cast them
            return forward(*inputs)
        try:
            put(CastTogether.apply(dtype, *weights), places)
            return forward(*inputs)
        finally:
            put(weights, places)


def places_of_weights(layer: nn.Module) -> list[tuple[nn.Module, str]]:
    """Returns the module and the name in it of each weight of a layer."""
    return [
        (module, name)
        for module in layer.modules()
        for name, _ in module.named_parameters(recurse=False)
    ]


def put(weights: Iterable[Tensor], places: list[tuple[nn.Module, str]]) -> None:
    """Puts each weight where `places` says: a parameter, or its copy, a plain tensor."""
    for weight, (module, name) in zip(weights, places):
        module._parameters[name] = cast(nn.Parameter, weight)


class CastTogether(torch.autograd.Function):
    """Casts tensors to `dtype` in one kernel of a GPU, and their gradients back in another."""

    @staticmethod
    def forward(ctx, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        return cast_together(tensors, dtype)

    @staticmethod
    def backward(ctx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *cast_together(gradients, ctx.dtype)


def cast_together(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Returns copies of the tensors in `dtype`."""
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return tuple(copies)


def cast_output(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
    """A hook that casts the output of a module as autocast would cast it later."""
    device = output.device.type
    if torch.is_autocast_enabled(device):
        return output.to(torch.get_autocast_dtype(device))
    return output


def to_channels_last(module: nn.Module, images: tuple[Tensor]) -> Tensor:
    """A hook that stores the channels of a pixel side by side, which max-pooling prefers."""
    return images[0].contiguous(memory_format=torch.channels_last)


class Fp32LayerNorm(nn.LayerNorm):
    """Layer norm that computes in fp32, even under autocast.

    On a CPU, PyTorch adds up the gradients of the weights over all tokens in the precision of
    the input. In bf16 such sums are several percent wrong, and worse for more tokens.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype not in (torch.bfloat16, torch.float16):
            return super().forward(x)
        weight, bias = self.weight.float(), self.bias.float()  # FSDP may have cast them
        y = F.layer_norm(x.float(), self.normalized_shape, weight, bias, self.eps)
        return y.to(x.dtype)


class Fp32Embedding(nn.Embedding):
    """An embedding whose gradients are added up in fp32, for the same reason.

    PyTorch adds them up in the type of the weights, which is bf16 where FSDP has cast them.
    """

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight.float(), self.padding_idx)


class ByteDropout(nn.Dropout):
    """Dropout for CPUs that uses a random byte for each number: a 64-bit draw has eight.

    On a CPU the random numbers are what dropout costs.

    A number is dropped if its byte is less than 256 p. That is not a whole number, so each row
    (the last dimension) rounds it up or down at random; the mean over rows is exact.

    In training under autocast, with p > 0, the result is in bf16 or fp16, and so is the
    residual stream of all layers.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        if torch.is_autocast_enabled("cpu"):
            x = x.to(torch.get_autocast_dtype("cpu"))
        # 256 does not fit in a byte; and compiled code has random numbers of its own.
        if self.p > 0.99 or torch.compiler.is_compiling():
            return super().forward(x)
        threshold = torch.rand(*x.shape[:-1], 1).add_(256 * self.p).to(torch.uint8)
        draws = torch.empty(x.numel() // 8 + 1, dtype=torch.int64).random_(-(2**63), None)
        random_bytes = draws.view(torch.uint8)[: x.numel()].view(x.shape)
        keep = random_bytes.ge_(threshold)
        return x * keep.to(x.dtype).mul_(1 / (1 - self.p))
