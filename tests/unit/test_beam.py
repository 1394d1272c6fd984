"""Beam search: its scores are the model's own, and it finds what a slow search finds."""

import math
from itertools import chain
from unicodedata import category, normalize

import pytest
import torch
import torch.nn.functional as F

from data import BOS, BPE, EOS, PAD
from model import ModelConfig, Transformer, initialize
from support.common.kernels import speed_up
from support.translation.attention_plot import alignment
from support.translation.beam import Decoder, Hypotheses, beam_search, translate_batch
from support.translation.lines import (
    join_pieces,
    sort_into_batches,
    split_line,
    translate_lines,
)

CONFIG = dict(vocab_size=50, layers=2, d_model=32, heads=4, d_ff=64, dropout=0.0, max_length=32)


@torch.no_grad()
def make_model(seed=1, scale=4, **changes) -> Transformer:
    """A model that was not trained, and yet writes different tokens and ends some sentences.

    scale: of its weights; with 1 it repeats what it wrote last.
    """
    model = Transformer(ModelConfig(**CONFIG | changes)).eval()
    initialize(model, seed)
    for number, (name, weight) in enumerate(model.named_parameters()):
        if weight.dim() > 1 and name != "embedding.weight":
            weight *= scale
        elif name.endswith("norm.weight"):  # another one for each sub-layer
            weight *= torch.linspace(0.8, 1.2, len(weight)).roll(number)
    model.embedding.weight[[PAD, BOS]] = 0  # so that `greedy` leaves them out, too
    model.embedding.weight[EOS] *= 2
    return model


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """What is so small is fastest so, and other tests may run beside it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def model():
    return make_model()


@pytest.fixture
def src():
    """(6, 9): random sentences of 9, 8, … 4 tokens."""
    torch.manual_seed(1)
    ids = torch.randint(3, 50, (6, 9))
    for row in range(6):
        ids[row, 8 - row] = EOS
        ids[row, 9 - row :] = PAD
    return ids


def limit(sentence) -> int:
    """The most tokens that its translation may have."""
    return min(CONFIG["max_length"], 2 * int((sentence != PAD).sum()) + 8)


def with_eos(ids, sentence) -> torch.Tensor:
    """(1, tgt): what the model was asked to score; at the limit there is no eos."""
    return torch.tensor([ids + ([EOS] if len(ids) < limit(sentence) else [])])


def shifted(target) -> torch.Tensor:
    return F.pad(target[:, :-1], (1, 0), value=BOS)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("beam", [1, 4])
def test_scores_are_the_models_own(src, beam, norm, fast):
    """The KV cache and the beam's bookkeeping change nothing: scoring again gives the same."""
    model = make_model(norm=norm)
    if fast:
        speed_up(model, "cpu").eval()
    found = beam_search([model], src, beam, n_best=beam, length_penalty=1.0)
    ended = [len(ids) < limit(s) for s, hypotheses in zip(src, found) for _, ids in hypotheses]
    assert not all(ended) and (any(ended) or beam == 1)  # both kinds are looked at
    for sentence, hypotheses in zip(src, found):
        for score, ids in hypotheses:
            target = with_eos(ids, sentence)
            token_indices = torch.arange(target.shape[1])
            nll = model(sentence[None], shifted(target), target, token_indices)[1]
            assert score == pytest.approx(-float(nll) / target.shape[1], rel=1e-4)


