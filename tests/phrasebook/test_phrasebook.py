"""The built-in corpus: made by its grammar, of distinct sentences with one translation each."""

import re

import pytest
from phrasebook import generate

from support.corpora import phrasebook


@pytest.fixture(scope="module")
def corpus():
    return {part: phrasebook.pairs(part) for part in phrasebook.SIZES}


def test_the_file_is_what_the_grammar_makes():
    rows = [row for part in generate.corpus().values() for row in part]
    assert [tuple(row) for row in phrasebook.read_rows()] == rows
    assert phrasebook.DATA.read_bytes()[4:8] == bytes(4)  # no time in it: the same each time
    assert list(generate.KINDS) == phrasebook.KINDS


def test_every_template_has_one_kind():
    with_kind = [template for kind in generate.KINDS.values() for template in kind]
    assert len(with_kind) == len(set(with_kind))
    assert set(with_kind) == set(generate.TEMPLATES)


def test_the_parts_have_their_sizes_and_share_no_source(corpus):
    assert [len(corpus[part]) for part in ("train", "valid", "test")] == [40_000, 1_000, 1_000]
    sources = [german for part in corpus.values() for german, _ in part]
    assert len(set(sources)) == len(sources)


def test_it_is_a_function_of_the_seed(corpus):
    other = generate.corpus(seed=2, train=2000, valid=10, test=10)
    assert other == generate.corpus(seed=2, train=2000, valid=10, test=10)
    assert [row[:2] for row in other["train"]] != corpus["train"][:2000]


@pytest.mark.slow
def test_a_german_sentence_has_one_translation(corpus):
    english = {german: translation for part in corpus.values() for german, translation in part}
    for seed in (2, 3):
        for german, translation, _ in generate.corpus(seed=seed)["train"]:
            assert english.setdefault(german, translation) == translation


def test_sentences_look_like_sentences(corpus):
    for german, english in corpus["train"]:
        for text in (german, english):
            assert re.fullmatch(r"[A-ZÄÖÜ][^.?!]*[.?!]", text), text
            assert "  " not in text and " ," not in text and " ." not in text, text
        assert german[-1] == english[-1]
        assert len(german.split()) <= 24


def test_a_and_an(corpus):
    """The article follows the sound; words whose spelling misleads are listed."""
    for _, english in corpus["train"]:
        for article, word in re.findall(r"\b([Aa]n?) (\w+)", english):
            vowel = word[0].lower() in "aeiou" or word.startswith(("hour", "honest"))
            vowel = vowel and not word.startswith(("uni", "use", "Euro", "one"))
            assert (article.lower() == "an") == vowel, english


def test_what_is_held_out_is_made_of_what_is_trained_on(corpus):
    def words(part):
        return [
            word for pair in corpus[part] for text in pair for word in re.findall(r"\w+", text)
        ]

    seen, held = set(words("train")), words("valid") + words("test")
    assert sum(word not in seen for word in held) < 0.001 * len(held)


def test_the_grammar_is_there(corpus):
    """One mark of each structure that the corpus is meant to teach, hundreds of times."""
    german = " \n".join(source for source, _ in corpus["train"])
    for structure in [
        r"\bnicht\b",
        r"\bkein",
        r", weil ",
        r", dass ",
        r"\bwerden\b",
        r"\bals\b",
        r"\?",
        r"\b(hat|haben|ist|sind)\b.*t[.?]",
        r"\b(kann|können|muss|müssen|will|wollen)\b",
        r"\bAm \w+ ",
        r", d(er|ie|as|en|em) ",
        r"\b(zwei|drei|zwanzig)\b",
        r"\bin d(en|em|ie) ",
        r"\bauf d(en|em|as) ",
    ]:
        assert len(re.findall(structure, german)) >= 100, structure


def test_more_than_there_can_be_is_refused():
    for sizes in (dict(train=-1), dict(valid=-5)):
        with pytest.raises(ValueError):
            generate.corpus(**sizes)
