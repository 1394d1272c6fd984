"""What training a model takes, worked out from its shape: operations, and memory part by part.

    job = Job(ModelConfig(vocab_size=8000), sentences=64, length=128, precision="bf16")
    operations = flops(job.config, src_lengths, tgt_lengths)
    parts, most = memory(job, shards=8, sentences=8, accumulate=1)    # FSDP on eight processes

Sizes are in bytes, lengths in tokens. In every mode parameters, gradients and AdamW's two moments
are kept in fp32; --precision bf16 changes what the products take and what FSDP gathers.
"""

from dataclasses import dataclass, replace

import torch

from model import ModelConfig, Transformer
from support.common.flops import flops

FP32, BF16 = 4, 2  # bytes of a number
MOMENTS = 2  # numbers that AdamW keeps for each parameter
LOSS_ROWS = 4096  # `block` of FusedCrossEntropy in support/common/kernels.py
GATHERED = 2  # layers that FSDP holds whole: this one and the next


@dataclass
class Job:
    """One step of training: so many sentence pairs, with `length` tokens on either side."""

    config: ModelConfig
    sentences: int
    length: int
    precision: str = "fp32"  # or "bf16"
    recompute: bool = False
    delay: float = 0.0  # seconds before each exchange: --delay-ms
    cpu: bool = False

    def __post_init__(self):
        with torch.device("meta"):  # shapes only
            model = Transformer(self.config)
        self.tensors = [weight.numel() for weight in model.parameters()]
        layers = [
            sum(weight.numel() for weight in layer.parameters()) for layer in model.layers()
        ]
        self.parameters = sum(self.tensors)
        self.units = [self.parameters - sum(layers), *layers]  # what FSDP gathers as one
        self.tokens = 2 * self.sentences * self.length
        lengths = torch.tensor([self.length])
        self.flops = self.sentences * flops(self.config, lengths, lengths)
        # --recompute: the layers, which are all but the projection, go forward twice.
        layers = flops(replace(self.config, vocab_size=1), lengths, lengths)
        self.computed = self.flops + self.recompute * self.sentences * layers / 3
        self.number = BF16 if self.precision == "bf16" else FP32  # of what goes into a product
        # What runs through all layers is fp32, but on CPUs ByteDropout (support/common/kernels.py) rounds it.
        self.stream = self.number if self.cpu and self.config.dropout else FP32
        # A dropout keeps what it multiplied with; on GPUs only what it dropped.
        self.dropped = (self.number if self.cpu else 1) if self.config.dropout else 0


def layer_activations(job: Job, sentences: int, attentions: int) -> float:
    """What a layer with so many attentions keeps of `sentences` pairs for its backward pass.

    A norm, a product and an attention keep their inputs, ReLU its result. What two of them keep is
    there once; but where autocast changes fp32 to bf16, it does so for each product anew.
    """
    d, heads, number, stream = job.config.d_model, job.config.heads, job.number, job.stream
    copies = (2 * number, number) if stream != number else (stream, stream)
    # Into the norm; into the products; q, k, v, and what attention returns.
    attention = d * (stream + copies[0] + 4 * number + job.dropped)
    if job.cpu and job.precision == "bf16":  # `cpu_bf16_attention`: weights of a query
        attention += number * heads * max(32, job.length)
    else:  # fused: the sum that divides them
        attention += FP32 * heads
    feed_forward = d * (stream + copies[1] + job.dropped) + number * job.config.d_ff
    return sentences * job.length * (attentions * attention + feed_forward)


def activations(job: Job, sentences: int, weight: int = FP32) -> float:
    """The most that is kept for the backward pass of a micro-batch of `sentences` pairs.

    weight: bytes of a number of the embedding's gradient, which the loss works out at once.
    """
    config, tokens = job.config, sentences * job.length
    decoder = layer_activations(job, sentences, 2)
    if job.recompute:  # each layer's input; all of the last one
        kept = 2 * config.layers * tokens * config.d_model * job.stream + decoder
    else:
        kept = config.layers * (layer_activations(job, sentences, 1) + decoder)
    # Dropout of the embeddings, the last norms' inputs, what the decoder attends to, the loss.
    memory = job.stream if job.stream == job.number else 0
    kept += tokens * config.d_model * (2 * job.dropped + 2 * job.stream + memory + job.number)
    return kept + weight * config.vocab_size * config.d_model


def memory(
    job: Job, shards: int, sentences: int, accumulate: int, base: float = 0.0
) -> tuple[dict[str, float], float]:
    """What the largest process needs, by part, and the most of it that is there at one time.

    shards: processes that share the parameters (FSDP); 0: each has all (DDP). sentences: pairs in
    a micro-batch. base: what Python and PyTorch take before there is a model.
    """
    config, number, tokens = job.config, job.number, sentences * job.length
    weight = number if shards else FP32  # of what the products find
    embedding, rest, layer = (
        config.vocab_size * config.d_model,
        job.units[0],
        max(job.units[1:]),
    )
    share = job.parameters / max(1, shards)
    parts = {
        "parameters": FP32 * share,
        # FSDP keeps whole gradients until the last micro-batch's are sent.
        "gradients": FP32 * (job.parameters if accumulate > 1 else share),
        "optimizer state": MOMENTS * FP32 * share,
        "activations": activations(job, sentences, weight),
    }
    # What comes and goes is largest in one of three places: logits and softmax of some rows; the
    # gradient of the embedding; the gradients of a layer's activations.
    softmax = number if job.cpu else number + 2 * FP32
    logits = min(LOSS_ROWS, tokens) * config.vocab_size * softmax + number * embedding
    gradients = tokens * (2 * number * config.d_ff + 2 * job.stream * config.d_model)
    if shards:
        held = weight * rest  # gathered first, dropped last
        gradients += layer * (GATHERED * weight + weight + FP32)
    else:
        held = (
            number * (job.parameters - embedding) if number != FP32 else 0
        )  # autocast's copies
    parts["all else"] = base + held + max(logits, weight * embedding, gradients)
    if shards and accumulate == 1:  # shards of gradients come last
        after = parts["gradients"] + base + rest * (2 * weight + FP32)
        before = parts["activations"] + parts["all else"]
        return parts, parts["parameters"] + parts["optimizer state"] + max(before, after)
    return parts, sum(parts.values())