def test_a_token_is_read_once_and_once_more_where_sentences_end(model, src, monkeypatch):
    """Each reading makes the CPU wait for a GPU."""
    events = []

    def noted(name, function):
        return lambda *args: events.append(name) or function(*args)

    for name in ("tolist", "nonzero", "item", "cpu", "__bool__", "__int__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, noted("read", getattr(torch.Tensor, name)))
    monkeypatch.setattr(Decoder, "step", noted("step", Decoder.step))
    beam_search([model], src, beam=1)
    steps = " ".join(events).split("step")[1:]
    assert len(steps) > len(src) and {step.count("read") for step in steps} == {1, 2}
    assert sum(step.count("read") == 2 for step in steps) <= len(src)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_search_without_finite_scores_ends_at_the_limits(model, src, monkeypatch, beam):
    """As with weights that have diverged."""
    step = Decoder.step

    def diverged_step(decoder, ids):
        assert decoder.past_kv[0].shape[1] < CONFIG["max_length"], "it has no end"
        return step(decoder, ids) * math.nan

    monkeypatch.setattr(Decoder, "step", diverged_step)
    for sentence, hypotheses in zip(src, beam_search([model], src, beam, n_best=beam)):
        assert len(hypotheses) == beam
        assert all(len(ids) <= limit(sentence) for _, ids in hypotheses)


def test_the_length_penalty_divides_by_a_power_of_the_length(model, src):
    plain, penalized = (beam_search([model], src, 4, 4, length_penalty=p) for p in (0.0, 1.5))
    for sentence, a, b in zip(src, plain, penalized):
        assert sorted(ids for _, ids in a) == sorted(ids for _, ids in b)  # found alike
        scores = {tuple(ids): score for score, ids in a}
        for score, ids in b:
            length = with_eos(ids, sentence).shape[1]
            assert score == pytest.approx(scores[tuple(ids)] / length**1.5)


@pytest.mark.parametrize("beam", [1, 4])
def test_a_result_does_not_depend_on_the_batch(src, beam):
    model = make_model()
    together = beam_search([model], src, beam, n_best=beam)
    backwards = beam_search([model], src.flip(0), beam, n_best=beam)[::-1]
    for sentence, found, other in zip(src, together, backwards):
        unpadded = sentence[sentence != PAD]
        alone = beam_search([model], unpadded.unsqueeze(0), beam, n_best=beam)[0]
        for result in (alone, other):
            assert [ids for _, ids in result] == [ids for _, ids in found]
            scores = [score for score, _ in found]
            assert [score for score, _ in result] == pytest.approx(scores, rel=1e-4)


def test_with_beam_1_it_is_greedy(src):
    for seed in range(5):
        model = make_model(seed)
        greedy = model.greedy(src).tolist()
        found = beam_search([model], src)
        for sentence, expected, [(_, ids)] in zip(src, greedy, found):
            expected = expected[: limit(sentence)]
            assert ids == (expected[: expected.index(EOS)] if EOS in expected else expected)


def test_pad_and_bos_are_never_produced(src):
    model = make_model()
    wanted = model.decode(torch.tensor([[BOS]]), *model.encode(src[:1]))[0, 0].detach()
    with torch.no_grad():
        model.embedding.weight[[PAD, BOS]] = wanted  # by far the most likely
    for hypotheses in beam_search([model], src, beam=4, n_best=4):
        assert not any({PAD, BOS, EOS} & {*ids} for _, ids in hypotheses)


@pytest.mark.parametrize("beam", [2, 5, 25])
def test_n_best_are_sorted_and_distinct(model, src, beam):
    for sentence, hypotheses in zip(src, beam_search([model], src, beam, n_best=beam)):
        scores = [score for score, _ in hypotheses]
        assert len(hypotheses) == beam and scores == sorted(scores, reverse=True)
        assert all(math.isfinite(score) for score in scores)
        assert len({tuple(ids) for _, ids in hypotheses}) == beam
        assert all(len(ids) <= limit(sentence) for _, ids in hypotheses)


def test_a_wide_beam_finds_what_exhaustive_search_finds():
    model = make_model(seed=5, vocab_size=34, max_length=2)
    src = torch.tensor([[3, 4, 2]])
    words = range(3, 34)
    targets = torch.tensor(
        [[EOS, PAD], *([a, EOS] for a in words), *([a, b] for a in words for b in words)]
    )  # all there are
    memory, mask = model.encode(src)
    states = model.decode(shifted(targets), memory.expand(len(targets), -1, -1), mask)
    log_p = F.linear(states, model.embedding.weight).log_softmax(-1)
    log_p = log_p.gather(2, targets[:, :, None])[:, :, 0].masked_fill(targets == PAD, 0)
    scores = log_p.sum(1) / (targets != PAD).sum(1)
    score, ids = beam_search([model], src, beam=16, length_penalty=1.0)[0][0]
    assert score == pytest.approx(scores.max().item(), rel=1e-4)
    assert ids == [i for i in targets[scores.argmax()].tolist() if i not in (EOS, PAD)]


def test_an_ensemble_searches_with_the_mean_of_the_probabilities(model, src):
    """The others may have another shape."""
    other = make_model(seed=3, layers=1, d_model=48, norm="post")
    found = beam_search([model, other], src, beam=4, length_penalty=1.0)
    for sentence, [(score, ids)] in zip(src, found):
        target = with_eos(ids, sentence)
        states = [
            (m, m.decode(shifted(target), *m.encode(sentence[None]))) for m in (model, other)
        ]
        p = sum(F.linear(x[0], m.embedding.weight).softmax(-1) for m, x in states) / 2
        assert score == pytest.approx(
            p.gather(1, target[0][:, None]).log().mean().item(), rel=1e-4
        )


def test_in_bf16_the_search_is_nearly_the_same(src):
    model = make_model(scale=1)
    exact = beam_search([model], src, beam=4, length_penalty=1.0)
    with torch.autocast("cpu", torch.bfloat16):
        near = beam_search([model], src, beam=4, length_penalty=1.0)
    for a, b in zip(exact, near):
        assert b[0][0] == pytest.approx(a[0][0], abs=0.05)  # nats a token


@torch.inference_mode()
def test_alignment_is_what_the_last_layer_attends_with(src):
    model = make_model(heads=1)
    attention = model.decoder[-1].cross_attention
    seen = []
    tgt_in = torch.tensor([[BOS, 5, 6, 7]] * 6)
    attention.register_forward_hook(lambda _, inputs, y: seen.append((inputs[1], y)))
    weights = alignment(model, src, tgt_in)  # (batch, tgt, src)
    source, y = seen[0]
    _, values = attention.split_key_value(attention.key_value(source))
    torch.testing.assert_close(
        attention.out(weights @ values.squeeze(1)), y, rtol=1e-4, atol=1e-5
    )
    torch.testing.assert_close(weights.sum(-1), torch.ones(6, 4))
    assert not weights.masked_select((src == PAD)[:, None]).any()
    assert len(attention._forward_hooks) == 1  # the one of this test


def test_a_full_beam_goes_on_when_a_hypothesis_ends():
    """The best continuation ends the sentence; the next two are extended."""
    config = ModelConfig(9, layers=1, d_model=8, heads=2, d_ff=8)
    hypotheses = Hypotheses(torch.tensor([[5, 6, EOS]]), config, beam=2, length_penalty=1)
    log_p = torch.full((1, 2, 9), -9.0)
    log_p[:, :, EOS], log_p[:, :, 5], log_p[:, :, 6] = -1, -2, -3
    hypotheses.extend(log_p)
    assert hypotheses.finished == [[(-1.0, [])]]
    assert hypotheses.ids[0, :, -1].tolist() == [5, 6]
    assert hypotheses.scores.tolist() == [[-2.0, -3.0]]


def test_batches_are_of_like_length_longest_first():
    sentences = [[7] * n for n in (3, 1, 2, 3, 500, 2)]
    assert sort_into_batches(sentences, 2, 4096) == [[4, 0], [3, 2], [5, 1]]
    assert sort_into_batches(sentences, 64, 600) == [[4], [0, 3, 2, 5, 1]]
    assert sort_into_batches([], 64, 600) == []


@pytest.mark.parametrize(
    "device, ranks, sizes",
    [("cpu", 1, [128, 128, 44]), ("cpu", 2, [128, 128, 44]), ("cpu", 4, [75] * 4)]
    + [("cuda", 1, [300]), ("cuda", 2, [150, 150])],
)
def test_batches_are_large_on_a_gpu_and_shared_by_all_ranks(device, ranks, sizes):
    found = []

    def search(batches):
        for batch in batches:
            found.append(len(batch))
            yield [[(0.0, ids)] for ids in batch]

    translate_lines(Words(), ["a b d"] * 300, 4, search, device, ranks)
    assert found == sizes


class Words:
    """A BPE of a few words, each a token."""

    words = ["<pad>", "<bos>", "<eos>", "a", "b", "c.", "d", "\x1b"]

    def encode(self, texts):
        return [[self.words.index(word) for word in text.split(" ") if word] for text in texts]

    def decode(self, ids):
        return " ".join(self.words[i] for i in ids)


def test_lines_keep_their_order_and_long_ones_are_split(capsys):
    def search(batches):  # "translates" backwards
        for batch in batches:
            yield [[(-1.0, ids[::-1]), (-2.0, ids)] for ids in batch]

    # The last has as many tokens as can be.
    lines = ["a b", "", "a a a c. b b", "d", "  ", "\x1b d", "c. a b d"]
    found = translate_lines(Words(), lines, 4, search)
    best = [hypotheses[0][1] for hypotheses in found]
    assert best == ["b a", "", "c. a a a b b", "d", "", "d  ", "d b a c."]
    assert found[0] == [(-1.0, "b a"), (-2.0, "a b")] and found[2] == [(-2.0, "c. a a a b b")]
    assert capsys.readouterr().err == (
        "warning: 6 tokens in one line, more than the 4 the model "
        "takes: translated in 2 pieces\n"
    )
    translate_lines(Words(), lines, 4, search, quiet=True)
    assert not capsys.readouterr().err


@pytest.fixture(scope="module")
def bytes_alone():
    """A BPE that has learned no words: a token is a byte."""
    return BPE.train(iter(["a"]), 259)


@pytest.mark.parametrize(
    "line, sentences",
    [
        ("Es ist 3.5 m. Ja! So?", ["Es ist 3.5 m.", "Ja!", "So?"]),
        ('Er sagt: "Nein." (Wirklich?) Dann …', ['Er sagt: "Nein."', "(Wirklich?)", "Dann …"]),
        ("你好。再见！真的？！", ["你好。", "再见！", "真的？！"]),
        ("他说：“走吧。”她走了。", ["他说：“走吧。”", "她走了。"]),
        ("「行こう。」と彼は言った。", ["「行こう。」", "と彼は言った。"]),
        ("मैं घर जाता हूँ। तुम कहाँ हो?", ["मैं घर जाता हूँ।", "तुम कहाँ हो?"]),
        ("كيف حالك؟ أنا بخير.", ["كيف حالك؟", "أنا بخير."]),
    ],
)
def test_a_long_line_is_split_at_the_ends_of_its_sentences(bytes_alone, line, sentences):
    pieces = split_line(bytes_alone, line, max_tokens=80)
    assert [bytes_alone.decode(ids) for ids in pieces] == sentences


@pytest.mark.parametrize(
    "text", ["你好世界" * 9, "😀🚀" * 9, "กำลังไปที่นี่" * 9, "e\u0301x" * 40, "^`´" * 20]
)
@pytest.mark.parametrize("max_tokens", [10, 13, 40])
def test_a_long_sentence_is_never_cut_within_a_character(bytes_alone, text, max_tokens):
    pieces = split_line(bytes_alone, text, max_tokens)
    assert max(map(len, pieces)) <= max_tokens
    texts = [bytes_alone.decode(ids) for ids in pieces]
    assert "".join(texts) == normalize("NFC", text)
    assert not any(category(each[0]).startswith("M") for each in texts)  # an accent alone


@pytest.mark.parametrize("whole", ["👨‍👩‍👧", "क्षि", "👋🏽", "🇩🇪"])
def test_what_readers_see_as_one_character_is_not_cut(bytes_alone, whole):
    pieces = split_line(bytes_alone, whole * 9, max_tokens=40)
    texts = [bytes_alone.decode(ids) for ids in pieces]
    assert len(texts) > 1 and all(text == whole * (len(text) // len(whole)) for text in texts)


def test_a_character_of_many_tokens_is_translated_whole(bytes_alone):
    text = "a" + "\u034f" * 30
    pieces = split_line(bytes_alone, text, max_tokens=8)
    assert max(map(len, pieces)) <= 8
    assert [list(chain(*pieces))] == bytes_alone.encode([text])


def test_a_long_sentence_is_cut_between_words(bytes_alone):
    words = [f"wort{i}" for i in range(40)]
    pieces = split_line(bytes_alone, " ".join(words), max_tokens=30)
    texts = [bytes_alone.decode(ids) for ids in pieces]
    lengths = [len(piece) for piece in pieces]
    assert " ".join(texts).split() == words and max(lengths) <= 30
    assert min(lengths) > 10  # each cut is near the middle


def test_the_pieces_of_a_chinese_translation_are_joined_without_spaces():
    pieces = [[(-1.0, "你好。")], [(-1.0, "再见！")], [(-1.0, "OK.")], [(-1.0, "Ja.")]]
    assert join_pieces(pieces) == [(-4.0, "你好。再见！OK. Ja.")]


def test_a_batch_of_ids_gets_its_end_marks(model):
    found = translate_batch([model], [[5, 6, 7], [8]], beam=2, n_best=2)
    src = torch.tensor([[5, 6, 7, EOS], [8, EOS, PAD, PAD]])
    assert found == beam_search([model], src, beam=2, n_best=2)


@torch.inference_mode()
def test_alignment_is_the_mean_over_heads(src):
    model = make_model(heads=2)
    attention = model.decoder[-1].cross_attention
    attend = attention.attend
    seen = []

    def note(*tensors):
        seen.append(tensors)
        return attend(*tensors)

    attention.attend = note
    weights = alignment(model, src, torch.tensor([[BOS, 5, 6, 7]] * 6))
    q, k, _, mask = seen[0]
    scores = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(weights, scores.softmax(-1).mean(1))
