"""Lines of text in, translations out.

    answers = translate_lines(bpe, lines, max_tokens, search)

`search` decodes batches of token ids: pool.py, `shared_search` in task.py, and
support/ctranslate/engine.py each provide one.
"""

import math
import re
import sys
from collections.abc import Callable, Iterable
from itertools import chain

import regex  # for \X, what a reader sees as one character

from data import BPE
from support.translation.beam import Batch, Hypothesis

Ids = list[int]  # a sentence's tokens
Text = tuple[float, str]  # a translation with its score
Search = Callable[[list[Batch]], Iterable[list[list[Hypothesis]]]]

# The largest batch: more keep a GPU busy, fewer stay in a CPU's caches.
MAX_SENTENCES = {"cpu": 128, "cuda": 1024}
MAX_TOKENS = {"cpu": 4096, "cuda": 32_768}

# A sentence ends with its marks and what they close. Where marks are also used in numbers and
# names (3.5, example.org), a space has to follow.
CLOSING = r"""["'”’»›)\]」』】）》〉]*"""
SENTENCE_END = re.compile(rf"(?<![.!?…])[.!?…]+{CLOSING}\s|[。！？｡।॥؟۔։።။។]+{CLOSING}")


def translate_lines(
    bpe: BPE,
    lines: list[str],
    max_tokens: int,
    search: Search,
    device: str = "cpu",
    ranks: int = 1,
    quiet: bool = False,
) -> list[list[Text]]:
    """Returns the translations of each line with their scores, best first.

    search: takes batches of token ids, each sorted by length, longest first, and yields for
    each batch what `beam_search` returns. A line of more than `max_tokens` tokens is split, at
    the ends of its sentences where possible, and the translations are joined; unless `quiet`, a
    warning says so. The translation of a blank line is empty. device: "cpu" or "cuda", and
    ranks: how many search side by side, decide how large the batches are.
    """
    if isinstance(lines, str):
        raise TypeError("translate_lines takes a list of lines, not one string")
    pieces = []  # token ids
    line_numbers = []  # of each piece
    for number, (line, ids) in enumerate(zip(lines, bpe.encode(lines))):
        parts = [ids] if ids else []
        if len(ids) > max_tokens:
            parts = split_line(bpe, line, max_tokens)
            if not quiet:
                print(
                    f"warning: {len(ids):,} tokens in one line, more than the {max_tokens} "
                    f"the model takes: translated in {len(parts)} pieces",
                    file=sys.stderr,
                )
        pieces += parts
        line_numbers += [number] * len(parts)
    share = math.ceil(len(pieces) / ranks)
    max_sentences = min(MAX_SENTENCES[device], max(1, share))
    batches = sort_into_batches(pieces, max_sentences, MAX_TOKENS[device])
    results = search([[pieces[i] for i in batch] for batch in batches])
    order = chain.from_iterable(batches)  # the numbers of the pieces
    translations: list[list[list[Text]]] = [[] for _ in lines]  # of the pieces of each line
    for i, hypotheses in sorted(zip(order, chain.from_iterable(results))):
        texts = [(score, printable(bpe.decode(ids))) for score, ids in hypotheses]
        translations[line_numbers[i]].append(texts)
    return [join_pieces(each) for each in translations]


def split_line(bpe: BPE, line: str, max_tokens: int) -> list[Ids]:
    """Splits a line into its sentences, and these into pieces of at most `max_tokens`."""
    sentences = SENTENCE_END.sub(r"\g<0>\n", line).split("\n")
    return [ids for text in sentences for ids in halve(bpe, text.strip(), max_tokens)]


def halve(bpe: BPE, text: str, max_tokens: int) -> list[Ids]:
    """Halves a text until each piece has at most `max_tokens`; returns the pieces' ids.

    It is cut between words, or a long word between characters, or a character between tokens.
    """
    ids = bpe.encode([text])[0]
    if len(ids) <= max_tokens:
        return [ids] if ids else []
    cuts = [i for i, char in enumerate(text) if char.isspace()]
    if not cuts:
        cuts = [character.start() for character in regex.finditer(r"\X", text)][1:]
    if not cuts:
        return [ids[i : i + max_tokens] for i in range(0, len(ids), max_tokens)]
    cut = min(cuts, key=lambda i: abs(i - len(text) // 2))
    halves = text[:cut].strip(), text[cut:].strip()
    return [piece for half in halves for piece in halve(bpe, half, max_tokens)]


def sort_into_batches(
    sentences: list[Ids], max_sentences: int, max_tokens: int
) -> list[list[int]]:
    """Returns batches of indices of sentences of similar length, the longest first.

    A batch has at most `max_sentences` sentences and, unless a sentence alone has more, at most
    `max_tokens` tokens with padding. It depends on the lengths alone.
    """
    order = sorted(range(len(sentences)), key=lambda i: -len(sentences[i]))
    batches = []
    start = 0
    while start < len(order):
        longest = len(sentences[order[start]])
        size = min(max_sentences, max(1, max_tokens // longest))
        batches.append(order[start : start + size])
        start += size
    return batches


def join_pieces(pieces: list[list[Text]]) -> list[Text]:
    """Returns the translations of a line, given those of its pieces.

    Of several pieces only the best translations are joined, and their scores added. A line
    without pieces has one empty translation.
    """
    if len(pieces) == 1:
        return pieces[0]
    best = [texts[0] for texts in pieces]
    score = sum(score for score, _ in best)
    lines = "\n".join(text for _, text in best)
    # Chinese and Japanese, unlike others, have no space between sentences.
    text = re.sub(r"(?<=[\u3000-\u30ff\u3400-\u9fff\uff00-\uffef])\n", "", lines)
    return [(score, text.replace("\n", " "))]


def printable(text: str) -> str:
    """Returns text with each control character, which a terminal would obey, made a space."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)
