"""DistributedOptimizer against one process that has all the data, and its documented behaviours."""

from __future__ import annotations

import copy
import io
import warnings
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch_reference import (
    assert_same_parameters,
    batch_of,
    loss_of,
    small_model,
    train_alone,
    train_together,
)

import horovod.torch as hvd
from horovod.torch.compression import Compressor

LAUNCHES = ["-np 1", "-np 2", "-np 4"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


several_ranks = pytest.mark.usefixtures("_needs_two")


@pytest.fixture
def _needs_two() -> None:
    if hvd.size() < 2:
        pytest.skip("needs at least two ranks: one rank reduces nothing")


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True),
    "Adam-foreach": lambda p: torch.optim.Adam(p, lr=0.05, foreach=True),
    "Adam-fused": lambda p: torch.optim.Adam(p, lr=0.05, fused=True),
    "Adam-capturable-lr-tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4, line_search_fn="strong_wolfe"),
    "LBFGS-plain": lambda p: torch.optim.LBFGS(p, lr=0.2, max_iter=3),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD": sgd,
    "SGD-fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "SGD-maximize": lambda p: torch.optim.SGD(p, lr=0.01, maximize=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_trains_like_one_process(name):
    make = OPTIMIZERS[name]
    ours = train_together(make, steps=4)
    assert_same_parameters(ours, train_alone(make, steps=4), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(
    "options",
    [
        {"op": hvd.Average},
        {"gradient_predivide_factor": 3.0},
        {"groups": 1},
        {"groups": 2},
        {"groups": 5},
        {"groups": 2, "gradient_predivide_factor": 2.0},
        {"compression": hvd.Compression.none, "groups": 1},
    ],
    ids=str,
)
def test_options_that_change_no_result(options):
    ours = train_together(sgd, steps=3, **options)
    assert_same_parameters(ours, train_alone(sgd, steps=3))


def test_sum_adds_gradients_of_all_ranks():
    def make(p):
        return torch.optim.SGD(p, lr=0.02)

    ours = train_together(make, steps=3, op=hvd.Sum)
    assert_same_parameters(ours, train_alone(make, steps=3, summed=True))


@pytest.mark.parametrize("compression", [hvd.Compression.fp16, hvd.Compression.bf16])
@pytest.mark.parametrize("groups", [None, 1])
def test_compression_costs_only_precision(compression, groups):
    ours = train_together(sgd, steps=3, compression=compression, groups=groups)
    assert_same_parameters(ours, train_alone(sgd, steps=3), rtol=0.05, atol=0.02)


def test_a_compressor_of_the_users_own_is_applied_and_undone():
    class Halving(Compressor):
        @staticmethod
        def compress(tensor):
            return tensor / 2, "halved"

        @staticmethod
        def decompress(tensor, ctx):
            assert ctx == "halved"
            return tensor * 2

    ours = train_together(sgd, steps=2, compression=Halving)
    assert_same_parameters(ours, train_alone(sgd, steps=2))


def test_groups_given_as_lists_leave_the_rest_in_one_group():
    model = small_model()
    first = [next(model.parameters())]
    ours = train_together(sgd, steps=3, model=model, groups=[first])
    assert_same_parameters(ours, train_alone(sgd, steps=3))


@pytest.mark.parametrize("groups", [None, 1, 2])
def test_gradients_of_several_backward_passes_are_summed(groups):
    ours = train_together(sgd, steps=3, passes=2, groups=groups)
    assert_same_parameters(ours, train_alone(sgd, steps=3, passes=2))


@pytest.mark.parametrize("groups", [None, 1])
def test_a_short_last_window_is_reduced_by_step(groups):
    model, reference = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=3, groups=groups
    )
    alone = sgd(reference.parameters())
    for passes in (3, 1, 2, 3):
        optimizer.zero_grad()
        alone.zero_grad()
        for part in range(passes):
            loss_of(model, hvd.rank(), part).backward()
            for rank in range(hvd.size()):
                (loss_of(reference, rank, part) / hvd.size()).backward()
        optimizer.step()
        alone.step()
    assert_same_parameters(model, reference)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.body = nn.Linear(6, 4).double()
        self.heads = nn.ModuleList([nn.Linear(4, 1).double() for _ in range(2)])
        self.never = nn.Linear(2, 2).double()

    def forward(self, inputs, head):
        return self.heads[head](torch.tanh(self.body(inputs)))


