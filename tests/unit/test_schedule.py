"""Learning rates, and which weights decay."""

from itertools import product
from types import SimpleNamespace

import pytest
import torch

from support.classification.classifier import Classifier, ClassifierConfig
from support.training.optim import learning_rate, parameter_groups, seed_step, set_learning_rate


def rates(schedule, warmup=4, last=12):
    args = SimpleNamespace(lr=1.0, warmup=warmup, schedule=schedule)
    return [learning_rate(step, args, last) for step in range(1, last + 1)]


@pytest.mark.parametrize("schedule", ["noam", "linear", "cosine"])
def test_all_schedules_rise_in_a_line_to_the_peak(schedule):
    assert rates(schedule)[:4] == [0.25, 0.5, 0.75, 1.0]
    after = rates(schedule)[3:]
    assert after == sorted(after, reverse=True) and after[-1] > 0


def test_noam_falls_with_the_root_of_the_step():
    assert rates("noam", last=16)[15] == pytest.approx(0.5)


def test_linear_and_cosine_would_be_zero_one_step_after_the_last():
    assert rates("linear")[4:] == pytest.approx(
        [8 / 9, 7 / 9, 6 / 9, 5 / 9, 4 / 9, 3 / 9, 2 / 9, 1 / 9]
    )
    args = SimpleNamespace(lr=1.0, warmup=4, schedule="cosine")
    assert learning_rate(8, args, 11) == pytest.approx(0.5)  # half of the way from 4 to 12


def test_the_whole_run_may_be_warm_up():
    assert rates("linear", warmup=12)[-1] == 1.0 and rates("cosine", warmup=50)[-1] == 0.24


def test_without_a_number_a_tenth_of_the_run_is_warm_up():
    for schedule in ("noam", "linear", "cosine"):
        assert rates(schedule, warmup=0, last=40) == rates(schedule, warmup=4, last=40)
    assert rates("linear", warmup=0, last=3)[0] == 1.0


def test_matrices_decay_and_biases_and_norms_do_not_and_the_head_has_its_own_rate():
    model = Classifier(
        ClassifierConfig(3, vocab_size=20, layers=2, d_model=8, heads=2, d_ff=16, bias=True)
    )
    model.encoder[0].requires_grad_(False)
    args = SimpleNamespace(lr=1e-3, head_lr=1e-2, weight_decay=0.1)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = {
        names[id(parameter)]: (group["scale"], group["weight_decay"])
        for group in parameter_groups(model, args)
        for parameter in group["params"]
    }
    assert not any(name.startswith("encoder.0.") for name in found)
    assert found["embedding.weight"] == (1.0, 0.1) and found[
        "encoder.1.attention.query.weight"
    ] == (1.0, 0.1)
    assert found["norm.weight"] == (1.0, 0.0) and found["encoder.1.attention.query.bias"] == (
        1.0,
        0.0,
    )
    assert found["head.1.weight"] == (10.0, 0.1) and found["head.1.bias"] == (10.0, 0.0)
    learning = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert found.keys() == learning


def test_without_decay_adamw_is_adam():
    weights = [torch.nn.Parameter(torch.ones(3, 3)) for _ in range(2)]
    args = SimpleNamespace(lr=1e-3, head_lr=0.0, weight_decay=0.0)
    module = torch.nn.ParameterList([weights[0]])
    optimizers = [
        torch.optim.AdamW(parameter_groups(module, args), lr=0.1),
        torch.optim.Adam([weights[1]], lr=0.1),
    ]
    for step in range(5):
        for weight, optimizer in zip(weights, optimizers):
            weight.grad = torch.arange(9.0).view(3, 3) - step
            optimizer.step()
    assert torch.equal(*weights)


def test_each_step_of_each_rank_and_seed_has_random_numbers_of_its_own():
    seeds = set()
    for seed, step, rank in product((1, 2), (1, 2, 3), (0, 1)):
        seed_step(seed, step, rank)
        seeds.add(torch.initial_seed())
    assert len(seeds) == 12


def test_the_rate_of_the_head_follows_the_schedule_too():
    optimizer = SimpleNamespace(param_groups=[{"scale": 1.0}, {"scale": 10.0}])
    set_learning_rate(optimizer, 0.25)
    assert [group["lr"] for group in optimizer.param_groups] == [0.25, 2.5]
