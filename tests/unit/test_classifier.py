"""The classifier against PyTorch's own layers: texts, images, pools, heads, padding, loss."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from model import initialize, sinusoids
from support.classification.classifier import Classifier, ClassifierConfig, classifier_flops
from support.classification.task import freeze
from support.common.key_value_order import to_keys_then_values

torch.set_num_threads(1)  # so small a model gains nothing by more
TEXTS = dict(
    vocab_size=30,
    layers=2,
    d_model=16,
    heads=2,
    d_ff=32,
    dropout=0.0,
    head_dropout=0.0,
    max_length=12,
)
IMAGES = TEXTS | dict(vocab_size=0, patch=2, image_size=6)


def make_model(seed=1, **changes) -> Classifier:
    """With random numbers in its biases and norms too, as trained weights have them."""
    model = Classifier(ClassifierConfig(4, **changes)).eval()
    initialize(model, seed)
    torch.manual_seed(seed)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.1 * torch.randn(len(weight))
    return model


def reference(model: Classifier, x, padding=None):
    """(batch, length, d_model): nn.TransformerEncoder's output for embedded examples."""
    config = model.config
    prefix = model.config.norm == "pre"
    layer = nn.TransformerEncoderLayer(
        config.d_model,
        config.heads,
        config.d_ff,
        0.0,
        config.activation,
        config.epsilon,
        batch_first=True,
        norm_first=prefix,
        bias=True,
    )
    theirs = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False).eval()
    for one, ours in zip(theirs.layers, model.encoder):
        parts = {
            "self_attn.in_proj_": [ours.attention.query, ours.attention.key_value],
            "self_attn.out_proj.": [ours.attention.out],
            "linear1.": [ours.feed_forward[0]],
            "linear2.": [ours.feed_forward[2]],
            "norm1.": [ours.residuals[0].norm],
            "norm2.": [ours.residuals[1].norm],
        }
        for name, modules in parts.items():
            weights = [module.weight for module in modules]
            biases = [
                module.bias if module.bias is not None else torch.zeros(len(module.weight))
                for module in modules
            ]
            if "in_proj" in name:
                weights[1] = to_keys_then_values(weights[1], config.heads)
                biases[1] = to_keys_then_values(biases[1], config.heads)
            one.get_parameter(f"{name}weight").data = torch.cat(weights)
            one.get_parameter(f"{name}bias").data = torch.cat(biases)
    y = theirs(x if prefix else model.norm(x), src_key_padding_mask=padding)
    return model.norm(y) if prefix else y


def make_texts():
    torch.manual_seed(3)
    ids = torch.randint(1, 30, (5, 12))
    for row in range(1, 5):
        ids[row, 12 - 2 * row :] = 0  # padding
    return ids


@torch.no_grad()
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("bias, activation", [(True, "gelu"), (False, "relu")])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
def test_texts(norm, bias, activation, positions):
    model = make_model(
        **TEXTS, norm=norm, bias=bias, activation=activation, positions=positions, epsilon=1e-3
    )
    ids = make_texts()[:, :10]  # shorter than the longest: the first positions
    x = model.embedding(ids)
    x = (
        x + model.positions[:10]
        if positions == "learned"
        else 4 * x + sinusoids(torch.arange(10), 16)
    )
    y, real = model.encode(ids)
    assert torch.equal(real, ids != 0)
    torch.testing.assert_close(
        y[real], reference(model, x, ids == 0)[real], rtol=1e-4, atol=1e-5
    )
    assert model.layers() == list(model.encoder)


@torch.no_grad()
@pytest.mark.parametrize("first", [0, 1, 2])
def test_images(first):
    """A patch's projection is a convolution; learned tokens come before the patches."""
    model = make_model(**IMAGES, num_prefix_tokens=first, positions="learned", bias=True)
    pixels = torch.randn(5, 3, 6, 6)
    x = (
        F.conv2d(
            pixels, model.embedding.weight.view(16, 3, 2, 2), model.embedding.bias, stride=2
        )
        .flatten(2)
        .transpose(1, 2)
    )
    if first:
        x = torch.cat([model.prefix_tokens.expand(5, first, 16), x], 1)
    y, real = model.encode(pixels)
    torch.testing.assert_close(y, reference(model, x + model.positions), rtol=1e-4, atol=1e-5)
    assert real.shape == (5, 9 + first) and real.all()


