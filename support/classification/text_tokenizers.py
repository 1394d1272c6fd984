"""Tokenizers of texts to classify: pieces of words, words, or phrases of several words."""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from data import BPE, NFC
from support.classification.corpus import Reader

TRAINING_TEXTS = 200_000  # enough to train a tokenizer; each distinct word takes about 1 KB
PHRASE_TEXTS = 25_000  # enough to find phrases; each distinct run of words takes memory
PHRASE_WORDS = 500  # of each of these texts, for the same reason
MAX_WORDS = 100_000  # of a tokenizer of phrases: there are 131,072 characters for private use
MAX_RUN = 100  # words without a punctuation mark
SAMPLE_TEXTS = 1000  # enough to estimate how many words are unknown
LOWER_CASE = normalizers.Sequence([NFC, normalizers.Lowercase()])
PADDING = "<pad>"
UNKNOWN = "<unk>"
MAX_UNKNOWN = 0.2  # of the words: 0.36 in a Korean corpus, at most 0.15 in all others tried
# Characters of scripts that do not separate words by spaces; each counts as a word.
UNSPACED = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
IN_WORD = rf"[\w'&&[^{UNSPACED}]]"  # characters of other words: "don't" is one
WORD_EDGE = rf"(?<!{IN_WORD})(?={IN_WORD})|(?<={IN_WORD})(?!{IN_WORD})"
EDGE = "\u2581"  # in phrases it stands at both ends of such a word: "▁one▁▁of▁"
# Some letters are composed only in lower case.
PHRASE_TEXT = normalizers.Sequence([normalizers.Replace(EDGE, " "), LOWER_CASE, NFC])
FIRST_CHARACTER = 0xF0000  # for private use: the characters that stand for words


def train_tokenizer(read: Reader, count: int, kind: str, vocab_size: int) -> str:
    """Returns a serialized tokenizer, trained on lower case: "Oil" and "oil" are one word.

    count: of texts in the training set, before some were held out. kind: "bpe", over bytes,
    "words", "phrases", or "auto": words, unless too many would be unknown, as in a language
    with many forms of each word.
    """

    def some_texts(most: int) -> Iterator[str]:
        return (text for text, _ in islice(read(), 0, None, math.ceil(count / most)))

    if kind == "phrases":
        return train_phrases(partial(some_texts, PHRASE_TEXTS), vocab_size)
    if kind in ("words", "auto"):
        words = train_words(some_texts(TRAINING_TEXTS), vocab_size)
        if kind == "words" or share_unknown(words, some_texts(SAMPLE_TEXTS)) <= MAX_UNKNOWN:
            return words
    return BPE.train(some_texts(TRAINING_TEXTS), vocab_size, LOWER_CASE).serialized


def train_words(texts: Iterator[str], vocab_size: int) -> str:
    """Returns a serialized tokenizer whose tokens are words, or characters of `UNSPACED`.

    A word that occurs once in the texts, or not at all, is the token "<unk>".
    """
    characters = pre_tokenizers.Split(Regex(f"[{UNSPACED}]"), "isolated")
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), characters])
    return word_tokenizer(texts, vocab_size, LOWER_CASE, splitter).to_str()


def word_tokenizer(
    texts: Iterator[str],
    vocab_size: int,
    normalizer: normalizers.Normalizer,
    splitter: pre_tokenizers.PreTokenizer,
) -> Tokenizer:
    """Returns a tokenizer of the most frequent words, into which the splitter divides texts."""
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[PADDING, UNKNOWN],
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def share_unknown(serialized: str, texts: Iterator[str]) -> float:
    """Returns the share of the words in these texts that `train_words` made unknown."""
    tokenizer = Tokenizer.from_str(serialized)
    counts = Counter(chain.from_iterable(tokenizer.encode(text).tokens for text in texts))
    return counts[UNKNOWN] / max(1, counts.total())


def train_phrases(read: Callable[[], Iterator[str]], vocab_size: int) -> str:
    """Returns a serialized tokenizer whose tokens are words, and phrases of several words.

    read: yields the texts, each time from the first. At most half of the tokens are words and
    punctuation marks, the most frequent; one or several other words are the token "<unk>". The
    rest are phrases, such as "one of the best": a BPE finds them, whose characters are words.
    It joins the two neighbours that are the most frequent, again and again, but no punctuation
    mark and no unknown word. A text is divided into as few tokens as possible.
    """
    splitter = pre_tokenizers.Split(Regex(rf"{IN_WORD}+|\S"), "removed", invert=True)
    num_words = min(max(2, vocab_size // 2), MAX_WORDS)
    words = word_tokenizer(read(), num_words, PHRASE_TEXT, splitter)
    normalizer = normalizers.Sequence(
        [
            PHRASE_TEXT,
            normalizers.Replace(Regex(WORD_EDGE), EDGE),
            normalizers.Replace(Regex(r"\s+"), ""),
        ]
    )
    tokens = [PADDING, UNKNOWN, *map(normalizer.normalize_str, tokens_of(words)[2:])]
    phrases = find_phrases(read(), words, max(0, vocab_size - len(tokens)))
    tokens += ["".join(tokens[i] for i in phrase) for phrase in phrases]
    # Each token costs 1, so the best division of a text is the shortest.
    tokenizer = Tokenizer(models.Unigram([(token, -1.0) for token in tokens], unk_id=1))
    tokenizer.normalizer = normalizer
    marks = Regex(rf"[^\w'{EDGE}]")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(marks, "isolated")
    return tokenizer.to_str()


def find_phrases(texts: Iterator[str], words: Tokenizer, most: int) -> list[list[int]]:
    """Returns phrases, at most so many, each as the ids of its words."""
    # Each word is a character. A space, for marks and unknown words, ends a phrase.
    spellings = enumerate(tokens_of(words))
    characters = [chr(FIRST_CHARACTER + i) if is_word(word) else " " for i, word in spellings]
    characters[:2] = [" ", " "]  # PADDING and UNKNOWN
    bpe = Tokenizer(models.BPE())
    # Learning from a long run takes the square of its length.
    runs = Regex(rf"\S{{1,{MAX_RUN}}}")
    bpe.pre_tokenizer = pre_tokenizers.Split(runs, "removed", invert=True)
    trainer = trainers.BpeTrainer(
        vocab_size=len(characters) - characters.count(" ") + most,
        min_frequency=2,
        show_progress=False,
    )
    ids_of_texts = (words.encode(text).ids[:PHRASE_WORDS] for text in texts)
    bpe.train_from_iterator(
        ("".join(characters[i] for i in ids) for ids in ids_of_texts), trainer
    )
    phrases = [token for token in tokens_of(bpe) if len(token) > 1]
    # In place of a word that occurs only after PHRASE_WORDS, the BPE learns a phrase too many.
    return [
        [ord(character) - FIRST_CHARACTER for character in token] for token in phrases[:most]
    ]


def is_word(spelling: str) -> bool:
    """Returns whether it has a letter, a digit, or a part of a letter, as in Thai."""
    return any(unicodedata.category(character)[0] in "LMN" for character in spelling)


def tokens_of(tokenizer: Tokenizer) -> list[str]:
    """Returns the tokens, in the order of their ids."""
    vocabulary = tokenizer.get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)
