"""The model against PyTorch's own layers: loss, gradients, greedy decoding, weights, FLOPs."""

import math
from dataclasses import asdict

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from reference import TorchTransformer
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.flop_counter import FlopCounterMode

import data
from model import ModelConfig, Transformer, initialize, scaled_dot_product, sinusoids
from support.common.flops import transformer_flops
from support.common.kernels import speed_up
from support.training.settings import Settings, defaults_of

torch.set_num_threads(1)  # so small a model gains nothing by more
CONFIG = dict(vocab_size=50, layers=2, d_model=32, heads=4, d_ff=64, dropout=0.0, max_length=32)


def make_model(seed=2, **changes) -> Transformer:
    model = Transformer(ModelConfig(**CONFIG | changes))
    initialize(model, seed)
    return model


def make_batch(batch=6, src=9, tgt=7, vocab=50):
    """Random sentences of different lengths, as the model takes them."""
    torch.manual_seed(1)
    source, target = (
        torch.randint(3, vocab, (batch, src)),
        torch.randint(3, vocab, (batch, tgt)),
    )
    tgt_in = torch.cat([torch.full((batch, 1), data.BOS), target], 1)
    tgt_out = torch.cat([target, torch.full((batch, 1), data.EOS)], 1)
    for row in range(1, batch):
        source[row, src - row :] = data.PAD
        tgt_out[row, tgt - row] = data.EOS
        tgt_out[row, tgt - row + 1 :] = data.PAD
        tgt_in[row, tgt - row + 1 :] = data.PAD
    return source, tgt_in, tgt_out, indices_of_tokens(tgt_out)


def indices_of_tokens(tgt_out):
    return (tgt_out != data.PAD).flatten().nonzero().squeeze(1)


@pytest.fixture
def model():
    return make_model().eval()


def test_the_special_tokens_are_those_of_the_data():
    config = ModelConfig(50)
    assert (config.pad, config.bos, config.eos) == (data.PAD, data.BOS, data.EOS)


def test_the_defaults_are_those_of_the_command_line():
    flags = defaults_of(Settings)
    for name, value in asdict(ModelConfig(50)).items():
        if name in flags and name != "vocab_size":
            assert value == flags[name], name


def test_the_smallest_shape():
    ModelConfig(
        1, layers=1, d_model=2, heads=1, d_ff=1, max_length=1, dropout=0, label_smoothing=0
    )
    with pytest.raises(ValueError, match="vocab_size is 0"):
        ModelConfig(0)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(d_model=250),
        dict(heads=5),
        dict(d_model=33, heads=3),
        dict(layers=0),
        dict(dropout=1.0),
        dict(label_smoothing=-0.1),
        dict(norm="mid"),
        dict(max_length=0),
    ],
)
def test_an_impossible_shape_is_refused_in_one_line(wrong):
    with pytest.raises(ValueError) as problem:
        ModelConfig(**CONFIG | wrong)
    assert next(iter(wrong)) in str(problem.value) and "\n" not in str(problem.value)


# --- Against PyTorch


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_whole_model_is_pytorchs_with_the_same_weights(norm, smoothing):
    """The loss and the gradient of every parameter."""
    ours = make_model(norm=norm, label_smoothing=smoothing)
    theirs = TorchTransformer(ours.config).copy_from(ours)
    batch = make_batch()
    loss, nll = ours(*batch)
    expected, _ = theirs(*batch)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-4)
    loss.backward()
    expected.backward()
    compared = 0
    for parameter, parts in theirs.matches(ours):
        torch.testing.assert_close(
            theirs.joined([part.grad for part in parts]), parameter.grad, rtol=1e-3, atol=1e-4
        )
        compared += len(parts)
    assert compared == len(list(ours.parameters()))
    unsmoothed = TorchTransformer(ModelConfig(**CONFIG, norm=norm, label_smoothing=0.0))
    torch.testing.assert_close(
        nll, unsmoothed.copy_from(ours)(*batch)[0].detach(), rtol=1e-5, atol=1e-4
    )


