"""Broadcast of parameters, of optimizer state and of objects."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch_reference import small_model

import horovod.torch as hvd

LAUNCHES = ["-np 1", "-np 2", "-np 3"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


FORMS = {
    "dict": lambda m: dict(m.state_dict()),
    "ordered dict": lambda m: OrderedDict(reversed(m.state_dict().items())),
    "pairs": lambda m: list(m.named_parameters()),
    "generator of pairs": lambda m: m.named_parameters(),
    "tensors": lambda m: list(m.parameters()),
    "generator of tensors": lambda m: m.parameters(),
}


@pytest.mark.parametrize("form", FORMS)
def test_broadcast_parameters(form):
    root = hvd.size() - 1
    model = small_model(seed=hvd.rank())
    hvd.broadcast_parameters(FORMS[form](model), root_rank=root)
    for mine, theirs in zip(model.parameters(), small_model(seed=root).parameters(), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.requires_grad


def test_dicts_in_different_order_are_paired_by_name():
    names = ["a", "b", "c"]
    order = names if hvd.rank() % 2 else names[::-1]
    tensors = {name: torch.full((names.index(name) + 1,), float(hvd.rank())) for name in order}
    hvd.broadcast_parameters(tensors, root_rank=0)
    assert not any(tensor.any() for tensor in tensors.values())


@pytest.mark.parametrize("wrong", [None, 3, "abc", torch.ones(2), [1, 2], {"a": 3}, [("a", None)]])
def test_broadcast_parameters_refuses_other_types(wrong):
    with pytest.raises(ValueError, match="invalid params of type"):
        hvd.broadcast_parameters(wrong, root_rank=0)


OPTIMIZERS = {
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True, betas=(0.8, 0.9)),
    "Adam-fused": lambda p: torch.optim.Adam(p, lr=0.05, fused=True),
    "Adam-lr-tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.05)),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.05),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.05),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=4),
    "Muon": lambda p: torch.optim.Muon(p, lr=0.05),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.05),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.05),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD-stateless": lambda p: torch.optim.SGD(p, lr=0.1),
    "SparseAdam": lambda p: torch.optim.SparseAdam(list(p), lr=0.1),
}


def use(optimizer, model, seed):
    """Steps with gradients that differ between ranks, so that states do."""
    generator = torch.Generator().manual_seed(seed)

    def closure():
        for parameter in model.parameters():
            gradient = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            sparse = isinstance(optimizer, torch.optim.SparseAdam)
            parameter.grad = gradient.to_sparse(1) if sparse else gradient
        return torch.tensor(0.0)

    for _ in range(3):
        closure()
        optimizer.step(*([closure] if isinstance(optimizer, torch.optim.LBFGS) else []))


def assert_equal(mine, theirs, path="state"):
    assert type(mine) is type(theirs), path
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype, path
        assert torch.equal(mine, theirs), path
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs), path
        for key in mine:
            assert_equal(mine[key], theirs[key], f"{path}.{key}")
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs), path
        for i, (one, other) in enumerate(zip(mine, theirs, strict=True)):
            assert_equal(one, other, f"{path}.{i}")
    else:
        assert mine == theirs, path


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("root_used", [True, False])
@pytest.mark.parametrize("others_used", [True, False])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_gets_the_roots_state(name, root_used, others_used, wrapped):
    """Fresh or used on either side; parameters and gradients are not touched."""
    root = hvd.size() - 1
    model = small_model()
    optimizer = OPTIMIZERS[name](model.parameters())
    if wrapped:
        optimizer = hvd.DistributedOptimizer(optimizer, groups=0)
    expected_model = small_model()
    expected = OPTIMIZERS[name](expected_model.parameters())
    if root_used:
        use(expected, expected_model, seed=root)
    used = root_used if hvd.rank() == root else others_used
    if used:
        plain = OPTIMIZERS[name](model.parameters())
        use(plain, model, seed=hvd.rank())
        optimizer.state.update(plain.state)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    gradients = [parameter.grad for parameter in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, root_rank=root)
    mine = optimizer.state_dict()
    theirs = expected.state_dict()
    assert_equal(mine["state"], theirs["state"])
    assert_equal(mine["param_groups"], theirs["param_groups"])
    for parameter, value, gradient in zip(model.parameters(), before, gradients, strict=True):
        assert torch.equal(parameter, value)
        assert parameter.grad is gradient


def test_the_next_step_is_equal_on_all_ranks():
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    if hvd.rank() == 0:
        use(optimizer, model, seed=0)
    hvd.broadcast_parameters(model.named_parameters(), 0)
    hvd.broadcast_optimizer_state(optimizer, 0)
    distributed = hvd.DistributedOptimizer(optimizer)
    distributed.load_state_dict(optimizer.state_dict())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float(hvd.rank()))
    distributed.step()
    for parameter in model.parameters():
        assert torch.equal(hvd.broadcast(parameter, 0), parameter)


def test_options_keep_their_types_also_without_state():
    first, second = small_model().parameters()
    optimizer = torch.optim.SGD([{"params": [first]}, {"params": [second], "lr": 3}], lr=0.1)
    options = {
        "none": None,
        "flag": True,
        "pair": (1, 2.5),
        "words": "abc",
        "lr": 0.25,
        "many": [1],
    }
    if hvd.rank() == 0:
        optimizer.param_groups[0].update(options)
    hvd.broadcast_optimizer_state(optimizer, 0)
    group = optimizer.param_groups[0]
    for key, value in options.items():
        assert group[key] == value
        assert type(group[key]) is type(value)
    assert optimizer.param_groups[1]["lr"] == 3
    assert group["params"] == [first]


def test_frozen_parameters_and_groups_added_later():
    model = small_model()
    first, second = model.parameters()
    first.requires_grad_(False)
    optimizer = torch.optim.Adam([first], lr=0.1)
    optimizer.add_param_group({"params": [second], "lr": 0.2})
    if hvd.rank() == 0:
        second.grad = torch.ones_like(second)
        optimizer.step()
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert first not in optimizer.state
    assert optimizer.state[second]["step"].item() == 1
    assert optimizer.state[second]["step"].device.type == "cpu"


def test_state_tensors_that_fit_are_overwritten_in_place():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    use(optimizer, model, seed=hvd.rank())
    kept = [optimizer.state[parameter]["momentum_buffer"] for parameter in model.parameters()]
    hvd.broadcast_optimizer_state(optimizer, 0)
    for parameter, buffer in zip(model.parameters(), kept, strict=True):
        assert optimizer.state[parameter]["momentum_buffer"] is buffer


def test_different_parameter_groups_are_an_error_on_the_ranks_that_differ():
    if hvd.size() == 1:
        pytest.skip("one rank cannot differ")
    first, second = small_model().parameters()
    optimizer = torch.optim.SGD([first] if hvd.rank() else [first, second], lr=0.1)
    if hvd.rank() == 0:
        hvd.broadcast_optimizer_state(optimizer, 0)
    else:
        with pytest.raises(ValueError, match="add the same parameter groups"):
            hvd.broadcast_optimizer_state(optimizer, 0)
    hvd.barrier()


def test_objects():
    obj = {"rank": hvd.rank(), "weights": torch.full((2,), float(hvd.rank()))}
    received = hvd.broadcast_object(obj, root_rank=hvd.size() - 1, name="checkpoint")
    assert received["rank"] == hvd.size() - 1
    assert torch.equal(received["weights"], torch.full((2,), hvd.size() - 1.0))
    assert hvd.broadcast_object(obj)["rank"] == 0
    everyone = hvd.allgather_object({"rank": hvd.rank(), "pad": "x" * 10 * hvd.rank()})
    assert [item["rank"] for item in everyone] == list(range(hvd.size()))


def test_within_a_process_set():
    if hvd.size() < 3:
        pytest.skip("needs a rank outside the set")
    members = hvd.add_process_set([0, 2])
    if members.included():
        model = small_model(seed=hvd.rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + hvd.rank(), momentum=0.5)
        hvd.broadcast_parameters(model.state_dict(), 2, process_set=members)
        hvd.broadcast_optimizer_state(optimizer, 2, process_set=members)
        assert optimizer.param_groups[0]["lr"] == 2.1
        assert torch.equal(model[0].weight, small_model(seed=2)[0].weight)
    hvd.remove_process_set(members)


def test_models_with_buffers_of_other_dtypes():
    model = nn.BatchNorm1d(3)
    model.running_mean += hvd.rank()
    model.num_batches_tracked += hvd.rank()
    hvd.broadcast_parameters(model.state_dict(), root_rank=hvd.size() - 1)
    assert model.running_mean.tolist() == [hvd.size() - 1.0] * 3
    assert model.num_batches_tracked.item() == hvd.size() - 1
