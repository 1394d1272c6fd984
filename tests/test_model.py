"""The model against PyTorch's own: attention, loss, the whole network, decoding, and the FLOP count."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import data
import decode
from model import (Dropout, ModelConfig, SummedCrossEntropy, Transformer, flops, load_checkpoint, scaled_dot_product)
from reference import TorchTransformer

CONFIG = dict(vocab_size=50, layers=2, d_model=32, heads=4, d_ff=64, dropout=0.0, max_length=32)


def make_batch(batch=6, src=9, tgt=7, vocab=50):
    """Random sentences of different lengths, as the model takes them."""
    torch.manual_seed(1)
    source, target = torch.randint(3, vocab, (batch, src)), torch.randint(3, vocab, (batch, tgt))
    tgt_in = torch.cat([torch.full((batch, 1), data.BOS), target], 1)
    tgt_out = torch.cat([target, torch.full((batch, 1), data.EOS)], 1)
    for row in range(1, batch):
        source[row, src - row :] = data.PAD
        tgt_out[row, tgt - row] = data.EOS
        tgt_out[row, tgt - row + 1 :] = data.PAD
        tgt_in[row, tgt - row + 1 :] = data.PAD
    return source, tgt_in, tgt_out


@pytest.fixture
def model():
    torch.manual_seed(2)
    return Transformer(ModelConfig(**CONFIG)).eval()


def test_the_special_tokens_are_those_of_the_data():
    config = ModelConfig(50)
    assert (config.pad, config.bos, config.eos) == (data.PAD, data.BOS, data.EOS)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("keys", [7, 18])                  # few are padded to 16
def test_attention_written_out_is_pytorchs(keys, dtype, tolerance):
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 4, n, 16, dtype=dtype) for n in (5, keys, keys))
    mask = torch.rand(3, 1, 5, keys) > 0.3
    mask[..., 0] = True
    q.requires_grad_()
    ours, theirs = (attend(q, k, v, mask) for attend in (scaled_dot_product, F.scaled_dot_product_attention))
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    gradients = [torch.autograd.grad(y.float().square().sum(), q)[0] for y in (ours, theirs)]
    torch.testing.assert_close(*gradients, atol=4 * tolerance, rtol=4 * tolerance)      # of sums of 80 numbers
    mask[-1] = False                                       # a sentence that is all padding: the mean of all
    torch.testing.assert_close(scaled_dot_product(q, k, v, mask)[-1, :, 0], v[-1].mean(1), atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_whole_model_is_pytorchs_with_the_same_weights(norm, smoothing):
    torch.manual_seed(2)
    ours = Transformer(ModelConfig(**CONFIG, norm=norm, label_smoothing=smoothing))
    theirs = TorchTransformer(ours.config).copy_from(ours)
    batch = make_batch()
    loss, nll, tokens = ours(*batch)
    expected, _, count = theirs(*batch)
    assert tokens == count
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    loss.backward()
    expected.backward()
    torch.testing.assert_close(ours.embedding.weight.grad, theirs.embedding.weight.grad, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(ours.decoder[1].cross_attention.query.weight.grad, theirs.decoder.layers[1].multihead_attn.in_proj_weight.grad[:32], rtol=1e-3, atol=1e-5)
    if smoothing == 0:
        torch.testing.assert_close(nll, loss.detach(), rtol=1e-6, atol=0)


def test_the_two_attention_paths_give_the_same_loss(model):
    """bf16 on a CPU takes the written-out path, fp32 the fused one."""
    batch = make_batch()
    with torch.autocast("cpu", torch.bfloat16):
        low = model(*batch)[1]
    torch.testing.assert_close(low, model(*batch)[1], rtol=2e-2, atol=0)


@pytest.mark.parametrize("block", [3, 1024])
def test_summed_cross_entropy_and_its_gradients(block):
    torch.manual_seed(0)
    x, weight = torch.randn(10, 8, dtype=torch.float64, requires_grad=True), torch.randn(20, 8, dtype=torch.float64, requires_grad=True)
    target = torch.randint(20, (10,))
    loss, nll = SummedCrossEntropy.apply(x, weight, target, 0.1, block)
    expected = F.cross_entropy(x @ weight.t(), target, reduction="sum", label_smoothing=0.1)
    ours, theirs = torch.autograd.grad(3 * loss, [x, weight]), torch.autograd.grad(3 * expected, [x, weight])
    torch.testing.assert_close(loss, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(nll, F.cross_entropy(x @ weight.t(), target, reduction="sum"), check_dtype=False, rtol=1e-5, atol=1e-5)
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b)


def test_padding_and_what_comes_later_change_nothing(model):
    src, tgt_in, tgt_out = make_batch()
    whole = float(model(src, tgt_in, tgt_out)[1])
    one_by_one = sum(float(model(src[i : i + 1, : 9 - i], tgt_in[i : i + 1, : 8 - i], tgt_out[i : i + 1, : 8 - i])[1]) for i in range(6))
    assert whole == pytest.approx(one_by_one, rel=1e-5)
    nothing = torch.zeros(1, 9, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)
    assert model(*nothing)[0].item() == 0                  # a process without sentences: no loss, and no NaN


def test_dropout_drops_its_share_and_keeps_the_mean():
    torch.manual_seed(0)
    x = Dropout(0.25)(torch.ones(1000, 1000))
    assert (x == 0).float().mean() == pytest.approx(0.25, abs=2e-3)
    assert x.mean() == pytest.approx(1.0, abs=3e-3)
    assert torch.equal(Dropout(0.25).eval()(x), x)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("beam", [1, 4])
def test_scores_of_translations_are_the_models_own(monkeypatch, beam, norm):
    """The KV cache, the beam's bookkeeping and the batch change nothing: scoring again gives the same."""
    monkeypatch.setattr(decode, "ROWS", 5)                 # more than one part
    torch.manual_seed(2)
    model = Transformer(ModelConfig(**CONFIG | dict(vocab_size=200), norm=norm)).eval()
    src = torch.cat([make_batch()[0]] * 2)                 # more than 32 heads of all sentences, then fewer
    found = model.translate(src, beam, n_best=beam, length_penalty=1.0)
    for sentence, hypotheses in zip(src, found):
        alone = model.translate(sentence[sentence != data.PAD][None], beam, n_best=beam, length_penalty=1.0)[0]
        assert [ids for _, ids in alone] == [ids for _, ids in hypotheses]
        assert [score for score, _ in hypotheses] == sorted((score for score, _ in hypotheses), reverse=True)
        limit = min(32, 2 * int((sentence != data.PAD).sum()) + 8)
        for score, ids in hypotheses:
            ends = [data.EOS] if len(ids) < limit else []
            target = torch.tensor([ids + ends])
            tgt_in = torch.tensor([[data.BOS] + (ids + ends)[:-1]])
            _, nll, tokens = model(sentence[None], tgt_in, target)
            assert score == pytest.approx(-float(nll) / tokens, rel=1e-4)


