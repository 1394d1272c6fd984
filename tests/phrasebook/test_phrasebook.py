"""The built-in corpus: made by its grammar, of distinct sentences with one translation each.

Its phrases are patterns, each right in both languages, and come as people type them.
"""

import random
import re

import pytest
from phrasebook import generate, judge

from support.corpora import phrasebook


@pytest.fixture(scope="module")
def corpus():
    return {part: list(phrasebook.pairs(part)) for part in phrasebook.PARTS}


def test_the_file_is_what_the_grammar_makes():
    for part, rows in generate.corpus().items():
        assert [tuple(row) for row in phrasebook.read_part(part)] == rows
    assert phrasebook.DATA.read_bytes()[4:8] == bytes(4)  # no time in it: the same each time
    assert list(generate.KINDS) == phrasebook.KINDS


def test_every_template_of_the_grammar_has_one_kind():
    with_kind = [template for kind in generate.KINDS.values() for template in kind]
    assert len(with_kind) == len(set(with_kind))
    assert set(with_kind) == set(generate.TEMPLATES) - {generate.said}


def test_the_parts_have_their_sizes_and_share_no_source(corpus):
    assert [len(corpus[part]) for part in ("train", "valid", "test")] == [26_000, 1_000, 1_000]
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


def test_sentences_look_like_sentences():
    for german, english, kind in phrasebook.read_part("train"):
        for text in (german, english):
            whole = r"[A-ZÄÖÜ][^.?!]*[.?!]" if kind else r".*[^ ]"
            assert re.fullmatch(whole, text), text
            assert "  " not in text and " ," not in text and " ." not in text, text
            assert not set("{}[]/=()") & set(text), text
        assert re.fullmatch(r"[A-Z0-9].*[.?!]", english), english
        assert german[-1] == english[-1] or not kind
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
            word
            for pair in corpus[part]
            for text in pair
            for word in re.findall(r"\w+", text.lower())
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


def test_all_ways_of_a_phrase_have_the_same_slots():
    """What stands in the English is in each German; and no list is idle or repeats itself."""

    def slots(text):
        return {slot for _, slot, _ in generate.SLOT.findall(text)}

    used = set()
    for german, english in generate.PATTERNS:
        for way in german:
            assert slots(way) == slots(english) and way.count("[") == english.count("["), way
            used |= {name for _, _, name in generate.SLOT.findall(way)}
    assert used == set(generate.LISTS)
    for name, entries in generate.LISTS.items():
        assert len(entries) == len(set(entries)), name


def test_a_phrase_has_one_translation_however_it_is_typed():
    rng = random.Random(1)
    english = {}
    for _ in range(20_000):
        german, translation = generate.said(rng)
        key = re.sub("[.,!?]", "", german.lower())
        assert english.setdefault(key, translation) == translation, german


@pytest.mark.parametrize(
    ("german", "english", "expected"),
    [
        (
            "Ist {der pet} da?",
            "Is {der pet} there?",
            ("Ist die Katze da?", "Is the cat there?"),
        ),
        ("Ich sehe {den pet}.", "I see {den pet}.", ("Ich sehe die Katze.", "I see the cat.")),
        ("Zwei {pet}.", "Two {pet}.", ("Zwei Katzen.", "Two cats.")),
        (
            "Das ist {ein fruit}.",
            "It is {ein fruit}.",
            ("Das ist ein Apfel.", "It is an apple."),
        ),
        (
            "wie geht man zu {dem fruit}",
            "to {dem fruit}",
            ("wie geht man zum Apfel", "to the apple"),
        ),
        ("{city} oder {city2}", "{city} or {city2}", None),
    ],
)
def test_slots_are_filled_and_declined(monkeypatch, german, english, expected):
    nouns = {"pet": "die Katze -n = cat", "fruit": "der Apfel ¨ = apple"}
    lists = {name: generate.read_list([row]) for name, row in nouns.items()}
    lists["city"] = generate.read_list(["Wien = Vienna", "Rom = Rome"])
    monkeypatch.setattr(generate, "LISTS", lists)
    filled = generate.fill(random.Random(1), german, english)
    both = (("Wien oder Rom", "Vienna or Rome"), ("Rom oder Wien", "Rome or Vienna"))
    assert filled in ((expected,) if expected else both)


def test_what_anyone_may_say():
    """Said and asked of all persons, with the right forms in both languages."""
    pattern = generate.Pattern(("(nicht) müde sein",), "be tired")
    rng = random.Random(1)
    pairs = {generate.of_anyone(rng, pattern) for _ in range(2000)}
    assert {
        ("Ich bin müde.", "I am tired."),
        ("Ich bin nicht müde.", "I am not tired."),
        ("Bist du müde?", "Are you tired?"),
        ("Sind Sie müde?", "Are you tired?"),
        ("Seid ihr müde?", "Are you tired?"),
        ("Wir sind müde.", "We are tired."),
        ("Ist er müde?", "Is he tired?"),
    } <= pairs
    where = generate.Pattern(("wo: wohnen",), "where: live")
    pairs = {generate.of_anyone(rng, where) for _ in range(2000)}
    assert {("Wo wohnst du?", "Where do you live?")} <= pairs
    assert {("Wo wohnt er?", "Where does he live?")} <= pairs


def test_the_judge_overlooks_marks_capitals_and_contractions():
    right = [
        ("Es ist kalt.", ["It is cold.", "It's freezing."]),
        ("Was ist das?", ["What's that?"]),
    ]
    assert judge.wrong_ones(right, ["it's cold!", "what is that"]) == []
    assert judge.wrong_ones(right, ["It is freezing", "That?"]) == [("Was ist das?", "That?")]
    for one, other in [
        ("I can't, I'm sorry.", "I cannot I am sorry"),
        ("He doesn't", "He does not!"),
        ("That's my brother's car.", "That is my brother's car."),
    ]:
        assert judge.plain(one) == judge.plain(other)
    assert judge.plain("My brother's here.") != judge.plain("My brothers here.")


def test_more_than_there_can_be_is_refused():
    for sizes in (dict(train=-1), dict(valid=-5)):
        with pytest.raises(ValueError):
            generate.corpus(**sizes)
