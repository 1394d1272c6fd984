"""The operations and the memory that training a Transformer takes, computed from its shape.

    step = TrainingStep(ModelConfig(8000), sentences=64, length=128, precision="bf16")
    step.flops, step.parameters
    parts, peak = memory(step, shards=8, sentences=8, accumulate=1)   # FSDP on eight processes

Sizes are in bytes and lengths in tokens. In every mode the parameters, the gradients and
AdamW's two moments are kept in fp32; --precision bf16 or fp16 changes the inputs of matrix
products and what FSDP gathers.
"""

import math
from dataclasses import dataclass, replace
from fnmatch import fnmatch

import torch
from torch import nn

from model import ModelConfig, Transformer, tensor_parallel_plan
from support.common.flops import TRAINING, transformer_flops
from support.common.fused_loss import LOSS_BLOCK
from support.common.hardware import autocast_dtype
from support.common.kernels import padded_keys

FP32 = 4  # bytes per element
LOW_PRECISION = 2  # the same in bf16 or fp16
MOMENTS = 2  # elements that AdamW keeps for each parameter
# Each process has the whole bias of a matrix split by rows: it is added after the all-reduce.
WHOLE_BIASES = ("out", "feed_forward.2")
GATHERED_LAYERS = 2  # that FSDP holds whole: the current layer and the next one


@dataclass
class TrainingStep:
    """One training step: a number of sentence pairs with `length` tokens on either side."""

    config: ModelConfig
    sentences: int
    length: int
    precision: str = "fp32"  # or "bf16", "fp16"
    recompute: bool = False
    delay: float = 0.0  # seconds before each collective: --delay-ms
    cpu: bool = False
    accumulate: int = 0  # micro-batches of each process; 0: `best` (estimate.py) chooses
    tensor: int = 1  # processes that share each layer: --tensor of train_tp.py

    def __post_init__(self) -> None:
        with torch.device("meta"):  # shapes only
            model = Transformer(self.config)
        self.parameter_sizes = [weight.numel() for weight in model.parameters()]  # elements
        self.parameters = sum(self.parameter_sizes)
        # Parameters that FSDP gathers at once: those outside the layers, then each layer's, or
        # with --tensor this process's part of each layer's.
        outside = self.parameters - sum(elements_of_part(layer, 1) for layer in model.layers())
        parts = [elements_of_part(layer, self.tensor) for layer in model.layers()]
        self.units = [outside, *parts]
        self.tokens = 2 * self.sentences * self.length
        self.count_flops()

        # Of an element that enters a matrix product.
        self.compute_bytes = LOW_PRECISION if autocast_dtype(self.precision) else FP32
        # `in_low_precision` (support/common/kernels.py) rounds the residual stream on GPUs, and
        # ByteDropout on CPUs. (FSDP always rounds it: without dropout this is too much there.)
        rounded = not self.cpu or self.config.dropout > 0
        self.residual_bytes = self.compute_bytes if rounded else FP32
        # Autocast copies an fp32 tensor for each product that reads it.
        self.copies_for_each_product = self.residual_bytes != self.compute_bytes
        # On CPUs all norms compute in fp32 (`Fp32LayerNorm`), on GPUs only the last two.
        self.norm_bytes = FP32 if self.cpu else self.residual_bytes
        # Per element: on CPUs a dropout keeps its factors, on GPUs a mask.
        self.dropout_bytes = 0
        if self.config.dropout:
            self.dropout_bytes = self.compute_bytes if self.cpu else 1

    def count_flops(self) -> None:
        """Counts the FLOPs of the step: the model's, and those that processes compute.

        `flops` are the model's. `forward_flops` and `hardware_flops` are those that one process
        would compute with all sentences: with --tensor a part of the layers, and the whole
        projection to the vocabulary. --recompute increases `hardware_flops`.
        """
        lengths = torch.tensor([self.length])
        without_projection = replace(self.config, vocab_size=1)  # to one token: next to nothing
        self.flops = self.sentences * transformer_flops(self.config, lengths, lengths)
        layers = self.sentences * transformer_flops(without_projection, lengths, lengths)
        part_of_layers = layers / self.tensor
        projection = self.flops - layers
        self.forward_flops = (part_of_layers + projection) / TRAINING
        self.hardware_flops = TRAINING * self.forward_flops
        if self.recompute:  # the layers go forward twice
            self.hardware_flops += part_of_layers / TRAINING


def elements_of_part(layer: nn.Module, tensor: int) -> int:
    """Returns how many of a layer's parameters each of `tensor` processes has."""
    elements = 0
    for name, module in layer.named_modules():
        is_split = any(fnmatch(name, pattern) for pattern in tensor_parallel_plan())
        for parameter, weight in module.named_parameters(recurse=False):
            is_whole = parameter == "bias" and name.endswith(WHOLE_BIASES)
            parts = tensor if is_split and not is_whole else 1
            elements += weight.numel() // parts
    return elements


def layer_activations(step: TrainingStep, sentences: int, attentions: int) -> float:
    """Returns the bytes that a layer keeps of `sentences` pairs for its backward pass.

    attentions: 1 in an encoder layer, 2 in a decoder layer. Norms, matrix products and
    attention keep their inputs, ReLU its result. A tensor that two of them keep counts once,
    but see `copies_for_each_product`.
    """
    d = step.config.d_model
    element_bytes = step.compute_bytes
    qkv_inputs = element_bytes
    if step.copies_for_each_product:  # one for the query, one for the key and value
        qkv_inputs = 2 * element_bytes
    # With --tensor each process has a part of q, k, v, the result, and the hidden layer of the
    # feed-forward.
    part = element_bytes / step.tensor
    heads = step.config.heads / step.tensor
    # The norm's input, the products' inputs, the query, the result, and the dropout.
    attention: float = d * (step.norm_bytes + qkv_inputs + 2 * part + step.dropout_bytes)
    keys = step.length
    if step.cpu and step.precision == "bf16":  # `cpu_bf16_attention` keeps a query's weights
        keys = padded_keys(step.length)
        attention += element_bytes * heads * keys
    else:  # fused attention keeps the log-sum-exp of its scores
        attention += FP32 * heads
    attention += 2 * part * d * keys / step.length  # the keys and values
    inside = part * step.config.d_ff
    feed_forward = d * (step.norm_bytes + element_bytes + step.dropout_bytes) + inside
    return sentences * step.length * (attentions * attention + feed_forward)