def test_an_ensemble_searches_with_the_mean_of_the_probabilities(model):
    """The others may have another shape; where the best hypothesis leads, both models are asked at once."""
    torch.manual_seed(3)
    other = Transformer(ModelConfig(**CONFIG | dict(layers=1, d_model=48, norm="post"))).eval()
    src = make_batch()[0]
    for sentence, [(score, ids)] in zip(src, model.translate(src, beam=4, length_penalty=1.0, others=[other])):
        target = torch.tensor([ids + [data.EOS]])[:, :min(32, 2 * int((sentence != data.PAD).sum()) + 8)]
        tgt_in = torch.tensor([[data.BOS, *target[0, :-1]]])
        each = [F.linear(m.states(sentence[None], tgt_in, target)[0], m.embedding.weight).softmax(-1) for m in (model, other)]
        p = (sum(each) / 2).gather(1, target[0][:, None])
        assert score == pytest.approx(p.log().mean().item(), rel=1e-4)


@pytest.mark.skipif(not decode.has_int8(), reason="this CPU has no products in int8")
@pytest.mark.parametrize("vocabulary", [50, 2200])         # few outputs, and many: other kernels
def test_in_int8_the_model_is_nearly_the_same(vocabulary):
    torch.manual_seed(2)
    model = Transformer(ModelConfig(**CONFIG | dict(vocab_size=vocabulary))).eval()
    src, tgt_in, tgt_out = make_batch()
    quick = decode.quantize(copy.deepcopy(model))
    assert not any(isinstance(module, torch.nn.Linear) for module in quick.modules())
    for exact, near in zip(model.states(src, tgt_in, tgt_out), quick.states(src, tgt_in, tgt_out)):
        torch.testing.assert_close(near, exact, atol=0.1, rtol=0)           # of numbers with a variance of 1
    for exact, near in zip(*(m.translate(src, beam=4, length_penalty=1.0) for m in (model, quick))):
        assert near[0][0] == pytest.approx(exact[0][0], abs=0.05)    # nats a token
        assert all(3 <= token < model.config.vocab_size for token in near[0][1])


