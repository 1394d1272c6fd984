"""Each fast part against its plain twin: the same numbers, the same gradients."""

import copy
import operator
import statistics
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from test_model import make_batch, make_model
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from model import (
    Attention,
    ModelConfig,
    Transformer,
    linear_cross_entropy,
    scaled_dot_product,
    sinusoids,
)
from support.common.fused_loss import (
    FusedLinearCrossEntropy,
    compiled_linear_cross_entropy,
    gradient_in_one_kernel,
    gradient_in_place,
    in_parts,
)
from support.common.hardware import autocast_dtype, fast_precision
from support.common.kernels import (
    ByteDropout,
    Fp32Embedding,
    Fp32LayerNorm,
    OneProductAttention,
    cpu_bf16_attention,
    fastest_attention,
    fused_attention,
    look_up_sinusoids,
    masked_attention,
    speed_up,
    table_of_sinusoids,
)
from support.training.command_line import parse_arguments
from support.training.settings import CpuSettings
from support.training.tasks import prepare_task
from support.translation.pool import keep_freed_memory


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """How far, as a share of the size of what was expected."""
    return ((found - expected).norm() / expected.norm()).item()


# --- Attention


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-12), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("queries, keys", [(5, 7), (5, 18), (6, 6), (1, 6)])
@pytest.mark.parametrize("attention", [fused_attention, masked_attention])
def test_the_fused_attention_is_the_written_out_one(attention, queries, keys, dtype, tolerance):
    """With padding; where later positions are hidden; and of one position to all before."""
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(3, 4, n, 16, dtype=dtype, requires_grad=True) for n in (queries, keys, keys)
    )
    mask = torch.rand(3, 1, queries, keys) > 0.3
    mask[..., 0] = True  # every row may look at something
    if keys == 6:
        mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    plain, fast = (attend(q, k, v, mask) for attend in (scaled_dot_product, attention))
    torch.testing.assert_close(fast, plain, atol=tolerance, rtol=tolerance)
    gradients = [
        torch.autograd.grad(y.double().square().sum(), [q, k, v]) for y in (fast, plain)
    ]
    torch.testing.assert_close(*gradients, atol=4 * tolerance, rtol=4 * tolerance)


