"""Decoding: beam search with a KV cache, in int8 where the CPU has it; text in, text out.

    found = model.translate(src, beam=4)                   # `translate` below: a batch of token ids
    answers = translate_lines(bpe, lines, longest, search) # lines of text, in batches of like length

Training needs it to evaluate only. Shapes stand in comments: live, the sentences that are not finished; beam, the
hypotheses of each; columns, those of the KV cache.
"""

import math
import re
import sys
import warnings
from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS = 64                      # hypotheses that are projected together on a CPU, so that their logits fit its cache
BLOCK = 64                     # tokens of the vocabulary that are looked through together


@torch.inference_mode()
def translate(model, src: Tensor, beam: int = 1, n_best: int = 1, length_penalty: float = 2.0):
    """Beam search over a batch; with beam 1, greedy decoding (section 6.1, with Wu et al., 2016).

    src: (batch, src) ids, padded at the end. Returns for each sentence its `n_best` hypotheses, best
    first, as (score, ids): the log-probability over length ** length_penalty, and the target ids
    without bos and eos. What a sentence gets does not depend on the others in its batch (in int8: hardly).
    The default penalty is what was best on Multi30k's validation part, where 1 gave translations 5 % too short.
    """
    config, device = model.config, src.device
    if not 1 <= beam <= config.vocab_size // 2:
        raise ValueError(f"beam {beam}: it must be from 1 to half the vocabulary, {config.vocab_size // 2}")
    batch = len(src)
    limit = ((src != config.pad).sum(1) * 2 + 8).clamp(max=config.max_length).tolist()   # longest target allowed
    encoded, memory_mask = model.encode(src)
    # Keys and values in fp32 on a CPU: products of so few rows take half as long as in bf16.
    exact = torch.float32 if device.type == "cpu" else encoded.dtype
    memory = [torch.stack(layer.cross_attention.keys_values(encoded)).to(exact) for layer in model.decoder]
    # Each step has a column of the cache for each hypothesis. None is ever moved when the beam is sorted
    # anew: a hypothesis knows its lineage, the columns that it comes from, and attends to those. What all
    # sentences have in one column lies together in memory: that halves the time of writing and of attending.
    shape = (2, max(limit) * beam, batch, config.heads, config.d_model // config.heads)
    past = [encoded.new_empty(shape, dtype=exact) for _ in model.decoder]
    own = torch.eye(beam, dtype=torch.bool, device=device)[None]
    lineage = own.new_zeros(batch, beam, 0)
    project = model.projection or partial(F.linear, **projection(model))
    done = [[] for _ in range(batch)]                                   # finished (score, ids)
    live = list(range(batch))                                           # the sentence of each row
    ids = torch.full((batch, beam, 1), config.bos, device=device)       # what each hypothesis has written
    scores = torch.full((batch, beam), -math.inf, device=device)
    scores[:, 0] = 0                                                    # all begin alike: keep one

    for position in range(max(limit)):
        lineage = torch.cat([lineage, own.expand(len(live), -1, -1)], dim=-1)
        mask = lineage[:, None] if beam > 1 else None                           # (live, 1, beam, columns)
        x = model.embed(ids[:, :, -1].reshape(-1, 1), position).view(len(live), beam, -1)
        for layer, kv, cache in zip(model.decoder, memory, past):
            columns = cache[:, : lineage.shape[2]].permute(0, 2, 3, 1, 4)       # (2, live, heads, columns, d_head)
            x = layer(x, mask, kv, memory_mask, columns)
        # Of 2 * beam candidates at most beam end the sentence, so at least beam are left to go on with.
        each = 2 * beam if beam > 1 else 1
        best = []
        for some in model.decoder_norm(x).flatten(0, 1).split(ROWS if device.type == "cpu" else batch * beam):
            p = project(some).softmax(-1)                                       # (ROWS, vocabulary)
            p[:, config.pad] = p[:, config.bos] = 0
            best.append(largest(p, each))
        p, token = (torch.cat(of).view(len(live), beam, each) for of in zip(*best))
        token.clamp_(max=config.vocab_size - 1)                                 # where all else has probability 0
        score, pick = (scores[:, :, None] + p.float().log()).flatten(1).topk(each)      # (live, candidates)
        token, parent = token.flatten(1).gather(1, pick), pick // each

        ends = token == config.eos
        cut = torch.tensor([[limit[s] <= position + 1] for s in live], device=device)   # no room for more
        for row, column in (ends | cut)[:, :beam].nonzero().tolist():
            found = done[live[row]]
            if len(found) < beam:
                hypothesis = ids[row, parent[row, column], 1:].tolist()
                hypothesis += [] if ends[row, column] else [int(token[row, column])]
                found.append((float(score[row, column]) / (position + 1) ** length_penalty, hypothesis))

        order = ends.int().sort(dim=1, stable=True).indices[:, :beam]           # those that go on, best first
        token, scores, parent = (of.gather(1, order) for of in (token, score, parent))
        ids = torch.cat([take(ids, parent), token[:, :, None]], dim=-1)
        lineage = take(lineage, parent)
        keep = [row for row, s in enumerate(live) if len(done[s]) < beam and position + 1 < limit[s]]
        if not keep:
            break
        if len(keep) < 0.8 * len(live):                                         # else moving the rest costs more
            live, rows = [live[row] for row in keep], torch.tensor(keep, device=device)
            ids, scores, lineage, memory_mask = (of[rows] for of in (ids, scores, lineage, memory_mask))
            memory = [kv.index_select(1, rows) for kv in memory]
            for i, cache in enumerate(past):
                used = cache[:, : lineage.shape[2]]
                used[:, :, : len(keep)] = used[:, :, rows]
                past[i] = cache[:, :, : len(keep)]
    return [sorted(found, key=lambda h: -h[0])[:n_best] for found in done]


def projection(model) -> dict[str, Tensor]:
    """Weight and bias that give logits, with tokens of -inf that make the vocabulary a multiple of `largest`'s BLOCK."""
    extra = -model.config.vocab_size % BLOCK
    weight = F.pad(model.embedding.weight, (0, 0, 0, extra))
    return {"weight": weight, "bias": F.pad(weight.new_zeros(model.config.vocab_size), (0, extra), value=-math.inf)}


def take(of: Tensor, rows: Tensor) -> Tensor:
    """of: (batch, n, width), rows: (batch, m), numbers below n. Returns those rows, (batch, m, width)."""
    return of.gather(1, rows[:, :, None].expand(-1, -1, of.shape[2]))


def largest(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The `k` largest of each row of x, whole blocks, and their places: x.topk(k), several times as fast.

    They are in the k blocks that have the largest maxima: only those need sorting.
    """
    blocks = x.unflatten(1, (-1, BLOCK))
    best = blocks.amax(-1).topk(min(k, blocks.shape[1])).indices            # (rows, blocks)
    values, places = take(blocks, best).flatten(1).topk(k)
    return values, best.gather(1, places // BLOCK) * BLOCK + places % BLOCK


@torch.inference_mode()
def alignment(model, src: Tensor, tgt_in: Tensor) -> Tensor:
    """What each target position attends to, in the last layer, mean over heads: (batch, tgt, src), each row of sum 1."""
    seen = []

    def look(attention, inputs, _) -> None:
        x, k, _, mask = inputs                             # of Attention.forward
        q = attention.query(x).unflatten(-1, (attention.heads, -1)).transpose(1, 2)
        scores = (q @ k.to(q.dtype).transpose(-2, -1)).float() * q.shape[-1] ** -0.5
        seen.append(scores.masked_fill(~mask, -math.inf).softmax(-1).mean(1))

    hook = model.decoder[-1].cross_attention.register_forward_hook(look)
    try:
        model.states(src, tgt_in, tgt_in)
    finally:
        hook.remove()
    return seen[0]


# --- In int8 -----------------------------------------------------------------------------------------------


def has_int8() -> bool:
    """Whether PyTorch multiplies in int8 on this CPU; without such instructions it would saturate, or be slower."""
    has = getattr(torch.cpu, "get_capabilities", dict)()
    able = hasattr(torch, "quantize_per_channel") and torch.backends.quantized.engine in ("x86", "fbgemm")
    return able and bool(has.get("avx512_vnni"))


class Int8Linear(nn.Module):
    """A linear layer with products in int8: a scale for each output, and one for the input of a call."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        super().__init__()
        scale = weight.abs().amax(1).clamp_min(1e-12) / 127
        with warnings.catch_warnings(action="ignore"):     # such tensors are to go from PyTorch, some day
            int8 = torch.quantize_per_channel(weight, scale, torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8)
        self.packed = torch.ops.quantized.linear_prepack(int8, bias)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.quantized.linear_dynamic.default(x, self.packed)


@torch.no_grad()
def quantize(model):
    """Changes a model so that it decodes on a CPU with weights in int8: all linear layers and the projection.

    A layer's input gets one scale for all its rows, so what a sentence gets may change with those beside it.
    """
    model.projection = Int8Linear(**projection(model.float()))
    for module in list(model.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Linear):
                setattr(module, name, Int8Linear(layer.weight, layer.bias))
    return model


# --- Text in, text out -------------------------------------------------------------------------------------


CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")            # a terminal would obey these


def translate_lines(bpe, lines: list[str], longest: int, search: Callable[[list], Iterable], quiet: bool = False) -> list[list[tuple[float, str]]]:
    """Translates lines: for each its translations with their scores, best first.

    `search` takes batches of token ids of like length, longest first, and gives for each sentence of each batch
    what `Transformer.translate` gives. A line with nothing but white space becomes an empty one. One of more
    than `longest` tokens is split, at the ends of its sentences where it can be, and the translations are
    joined; unless `quiet` a warning says so.
    """
    pieces, owners = [], []
    for number, (line, ids) in enumerate(zip(lines, bpe.encode(lines))):
        parts = [ids]
        if len(ids) > longest:
            sentences = bpe.encode(re.split(r"(?<=[.!?])\s+", line.strip()))
            parts = [s[i : i + longest] for s in sentences for i in range(0, len(s), longest)]
            if not quiet:
                print(f"warning: {len(ids):,} tokens in one line, more than the {longest} the model takes: "
                      f"translated in {len(parts)} pieces", file=sys.stderr)
        pieces += [part for part in parts if part]
        owners += [number for part in parts if part]
    batches = sort_into_batches(pieces)
    answers = [[] for _ in lines]
    for batch, found in zip(batches, search([[pieces[i] for i in batch] for batch in batches])):
        for i, hypotheses in zip(batch, found):
            answers[owners[i]].append((i, [(score, CONTROL.sub(" ", bpe.decode(ids))) for score, ids in hypotheses]))
    result = []
    for parts in answers:
        parts = [hypotheses for _, hypotheses in sorted(parts)]
        if len(parts) == 1:
            result.append(parts[0])
        else:
            best = [hypotheses[0] for hypotheses in parts]
            result.append([(sum(score for score, _ in best), " ".join(text for _, text in best))])
    return result


def sort_into_batches(sentences: list[list[int]], most: int = 128, tokens: int = 4_096) -> list[list[int]]:
    """The numbers of all sentences in batches of like length, longest first; it depends on the lengths alone."""
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batches, start = [], 0
    while start < len(order):
        size = min(most, max(1, tokens // len(sentences[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def translate_batch(model, sentences: list[list[int]], beam: int, n_best: int = 1) -> list[list[tuple[float, list[int]]]]:
    """`model.translate` of token ids, longest first, to which the mark of the end is added."""
    src = torch.full((len(sentences), len(sentences[0]) + 1), model.config.pad)
    for row, ids in enumerate(sentences):
        src[row, : len(ids) + 1] = torch.tensor([*ids, model.config.eos])
    return model.translate(src.to(next(model.parameters()).device), beam, n_best)
