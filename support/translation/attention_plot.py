"""A plot of what each word of a translation attends to: translate.py --attention."""

import re
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from data import BOS, BPE, EOS
from model import Transformer, scaled_dot_product
from support.common.errors import UserError
from support.common.figures import new_figure
from support.common.text_table import text_width
from support.translation.beam import beam_search
from support.translation.lines import printable

# Letters and marks of scripts without spaces: Thai, Lao, Burmese, Khmer; kana, Chinese.
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff"
    "\uff01-\uff0f\uff1a-\uff1f]"
)
PART_OF_CHARACTER = "\ufffd"  # what bytes that are no whole character are decoded as


@dataclass
class Word:
    """A word of a sentence."""

    text: str
    positions: list[int]  # of its tokens in the sentence


def draw_attention(model: Transformer, bpe: BPE, text: str, beam: int, path: str) -> str:
    """Translates a sentence, plots its attention, and returns the translation.

    The heat map has a row for each word of the translation and a column for each of the source.
    It shows the last layer's attention to the source, mean over heads. path: the file.
    Raises UserError for a sentence that is too long.
    """
    ids = bpe.encode([text])[0]
    if len(ids) >= model.config.max_length:
        raise UserError(
            f"--attention: the sentence has {len(ids):,} tokens, more than the "
            f"{model.config.max_length - 1} that the model takes; shorten it"
        )
    device = next(model.parameters()).device
    src = torch.tensor([[*ids, EOS]], device=device)
    hypotheses = beam_search([model], src, beam)[0]  # of the only sentence, best first
    _, translation = hypotheses[0]
    tgt_in = torch.tensor([[BOS, *translation]], device=device)
    weights = alignment(model, src, tgt_in)[0].float().cpu()  # (tgt, src)
    rows = find_words(bpe, [*translation, EOS])
    columns = find_words(bpe, [*ids, EOS])
    # Between words: the mean over a row's tokens, the sum over a column's.
    weights = torch.stack([weights[word.positions].mean(0) for word in rows])
    weights = torch.stack([weights[:, word.positions].sum(1) for word in columns], dim=1)
    plot_weights(weights, rows, columns, Path(path))
    return printable(bpe.decode(translation))


@torch.inference_mode()
def alignment(model: Transformer, src: Tensor, tgt_in: Tensor) -> Tensor:
    """Returns what each target position attends to in the last layer, mean over heads.

    src: (batch, src) and tgt_in: (batch, tgt) ids. Returns (batch, tgt, src); rows sum to 1.
    """
    last = model.decoder[-1].cross_attention
    attend = last.attend
    weights = []

    def record(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        # Attention is weights times values, so with the identity as values it is the weights.
        identity = torch.eye(k.shape[-2], device=k.device).expand(*k.shape[:-1], -1)
        weights.append(scaled_dot_product(q.float(), k.float(), identity, mask).mean(1))
        return attend(q, k, v, mask)

    last.attend = record
    try:
        model.decode(tgt_in, *model.encode(src))
    finally:
        last.attend = attend
    return weights[0]


def find_words(bpe: BPE, ids: list[int]) -> list[Word]:
    """Returns the words that token ids make up; eos is a word of its own, "end".

    Where a script has no spaces, a word is the fewest tokens that make up whole characters.
    """
    words: list[Word] = []
    for position, token in enumerate(ids):
        subword = bpe.tokenizer.id_to_token(token) or ""
        starts_word = token == EOS or subword.startswith("Ġ")  # a space
        before = words[-1].text if words else ""
        has_ended = UNSPACED.search(before) and PART_OF_CHARACTER not in before
        if not words or starts_word or has_ended:
            words.append(Word("", []))
        word = words[-1]
        word.positions.append(position)
        word.text = "end" if token == EOS else bpe.decode([ids[i] for i in word.positions])
    return words


def plot_weights(weights: Tensor, rows: list[Word], columns: list[Word], path: Path) -> None:
    """Writes a heat map of weights, (rows, columns), to a file."""
    row_names = [printable(word.text) for word in rows]
    column_names = [printable(word.text) for word in columns]
    # Inches: a cell, and room for the longest label.
    width = 1.5 + 0.35 * len(columns) + 0.1 * max(map(text_width, row_names))
    height = 0.5 + 0.3 * len(rows) + 0.1 * max(map(text_width, column_names))
    with new_figure(path, width, height, follow_link=True) as figure:
        axes = figure.subplots()
        image = axes.imshow(weights.numpy(), cmap="Greys", vmin=0, vmax=1, aspect="auto")
        axes.set_xticks(range(len(columns)), column_names, rotation=90)
        axes.set_yticks(range(len(rows)), row_names)
        axes.set(xlabel="source", ylabel="translation")
        axes.xaxis.tick_top()
        axes.spines[:].set_visible(True)
        figure.colorbar(image, label="attention")