def activations(step: TrainingStep, sentences: int) -> float:
    """Returns the most bytes that are kept for the backward pass of a micro-batch.

    sentences: pairs in the micro-batch.
    """
    config = step.config
    tokens = sentences * step.length
    decoder_layer = layer_activations(step, sentences, attentions=2)
    if step.recompute:  # the input of each layer, and all of the last layer
        inputs = 2 * config.layers * tokens * config.d_model * step.residual_bytes
        kept = inputs + decoder_layer
    else:
        encoder_layer = layer_activations(step, sentences, attentions=1)
        kept = config.layers * (encoder_layer + decoder_layer)
    # The embeddings' dropouts, the inputs of the last two norms, and the input of the loss.
    per_number = 2 * step.dropout_bytes + 2 * FP32 + step.compute_bytes
    if not step.copies_for_each_product:  # else each layer has counted its own
        per_number += step.compute_bytes  # the encoder's output, which the decoder attends to
    kept += tokens * config.d_model * per_number
    # The loss computes the gradient of its weights in the forward pass.
    return kept + FP32 * config.vocab_size * config.d_model


def temporary_memory(step: TrainingStep, shards: int, sentences: int) -> float:
    """Returns the bytes of whole layers, copies and gradients that exist for a short time."""
    config = step.config
    element_bytes = step.compute_bytes
    tokens = sentences * step.length
    embedding = config.vocab_size * config.d_model
    layer_backward = tokens * (
        2 * element_bytes * config.d_ff / step.tensor + 2 * step.residual_bytes * config.d_model
    )
    largest_layer = max(step.units[1:])
    copies = end_of_layer = 0
    if shards:
        copies = element_bytes * step.units[0]  # gathered first and freed last
        gathered = GATHERED_LAYERS * element_bytes * largest_layer
        whole_gradient = element_bytes * largest_layer
        gradient_to_reduce = FP32 * largest_layer
        layer_backward += gathered + whole_gradient + gradient_to_reduce
    elif element_bytes != FP32:
        # Of the weights of layers; with --recompute on GPUs, of a layer at a time.
        copied_layers = 1 if step.recompute and not step.cpu else 2 * config.layers
        copies = element_bytes * sum(sorted(step.units[1:])[-copied_layers:])
        if not step.cpu:
            joined = 3 * config.d_model**2  # a matrix for a query, a key and a value
            copies += element_bytes * copied_layers * joined
            # A layer's backward pass ends with all its gradients, in `element_bytes` and in
            # fp32; its copies are free by then.
            end_of_layer = copies - element_bytes * joined + FP32 * largest_layer
    # Of a logit: on GPUs the loss copies it to fp32 (too much here: in fp32 it does not), and
    # keeps its log-probability in fp32.
    logit_bytes = element_bytes if step.cpu else element_bytes + 2 * FP32
    rows = math.ceil(tokens / math.ceil(tokens / LOSS_BLOCK))  # of each block of the loss
    # Beside them are the embedding's copy in low precision or, in fp32, a block's product that
    # is added to its gradient.
    logits = rows * config.vocab_size * logit_bytes + element_bytes * embedding
    moments = [
        copies + logits,  # the logits of a block
        copies + FP32 * embedding,  # the gradient of the embedding
        copies + layer_backward,  # the backward pass of a layer
        end_of_layer,  # the end of that pass
    ]
    return max(moments)


def memory(
    step: TrainingStep, shards: int, sentences: int, accumulate: int, base: float = 0.0
) -> tuple[dict[str, float], float]:
    """Returns the bytes that the largest process needs, by part, and the peak of their sum.

    shards: processes that share the parameters (FSDP); 0: each has all of them (DDP).
    sentences: pairs in a micro-batch. base: bytes of Python and PyTorch without a model.
    """
    parameters = sum(step.units)
    share = parameters / max(1, shards)
    # FSDP keeps whole gradients until those of the last micro-batch are reduced.
    gradients = parameters if accumulate > 1 else share
    parts = {
        "parameters": FP32 * share,
        "gradients": FP32 * gradients,
        "optimizer state": MOMENTS * FP32 * share,
        "activations": activations(step, sentences),
        "all else": base + temporary_memory(step, shards, sentences),
    }
    peak = sum(parts.values())
    if not shards:
        return parts, peak
    gathered_bytes = step.compute_bytes  # of an element that FSDP has gathered
    kept = parts["parameters"] + parts["optimizer state"]
    if accumulate == 1:  # the sharded gradients replace the activations: they never add up
        backward = parts["activations"] + parts["all else"]
        last_reduction = parts["gradients"] + base + step.units[0] * (2 * gathered_bytes + FP32)
        peak = kept + max(backward, last_reduction)
    # To translate, every process gathers a whole model (`gather_model`). FSDP, which has just
    # computed the loss, still holds what is outside the layers.
    evaluation = kept + base + FP32 * step.parameters + gathered_bytes * step.units[0]
    return parts, max(peak, evaluation)