@pytest.mark.parametrize("all_padding", [False, True])  # of the first sentence
@pytest.mark.parametrize("keys", [1, 7, 31, 32, 45])
def test_cpu_bf16_attention_is_the_written_out_one(keys, all_padding):
    torch.manual_seed(0)
    q, k, v = (
        torch.randn(3, 4, n, 16, dtype=torch.bfloat16, requires_grad=True)
        for n in (5, keys, keys)
    )
    mask = torch.rand(3, 1, 5, keys) > 0.3
    mask[..., 0] = True
    mask[0] &= not all_padding  # of a sentence
    with torch.autocast("cpu", torch.bfloat16):
        plain, fast = (
            attend(q, k, v, mask) for attend in (scaled_dot_product, cpu_bf16_attention)
        )
    assert fast.dtype == plain.dtype == torch.bfloat16
    if all_padding:
        torch.testing.assert_close(
            fast[0], v[0].mean(1, keepdim=True).expand_as(fast[0]), atol=1e-2, rtol=1e-2
        )
    exact = scaled_dot_product(*(x.float() for x in (q, k, v)), mask)
    assert apart(fast.float(), exact) < max(1.1 * apart(plain.float(), exact), 1e-3)
    seen = slice(int(all_padding), None)  # of padding, the loss has no gradient
    gradients = [
        torch.autograd.grad(y[seen].float().square().sum(), [q, k, v])
        for y in (fast, plain, exact)
    ]
    for found, written, right in zip(*gradients):
        if right.norm() > 1e-3:  # 0 for q and k with a single key
            assert apart(found, right) <= 1.1 * apart(written, right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_where_all_is_padding_attention_gives_equal_weights_or_none_but_no_nan(dtype):
    v = torch.arange(12, dtype=dtype).view(1, 1, 4, 3)
    q = torch.randn(1, 1, 2, 3, dtype=dtype, requires_grad=True)
    nothing = torch.zeros(1, 1, 1, 4, dtype=torch.bool)
    plain = scaled_dot_product(q, v, v, nothing)
    torch.testing.assert_close(plain, v.mean(2, keepdim=True).expand_as(plain))
    fast = fused_attention(q, v, v, nothing)
    assert fast.isfinite().all()
    for y in (plain, fast):
        assert not torch.autograd.grad(y.sum(), q)[0].any()


# --- Sums over tokens


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_norm_adds_up_the_gradients_of_its_weights_in_fp32(dtype):
    """dtype: of the weights. PyTorch's sums over tokens in bf16 would be far off."""
    torch.manual_seed(0)
    norm = nn.LayerNorm(32)
    nn.init.normal_(norm.weight, 1, 0.2)
    fast = copy.deepcopy(norm).to(dtype)
    fast.__class__ = Fp32LayerNorm
    exact = copy.deepcopy(fast).double()
    exact.__class__ = nn.LayerNorm
    x = torch.randn(64, 256, 32).bfloat16()
    gradient = (0.1 * torch.randn(x.shape) + 0.01).bfloat16()
    y = fast(x)
    assert y.dtype == torch.bfloat16
    expected = exact(x.double())
    assert apart(y.double(), expected) < 3e-3
    y.backward(gradient)
    expected.backward(gradient.double())
    for found, right in zip(fast.parameters(), exact.parameters()):
        limit = 1e-5 if dtype == torch.float32 else 5e-3
        assert apart(found.grad.double(), right.grad) < limit


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_norm_of_more_exact_numbers_is_pytorchs(dtype):
    norm = nn.LayerNorm(8, dtype=dtype)
    x = torch.randn(3, 8, dtype=dtype)
    expected = norm(x)
    norm.__class__ = Fp32LayerNorm
    assert norm(x).equal(expected)


def test_an_embedding_adds_up_the_gradients_of_bf16_weights_in_fp32():
    torch.manual_seed(0)
    embedding = Fp32Embedding(4, 8, dtype=torch.bfloat16)
    ids = torch.randint(4, (100, 200))
    gradient = (torch.randn(100, 200, 8) + 0.3).bfloat16().float()
    embedding(ids).backward(gradient)
    expected = torch.stack([gradient[ids == token].sum(0) for token in range(4)])
    assert apart(embedding.weight.grad.float(), expected) < 5e-3


@pytest.mark.parametrize("fsdp", [False, True])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_gradients_of_many_tokens_in_bf16(norm, fsdp):
    """They are near those in fp32, also with the weights in bf16, as FSDP gathers them."""
    torch.manual_seed(0)
    rows = torch.arange(3, 23).roll(1)[torch.randint(20, (400, 20))]
    batch = rows, rows.roll(1, 1), rows, torch.arange(rows.numel())

    def gradients_in(dtype: torch.dtype | None) -> dict[str, torch.Tensor]:
        # Dropout makes the residual stream bf16, even if it hardly drops anything.
        model = speed_up(make_model(norm=norm, dropout=1e-7), "cpu", dtype)
        if dtype and fsdp:
            model.to(dtype)
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss, _ = model(*batch)
        loss.backward()
        return {name: weight.grad.float() for name, weight in model.named_parameters()}

    expected = gradients_in(None)
    found = gradients_in(torch.bfloat16)
    total = torch.cat([each.flatten() for each in expected.values()]).norm()
    for name, gradient in found.items():
        # Of a gradient that is nearly 0, the size of all others counts.
        error = (gradient - expected[name]).norm()
        assert error < 0.03 * expected[name].norm() + 1e-4 * total, name


# --- Dropout


@pytest.mark.parametrize("p", [0.001, 0.3, 0.999])
@pytest.mark.parametrize("bf16", [False, True])
def test_dropout_drops_its_share_and_keeps_the_mean(p, bf16):
    torch.manual_seed(0)
    x = torch.ones(7999, 1001)  # no multiple of eight
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        y = ByteDropout(p)(x)
    assert y.dtype == (torch.bfloat16 if bf16 else torch.float32)
    deviation = (p * (1 - p) / x.numel()) ** 0.5  # of the share in so many draws
    dropped = float((y == 0).double().mean())
    assert dropped == pytest.approx(p, abs=5 * deviation + 2**-17)
    kept = y[y != 0]
    assert (kept == kept[0]).all()
    assert float(kept[0]) == pytest.approx(1 / (1 - p), rel=4e-3 if bf16 else 1e-6)
    assert float(y.double().mean()) == pytest.approx((1 - dropped) / (1 - p), rel=4e-3)
    for side in (0, 1):  # no row and no column has its own share
        shares = (y == 0).double().mean(side)
        assert float((shares - p).abs().max()) < 6 * (p * (1 - p) / y.shape[side]) ** 0.5 + 1e-2


def test_dropout_has_the_gradient_of_what_it_kept_and_other_numbers_each_time():
    torch.manual_seed(0)
    x = torch.randn(50, 40, requires_grad=True)
    dropout = ByteDropout(0.3)
    y = dropout(x)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(gradient, (y != 0) / 0.7)
    assert not torch.equal(dropout(x) == 0, y == 0)
    assert dropout(torch.ones(3, 5, 7)).shape == (3, 5, 7)
    torch.manual_seed(0)
    torch.randn(50, 40)
    assert torch.equal(dropout(x), y)  # the same after the same seed


def test_dropout_does_nothing_to_evaluate_or_with_p_0():
    x = torch.randn(5, 7)
    assert ByteDropout(0.3).eval()(x) is x
    assert ByteDropout(0.0)(x) is x
    with torch.autocast("cpu", torch.bfloat16):
        assert ByteDropout(0.3).eval()(x) is x
        assert ByteDropout(0.0)(x) is x


# --- The loss


def make_loss(tokens=10, vocab=20, d_model=8, dtype=torch.float64):
    torch.manual_seed(0)
    x, weight = (
        torch.randn(tokens, d_model, dtype=dtype),
        torch.randn(vocab, d_model, dtype=dtype),
    )
    return x.requires_grad_(), weight.requires_grad_(), torch.randint(vocab, (tokens,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("block", [1, 3, 10, 1024])
@pytest.mark.parametrize("tokens", [10, 0])
@pytest.mark.parametrize(
    "dtype, gradient",
    [
        (torch.float64, gradient_in_place),
        (torch.float32, gradient_in_place),
        (torch.float32, gradient_in_one_kernel),
    ],
)
def test_the_loss_and_its_gradients(tokens, block, smoothing, dtype, gradient):
    """With a factor from above, as dividing by the targets is one."""
    x, weight, target = make_loss(tokens, dtype=dtype)
    fast = FusedLinearCrossEntropy.apply(x, weight, target, smoothing, block, gradient)
    plain = linear_cross_entropy(x, weight, target, smoothing)
    for found, expected in zip(fast, plain):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(
        plain[1],
        F.cross_entropy(x @ weight.t(), target, reduction="sum"),
        check_dtype=False,
        rtol=1e-5,
        atol=1e-5,
    )
    assert not fast[1].requires_grad
    for found, expected in zip(
        *(torch.autograd.grad(3 * loss, [x, weight]) for loss in (fast[0], plain[0]))
    ):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_the_loss_adds_up_the_gradient_of_bf16_weights_in_fp32():
    """FSDP casts the weights. Sums over 200 blocks in bf16 would be far off."""
    x, weight, target = (each.detach() for each in make_loss(1000))
    weight = weight.bfloat16().requires_grad_()
    loss, _ = FusedLinearCrossEntropy.apply(x.bfloat16(), weight, target, 0.1, 5)
    plain, _ = linear_cross_entropy(x.bfloat16().float(), weight.float(), target, 0.1)
    found, expected = (torch.autograd.grad(each, weight)[0] for each in (loss, plain))
    assert found.dtype == torch.bfloat16
    assert apart(found.float(), expected.float()) < 5e-3


@pytest.mark.parametrize("rows, sizes", [(0, [0]), (8, [8]), (9, [5, 4]), (57, [8] + 7 * [7])])
def test_parts_have_equally_many_rows(rows, sizes):
    tensors = torch.arange(3 * rows).view(rows, 3), torch.arange(rows)
    parts = list(in_parts(tensors, 8))
    assert [(len(a), len(b)) for a, b in parts] == [(size, size) for size in sizes]
    for tensor, each in zip(tensors, zip(*parts)):
        assert torch.cat(each).equal(tensor)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_plain_loss_is_pytorchs(smoothing):
    x, weight, target = make_loss()
    expected = F.cross_entropy(
        x @ weight.t(), target, reduction="sum", label_smoothing=smoothing
    )
    loss, _ = linear_cross_entropy(x, weight, target, smoothing)
    torch.testing.assert_close(loss, expected, check_dtype=False, rtol=1e-5, atol=1e-5)
    for found, right in zip(
        *(torch.autograd.grad(each, [x, weight]) for each in (loss, expected))
    ):
        torch.testing.assert_close(found, right, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_in_bf16(smoothing):
    """The gradients are near those in fp32, and the small part of smoothing is in them."""
    torch.manual_seed(0)
    # The rows of weight have a mean, so that spreading a share over all of them shows in x's
    # gradient. The last 500 tokens are never targets, and so unlikely that in their gradient
    # there is little but that share.
    x, weight = torch.randn(400, 64), 0.1 * torch.randn(1000, 64) + 0.2
    x[:, 0], weight[:500, 0], weight[500:, 0] = 4, 2, 0
    target = torch.randint(500, (400,))
    x.requires_grad_(), weight.requires_grad_()
    plain, expected = linear_cross_entropy(x, weight, target, smoothing)
    d_x, d_weight = torch.autograd.grad(plain, [x, weight])
    with torch.autocast("cpu", torch.bfloat16):
        loss, nll = FusedLinearCrossEntropy.apply(x, weight, target, smoothing, 128)
    assert loss.dtype == nll.dtype == torch.float32
    assert float(loss.detach()) == pytest.approx(float(plain.detach()), rel=2e-3)
    assert float(nll) == pytest.approx(float(expected), rel=2e-3)
    found_x, found_weight = torch.autograd.grad(loss, [x, weight])
    assert apart(found_x, d_x) < 0.02
    assert apart(found_weight, d_weight) < 0.02
    assert apart(found_weight[500:], d_weight[500:]) < 0.02


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("loss", [linear_cross_entropy, FusedLinearCrossEntropy.apply])
def test_a_hopeless_token_is_reported_as_it_is(loss, bf16):
    """Nothing is clamped, and nothing overflows: its probability is exp(-600), 0 in fp32."""
    x, weight = torch.tensor([[600.0, 0.0]], requires_grad=True), torch.eye(2)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found, nll = loss(x, weight, torch.tensor([1]), 0.1)
    assert nll.item() == 600
    assert found.item() == pytest.approx(0.9 * 600 + 0.1 * 300)
    found.backward()
    torch.testing.assert_close(x.grad, torch.tensor([[0.95, -0.95]]), rtol=5e-3, atol=0)


# --- All of them


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_plain_model_is_left_as_it_is_written(device, compiled):
    model = make_model(plain=True)
    before = [type(module) for module in model.modules()]
    speed_up(model, device, torch.bfloat16, recompute=True, compiled=compiled)
    assert model.loss is linear_cross_entropy
    assert model.sinusoids is sinusoids
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    assert all(module.attend is scaled_dot_product for module in attentions)
    if not compiled:  # to compile them, linear layers flatten their inputs
        assert [type(module) for module in model.modules()] == before


def test_a_plain_run_has_a_plain_model_and_stores_so(corpus_flags, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    command = ["train_cpu.py", *corpus_flags, "--vocab-size", "300", "--plain"]
    monkeypatch.setattr("sys.argv", command)
    task = prepare_task(parse_arguments("", CpuSettings).complete())
    assert task.build_model().loss is linear_cross_entropy
    assert task.state()["config"]["plain"]


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize(
    "device, precision",
    [("cpu", "fp32"), ("cpu", "bf16"), ("cpu", "fp16"), ("cuda", "bf16"), ("cuda", "fp16")],
)
def test_a_model_is_the_same_when_it_is_fast(norm, device, precision):
    """Also what is made for a GPU, here on a CPU."""

    def compute(
        is_fast: bool, dtype, seed=2
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns loss, nll, and the gradients of all parameters."""
        model = make_model(seed, norm=norm, dropout=0.0)
        if is_fast:
            assert speed_up(model, device, dtype) is model
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss, nll = model(*batch)
        loss.backward()
        gradients = [parameter.grad.flatten() for parameter in model.parameters()]
        return loss.detach(), nll, torch.cat(gradients)

    def error_ratio(seed: int) -> float:
        """Returns the error of the fast model's gradients over that of the plain one's."""
        *_, exact = compute(False, None, seed)
        *_, plain = compute(False, dtype, seed)
        *_, fast = compute(True, dtype, seed)
        return apart(fast, exact) / apart(plain, exact)

    batch = make_batch()
    dtype = autocast_dtype(precision)
    plain_loss, plain_nll, plain = compute(False, dtype)
    fast_loss, fast_nll, fast = compute(True, dtype)
    tolerance = {"fp32": 1e-5, "bf16": 1e-2, "fp16": 1e-3}[precision]
    torch.testing.assert_close(fast_loss, plain_loss, rtol=tolerance, atol=0)
    torch.testing.assert_close(fast_nll, plain_nll, rtol=tolerance, atol=0)
    if precision == "bf16":  # how far off each is depends on the weights: the median of many
        # What is made for a GPU rounds the residual stream, too, as FSDP does.
        limit = 1.3 if device == "cuda" else 1.2
        assert statistics.median(map(error_ratio, range(61))) < limit
    elif precision == "fp16":  # PyTorch's attention rounds more in fp16, but less than bf16
        *_, exact = compute(False, None)
        *_, in_bf16 = compute(False, torch.bfloat16)
        assert apart(fast, exact) < apart(in_bf16, exact) / 2
    else:
        assert apart(fast, plain) < 1e-5


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_layers_in_low_precision_are_those_of_fsdp(alone, norm):
    """Bit for bit, if q, k and v are two products: one rounds their input's gradient less."""
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (1,))
    batch = make_batch()

    def compute(is_sharded: bool, one_product: bool = False) -> list[torch.Tensor]:
        """Returns loss, nll, and the gradients of all parameters."""
        model = speed_up(make_model(norm=norm, dropout=0.0), "cuda", torch.bfloat16)
        for module in model.modules():
            if isinstance(module, OneProductAttention) and not one_product:
                module.__class__ = Attention
        if is_sharded:
            for layer in model.layers():
                fully_shard(layer, mesh=mesh, mp_policy=precision)
        with torch.autocast("cpu", torch.bfloat16):
            loss, nll = model(*batch)
        loss.backward()
        gradients = [weight.grad for weight in model.parameters()]
        if is_sharded:
            gradients = [getattr(each, "_local_tensor", each) for each in gradients]
        assert all(isinstance(weight, nn.Parameter) for weight in model.parameters())
        return [loss.detach(), nll, *gradients]

    expected = compute(is_sharded=True)
    assert all(map(torch.equal, compute(is_sharded=False), expected))
    fast = compute(is_sharded=False, one_product=True)
    assert all(apart(x, y) < 0.02 for x, y in zip(fast, expected)) and not all(
        map(torch.equal, fast, expected)
    )


def test_layers_keep_their_precision_without_autocast_and_after_an_error():
    model = speed_up(make_model(dropout=0.0), "cuda", torch.bfloat16)
    batch = make_batch()
    torch.testing.assert_close(model(*batch), make_model(dropout=0.0)(*batch))
    weights = list(model.parameters())
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(RuntimeError):
        model.encoder[0](torch.zeros(1, 2, 3), torch.ones(1, 1, 1, 2, dtype=torch.bool))
    assert all(map(operator.is_, weights, model.parameters()))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_deep_copy_has_weights_of_its_own(device, recompute):
    """As torch.optim.swa_utils.AveragedModel needs it."""
    model = speed_up(make_model(dropout=0.0), device, torch.bfloat16, recompute)
    batch = make_batch()
    with torch.autocast("cpu", torch.bfloat16):
        before, _ = model(*batch)
        copied = copy.deepcopy(model)
        with torch.no_grad():
            for layer in model.layers():
                for weight in layer.parameters():
                    weight.zero_()
        after, _ = copied(*batch)
    after.backward()
    assert after.equal(before)
    assert all(weight.grad is None for weight in model.parameters())
    assert all(weight.grad is not None for weight in copied.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "precision, tolerance", [("fp32", 1e-4), ("bf16", 0.1), ("fp16", 0.02)]
)
def test_a_model_on_a_gpu_is_the_plain_one_on_the_cpu(precision, tolerance, compiled):
    def gradients(model: nn.Module, loss: torch.Tensor) -> torch.Tensor:
        loss.backward()
        return torch.cat([weight.grad.flatten().cpu() for weight in model.parameters()])

    batch = make_batch()
    plain = make_model(dropout=0.0)
    plain_loss, plain_nll = plain(*batch)
    dtype = autocast_dtype(precision)
    fast = make_model(dropout=0.0).to("cuda")
    speed_up(fast, "cuda", dtype, compiled=compiled)
    with torch.autocast("cuda", dtype, enabled=dtype is not None):
        fast_loss, fast_nll = fast(*(tensor.to("cuda") for tensor in batch))
    assert float(fast_loss.detach()) == pytest.approx(float(plain_loss.detach()), rel=tolerance)
    assert float(fast_nll) == pytest.approx(float(plain_nll), rel=tolerance)
    assert apart(gradients(fast, fast_loss), gradients(plain, plain_loss)) < tolerance


@pytest.mark.parametrize(
    "device, dtype",
    [("cpu", None), ("cpu", torch.bfloat16), ("cpu", torch.float16), ("cuda", torch.bfloat16)],
)
def test_which_parts_are_replaced(device, dtype):
    model = make_model(dropout=0.25)
    weights = dict(model.named_parameters())
    speed_up(model, device, dtype)
    attention = cpu_bf16_attention if dtype == torch.bfloat16 else fused_attention
    if device == "cuda":
        attention = masked_attention
    for module in model.modules():
        if isinstance(module, Attention):
            assert module.attend is attention
        if isinstance(module, nn.Dropout):
            assert isinstance(module, ByteDropout) == (device == "cpu") and module.p == 0.25
        if isinstance(module, nn.LayerNorm):
            assert isinstance(module, Fp32LayerNorm) == (device == "cpu")
        if isinstance(module, nn.Embedding):
            assert isinstance(module, Fp32Embedding) == (device == "cpu")
    dropouts = sum(isinstance(module, nn.Dropout) for module in model.modules())
    assert dropouts == 1 + 2 * (2 + 3)  # embeddings; two layers of each kind
    assert model.loss == FusedLinearCrossEntropy.apply
    assert all(weight is model.get_parameter(name) for name, weight in weights.items())
    other = make_model()  # one model is changed, not all of them
    assert (
        other.loss is linear_cross_entropy
        and other.encoder[0].attention.attend is scaled_dot_product
    )
    assert not any(
        module.training for module in speed_up(other.eval(), device, dtype).modules()
    )


@pytest.mark.parametrize(
    ("device", "dtype", "max_length", "attention"),
    [
        ("cuda", torch.bfloat16, 128, masked_attention),
        ("cuda", torch.float16, 129, fused_attention),
        ("cuda", None, 128, fused_attention),
        ("cpu", torch.bfloat16, 129, cpu_bf16_attention),
        ("cpu", torch.float16, 128, fused_attention),
    ],
)
def test_short_sentences_have_a_kernel_of_their_own(device, dtype, max_length, attention):
    assert fastest_attention(device, dtype, max_length) is attention


@pytest.mark.parametrize("first, length", [(0, 1), (0, 9), (5, 4), (8, 1)])
def test_sinusoids_from_a_table_are_the_computed_ones(first, length):
    positions = torch.arange(first, first + length)
    with torch.inference_mode():
        found = look_up_sinusoids(9, positions, 6)
    torch.testing.assert_close(found, sinusoids(positions, 6))
    assert not table_of_sinusoids(9, 6, positions.device).is_inference()


def test_a_model_can_be_exported_before_its_first_use():
    """The table of sinusoids would be torch.export's fake tensor, for this and other models."""
    config = ModelConfig(vocab_size=20, layers=1, d_model=10, heads=1, d_ff=8)
    model = speed_up(Transformer(config), "cpu").eval()
    batch = (torch.tensor([[5, 6, 2]]), torch.tensor([[1, 7]]))
    exported = torch.export.export(model, batch).module()
    assert type(model(*batch)) is torch.Tensor
    torch.testing.assert_close(exported(*batch), model(*batch))


@pytest.mark.slow
@pytest.mark.parametrize("vocab", [20, 3000])
def test_the_compiled_loss_is_the_plain_one(vocab):
    """In blocks of several sizes, of which each has its row sums and its targets."""
    compiled = compiled_linear_cross_entropy()
    for tokens in (10, 65, 4100):
        x, weight, target = make_loss(tokens, vocab, dtype=torch.float32)
        plain = linear_cross_entropy(x, weight, target, 0.1)
        fast = compiled(x, weight, target, 0.1)
        torch.testing.assert_close(fast, plain, rtol=1e-5, atol=1e-5)
        for found, expected in zip(
            *(torch.autograd.grad(loss, [x, weight]) for loss in (fast[0], plain[0]))
        ):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "capabilities, bf16",
    [
        ({}, False),
        ({"avx512": True, "avx512_bf16": False}, False),
        ({"avx512_bf16": True}, True),
        ({"amx_bf16": True}, True),
        ({"bf16": True}, True),
    ],
)
def test_bf16_is_for_processors_that_multiply_in_it(monkeypatch, capabilities, bf16):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    assert fast_precision("cpu") == ("bf16" if bf16 else "fp32")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)  # as on macOS
    assert fast_precision("cpu") == "fp32"


@pytest.mark.parametrize(
    "capability, precision",
    [((6, 1), "fp32"), ((7, 5), "fp16"), ((8, 0), "bf16"), ((9, 0), "bf16")],
)
def test_the_fast_precision_of_a_gpu(monkeypatch, capability, precision):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert fast_precision("cuda") == precision


def test_memory_can_be_kept(monkeypatch):
    calls = []
    libc = SimpleNamespace(mallopt=lambda *pair: calls.append(pair) or 1)
    monkeypatch.setattr("ctypes.CDLL", lambda _: libc)
    monkeypatch.setattr("sys.platform", "linux")
    keep_freed_memory()
    assert calls == [(-3, 2**30), (-1, -1), (-2, 2**28)]


def test_a_c_library_without_glibcs_parameters_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())  # as musl has none
    monkeypatch.setattr("sys.platform", "linux")
    keep_freed_memory()
