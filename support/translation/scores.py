"""How good translations are: BLEU and chrF, as sacreBLEU computes them.

score = bleu(translations, references, language="de")
print(score.value, score.signature)
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any
from unicodedata import name, normalize

# sacreBLEU's tokenizers of languages in which spaces do not separate words, or not all of them.
TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}
TOKENIZERS |= dict.fromkeys(("th", "lo", "km", "my", "bo"), "char")
# Those of their letters, by the first word of a letter's name in Unicode.
OF_LETTERS = {"CJK": "zh", "HIRAGANA": "ja-mecab", "KATAKANA": "ja-mecab", "HANGUL": "ko-mecab"}
OF_LETTERS |= dict.fromkeys(("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN"), "char")


@dataclass
class Score:
    """A score from 0 to 100, and sacreBLEU's signature: how it was computed."""

    value: float
    signature: str
    note: str = ""  # a line for those who read the value; it ends with a line break


def bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> Score:
    """Returns corpus BLEU (Post, 2018), cased.

    language: of the references, as --tgt names it; BLEU counts the words that its tokenizer
    finds. Without the package of a tokenizer (pip install sacrebleu[ja] or sacrebleu[ko]) each
    character is a word. The signature names the tokenizer. BLEU is the geometric mean over
    sequences of one to four words, and so 0 where no translation has four.
    """
    import sacrebleu  # slow to import

    try:
        metric = sacrebleu.BLEU(tokenize=choose_tokenizer(language, references))
    except RuntimeError:  # the package is missing
        metric = sacrebleu.BLEU(tokenize="char")
    score, result = apply(metric, hypotheses, references)
    if result.totals[3] == 0:
        score.note = "No translation has four words, and so BLEU is 0: chrF tells more.\n"
    return score


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Returns corpus chrF (Popović, 2015), which counts characters and needs no tokenizer."""
    import sacrebleu

    score, _ = apply(sacrebleu.CHRF(), hypotheses, references)
    return score


def apply(metric, hypotheses: Sequence[str], references: Sequence[str]) -> tuple[Score, Any]:
    """Returns the score that one of sacreBLEU's metrics gives, and all that it has found."""
    assert len(hypotheses) == len(references)  # sacreBLEU would not say
    # The same character may have other bytes in the references.
    hypotheses = [normalize("NFC", text) for text in hypotheses]
    references = [normalize("NFC", text) for text in references]
    result = metric.corpus_score(hypotheses, [references])
    return Score(result.score, str(metric.get_signature())), result


def choose_tokenizer(language: str, references: Sequence[str]) -> str:
    """Returns the name of sacreBLEU's tokenizer for a language, such as "zh" or "zh-CN".

    If its name is unknown, as of a column "2", the letters of the references decide.
    """
    code = re.split("[-_]", language.lower())[0]
    if code in TOKENIZERS:
        return TOKENIZERS[code]
    letters = Counter(char for char in chain.from_iterable(references) if char.isalpha())
    counts = Counter({"13a": 0})
    for letter, count in letters.items():
        script = re.split("[ -]", name(letter, ""))[0]  # of "ー": KATAKANA-HIRAGANA ...
        counts[OF_LETTERS.get(script, "13a")] += count
    if counts["ja-mecab"] > counts["zh"] / 10:  # Japanese is written in Chinese letters, too
        counts["ja-mecab"] += counts.pop("zh", 0)
    return max(counts, key=lambda tokenizer: counts[tokenizer])