def heads_loss(model, rank, step):
    inputs, targets = batch_of(rank, step)
    return (model(inputs, (rank + step) % 2) - targets).square().mean()


@pytest.mark.parametrize("groups", [None, 1, 3])
def test_parameters_without_gradient_on_some_ranks_count_as_zero(groups):
    def make(p):
        return torch.optim.SGD(p, lr=0.1, weight_decay=0.1)

    ours = train_together(make, steps=5, model=TwoHeads(), loss=heads_loss, groups=groups)
    if hvd.size() == 1:
        pytest.skip("one rank sends no zeros")
    reference = TwoHeads()
    optimizer = make(reference.parameters())
    for step in range(5):
        for parameter in reference.parameters():
            parameter.grad = None
        sum(heads_loss(reference, rank, step) for rank in range(hvd.size())).backward()
        for name, parameter in reference.named_parameters():
            if not name.startswith("never"):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad /= hvd.size()
        optimizer.step()
    assert_same_parameters(ours, reference)


def test_a_parameter_that_no_rank_ever_uses_keeps_no_gradient():
    model = TwoHeads()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    heads_loss(model, 0, 0).backward()
    optimizer.step()
    assert model.never.weight.grad is None


@several_ranks
def test_one_warning_for_step_after_synchronize_and_no_second_reduction():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()), model.named_parameters(), op=hvd.Sum
    )
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.synchronize()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    texts = [str(w.message) for w in caught if w.category is UserWarning]
    assert len(texts) == 1
    assert "optimizer.step() called without optimizer.skip_synchronize()" in texts[0]
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        assert torch.equal(parameter.grad, gradient)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimizer.zero_grad()
        loss_of(model, hvd.rank(), 1).backward()
        optimizer.step()


def test_clipping_between_synchronize_and_step_equals_one_process():
    model, reference = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    alone = sgd(reference.parameters())
    for step in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        (sum(loss_of(reference, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
        optimizer.synchronize()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        nn.utils.clip_grad_norm_(reference.parameters(), 0.05)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with optimizer.skip_synchronize():
                optimizer.step()
        alone.step()
    assert_same_parameters(model, reference)


def test_skip_synchronize_ends_with_its_block_also_after_an_exception():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    with pytest.raises(KeyError), optimizer.skip_synchronize():
        raise KeyError
    loss_of(model, hvd.rank(), 0).backward()
    optimizer.step()
    for parameter in model.parameters():
        assert torch.equal(hvd.broadcast(parameter.grad, 0), parameter.grad)


def step_once(model, optimizer, step=0):
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), step).backward()
    optimizer.step()


@several_ranks
def test_assertions_for_zero_grad_in_flight_and_excess_backward_passes():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    step_once(model, optimizer)
    optimizer.zero_grad()
    loss_of(model, hvd.rank(), 1).backward()
    with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss.backward\(\)"):
        optimizer.zero_grad()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        loss_of(model, hvd.rank(), 1).backward()
    with (
        pytest.raises(AssertionError, match=r"call optimizer\.synchronize"),
        optimizer.skip_synchronize(),
    ):
        optimizer.step()
    optimizer.synchronize()
    step_once(model, optimizer, 2)


@several_ranks
@pytest.mark.parametrize("passes", [1, 2])
def test_excess_backward_passes_are_seen_in_the_first_window_too(passes):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()), model.named_parameters(), backward_passes_per_step=passes
    )
    for _ in range(passes):
        loss_of(model, hvd.rank(), 0).backward()
    with pytest.raises(AssertionError, match=r"[02]\.weight"):
        loss_of(model, hvd.rank(), 0).backward()
    optimizer.synchronize()
    step_once(model, optimizer)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_takes_set_to_none(set_to_none):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    step_once(model, optimizer)
    optimizer.zero_grad(set_to_none=set_to_none)
    for parameter in model.parameters():
        assert (parameter.grad is None) is set_to_none
        assert set_to_none or not parameter.grad.any()
    step_once(model, optimizer, 1)


