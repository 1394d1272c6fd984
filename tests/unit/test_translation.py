"""The task of translation: its loss, and which sentences it translates, scores and shows."""

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import SMALL

from data import Pairs
from model import ModelConfig, Transformer, initialize
from support.distributed import weights
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings
from support.training.tasks import prepare_task
from support.translation import task
from support.translation.scores import Score
from support.translation.task import Translation

# The second pair was left out.
SOURCES = ["Ja.", "", "Nein.", "Gut.", "Oh!", "Hm."]
REFERENCES = ["Yes.", "", "No.", "Good.", "Oh!", "Hm."]


@pytest.fixture
def translation(tmp_path, monkeypatch):
    """A task on the pairs above."""
    texts = {"src": SOURCES, "tgt": REFERENCES}
    monkeypatch.setattr(task, "read_text", lambda folder, part, side: texts[side])
    args = CpuSettings(folder=str(tmp_path), device="cpu")
    translation = SimpleNamespace(args=args, folder=None, bpe=None, config=ModelConfig(10))
    translation.lines_of = partial(Translation.lines_of, translation)
    return translation


def test_an_evaluation_is_exact_and_training_goes_on_with_dropout(
    tmp_path, monkeypatch, alone, corpus_flags
):
    monkeypatch.chdir(tmp_path)
    flags = [*corpus_flags, *SMALL, "--dropout", "0.5", "--bleu-sentences", "0"]
    monkeypatch.setattr("sys.argv", ["train_cpu.py", *flags])
    translation = prepare_task(parse_arguments("", CpuSettings).complete())
    initialize(model := Transformer(translation.config), seed=1)
    found = translation.evaluate(model, "valid", 0, 1)
    assert model.training
    pairs = Pairs(translation.folder, "valid")
    rows = np.arange(len(pairs))
    _, nll = model.eval()(*pairs.batch(rows))
    assert found["loss"] == pytest.approx(float(nll) / pairs.num_targets(rows), rel=1e-5)


def test_translations_are_scored_beside_the_references_of_their_lines(translation, alone):
    def texts_given(translations, references):
        return translations, references

    found = Translation.compute_scores(
        translation, "test", {0: "Yes!", 2: "Not."}, [texts_given]
    )
    assert found == [(("Yes!", "Not."), ("Yes.", "No."))]


@pytest.mark.parametrize("max_lines, numbers", [(sys.maxsize, [0, 2, 3, 4, 5]), (2, [0, 4])])
def test_the_sentences_to_translate_are_spread_over_a_part(
    translation, monkeypatch, max_lines, numbers
):
    def in_capitals(bpe, lines, *_, **__):
        return [[(0.0, line.upper())] for line in lines]

    monkeypatch.setattr(weights, "gather_model", lambda model, new_model: model)
    monkeypatch.setattr(task, "shared_search", lambda *_: None)
    monkeypatch.setattr(task, "translate_lines", in_capitals)
    monkeypatch.setattr(task.dist, "get_world_size", lambda: 1)
    found = Translation.translate_part(translation, None, "test", 1, max_lines)
    assert found == {number: SOURCES[number].upper() for number in numbers}


def test_the_file_of_translations_has_a_line_for_each_pair(translation, tmp_path):
    """An empty one for a pair that was left out."""
    translations = {0: "Yes!", 2: "Not.", 3: "Good."}
    outputs = task.Outputs(translations, Score(12.34, "one", "a note\n"), Score(67.0, "two"))
    summary, text = Translation.report(translation, "test", {}, outputs)
    written = (tmp_path / "translations.txt").read_text(encoding="utf-8")
    assert written == "Yes!\n\nNot.\nGood.\n\n\n"
    assert (summary["test_bleu"], summary["test_chrf"]) == (12.34, 67.0)
    said = "BLEU 12.3, chrF 67.0 on 3 sentences of the test set, beam 4\na note\n"
    assert text.startswith(said) and text.count("  source  ") == 3
    assert "  source       Nein.\n  translation  Not.\n  reference    No.\n" in text
