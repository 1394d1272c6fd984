"""A picture of what each word of a translation attends to: translate.py --attention."""

import torch
from torch import Tensor

from data import BOS, BPE, EOS
from model import Transformer
from support.common.errors import UserError
from support.translation.beam import CONTROL, alignment, beam_search

Words = list[tuple[str, list[int]]]  # words, with the places of their tokens


def draw_attention(model: Transformer, bpe: BPE, text: str, beam: int, path: str) -> str:
    """Translates a sentence, writes a heat map to the PNG file `path`, and returns the translation.

    The map has a row for each word of the translation and a column for each of the source, dark
    where the row's word attends to the column's: in the last layer, mean over heads.
    Raises UserError where it cannot be drawn.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError(
            "--attention needs a package to draw with: pip install matplotlib"
        ) from None
    ids = bpe.encode([text])[0]
    if len(ids) >= model.config.max_length:
        raise UserError(
            f"--attention: a sentence of more than {model.config.max_length - 1} tokens"
        )
    device = next(model.parameters()).device
    src = torch.tensor([[*ids, EOS]], device=device)
    translation = beam_search(model, src, beam)[0][0][1]
    tgt_in = torch.tensor([[BOS, *translation]], device=device)
    weights = alignment(model, src, tgt_in)[0].float().cpu()  # (tgt, src)
    rows, columns = words(bpe, [*translation, EOS]), words(bpe, [*ids, EOS])
    names = [[CONTROL.sub(" ", word) for word, _ in words] for words in (rows, columns)]

    # In inches, with room for the labels.
    row_label, column_label = (0.1 * max(map(len, words)) for words in names)
    size = 1.5 + 0.35 * len(columns) + row_label, 0.5 + 0.3 * len(rows) + column_label
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    weights = by_word(weights, rows, columns).numpy()
    image = axes.imshow(weights, cmap="Greys", vmin=0, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), names[1], rotation=90, parse_math=False)
    axes.set_yticks(range(len(rows)), names[0], parse_math=False)
    axes.set(xlabel="source", ylabel="translation")
    axes.xaxis.tick_top()
    figure.colorbar(image, label="attention")
    figure.savefig(path, dpi=200, format="png")
    return CONTROL.sub(" ", bpe.decode(translation))


def words(bpe: BPE, ids: list[int]) -> Words:
    """The words that token ids make up, each with the places of its tokens; eos is one."""
    found = []
    for place, token in enumerate(ids):
        starts = token == EOS or bpe.tokenizer.id_to_token(token).startswith("Ġ")  # a space
        if starts or not found:
            found.append([])
        found[-1].append(place)
    return [
        ("end" if ids[places[0]] == EOS else bpe.decode([ids[i] for i in places]), places)
        for places in found
    ]


def by_word(weights: Tensor, rows: Words, columns: Words) -> Tensor:
    """weights: (tgt, src), of tokens. Returns those of words, (rows, columns)."""
    weights = torch.stack([weights[tokens].mean(0) for _, tokens in rows])
    return torch.stack([weights[:, tokens].sum(1) for _, tokens in columns], dim=1)