@torch.no_grad()
def test_a_stem_is_two_convolutions_and_the_largest_of_four_pixels_after_each():
    model = make_model(
        **IMAGES | dict(patch=4, image_size=8), stem_channels=32, positions="learned"
    )
    pixels = torch.randn(5, 3, 8, 8)
    first = model.stem[0]
    second = model.stem[3]
    x = pixels
    for layer in (first, second):
        x = F.conv2d(x, layer.weight, layer.bias, padding=1).relu()
        x = x.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).amax((3, 5))
    assert x.shape == (5, 64, 2, 2)
    x = F.linear(x.flatten(2).transpose(1, 2), model.embedding.weight, model.embedding.bias)
    torch.testing.assert_close(model.embed(pixels), x + model.positions, rtol=1e-4, atol=1e-5)
    initialize(model, 1)
    assert second.weight.std().item() == pytest.approx(
        (2 / (32 * 9)) ** 0.5, rel=0.05
    )  # what goes in has so many numbers
    freeze(model, model.config.layers)
    assert {
        name.split(".")[0] for name, weight in model.named_parameters() if weight.requires_grad
    } == {"norm", "head"}


@torch.no_grad()
@pytest.mark.parametrize("head", ["", "tanh", "relu"])
def test_pools_and_heads(head):
    ids = make_texts()
    for pool in ("first", "first+second", "first+mean", "mean"):
        model = make_model(**TEXTS, pool=pool, head="" if "+" in pool else head)
        y, real = model.encode(ids)
        expected = {
            "first": y[:, 0],
            "first+second": torch.cat([y[:, 0], y[:, 1]], 1),
            "first+mean": torch.cat([y[:, 0], y[:, 1:].mean(1)], 1),
            "mean": torch.stack([row[these].mean(0) for row, these in zip(y, real)]),
        }[pool]
        if model.config.head:
            expected = getattr(torch, head)(
                F.linear(expected, model.head[0].weight, model.head[0].bias)
            )
        torch.testing.assert_close(
            model(ids), F.linear(expected, model.head[-1].weight, model.head[-1].bias)
        )
    nothing = torch.zeros(1, 3, dtype=torch.long)  # what a process gets that has no example
    assert not model.pool(*model.encode(nothing)).any() and model(nothing).isfinite().all()


@torch.no_grad()
def test_padding_changes_nothing():
    model = make_model(**TEXTS)
    ids = make_texts()
    alone = torch.cat([model(row[row != 0][None]) for row in ids])
    torch.testing.assert_close(model(ids), alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_pytorchs_and_its_sums_are_of_the_examples_that_count(smoothing):
    model = make_model(**TEXTS, label_smoothing=smoothing)
    ids = make_texts()
    labels = torch.tensor([0, 3, 1, 1, 2])
    weights = torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0])
    loss, nll = model(ids, labels, weights)
    logits = model(ids)
    each = F.cross_entropy(logits, labels, reduction="none", label_smoothing=smoothing)
    torch.testing.assert_close(loss, (each * weights).sum())
    counted = weights > 0
    torch.testing.assert_close(
        nll, F.cross_entropy(logits[counted], labels[counted], reduction="sum")
    )
    assert loss.requires_grad and not nll.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        assert model(ids).dtype == torch.float32


def test_dropout_is_where_it_is_said_to_be():
    shape = {name: value for name, value in TEXTS.items() if name != "head_dropout"} | dict(
        dropout=0.5, norm="post"
    )
    model = make_model(**shape, head="tanh").train()
    assert [module.p for module in model.modules() if isinstance(module, nn.Dropout)] == [
        0.5
    ] * 5 + [0.1]
    model.encoder = nn.ModuleList()  # what is left are the embeddings
    dropped = model.encode(torch.ones(50, 12, dtype=torch.long))[0] == 0
    assert 0.45 < float(dropped.float().mean()) < 0.55


