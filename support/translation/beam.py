"""Beam search with a KV cache.

    hypotheses = beam_search(model, src, beam=4)  # of a batch of token ids

Shapes in comments: live, the sentences that are not finished; beam, the hypotheses of each,
which are the target prefixes that the search continues.
"""

import math
from collections.abc import Iterable

import torch
import torch.nn.functional as F
from torch import Tensor

from model import Attention, DecoderLayer, ModelConfig, Transformer

Hypothesis = tuple[float, list[int]]  # score, target ids without bos and eos


@torch.inference_mode()
def beam_search(
    model: Transformer,
    src: Tensor,
    beam: int = 1,
    n_best: int = 1,
    length_penalty: float = 2.0,
    others: Iterable[Transformer] = (),
) -> list[list[Hypothesis]]:
    """Translates a batch by beam search (section 6.1); with beam 1 it is greedy decoding.

    src: (batch, src) ids, padded at the end. others: models with the same vocabulary, which
    form an ensemble with `model`: the probabilities of all are averaged.

    Returns the `n_best` hypotheses of each sentence, best first, as (score, ids). The score is
    the log-probability in nats over length ** length_penalty, where eos counts too (Wu et al.,
    2016). On Multi30k's validation part a penalty of 2 was best; with 1, translations were 5 %
    too short. The length is at most 2 * source + 8, and at most max_length. The result for a
    sentence does not depend on the others of its batch. Raises ValueError for an impossible
    beam.
    """
    config = model.config
    check_beam(beam, config)
    limit = ((src != config.pad).sum(1) * 2 + 8).clamp(max=config.max_length)  # (live,)
    decoders = [Decoder(each, src, beam) for each in (model, *others)]
    finished = [[] for _ in src]  # hypotheses of each sentence
    live = list(range(len(src)))  # the sentence of each row
    ids = torch.full((len(src), beam, 1), config.bos, device=src.device)
    scores = torch.full((len(src), beam), -math.inf, device=src.device)
    scores[:, 0] = 0  # all hypotheses are alike at first: continue one of them

    while live:
        log_p = mean_log_probability([decoder.step(ids[:, :, -1]) for decoder in decoders])
        log_p[:, :, config.pad] = -math.inf
        log_p[:, :, config.bos] = -math.inf
        # At most `beam` of 2 * beam candidates end with eos, so `beam` are left to continue.
        totals, parents, tokens = best_candidates(scores, log_p, 2 * beam)
        ids = torch.cat([take(ids, parents), tokens[:, :, None]], dim=2)
        ends = tokens == config.eos
        at_limit = limit == ids.shape[2] - 1
        done = (ends | at_limit[:, None])[:, :beam]
        add_finished(finished, live, totals, ids, done, config.eos, length_penalty)

        # At its limit a sentence has `beam` finished hypotheses, too.
        kept = [row for row, sentence in enumerate(live) if len(finished[sentence]) < beam]
        live = [live[row] for row in kept]
        rows = torch.tensor(kept, dtype=torch.long, device=src.device)
        scores, best = totals.masked_fill(ends, -math.inf)[rows].topk(beam)  # (live, beam)
        ids = take(ids[rows], best)
        limit = limit[rows]
        for decoder in decoders:
            decoder.keep(rows, parents[rows].gather(1, best))
    return [sorted(hypotheses, reverse=True)[:n_best] for hypotheses in finished]


def check_beam(beam: int, config: ModelConfig) -> None:
    """Raises ValueError unless the beam is from 1 to half the vocabulary."""
    max_beam = config.vocab_size // 2
    if not 1 <= beam <= max_beam:
        raise ValueError(f"beam {beam}: it must be from 1 to half the vocabulary, {max_beam}")