def test_the_class_is_that_of_the_wrapped_optimizer():
    model = small_model()
    original = torch.optim.AdamW(model.parameters(), lr=0.3, fused=True)
    optimizer = hvd.DistributedOptimizer(original, model.named_parameters())
    assert isinstance(optimizer, torch.optim.AdamW)
    assert type(optimizer).__name__ == "AdamW"
    assert type(optimizer).__module__ == "horovod.torch.optimizer"
    assert optimizer.param_groups[0] is original.param_groups[0]
    assert optimizer.defaults["lr"] == 0.3
    assert optimizer._step_supports_amp_scaling


class Lookalike(torch.optim.SGD):
    """An optimizer of a user: needs an argument, and has a method of its own."""

    def __init__(self, params, lr, flavour):
        super().__init__(params, lr=lr)
        self.defaults["flavour"] = flavour

    def who(self):
        return self.defaults["flavour"]


def test_optimizers_of_users_with_required_arguments_are_wrapped():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(Lookalike(model.parameters(), 0.1, "sweet"))
    step_once(model, optimizer)
    assert optimizer.who() == "sweet"


def test_schedulers_attach_before_and_after_wrapping():
    model = small_model()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    early = torch.optim.lr_scheduler.StepLR(inner, 1, gamma=0.5)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
    late = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step_once(model, optimizer)
        late.step()
    assert optimizer.param_groups[0]["lr"] == 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the inner optimizer never steps
        early.step()
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_step_hooks_run_once_and_see_reduced_gradients():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    seen = []

    def before(optimizer, args, kwargs):
        seen.append([p.grad.clone() for p in model.parameters()])

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    step_once(model, optimizer)
    assert len(seen) == 2
    for gradient in seen[0]:
        assert torch.equal(hvd.broadcast(gradient, 0), gradient)


def test_state_dict_round_trip_and_load_into_a_plain_optimizer():
    model, other, plain_model = small_model(), small_model(), small_model()

    def make(m):
        return torch.optim.Adam(m.parameters(), lr=0.1)

    optimizer = hvd.DistributedOptimizer(make(model), model.named_parameters())
    step_once(model, optimizer)
    second = hvd.DistributedOptimizer(make(other), other.named_parameters())
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.load_state_dict(model.state_dict())
    plain = make(plain_model)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert len(plain.state) == len(list(model.parameters()))
    step_once(model, optimizer, 1)
    step_once(other, second, 1)
    assert_same_parameters(other, model)


@pytest.mark.parametrize("groups", [None, 1])
def test_deepcopy_and_pickle_go_on_training(groups):
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=0.1), model.named_parameters(), groups=groups
    )
    step_once(model, optimizer)
    copied_model, copied = copy.deepcopy((model, optimizer))
    buffer = io.BytesIO()
    torch.save((model, optimizer), buffer)
    buffer.seek(0)
    loaded_model, loaded = torch.load(buffer, weights_only=False)
    for _some_model, some in ((copied_model, copied), (loaded_model, loaded)):
        assert isinstance(some, torch.optim.Adam)
        assert list(some._parameter_names.values()) == list(optimizer._parameter_names.values())
    for step in (1, 2):
        step_once(model, optimizer, step)
        step_once(copied_model, copied, step)
        step_once(loaded_model, loaded, step)
    assert_same_parameters(copied_model, model)
    assert_same_parameters(loaded_model, model)