def test_positions_are_the_papers():
    """Section 3.5, one number at a time."""
    found = sinusoids(torch.arange(40), 12)
    for position in range(40):
        for i in range(6):
            angle = position / 10000 ** (2 * i / 12)
            assert found[position, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert found[position, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_tokens_can_be_embedded_from_any_position_on(model):
    ids = make_batch()[0]
    torch.testing.assert_close(model.embed(ids[:, 4:], first=4), model.embed(ids)[:, 4:])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("keys", [7, 18])
def test_attention_is_pytorchs(keys, dtype, tolerance):
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(3, 4, n, 16, dtype=dtype, requires_grad=True) for n in (5, keys, keys)
    )
    mask = torch.rand(3, 1, 5, keys) > 0.3
    mask[..., 0] = True  # every row may look at something
    ours, theirs = (
        attend(q, k, v, mask) for attend in (scaled_dot_product, F.scaled_dot_product_attention)
    )
    torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    gradients = [
        torch.autograd.grad(y.float().square().sum(), [q, k, v]) for y in (ours, theirs)
    ]
    torch.testing.assert_close(*gradients, atol=4 * tolerance, rtol=4 * tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_all_is_padding_attention_gives_equal_weights(dtype):
    v = torch.arange(12, dtype=dtype).view(1, 1, 4, 3)
    q = torch.randn(1, 1, 2, 3, dtype=dtype)
    nothing = torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    found = scaled_dot_product(q, v, v, nothing)
    torch.testing.assert_close(found, v.mean(2, keepdim=True).expand_as(found))


def test_the_flop_count_is_that_of_pytorchs_counter():
    """PyTorch also counts the masked half of the causal scores, which ours leaves out."""
    model = make_model(d_model=64)
    src, tgt = torch.randint(3, 50, (4, 30)), torch.randint(3, 50, (4, 20))
    counter = FlopCounterMode(display=False)
    with counter:
        model(src, tgt, tgt, indices_of_tokens(tgt))[0].backward()
    unused = 3 * 2 * 2 * 64 * 4 * 2 * (20 * 20 - 20 * 21 / 2)
    ours = transformer_flops(model.config, torch.full((4,), 30), torch.full((4,), 20))
    assert counter.get_total_flops() == ours + unused


# --- Padding


@torch.no_grad()
def test_padding_and_what_comes_later_change_nothing(model):
    src, tgt_in, tgt_out, token_indices = make_batch()
    whole = model(src, tgt_in, tgt_out, token_indices)
    one_by_one = []
    for i in range(6):
        tgt_width = 8 - i
        row = slice(i, i + 1)
        one_by_one.append(
            model(
                src[row, : 9 - i],
                tgt_in[row, :tgt_width],
                tgt_out[row, :tgt_width],
                torch.arange(tgt_width),
            )
        )
    for found, parts in zip(whole, zip(*one_by_one)):
        torch.testing.assert_close(found, sum(parts), rtol=1e-5, atol=0)
    states = model.decode(tgt_in, *model.encode(src))
    changed = tgt_in.clone()
    changed[:, 5:] = 7
    torch.testing.assert_close(model.decode(changed, *model.encode(src))[:, :5], states[:, :5])


@pytest.mark.parametrize("fast, bf16", [(False, False), (True, False), (True, True)])
def test_a_batch_of_padding_alone_has_no_loss_and_no_gradient(fast, bf16):
    """What a process gets that has no sentence in a step."""
    model = make_model()
    if fast:
        speed_up(model, "cpu", torch.bfloat16 if bf16 else None)
    src, tgt_in, tgt_out = (torch.zeros(1, width, dtype=torch.long) for width in (9, 8, 8))
    empty = (src, tgt_in, tgt_out, indices_of_tokens(tgt_out))
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        loss, nll = model(*empty)
    loss.backward()
    assert loss.item() == nll.item() == 0
    assert all(
        not parameter.grad.any()
        for parameter in model.parameters()
        if parameter.grad is not None
    )
    assert model.embedding.weight.grad is not None  # not even of what the loss is made of


@pytest.mark.parametrize("fast", [False, True])
def test_a_sentence_of_padding_among_others_changes_nothing(fast):
    model = make_model()
    if fast:
        speed_up(model, "cpu")
    batch = make_batch()
    *sentences, token_indices = batch
    padded = [torch.cat([part, torch.zeros_like(part[:1])]) for part in sentences]
    found = []
    for each in (batch, (*padded, token_indices)):
        model.zero_grad()
        loss, nll = model(*each)
        loss.backward()
        found.append((loss, nll, *(parameter.grad for parameter in model.parameters())))
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_the_longest_sentence(model):
    ids = torch.randint(3, 50, (1, model.config.max_length))
    assert model(ids, ids, ids, indices_of_tokens(ids))[0].isfinite()
    assert model(ids, ids).shape == (1, model.config.max_length, 50)


# --- Greedy decoding, and scoring


def logits_after(model, src, prefix) -> torch.Tensor:
    """(vocabulary,): of one sentence, with a target that begins with `prefix`."""
    x = model.decode(torch.tensor([[data.BOS, *prefix]]), *model.encode(src[None]))
    return F.linear(x[0, -1], model.embedding.weight)


@torch.no_grad()
def test_greedy_takes_the_most_likely_token_until_the_end_mark():
    torch.manual_seed(0)
    model = make_model(seed=12, vocab_size=8, layers=1, max_length=10).eval()
    for weight in model.parameters():
        if weight.dim() > 1 and weight is not model.embedding.weight:
            weight *= 3  # so that sentences end early, and differ
    src = torch.randint(3, 8, (8, 6))
    src[4:, 4:] = data.PAD
    found = model.greedy(src)
    lengths = []
    for sentence, ids in zip(src, found.tolist()):
        lengths.append(ids.index(data.EOS) + 1 if data.EOS in ids else len(ids))
        assert not any(ids[lengths[-1] :])  # padding
        for place in range(lengths[-1]):
            logits = logits_after(model, sentence[sentence != data.PAD], ids[:place])
            assert logits[ids[place]] >= logits.max() - 1e-5
    assert found.shape[1] == max(lengths) == 10
    ended = [row for row in range(8) if lengths[row] < 10]
    assert len(ended) > 1
    alone = model.greedy(src[ended])  # it stops once all have ended
    assert alone.shape[1] == max(lengths[row] for row in ended)
    assert torch.equal(alone, found[ended, : alone.shape[1]])


def test_greedy_stops_at_the_longest_length():
    model = make_model(max_length=5).eval()
    with torch.no_grad():
        model.embedding.weight[data.EOS] = 0  # never the most likely one
    found = model.greedy(make_batch()[0])
    assert found.shape == (6, 5) and not (found == data.EOS).any()


@torch.no_grad()
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_without_targets_forward_returns_the_logits(smoothing):
    model = make_model(vocab_size=8, label_smoothing=smoothing).eval()
    src, tgt_in, tgt_out, _ = batch = make_batch(vocab=8)
    logits = model(src, tgt_in)
    assert logits.shape == (*tgt_in.shape, 8)
    nll = F.cross_entropy(
        logits.flatten(0, 1), tgt_out.flatten(), ignore_index=data.PAD, reduction="sum"
    )
    torch.testing.assert_close(nll, model(*batch)[1])
    for row in range(6):
        sentence = src[row][src[row] != data.PAD]
        target = tgt_out[row][tgt_out[row] != data.PAD].tolist()
        for place in range(len(target)):
            expected = logits_after(model, sentence, target[:place])
            torch.testing.assert_close(logits[row, place], expected, rtol=1e-4, atol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):  # sums of thousands of tokens would be far off
        assert model(src, tgt_in).dtype == torch.float32


# --- Weights


def test_weights_depend_on_the_seed_alone():
    torch.manual_seed(1)
    one, other = make_model(seed=3), make_model(seed=4)
    again = Transformer(one.config)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    initialize(again, seed=3)
    assert torch.equal(torch.get_rng_state(), state)  # it leaves dropout's numbers alone
    for name, weight in one.named_parameters():
        assert torch.equal(weight, again.get_parameter(name)), name
        constant = "norm" in name or name.endswith("bias")
        assert torch.equal(weight, other.get_parameter(name)) == constant, name


def test_weights_have_the_sizes_that_training_needs():
    model = make_model(vocab_size=2000, d_model=64)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            assert not weight.any(), name
        elif "norm" in name:
            assert (weight == 1).all(), name
        elif name == "embedding.weight":
            assert weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
        else:  # Glorot and Bengio, 2010: a uniform one
            limit = (6 / sum(weight.shape)) ** 0.5
            assert 0.98 * limit < weight.abs().max() <= limit, name
            assert weight.std().item() == pytest.approx(limit / 3**0.5, rel=0.05), name
    firsts = [weight[0, 0].item() for weight in model.parameters() if weight.dim() > 1]
    assert len(set(firsts)) == len(firsts)  # no two alike


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (
            "scale",
            nn.Parameter(torch.ones(3)),
            "scale: neither the weight of a norm nor a bias",
        ),
        ("table", torch.ones(3), "table is a buffer"),
    ],
)
def test_what_initialize_does_not_know_is_an_error(name, value, error):
    model = make_model()
    if isinstance(value, nn.Parameter):
        model.register_parameter(name, value)
    else:
        model.register_buffer(name, value)
    with pytest.raises(ValueError, match=error):
        initialize(model, seed=1)


def test_a_sharded_model_gets_the_same_weights():
    whole = make_model(seed=5)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with torch.device("meta"):
            model = Transformer(whole.config)
        for part in [*model.layers(), model]:
            fully_shard(part, mesh=init_device_mesh("cpu", (1,)))
        model.to_empty(device="cpu")
        initialize(model, 5)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter.full_tensor(), whole.get_parameter(name)), name
    finally:
        dist.destroy_process_group()
