"""Beam search with a KV cache.

    hypotheses = beam_search([model], src, beam=4)  # of a batch of token ids

Shapes in comments: live, the sentences that are not finished; beam, the hypotheses of each,
which are the target prefixes that the search continues.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from model import DecoderLayer, ModelConfig, Transformer

# Best on Multi30k's validation set; with 1, translations were 5 % too short.
LENGTH_PENALTY = 2.0

Hypothesis = tuple[float, list[int]]  # score, target ids without bos and eos
Batch = list[list[int]]  # source ids of sentences without eos, the longest first


@torch.inference_mode()
def beam_search(
    models: Sequence[Transformer],
    src: Tensor,
    beam: int = 1,
    n_best: int = 1,
    length_penalty: float = LENGTH_PENALTY,
) -> list[list[Hypothesis]]:
    """Translates a batch by beam search; with beam 1 it is greedy decoding.

    models: several, with the same vocabulary, form an ensemble: their probabilities are
    averaged. src: (batch, src) ids, padded at the end. beam: at most half the vocabulary.

    Returns the `n_best` hypotheses of each sentence, best first, as (score, ids). The score is
    the log-probability in nats over length ** length_penalty, where eos counts, too. The length
    is at most 2 * source + 8, and at most max_length. The result for a sentence does not depend
    on the others of its batch.
    """
    hypotheses = Hypotheses(src, models[0].config, beam, length_penalty)
    decoders = [Decoder(each, src, beam) for each in models]
    while hypotheses.live:
        last = hypotheses.ids[:, :, -1]  # (live, beam)
        log_p = mean_log_probability([decoder.step(last) for decoder in decoders])
        rows, parents = hypotheses.extend(log_p)
        for decoder in decoders:
            decoder.reorder_cache(rows, parents)
    return [sorted(each, reverse=True)[:n_best] for each in hypotheses.finished]


class Hypotheses:
    """The hypotheses of a batch while it is searched.

    live: the sentence of each row of the tensors; ids: (live, beam, length + 1), with bos;
    scores: (live, beam), log-probabilities; limit: (live,), maximum lengths; finished: the
    finished hypotheses of each sentence of the batch.
    """

    def __init__(self, src: Tensor, config: ModelConfig, beam: int, length_penalty: float):
        self.config = config
        self.beam = beam
        self.length_penalty = length_penalty
        self.finished: list[list[Hypothesis]] = [[] for _ in src]
        self.live = list(range(len(src)))
        self.ids = torch.full((len(src), beam, 1), config.bos, device=src.device)
        self.scores = torch.full((len(src), beam), -math.inf, device=src.device)
        self.scores[:, 0] = 0  # all are alike at first: continue one of them
        lengths = (src != config.pad).sum(1)
        self.limit = (2 * lengths + 8).clamp(max=config.max_length)

    def extend(self, log_p: Tensor) -> tuple[Tensor, Tensor]:
        """Extends the hypotheses by a token each, and drops the sentences that are finished.

        log_p: (live, beam, vocabulary), log-probabilities of the next token, which are changed.
        Returns (rows, parents): (kept,), the rows of the sentences that go on; (kept, beam),
        which hypothesis of the sentence each was extended from.
        """
        log_p[:, :, self.config.pad] = -math.inf
        log_p[:, :, self.config.bos] = -math.inf
        # totals, parents, tokens: (live, 2 * beam), the best continuations by one token, best
        # first. At most `beam` of them end with eos, so `beam` are left to extend.
        sums = (self.scores[:, :, None] + log_p).flatten(1)  # (live, beam * vocabulary)
        totals, indices = sums.topk(2 * self.beam)
        parents = indices // log_p.shape[2]
        tokens = indices % log_p.shape[2]
        prefixes = self.ids.take_along_dim(parents[:, :, None], 1)
        self.ids = torch.cat([prefixes, tokens[:, :, None]], dim=2)
        ends = tokens == self.config.eos
        self.collect_finished(totals, ends)

        # A sentence at its limit has `beam` finished hypotheses, too.
        kept = [i for i, sentence in enumerate(self.live) if not self.is_finished(sentence)]
        self.live = [self.live[row] for row in kept]
        rows = torch.tensor(kept, dtype=torch.long).to(log_p.device, non_blocking=True)
        unfinished = totals.masked_fill(ends, -math.inf)[rows]
        self.scores, best = unfinished.topk(self.beam)  # (kept, beam)
        self.ids = self.ids[rows].take_along_dim(best[:, :, None], 1)
        self.limit = self.limit[rows]
        return rows, parents[rows].gather(1, best)

    def collect_finished(self, totals: Tensor, ends: Tensor) -> None:
        """Adds to `finished` those of the best `beam` candidates that end, or are at the limit.

        totals: (live, 2 * beam), log-probabilities of the candidates; ends: (live, 2 * beam).
        """
        length = self.ids.shape[2] - 1  # without bos
        at_limit = self.limit == length
        is_done = (ends | at_limit[:, None])[:, : self.beam]
        # A single copy from the device, for which the CPU waits.
        values, done = torch.stack([totals[:, : self.beam], is_done]).cpu().numpy()
        done_rows, columns = np.nonzero(done)
        if not len(done_rows):
            return
        where = torch.from_numpy(np.stack([done_rows, columns]))
        row_indices, column_indices = where.to(totals.device, non_blocking=True)
        all_ids = self.ids[row_indices, column_indices].tolist()
        for row, total, ids in zip(
            done_rows.tolist(), values[done_rows, columns].tolist(), all_ids
        ):
            sentence = self.live[row]
            if not self.is_finished(sentence):
                target = [token for token in ids[1:] if token != self.config.eos]
                score = total / length**self.length_penalty
                self.finished[sentence].append((score, target))

    def is_finished(self, sentence: int) -> bool:
        """Returns whether a sentence has as many finished hypotheses as it needs."""
        return len(self.finished[sentence]) == self.beam


def mean_log_probability(logits: list[Tensor]) -> Tensor:
    """Returns the logarithm of the mean of several models' probabilities, in fp32.

    logits: of each model, (live, beam, vocabulary), which is also the shape of the result.
    """
    log_p = [each.float().log_softmax(-1) for each in logits]
    if len(log_p) == 1:
        return log_p[0]
    return torch.stack(log_p).logsumexp(0) - math.log(len(log_p))


class Decoder:
    """The decoder of a model, one position at a time.

    It keeps the keys and values of all earlier positions (a KV cache) and those of the source.
    """

    def __init__(self, model: Transformer, src: Tensor, beam: int):
        """src: (batch, src) ids; beam: the number of hypotheses of each sentence."""
        self.model = model
        memory, self.mask = model.encode(src)  # mask: (live, 1, 1, src)
        # Of each layer, (live, src, 2 * d_model): the hypotheses of a sentence share it.
        self.source_kv = [layer.cross_attention.key_value(memory) for layer in model.decoder]
        # Of each layer, (live * beam, positions, 2 * d_model).
        self.past_kv = [kv.new_empty(len(src) * beam, 0, kv.shape[2]) for kv in self.source_kv]

    def step(self, ids: Tensor) -> Tensor:
        """Returns the logits, (live, beam, vocabulary), after the last tokens, (live, beam)."""
        position = self.past_kv[0].shape[1]
        past_mask = torch.ones(1, position + 1, dtype=torch.bool, device=ids.device)
        x = self.model.embed(ids.reshape(-1, 1), position)  # (live * beam, 1, d_model)
        for i, layer in enumerate(self.model.decoder):
            x = self.layer_step(i, layer, x, past_mask)
        x = self.model.decoder_norm(x).view(*ids.shape, -1)  # (live, beam, d_model)
        return F.linear(x, self.model.embedding.weight)

    def layer_step(self, i: int, layer: DecoderLayer, x: Tensor, past_mask: Tensor) -> Tensor:
        """Returns the output of layer i for its input x, both (live * beam, 1, d_model)."""

        def attend_to_past(x: Tensor) -> Tensor:
            new = layer.self_attention.key_value(x)
            self.past_kv[i] = torch.cat([self.past_kv[i], new], dim=1)
            query = layer.self_attention.query(x)
            return layer.self_attention.attend_projected(query, self.past_kv[i], past_mask)

        def attend_to_source(x: Tensor) -> Tensor:
            # The hypotheses of a sentence take the place of the positions of a target.
            hypotheses = x.view(len(self.mask), -1, x.shape[2])  # (live, beam, d_model)
            query = layer.cross_attention.query(hypotheses)
            y = layer.cross_attention.attend_projected(query, self.source_kv[i], self.mask)
            return y.view(x.shape)

        x = layer.residuals[0](x, attend_to_past)
        x = layer.residuals[1](x, attend_to_source)
        return layer.residuals[2](x, layer.feed_forward)

    def reorder_cache(self, rows: Tensor, parents: Tensor) -> None:
        """Drops finished sentences, and continues each hypothesis from its parent.

        rows: (kept,), the rows of the sentences that go on; parents: (kept, beam), which
        hypothesis of the sentence each is continued from.
        """
        if len(rows) < len(self.mask):
            self.mask = self.mask[rows]
            self.source_kv = [kv[rows] for kv in self.source_kv]
        beam = parents.shape[1]
        parents = (rows[:, None] * beam + parents).flatten()
        self.past_kv = [kv.index_select(0, parents) for kv in self.past_kv]


def translate_batch(
    models: Sequence[Transformer],
    sentences: Batch,
    beam: int,
    n_best: int = 1,
    dtype: torch.dtype | None = None,
) -> list[list[Hypothesis]]:
    """Returns `beam_search` of token ids, to which it adds eos and padding.

    dtype: that of autocast, if it is used.
    """
    model = models[0]
    rows = [torch.tensor([*ids, model.config.eos]) for ids in sentences]
    src = pad_sequence(rows, batch_first=True, padding_value=model.config.pad)
    device = model.embedding.weight.device
    with torch.autocast(device.type, dtype, enabled=dtype is not None):
        return beam_search(models, src.to(device), beam, n_best)