def best_candidates(scores: Tensor, log_p: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the best continuations of each sentence by one token, best first.

    scores: (live, beam), log-probabilities of the hypotheses; log_p: (live, beam, vocabulary),
    of the next token. Returns (totals, parents, tokens), each (live, count): log-probabilities,
    which hypothesis is continued, and with which token.
    """
    vocab_size = log_p.shape[2]
    totals = (scores[:, :, None] + log_p).flatten(1)  # (live, beam * vocabulary)
    totals, places = totals.topk(count)
    return totals, places // vocab_size, places % vocab_size


def add_finished(
    finished: list[list[Hypothesis]],
    live: list[int],
    totals: Tensor,
    ids: Tensor,
    done: Tensor,
    eos: int,
    length_penalty: float,
) -> None:
    """Adds the candidates that are done to `finished`, up to `beam` for each sentence.

    live: the sentence of each row; totals: (live, 2 * beam), log-probabilities; ids:
    (live, 2 * beam, length + 1), with bos; done: (live, beam).
    """
    beam = done.shape[1]
    length = ids.shape[2] - 1  # without bos
    places = done.nonzero(as_tuple=True)
    for row, total, candidate in zip(
        places[0].tolist(), totals[places].tolist(), ids[places].tolist()
    ):
        hypotheses = finished[live[row]]
        if len(hypotheses) < beam:
            target = [token for token in candidate[1:] if token != eos]
            hypotheses.append((total / length**length_penalty, target))


def mean_log_probability(logits: list[Tensor]) -> Tensor:
    """Returns the logarithm of the mean of several models' probabilities, in fp32.

    logits: of each model, (live, beam, vocabulary), which is also the shape of the result.
    """
    log_p = [each.float().log_softmax(-1) for each in logits]
    if len(log_p) == 1:
        return log_p[0]
    return torch.stack(log_p).logsumexp(0) - math.log(len(log_p))


def take(values: Tensor, columns: Tensor) -> Tensor:
    """Selects columns of each row.

    values: (live, n, length); columns: (live, m), numbers below n. Returns (live, m, length).
    """
    return values.gather(1, columns[:, :, None].expand(-1, -1, values.shape[2]))


class Decoder:
    """The decoder of a model, one position at a time.

    It keeps the keys and values of all earlier positions (a KV cache) and those of the source.
    """

    def __init__(self, model: Transformer, src: Tensor, beam: int):
        """src: (batch, src) ids; beam: the number of hypotheses of each sentence."""
        self.model = model
        memory, self.mask = model.encode(src)  # mask: (live, 1, 1, src)
        # Of each layer, (live, src, 2 * d_model): all hypotheses of a sentence share its
        # source.
        self.source_kv = [layer.cross_attention.key_value(memory) for layer in model.decoder]
        # Of each layer, (live * beam, positions, 2 * d_model).
        self.past_kv = [kv.new_empty(len(src) * beam, 0, kv.shape[2]) for kv in self.source_kv]

    def step(self, ids: Tensor) -> Tensor:
        """ids: (live, beam), the last tokens. Returns (live, beam, vocabulary) logits."""
        position = self.past_kv[0].shape[1]
        past_mask = torch.ones(1, position + 1, dtype=torch.bool, device=ids.device)
        x = self.model.embed(ids.reshape(-1, 1), position)  # (live * beam, 1, d_model)
        for i, layer in enumerate(self.model.decoder):
            x = self.layer_step(i, layer, x, past_mask)
        x = self.model.decoder_norm(x).view(*ids.shape, -1)  # (live, beam, d_model)
        return F.linear(x, self.model.embedding.weight)

    def layer_step(self, i: int, layer: DecoderLayer, x: Tensor, past_mask: Tensor) -> Tensor:
        """x: (live * beam, 1, d_model), the input of layer i. Returns its output."""

        def attend_to_past(x: Tensor) -> Tensor:
            new = layer.self_attention.key_value(x)
            self.past_kv[i] = torch.cat([self.past_kv[i], new], dim=1)
            return attend(layer.self_attention, x, self.past_kv[i], past_mask)

        def attend_to_source(x: Tensor) -> Tensor:
            # The hypotheses of a sentence take the place of the positions of a target.
            hypotheses = x.view(len(self.mask), -1, x.shape[2])  # (live, beam, d_model)
            y = attend(layer.cross_attention, hypotheses, self.source_kv[i], self.mask)
            return y.view(x.shape)

        x = layer.residuals[0](x, attend_to_past)
        x = layer.residuals[1](x, attend_to_source)
        return layer.residuals[2](x, layer.feed_forward)

    def keep(self, rows: Tensor, parents: Tensor) -> None:
        """Drops finished sentences, and continues each hypothesis from its parent.

        rows: (kept,), the rows of the other sentences; parents: (kept, beam), which hypothesis
        of the sentence each is continued from.
        """
        if len(rows) < len(self.mask):
            self.mask = self.mask[rows]
            self.source_kv = [kv[rows] for kv in self.source_kv]
        beam = parents.shape[1]
        parents = (rows[:, None] * beam + parents).flatten()
        self.past_kv = [kv.index_select(0, parents) for kv in self.past_kv]


def attend(attention: Attention, x: Tensor, kv: Tensor, mask: Tensor) -> Tensor:
    """`Attention.forward` with keys and values that are given.

    x: (rows, tgt, d_model); kv: (rows, n, 2 * d_model), from attention.key_value; mask: True
    where attention is allowed, broadcastable to (rows, heads, tgt, n). Returns the shape of x.
    """
    q = attention.split(attention.query(x))
    k, v = map(attention.split, kv.chunk(2, dim=-1))
    y = attention.attend(q, k, v, mask)  # (rows, heads, tgt, d_head)
    return attention.out(y.transpose(1, 2).flatten(2))


def translate_batch(
    model: Transformer,
    sentences: list[list[int]],
    beam: int,
    n_best: int = 1,
    others: Iterable[Transformer] = (),
) -> list[list[Hypothesis]]:
    """Returns `beam_search` of token ids, longest first, to which it adds eos and padding."""
    src = torch.full((len(sentences), len(sentences[0]) + 1), model.config.pad)
    for row, ids in enumerate(sentences):
        src[row, : len(ids) + 1] = torch.tensor([*ids, model.config.eos])
    device = next(model.parameters()).device
    return beam_search(model, src.to(device), beam, n_best, others=others)