@pytest.mark.parametrize(
    "wrong, said",
    [
        (dict(stem_channels=4), "patch 2 is not a multiple of 4"),
        (dict(classes=1), "classes is 1"),
        (dict(image_size=7), "image_size 7 is not a multiple of patch 2"),
        (dict(image_size=0), "image_size 0"),
        (dict(activation="tanh"), "activation 'tanh' is not in \\('relu', 'gelu'\\)"),
        (dict(pool="max"), "pool 'max' is not in \\('mean', 'first'"),
        (dict(positions="rotary"), "positions 'rotary' is not in"),
        (dict(head="gelu"), "head 'gelu' is not in"),
        (dict(norm="mid"), "norm 'mid'"),
    ],
)
def test_an_impossible_shape_is_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        ClassifierConfig(**dict(classes=2) | IMAGES | wrong)
    assert ClassifierConfig(2, **IMAGES).channels == 3
    ClassifierConfig(2, **IMAGES | dict(patch=1, image_size=1))
    ClassifierConfig(2, image_size=7)  # of texts: it means nothing
    model = make_model(vocab_size=9, pool="first+mean", head="tanh")
    assert len(model(torch.ones(2, 3, dtype=torch.long))) == 2


def test_weights_have_the_sizes_that_training_needs():
    model = Classifier(
        ClassifierConfig(
            4,
            **IMAGES | dict(d_model=64, image_size=64),
            num_prefix_tokens=40,
            positions="learned",
        )
    )
    initialize(model, 1)
    for name in ("positions", "prefix_tokens"):
        assert model.get_parameter(name).std().item() == pytest.approx(1 / 8, rel=0.05), name
    assert model.embedding.weight.std().item() == pytest.approx(
        12**-0.5, rel=0.1
    )  # of a patch's numbers
    assert not model.embedding.bias.any() and (model.norm.weight == 1).all()


def flops_of(model, x) -> int:
    """What PyTorch counts in a forward and a backward pass."""
    counter = FlopCounterMode(display=False)
    with counter:
        loss, _ = model(x, torch.zeros(len(x), dtype=torch.long), torch.ones(len(x)))
        loss.backward()
    return counter.get_total_flops()


def test_the_flop_count_is_that_of_the_layers():
    model = make_model(**TEXTS | dict(layers=1), bias=True)
    head = 3 * 2 * 3 * 16 * 4  # the last layer, which is left out
    counted = flops_of(model, torch.ones(3, 12, dtype=torch.long)) - head
    assert counted == classifier_flops(model.config, torch.full((3,), 12))


WITH_STEM = IMAGES | dict(patch=4, image_size=8, stem_channels=6, max_length=1)


def test_the_flop_count_has_the_stem():
    model = make_model(**WITH_STEM | dict(layers=1), bias=True)
    left_out = 3 * 2 * 2 * (16 * 4 + 4 * 12 * 16)  # the last layer, and the patches' projection
    unneeded = 2 * 2 * (9 * 3 * 6 * 64)  # the image itself has no gradient
    counted = flops_of(model, torch.rand(2, 3, 8, 8)) - left_out
    assert counted == classifier_flops(model.config, torch.full((2,), 4)) - unneeded


@pytest.mark.parametrize("frozen", [1, 2])
def test_frozen_layers_have_a_forward_pass_only(frozen):
    model = make_model(**WITH_STEM, bias=True)
    freeze(model, frozen)
    head = 3 * 2 * 2 * 16 * 4  # the last layer
    patches = 2 * 2 * 4 * 12 * 16  # the patches' projection is frozen
    counted = flops_of(model, torch.rand(2, 3, 8, 8)) - head - patches
    # The lowest layer that learns passes no gradient on: that of its projection's input is not
    # counted.
    count = classifier_flops(model.config, torch.full((2,), 4), frozen=frozen)
    assert 0.95 * count <= counted <= count


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_lowest_layers_and_all_below_them_are_frozen(norm):
    """Of twelve, the numbers of the last two begin like that of the second."""
    shape = IMAGES | dict(layers=12, norm=norm, positions="learned", num_prefix_tokens=1)
    model = make_model(**shape)
    freeze(model, 2)
    learning = [
        {weight.requires_grad for weight in layer.parameters()} for layer in model.encoder
    ]
    assert learning == 2 * [{False}] + 10 * [{True}]
    below = [model.prefix_tokens, model.positions, *model.embedding.parameters()]
    assert not any(weight.requires_grad for weight in below)
    assert model.norm.weight.requires_grad == (norm == "pre")