def test_parameter_groups_with_their_own_options_and_groups_added_later():
    def build():
        model = small_model()
        first, last = model.parameters()
        return model, torch.optim.SGD([{"params": [first], "lr": 0.1}], lr=0.5), last

    model, inner, last = build()
    reference, alone, reference_last = build()
    optimizer = hvd.DistributedOptimizer(inner)
    for step in range(4):
        if step == 2:
            optimizer.add_param_group({"params": [last], "lr": 0.05})
            alone.add_param_group({"params": [reference_last], "lr": 0.05})
        model.zero_grad()
        optimizer.zero_grad()
        reference.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        (sum(loss_of(reference, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
        optimizer.step()
        alone.step()
    assert sorted(optimizer._parameter_names.values()) == [
        "allreduce.noname.0.0",
        "allreduce.noname.1.0",
    ]
    assert_same_parameters(model, reference)


def test_generated_names_are_unique_across_parameter_groups():
    model = small_model()
    groups = [{"params": [parameter]} for parameter in model.parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(groups, lr=0.1))
    names = list(optimizer._parameter_names.values())
    assert names == ["allreduce.noname.0.0", "allreduce.noname.1.0"]
    step_once(model, optimizer)


def test_freezing_and_thawing_after_wrapping_equals_one_process():
    model, reference = small_model(), small_model()
    frozen, reference_frozen = model[0].weight, reference[0].weight
    frozen.requires_grad_(False)
    reference_frozen.requires_grad_(False)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    alone = sgd(reference.parameters())
    for step in range(6):
        thawed = step in (2, 3)
        frozen.requires_grad_(thawed)
        reference_frozen.requires_grad_(thawed)
        optimizer.zero_grad()
        alone.zero_grad()
        loss_of(model, hvd.rank(), step).backward()
        (sum(loss_of(reference, rank, step) for rank in range(hvd.size())) / hvd.size()).backward()
        optimizer.step()
        alone.step()
        assert (frozen.grad is None) is (not thawed)
    assert_same_parameters(model, reference)


def test_two_optimizers_with_equal_names_train_at_the_same_time():
    def build():
        return small_model(1), small_model(2)

    ours, reference = build(), build()
    optimizers = [hvd.DistributedOptimizer(sgd(m.parameters()), m.named_parameters()) for m in ours]
    alone = [sgd(m.parameters()) for m in reference]
    for step in range(3):
        for optimizer in (*optimizers, *alone):
            optimizer.zero_grad()
        sum(loss_of(model, hvd.rank(), step) for model in ours).backward()
        total = sum(loss_of(m, rank, step) for m in reference for rank in range(hvd.size()))
        (total / hvd.size()).backward()
        for optimizer in (*optimizers, *alone):
            optimizer.step()
    for mine, theirs in zip(ours, reference, strict=True):
        assert_same_parameters(mine, theirs)


def gan_losses(generator, discriminator, rank, step):
    """Yields the losses of the usual three backward passes: D real, D fake, G."""
    noise, real = batch_of(rank, step)[0], batch_of(rank, step + 50)[0]

    def score(inputs):
        return torch.tanh(discriminator(inputs)).mean()

    yield "D", lambda: (score(real) - 1).square()
    yield "D", lambda: (score(generator(noise).detach()) + 1).square()
    yield "G", lambda: (score(generator(noise)) - 1).square()


def gan_models():
    torch.manual_seed(11)
    return nn.Linear(6, 6).double(), nn.Linear(6, 1).double()


@pytest.mark.parametrize("clear", ["module", "optimizer"])
def test_a_gan_whose_generator_pass_reaches_the_discriminator(clear):
    """Two backward passes before D's step; G's pass leaves gradients in D that are thrown away."""
    generator, discriminator = gan_models()
    # G's pass may also complete a window of D, so the window is the largest number of passes.
    opt_d = hvd.DistributedOptimizer(
        sgd(discriminator.parameters()),
        discriminator.named_parameters(),
        backward_passes_per_step=3,
    )
    opt_g = hvd.DistributedOptimizer(sgd(generator.parameters()), generator.named_parameters())
    for step in range(4):
        losses = gan_losses(generator, discriminator, hvd.rank(), step)
        (opt_d if clear == "optimizer" else discriminator).zero_grad()
        for _ in range(2):
            next(losses)[1]().backward()
        opt_d.step()
        (opt_g if clear == "optimizer" else generator).zero_grad()
        next(losses)[1]().backward()
        opt_g.step()
    reference = train_gan_alone(4)
    assert_same_parameters(generator, reference[0])
    assert_same_parameters(discriminator, reference[1])


def train_gan_alone(steps):
    generator, discriminator = gan_models()
    opt_d, opt_g = sgd(discriminator.parameters()), sgd(generator.parameters())
    for step in range(steps):
        discriminator.zero_grad()
        generator.zero_grad()
        for kind in ("D", "G"):
            for model in (discriminator, generator) if kind == "D" else (generator,):
                model.zero_grad()
            total = 0
            for rank in range(hvd.size()):
                for which, loss in gan_losses(generator, discriminator, rank, step):
                    if which == kind:
                        total = total + loss() / hvd.size()
            total.backward()
            (opt_d if kind == "D" else opt_g).step()
    return generator, discriminator


def test_a_gan_with_one_pass_per_step_and_gradients_thrown_away_by_the_module():
    """With one pass per step G's pass starts a reduction in D, which module.zero_grad discards."""
    generator, discriminator = gan_models()
    opt_d = hvd.DistributedOptimizer(
        sgd(discriminator.parameters()), discriminator.named_parameters()
    )
    opt_g = hvd.DistributedOptimizer(sgd(generator.parameters()), generator.named_parameters())
    for step in range(4):
        losses = [loss for _, loss in gan_losses(generator, discriminator, hvd.rank(), step)]
        discriminator.zero_grad()
        (losses[0]() + losses[1]()).backward()
        opt_d.step()
        generator.zero_grad()
        losses[2]().backward()
        opt_g.step()
    reference = train_gan_alone(4)
    assert_same_parameters(generator, reference[0])
    assert_same_parameters(discriminator, reference[1])


def test_two_optimizers_that_share_a_parameter_reduce_it_once():
    torch.manual_seed(0)
    shared, heads = nn.Linear(6, 3).double(), [nn.Linear(3, 1).double() for _ in range(2)]
    reference_shared, reference_heads = copy.deepcopy((shared, heads))

    def group(body, head):
        return [*body.parameters(), *head.parameters()]

    ours = [
        hvd.DistributedOptimizer(torch.optim.SGD(group(shared, head), lr=0.1), op=hvd.Sum)
        for head in heads
    ]
    alone = [torch.optim.SGD(group(reference_shared, head), lr=0.1) for head in reference_heads]

    def loss(body, head, rank, step):
        inputs, targets = batch_of(rank, step)
        return (head(body(inputs)) - targets).square().mean() / hvd.size()

    for step in range(4):
        order = (0, 1) if step % 2 else (1, 0)
        for i in order:  # one after the other
            ours[i].zero_grad()
            loss(shared, heads[i], hvd.rank(), step).backward()
            ours[i].step()
            alone[i].zero_grad()
            for rank in range(hvd.size()):
                loss(reference_shared, reference_heads[i], rank, step).backward()
            alone[i].step()
        for optimizer in (*ours, *alone):  # both at once
            optimizer.zero_grad()
        sum(loss(shared, head, hvd.rank(), step) for head in heads).backward()
        for head in reference_heads:
            for rank in range(hvd.size()):
                loss(reference_shared, head, rank, step).backward()
        for i in order:
            ours[i].step()
            alone[i].step()
    assert_same_parameters(shared, reference_shared)
    for mine, theirs in zip(heads, reference_heads, strict=True):
        assert_same_parameters(mine, theirs)


def test_wrapping_the_same_parameters_again_takes_them_over():
    model = small_model()
    kept = [
        hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
        for _ in range(3)
    ]
    reference = train_alone(sgd, steps=2)
    for step in range(2):
        step_once(model, kept[-1], step)
    assert_same_parameters(model, reference)


def test_wrapping_a_distributed_optimizer_reduces_once():
    model = small_model()
    inner = hvd.DistributedOptimizer(sgd(model.parameters()), op=hvd.Sum)
    outer = hvd.DistributedOptimizer(inner, model.named_parameters())
    assert isinstance(outer, torch.optim.SGD)
    for step in range(2):
        step_once(model, outer, step)
    assert_same_parameters(model, train_alone(sgd, steps=2))


def test_an_optimizer_that_is_dropped_leaves_its_parameters_alone():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    step_once(model, optimizer)
    del optimizer
    model.zero_grad()
    loss_of(model, hvd.rank(), 0).backward()
    alone = small_model()
    alone.load_state_dict(model.state_dict())
    loss_of(alone, hvd.rank(), 0).backward()
    assert torch.equal(model[0].weight.grad, alone[0].weight.grad)


def test_gradients_set_by_hand_are_reduced_by_step():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    start = [parameter.detach().clone() for parameter in model.parameters()]
    for _ in range(2):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, hvd.rank() + 1.0)
        optimizer.step()
    mean = (hvd.size() + 1) / 2
    for parameter, before in zip(model.parameters(), start, strict=True):
        torch.testing.assert_close(parameter.detach(), before - 2 * mean)


def test_gradients_with_graph_of_a_higher_order_backward():
    model, reference = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(2):
        optimizer.zero_grad()
        loss = loss_of(model, hvd.rank(), step)
        slopes = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + sum(slope.square().sum() for slope in slopes)).backward()
        optimizer.step()
    alone = sgd(reference.parameters())
    for step in range(2):
        alone.zero_grad()
        for rank in range(hvd.size()):
            loss = loss_of(reference, rank, step)
            slopes = torch.autograd.grad(loss, list(reference.parameters()), create_graph=True)
            ((loss + sum(slope.square().sum() for slope in slopes)) / hvd.size()).backward()
        alone.step()
    assert_same_parameters(model, reference)


@pytest.mark.parametrize("layouts", ["all", "one"])
def test_channels_last_gradients(layouts):
    """Equal layouts travel without a copy; different ones must still meet element by element."""

    def build():
        torch.manual_seed(5)
        return nn.Conv2d(3, 3, 3).double()

    model, reference = build(), build()
    if layouts == "all" or hvd.rank() == 0:
        model = model.to(memory_format=torch.channels_last)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    alone = sgd(reference.parameters())
    images = [
        torch.randn(2, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(q))
        for q in range(hvd.size())
    ]
    weights = torch.arange(2 * 3 * 4 * 4, dtype=torch.float64).reshape(2, 3, 4, 4)
    for _ in range(3):
        optimizer.zero_grad()
        alone.zero_grad()
        (model(images[hvd.rank()]) * weights).mean().backward()
        strides = model.weight.grad.stride()
        (sum((reference(image) * weights).mean() for image in images) / hvd.size()).backward()
        optimizer.step()
        alone.step()
        assert model.weight.grad.stride() == strides
    if layouts == "all" and hvd.size() > 1:
        assert optimizer._reducer._states[id(model.weight)].storage_order == (0, 2, 3, 1)
    assert_same_parameters(model, reference)


@several_ranks
def test_a_process_set_trains_apart_and_others_go_their_own_way():
    members = hvd.add_process_set([0, 1]) if hvd.size() > 2 else hvd.global_process_set
    model, reference = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(
        sgd(model.parameters()),
        model.named_parameters(),
        process_set=members,
        gradient_predivide_factor=2.0,
    )
    alone = sgd(reference.parameters())
    ranks = [0, 1] if members.included() else [hvd.rank()]
    for step in range(3):
        step_once(model, optimizer, step)
        alone.zero_grad()
        (sum(loss_of(reference, rank, step) for rank in ranks) / len(ranks)).backward()
        alone.step()
    for mine, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.data, theirs.data)
    if members is not hvd.global_process_set:
        hvd.remove_process_set(members)


