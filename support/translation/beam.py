"""Beam search with a KV cache, and lines of text in and out.

    found = beam_search(model, src, beam=4)                  # a batch of token ids
    answers = translate_lines(bpe, lines, longest, search)   # text, in batches of like length

Shapes in comments: live, the sentences that are not finished; beam, the hypotheses of each, that is
the target prefixes that the search goes on with.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Attention, Transformer

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # characters that a terminal would obey


# --- The search -----------------------------------------------------------------------------------


@torch.inference_mode()
def beam_search(
    model: Transformer,
    src: Tensor,
    beam: int = 1,
    n_best: int = 1,
    length_penalty: float = 2.0,
    others: Iterable[Transformer] = (),
) -> list[list[tuple[float, list[int]]]]:
    """Translates a batch (section 6.1); with beam 1 that is greedy decoding.

    src: (batch, src) ids, padded at the end. others: models with the same vocabulary, to form an
    ensemble: the probabilities of all are averaged.

    Returns for each sentence its `n_best` hypotheses, best first, as (score, ids): the
    log-probability in nats over length ** length_penalty, where eos counts too, and the target ids
    without bos and eos. The length is at most 2 * source + 8, and at most max_length. What a
    sentence gets does not depend on the others in its batch. Wu et al. (2016) say why there is a
    penalty; 2 was best on Multi30k's validation part, with 1 translations were 5 % too short.
    Raises ValueError for a beam that is not from 1 to half the vocabulary.
    """
    config, most = model.config, model.config.vocab_size // 2
    if not 1 <= beam <= most:
        raise ValueError(f"beam {beam}: it must be from 1 to half the vocabulary, {most}")
    limit = ((src != config.pad).sum(1) * 2 + 8).clamp(max=config.max_length)  # (live,)
    decoders = [Decoder(each, src, beam) for each in (model, *others)]
    found = [[] for _ in src]  # finished (score, ids) of each sentence
    live = list(range(len(src)))  # the sentence of each row
    ids = torch.full((len(src), beam, 1), config.bos, device=src.device)
    scores = torch.full((len(src), beam), -math.inf, device=src.device)
    scores[:, 0] = 0  # all begin alike: search from one

    while live:
        log_p = mean_log_probability([decoder.step(ids[:, :, -1]) for decoder in decoders])
        log_p[:, :, config.pad] = log_p[:, :, config.bos] = -math.inf
        totals = (scores[:, :, None] + log_p).flatten(1)  # (live, beam * vocabulary)
        # Of 2 * beam candidates at most beam end with eos, so at least beam are left to go on with.
        totals, places = totals.topk(2 * beam)  # (live, 2 * beam), best first
        parents, tokens = places // config.vocab_size, places % config.vocab_size
        ids = torch.cat([take(ids, parents), tokens[:, :, None]], dim=2)
        length = ids.shape[2] - 1  # without bos

        ends = tokens == config.eos
        finished = (ends | (limit == length)[:, None])[:, :beam].nonzero(as_tuple=True)
        for row, total, hypothesis in zip(
            finished[0].tolist(), totals[finished].tolist(), ids[finished].tolist()
        ):
            if len(found[live[row]]) < beam:
                hypothesis = [token for token in hypothesis[1:] if token != config.eos]
                found[live[row]].append((total / length**length_penalty, hypothesis))

        # At its limit a sentence has `beam` of them, too.
        going_on = [row for row, sentence in enumerate(live) if len(found[sentence]) < beam]
        live = [live[row] for row in going_on]
        rows = torch.tensor(going_on, dtype=torch.long, device=src.device)
        scores, best = totals.masked_fill(ends, -math.inf)[rows].topk(beam)  # (live, beam)
        ids, limit = take(ids[rows], best), limit[rows]
        for decoder in decoders:
            decoder.keep(rows, parents[rows].gather(1, best))
    return [sorted(hypotheses, reverse=True)[:n_best] for hypotheses in found]


def mean_log_probability(logits: list[Tensor]) -> Tensor:
    """The logarithm of the mean of the probabilities that several models give, in fp32.

    logits: of each model, (live, beam, vocabulary), which is also the result's shape.
    """
    log_p = [each.float().log_softmax(-1) for each in logits]
    if len(log_p) == 1:
        return log_p[0]
    return torch.stack(log_p).logsumexp(0) - math.log(len(log_p))


def take(of: Tensor, columns: Tensor) -> Tensor:
    """of: (live, n, length); columns: (live, m), numbers below n. Returns (live, m, length)."""
    return of.gather(1, columns[:, :, None].expand(-1, -1, of.shape[2]))


class Decoder:
    """A model's decoder, one position at a time.

    It keeps the keys and values of all earlier positions (a KV cache), and those of the source.
    """

    def __init__(self, model: Transformer, src: Tensor, beam: int):
        """src: (batch, src) ids; `beam` hypotheses of each sentence will be written."""
        self.model = model
        memory, self.mask = model.encode(src)  # mask: (live, 1, 1, src)
        # Of each layer. The hypotheses of a sentence share what is of its source.
        self.source = [
            layer.cross_attention.key_value(memory) for layer in model.decoder
        ]  # (live, src, 2 * d_model)
        self.past = [
            kv.new_empty(len(src) * beam, 0, kv.shape[2]) for kv in self.source
        ]  # (live * beam, positions, 2 * d_model)

    def step(self, ids: Tensor) -> Tensor:
        """ids: (live, beam), the last tokens. Returns (live, beam, vocabulary) logits."""
        position = self.past[0].shape[1]
        everything = torch.ones(1, position + 1, dtype=torch.bool, device=ids.device)
        x = self.model.embed(ids.reshape(-1, 1), position)  # (live * beam, 1, d_model)
        for i, layer in enumerate(self.model.decoder):

            def attend_to_past(x: Tensor) -> Tensor:
                new = layer.self_attention.key_value(x)
                self.past[i] = torch.cat([self.past[i], new], dim=1)
                return attend(layer.self_attention, x, self.past[i], everything)

            def attend_to_source(x: Tensor) -> Tensor:
                # Here the hypotheses of a sentence take the place of the positions of a target.
                y = attend(
                    layer.cross_attention, x.view(*ids.shape, -1), self.source[i], self.mask
                )
                return y.view(x.shape)

            x = layer.residuals[0](x, attend_to_past)
            x = layer.residuals[1](x, attend_to_source)
            x = layer.residuals[2](x, layer.feed_forward)
        x = self.model.decoder_norm(x).view(*ids.shape, -1)
        return F.linear(x, self.model.embedding.weight)

    def keep(self, rows: Tensor, parents: Tensor) -> None:
        """Drops finished sentences, and lets each hypothesis go on from its parent.

        rows: (kept,), where the others stand; parents: (kept, beam), numbers of hypotheses.
        """
        if len(rows) < len(self.mask):
            self.mask = self.mask[rows]
            self.source = [kv[rows] for kv in self.source]
        beam = parents.shape[1]
        parents = (rows[:, None] * beam + parents).flatten()
        self.past = [kv.index_select(0, parents) for kv in self.past]


def attend(attention: Attention, x: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
    """`Attention.forward`, with keys and values that are there already.

    x: (rows, tgt, d_model); kv: (rows, n, 2 * d_model), from attention.key_value; mask: True where
    attention is allowed, broadcastable to (rows, heads, tgt, n). Returns the shape of x.
    """
    q = attention.split(attention.query(x))
    k, v = map(attention.split, kv.chunk(2, dim=-1))
    y = attention.attend(q, k, v, mask)  # (rows, heads, tgt, d_head)
    return attention.out(y.transpose(1, 2).flatten(2))


@torch.inference_mode()
def alignment(model: Transformer, src: Tensor, tgt_in: Tensor) -> Tensor:
    """What each target position attends to in the last layer, mean over heads.

    src: (batch, src) and tgt_in: (batch, tgt) ids. Returns (batch, tgt, src), each row of sum 1.
    """
    seen = []

    def look(attention: Attention, inputs: tuple[Tensor, ...], _) -> None:
        x, source, mask = inputs  # of Attention.forward
        q = attention.split(attention.query(x))
        k = attention.split(attention.key_value(source).chunk(2, dim=-1)[0])
        scores = (q @ k.transpose(-2, -1)).float() / math.sqrt(q.shape[-1])
        seen.append(scores.masked_fill(~mask, -math.inf).softmax(-1).mean(1))

    hook = model.decoder[-1].cross_attention.register_forward_hook(look)
    try:
        model.decode(tgt_in, *model.encode(src))
    finally:
        hook.remove()
    return seen[0]


# --- Text in, text out ----------------------------------------------------------------------------


def translate_lines(
    bpe, lines: list[str], longest: int, search: Callable[[list], Iterable], quiet: bool = False
) -> list[list[tuple[float, str]]]:
    """Translates lines; returns for each its translations with their scores, best first.

    `search` takes batches of token ids of like length, longest first, and gives for each batch what
    `beam_search` gives. A line with nothing but white space becomes an empty one. A line of more
    than `longest` tokens is split, at the ends of its sentences where it can be, and the
    translations are joined; unless `quiet` a warning says so.
    """
    pieces, owners = [], []  # owners: the line of each piece
    for number, (line, ids) in enumerate(zip(lines, bpe.encode(lines))):
        parts = [ids]
        if len(ids) > longest:
            sentences = bpe.encode(re.split(r"(?<=[.!?])\s+", line.strip()))
            parts = [s[i : i + longest] for s in sentences for i in range(0, len(s), longest)]
            if not quiet:
                print(
                    f"warning: {len(ids):,} tokens in one line, more than the {longest} "
                    f"the model takes: translated in {len(parts)} pieces",
                    file=sys.stderr,
                )
        pieces += [part for part in parts if part]
        owners += [number for part in parts if part]
    batches = sort_into_batches(pieces)
    found = [None] * len(pieces)
    for batch, answers in zip(
        batches, search([[pieces[i] for i in batch] for batch in batches])
    ):
        for i, hypotheses in zip(batch, answers):
            found[i] = [(score, CONTROL.sub(" ", bpe.decode(ids))) for score, ids in hypotheses]
    result = [[] for _ in lines]
    for line, hypotheses in zip(owners, found):
        result[line].append(hypotheses)
    return [parts[0] if len(parts) == 1 else join(parts) for parts in result]


def join(parts: list[list[tuple[float, str]]]) -> list[tuple[float, str]]:
    """One translation of a line from the best ones of its parts; an empty one of no parts."""
    best = [hypotheses[0] for hypotheses in parts]
    return [(sum(score for score, _ in best), " ".join(text for _, text in best))]


def sort_into_batches(
    sentences: list[list[int]], most: int = 128, tokens: int = 4096
) -> list[list[int]]:
    """The numbers of all sentences in batches of like length, longest first.

    A batch has at most `most` sentences and about `tokens` tokens; it depends on the lengths alone.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batches, start = [], 0
    while start < len(order):
        size = min(most, max(1, tokens // len(sentences[order[start]])))
        batches.append(order[start : start + size])
        start += size
    return batches


def translate_batch(
    model: Transformer,
    sentences: list[list[int]],
    beam: int,
    n_best: int = 1,
    others: Iterable[Transformer] = (),
) -> list[list[tuple[float, list[int]]]]:
    """`beam_search` of token ids, longest first, to which eos is added here."""
    src = torch.full((len(sentences), len(sentences[0]) + 1), model.config.pad)
    for row, ids in enumerate(sentences):
        src[row, : len(ids) + 1] = torch.tensor([*ids, model.config.eos])
    device = next(model.parameters()).device
    return beam_search(model, src.to(device), beam, n_best, others=others)