def test_in_bf16_the_search_is_nearly_the_same(model):
    """As on a CPU that has bf16 and no int8, and on a GPU."""
    src = make_batch()[0]
    for exact, near in zip(*(m.translate(src, beam=4, length_penalty=1.0) for m in (model, copy.deepcopy(model).bfloat16()))):
        assert near[0][0] == pytest.approx(exact[0][0], abs=0.05)           # nats a token


def test_a_wide_beam_finds_what_exhaustive_search_finds():
    torch.manual_seed(5)
    model = Transformer(ModelConfig(**CONFIG | dict(vocab_size=34, max_length=2))).eval()
    src, words = torch.tensor([[3, 4, 2]]), range(3, 34)
    targets = [[data.EOS], *([a, data.EOS] for a in words), *([a, b] for a in words for b in words)]    # all there are
    scores = [-model(src, torch.tensor([[data.BOS, *t[:-1]]]), torch.tensor([t]))[1].item() / len(t) for t in targets]
    score, ids = model.translate(src, beam=16, length_penalty=1.0)[0][0]
    assert score == pytest.approx(max(scores), rel=1e-4)
    assert ids == [i for i in targets[scores.index(max(scores))] if i != data.EOS]


def test_the_flop_count_is_that_of_pytorchs_counter():
    """Without padding, PyTorch's count differs by what it cannot know: that half of the causal scores are unused."""
    torch.manual_seed(0)
    model = Transformer(ModelConfig(**CONFIG | dict(d_model=64)))
    src, tgt = torch.randint(3, 50, (4, 9)), torch.randint(3, 50, (4, 8))
    counter = FlopCounterMode(display=False)
    with counter, torch.autocast("cpu", torch.bfloat16):    # the path on which it sees the scores being made
        model(src, tgt, tgt)[0].backward()
    unused = 3 * 2 * 2 * 64 * 4 * 2 * (8 * 8 - 8 * 9 / 2)
    ours = flops(model.config, torch.full((4,), 9), torch.full((4,), 8)) + unused
    assert counter.get_total_flops() == pytest.approx(ours, rel=0.02)


def test_a_sentence_of_exactly_the_longest_length_in_a_batch_padded_to_even():
    model = Transformer(ModelConfig(**CONFIG | dict(max_length=31)))
    ids = torch.cat([torch.randint(3, 50, (1, 31)), torch.zeros(1, 1, dtype=torch.long)], dim=1)
    assert model(ids, ids, ids)[2] == 31


@pytest.mark.parametrize("wrong", [dict(d_model=250), dict(heads=5), dict(d_model=33, heads=3), dict(layers=0), dict(dropout=1.0), dict(norm="mid")])
def test_an_impossible_shape_is_refused(wrong):
    with pytest.raises(ValueError):
        ModelConfig(**{**CONFIG, "heads": 4, **wrong})


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, model):
    from dataclasses import asdict

    class Code:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    good = {"config": asdict(model.config), "model": model.state_dict(), "bpe": "", "flags": {}}
    torch.save(good, tmp_path / "good.pt")
    assert load_checkpoint(tmp_path / "good.pt")[0].config == model.config
    whole = (tmp_path / "good.pt").read_bytes()
    torch.save(good | {"code": Code()}, tmp_path / "code.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save(torch.zeros(3), tmp_path / "tensor.pt")
    torch.save({"model": {}}, tmp_path / "empty.pt")
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "zero.pt").write_bytes(b"")
    (tmp_path / "text.pt").write_text("no checkpoint")
    for name in ("code", "list", "tensor", "empty", "cut", "zero", "text"):
        with pytest.raises(ValueError) as problem:
            load_checkpoint(tmp_path / f"{name}.pt")
        assert f"{name}.pt" in str(problem.value) and "\n" not in str(problem.value)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(OSError):
        load_checkpoint(tmp_path / "missing.pt")
