"""BLEU and chrF: the tokenizer is that of the target language."""

from unicodedata import normalize

import pytest

from support.translation.scores import bleu, choose_tokenizer, chrf

CHINESE = "我们明天一起去北京大学看书。"
JAPANESE = "明日、一緒に東京大学へ行きましょう。"
KOREAN = "우리는 내일 함께 학교에 갑니다."
THAI = "พรุ่งนี้เราจะไปโรงเรียนด้วยกัน"
GERMAN = "Wir gehen morgen zusammen in die Schule."
RUSSIAN = "Завтра мы вместе пойдём в школу."


@pytest.mark.parametrize(
    "language, reference, tokenizers",
    [
        ("zh", CHINESE, ["zh"]),
        ("ja", JAPANESE, ["ja-mecab", "char"]),  # char where MeCab is not installed
        ("ko", KOREAN, ["ko-mecab", "char"]),
        ("th", THAI, ["char"]),
        ("de", GERMAN, ["13a"]),
        ("ru", RUSSIAN, ["13a"]),
    ],
)
def test_what_equals_its_references_scores_100_in_every_language(
    language, reference, tokenizers
):
    score = bleu([reference] * 40, [reference] * 40, language)
    assert score.value == pytest.approx(100)
    assert any(f"|tok:{name}" in score.signature for name in tokenizers), score.signature
    assert chrf([reference], [reference]).value == pytest.approx(100)


@pytest.mark.parametrize("language", ["zh", "2"])
def test_a_chinese_translation_that_is_partly_right_scores_partly(language):
    assert 40 < bleu([CHINESE.replace("明天", "今晚")], [CHINESE], language).value < 90


@pytest.mark.parametrize(
    "language, references, tokenizer",
    [
        ("zh-CN", [GERMAN], "zh"),
        ("JA", ["東京大学"], "ja-mecab"),
        ("1", [CHINESE], "zh"),
        ("1", [JAPANESE], "ja-mecab"),
        ("1", ["コーヒー"], "ja-mecab"),  # half of it the mark of long vowels
        ("Korean", [KOREAN], "ko-mecab"),
        ("target", [THAI], "char"),
        ("target", [GERMAN, "ein Zitat: 北京"], "13a"),
        ("target", ["1, 2, 3"], "13a"),
    ],
)
def test_the_letters_decide_where_the_name_does_not(language, references, tokenizer):
    assert choose_tokenizer(language, references) == tokenizer


def test_accents_may_be_encoded_in_two_ways():
    composed = normalize("NFC", "Ein schönes Mädchen läuft über die Straße.")
    decomposed = normalize("NFD", composed)
    assert bleu([composed], [decomposed], "de").value == pytest.approx(100)
    assert chrf([composed], [decomposed]).value == pytest.approx(100)


def test_words_without_a_sentence_have_a_note():
    """BLEU counts four words in a row, of which a list of words has none."""
    words = ["the house", "a dog", "to go"]
    score = bleu(words, words, "en")
    assert score.value == 0 and "BLEU is 0: chrF tells more" in score.note
    assert chrf(words, words).value == pytest.approx(100)
    assert bleu([GERMAN], [GERMAN], "de").note == ""
