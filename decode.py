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

ROWS = 128                     # hypotheses that are projected together on a CPU, so that their logits fit its cache
BLOCK = 64                     # tokens of the vocabulary that are looked through together
NARROW = 16                    # a vector: softmax of shorter rows is up to ten times as slow on a CPU


@torch.inference_mode()
def translate(model, src: Tensor, beam: int = 1, n_best: int = 1, length_penalty: float = 2.0, others: Iterable = ()):
    """Beam search over a batch; with beam 1, greedy decoding (section 6.1, with Wu et al., 2016).

    src: (batch, src) ids, padded at the end. Returns for each sentence its `n_best` hypotheses, best
    first, as (score, ids): the log-probability over length ** length_penalty, and the target ids
    without bos and eos. What a sentence gets does not depend on the others in its batch (in int8: hardly).
    The default penalty is what was best on Multi30k's validation part, where 1 gave translations 5 % too short.
    others: models with the same vocabulary, to translate with as an ensemble: all their probabilities are averaged.
    """
    config, device = model.config, src.device
    if not 1 <= beam <= config.vocab_size // 2:
        raise ValueError(f"beam {beam}: it must be from 1 to half the vocabulary, {config.vocab_size // 2}")
    batch = len(src)
    limit = ((src != config.pad).sum(1) * 2 + 8).clamp(max=config.max_length)           # longest target allowed
    longest = int(limit.max())
    decoders = [Decoder(each, src, beam, longest) for each in (model, *others)]
    together = max(1, ROWS // beam) if device.type == "cpu" else batch
    done = [[] for _ in range(batch)]                                   # finished (score, ids)
    live = list(range(batch))                                           # the sentence of each row
    ids = torch.full((batch, beam, 1), config.bos, device=device)       # what each hypothesis has written
    scores = torch.full((batch, beam), -math.inf, device=device)
    scores[:, 0] = 0                                                    # all begin alike: keep one

    for position in range(longest):
        states = [decoder.step(ids[:, :, -1]) for decoder in decoders]          # (live, beam, d_model) of each
        # Of 2 * beam candidates at most beam end the sentence, so at least beam are left to go on with.
        best = []
        for so_far, *xs in zip(*(of.split(together) for of in (scores, *states))):
            p, *more = (decoder.probabilities(x) for decoder, x in zip(decoders, xs))
            p = torch.stack([p, *more]).mean(0) if more else p
            p[:, :, config.pad] = p[:, :, config.bos] = 0                       # (together, beam, vocabulary), whole blocks
            best.append(continuations(p, so_far, 2 * beam if beam > 1 else 1))
        score, parent, token = (torch.cat(of) for of in zip(*best))             # (live, candidates), best first
        token.clamp_(max=config.vocab_size - 1)                                  # where all else has probability 0

        ends = token == config.eos
        cut = (limit <= position + 1)[:, None]                                  # no room for more
        for row, column in (ends | cut)[:, :beam].nonzero().tolist():
            found = done[live[row]]
            if len(found) < beam:
                hypothesis = ids[row, parent[row, column], 1:].tolist()
                hypothesis += [] if ends[row, column] else [int(token[row, column])]
                found.append((float(score[row, column]) / (position + 1) ** length_penalty, hypothesis))

        order = ends.int().sort(dim=1, stable=True).indices[:, :beam]           # those that go on, best first
        token, scores, parent = (of.gather(1, order) for of in (token, score, parent))
        ids = torch.cat([take(ids, parent), token[:, :, None]], dim=-1)
        for decoder in decoders:
            decoder.reorder(parent)
        keep = [row for row, (s, at_limit) in enumerate(zip(live, cut[:, 0].tolist())) if len(done[s]) < beam and not at_limit]
        if not keep:
            break
        if len(keep) < 0.8 * len(live):                                         # else moving costs more than it saves
            # The last sentences take the places of those that are finished: the others need not be moved.
            last = iter(row for row in keep if row >= len(keep))
            rows = [row if row in keep else next(last) for row in range(len(keep))]
            live = [live[row] for row in rows]
            ids, scores, limit = (of[rows] for of in (ids, scores, limit))
            for decoder in decoders:
                decoder.keep(rows)
    return [sorted(found, key=lambda h: -h[0])[:n_best] for found in done]


class Decoder:
    """The decoder of a model, a position at a time: it keeps keys and values of what is there (a KV cache).

    Each position has a column of the cache for each hypothesis. Sorting the beam anew moves no column: a
    hypothesis knows its lineage, the columns that it comes from, and attends to those. What all sentences
    have in one column lies together in memory: that halves the time of writing and of attending.
    """

    def __init__(self, model, src: Tensor, beam: int, length: int):
        """src: (batch, src) ids, of which up to `length` target tokens will be written for each of `beam` hypotheses."""
        self.model, self.beam, self.heads = model, beam, model.config.heads
        encoded, mask = model.encode(src)
        # Keys and values in fp32: on a CPU products of so few rows take half as long as in bf16.
        memory = (torch.stack(layer.cross_attention.keys_values(encoded)).float() for layer in model.decoder)
        self.memory = list(memory)                                              # (2, batch, heads, src, d_head)
        # Masks are added to the scores. Padding gets the lowest number, not -inf: a sentence may be all padding.
        padding = torch.zeros(mask.shape, device=src.device).masked_fill(~mask, torch.finfo(torch.float32).min)
        self.padding = padding.repeat(1, self.heads, 1, 1)                      # (batch, heads, 1, src)
        shape = (2, length * beam, len(src), self.heads, self.memory[0].shape[-1])
        self.past = [padding.new_empty(shape) for _ in model.decoder]
        self.lineage = padding.new_full((len(src), beam, length * beam), -math.inf)
        self.filled = 0                                                         # columns
        self.project = model.projection or partial(F.linear, **projection(model))

    def step(self, ids: Tensor) -> Tensor:
        """ids: (live, beam), the last token of each hypothesis. Returns (live, beam, d_model), for `probabilities`."""
        live, position = len(ids), self.filled // self.beam
        new = slice(self.filled, self.filled + self.beam)
        self.filled += self.beam
        self.lineage[:live, :, new].diagonal(dim1=1, dim2=2).zero_()            # each attends to itself
        lineage = self.lineage[:live, None, :, : self.filled].expand(-1, self.heads, -1, -1).flatten(0, 1)
        padding = self.padding[:live].flatten(0, 1)
        # (beam, live, d_model), hypotheses first: so (live, heads) is the batch of one product, and nothing is copied.
        x = self.model.embed(ids.t().reshape(-1, 1), position).view(self.beam, live, -1)
        for layer, memory, cache in zip(self.model.decoder, self.memory, self.past):

            def attend_to_past(y: Tensor) -> Tensor:
                kv = layer.self_attention.key_value(y).view(self.beam, live, 2, self.heads, -1)
                cache[:, new, :live] = kv.permute(2, 0, 1, 3, 4)
                kv = cache[:, : self.filled, :live].flatten(2, 3).transpose(1, 2)
                return attend(layer.self_attention, y, kv, lineage)

            def attend_to_source(y: Tensor) -> Tensor:
                return attend(layer.cross_attention, y, memory[:, :live].flatten(1, 2), padding)

            x = layer.residuals[0](x, attend_to_past)
            x = layer.residuals[1](x, attend_to_source)
            x = layer.residuals[2](x, layer.feed_forward)
        return self.model.decoder_norm(x).transpose(0, 1)

    def probabilities(self, x: Tensor) -> Tensor:
        """Of the next token, from rows that `step` gave: (rows, beam, vocabulary), which ends with a whole BLOCK."""
        return self.project(x).softmax(-1, dtype=torch.float32)

    def reorder(self, parent: Tensor) -> None:
        """parent: (live, beam), the hypothesis that each one goes on from."""
        if self.beam > 1:
            lineage = self.lineage[: len(parent), :, : self.filled]
            lineage.copy_(take(lineage, parent))

    def keep(self, rows: list[int]) -> None:
        """Sentence rows[i] is sentence i from now on; those that are not in `rows` are finished."""
        places = [i for i, row in enumerate(rows) if i != row]
        moved = [rows[i] for i in places]
        memory, past = (kv.movedim(1, 0) for kv in self.memory), (kv[:, : self.filled].movedim(2, 0) for kv in self.past)
        for by_sentence in (self.padding, self.lineage, *memory, *past):
            by_sentence[places] = by_sentence[moved]


def attend(attention, x: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
    """Multi-head attention (section 3.2.2) of one position of each hypothesis.

    x: (beam, live, d_model); kv: (2, live * heads, n, d_head), what is attended to; mask, added to the scores:
    (live * heads, 1 or beam, n). Returns the shape of x.
    """
    k, v = kv
    q = attention.query(x).to(k.dtype).view(len(x), -1, k.shape[-1]).transpose(0, 1)    # (live * heads, beam, d_head)
    scores = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=k.shape[-1] ** -0.5)
    if (short := NARROW - scores.shape[-1]) > 0 and len(scores) > 32:                   # for few rows padding costs more
        scores = F.pad(scores, (0, short), value=-math.inf)
    y = torch.bmm(scores.softmax(-1)[..., : k.shape[1]], v).transpose(0, 1).reshape(x.shape)
    return attention.out(y.to(x.dtype))


def projection(model) -> dict[str, Tensor]:
    """Weight and bias that give logits, with tokens of -inf that make the vocabulary a multiple of BLOCK."""
    extra = -model.config.vocab_size % BLOCK
    weight = F.pad(model.embedding.weight, (0, 0, 0, extra))
    return {"weight": weight, "bias": F.pad(weight.new_zeros(model.config.vocab_size), (0, extra), value=-math.inf)}


def take(of: Tensor, rows: Tensor) -> Tensor:
    """of: (batch, n, width), rows: (batch, m), numbers below n. Returns those rows, (batch, m, width)."""
    return of.gather(1, rows[:, :, None].expand(-1, -1, of.shape[2]))


def continuations(p: Tensor, scores: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The `k` best ways to go on with each sentence: their scores, hypotheses and tokens, (batch, k), best first.

    p: (batch, beam, vocabulary), whole blocks, probabilities; scores: (batch, beam), what is added to their logarithms.
    The best are in the k blocks that have the largest maxima: only those need sorting, a fraction of p.topk(k)'s work.
    """
    blocks = p.unflatten(-1, (-1, BLOCK))                                       # (batch, beam, blocks, BLOCK)
    per_hypothesis = blocks.shape[2]
    maxima = blocks.amax(-1).log_().add_(scores[:, :, None]).flatten(1)         # (batch, beam * blocks)
    block = maxima.topk(min(k, maxima.shape[1])).indices                        # (batch, k)
    found = take(blocks.flatten(1, 2), block).log_() + scores.gather(1, block // per_hypothesis)[:, :, None]
    values, places = found.flatten(1).topk(k)
    block = block.gather(1, places // BLOCK)
    return values, block // per_hypothesis, block % per_hypothesis * BLOCK + places % BLOCK


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
        # For thousands of outputs, as the projection has, oneDNN is up to a third faster; else a call costs more.
        engine, large = torch.backends.quantized.engine, len(weight) >= 2048
        torch.backends.quantized.engine = "onednn" if large and "onednn" in torch.backends.quantized.supported_engines else engine
        self.packed = torch.ops.quantized.linear_prepack(int8, bias)
        torch.backends.quantized.engine = engine

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


def translate_batch(model, sentences: list[list[int]], beam: int, n_best: int = 1, **how) -> list[list[tuple[float, list[int]]]]:
    """`model.translate` of token ids, longest first, to which the mark of the end is added."""
    src = torch.full((len(sentences), len(sentences[0]) + 1), model.config.pad)
    for row, ids in enumerate(sentences):
        src[row, : len(ids) + 1] = torch.tensor([*ids, model.config.eos])
    return model.translate(src.to(next(model.parameters()).device), beam, n_best, **how)