def test_join_lets_ranks_have_different_numbers_of_batches():
    model = small_model()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )
    reference = small_model()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(hvd.rank() + 1):
        step_once(model, optimizer, step)
    last = hvd.join()
    for step in range(hvd.size()):
        alone.zero_grad()
        (sum(loss_of(reference, q, step) for q in range(step, hvd.size())) / hvd.size()).backward()
        alone.step()
    hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.size() - 1)
    assert last == hvd.size() - 1
    assert_same_parameters(model, reference)


def test_changing_backward_passes_per_step():
    model, reference = small_model(), small_model()
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    alone = sgd(reference.parameters())
    for passes in (1, 2, 3, 1):
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        alone.zero_grad()
        for part in range(passes):
            loss_of(model, hvd.rank(), part).backward()
            (sum(loss_of(reference, q, part) for q in range(hvd.size())) / hvd.size()).backward()
        optimizer.step()
        alone.step()
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        optimizer.set_backward_passes_per_step(0)
    assert_same_parameters(model, reference)


def test_shutdown_and_init_between_steps():
    model, reference = small_model(), train_alone(sgd, steps=3)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters())
    for step in range(3):
        step_once(model, optimizer, step)
        hvd.shutdown()
        hvd.init(process_sets="dynamic")
    assert_same_parameters(model, reference)
