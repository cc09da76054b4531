"""Arguments of DistributedOptimizer: names, groups, and what contradicts what."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import horovod.torch as hvd
from horovod.torch.parameter_groups import resolve_groups, resolve_names


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))


def groups_of(model):
    return [list(layer.parameters()) for layer in model]


def test_default_names(model):
    names = resolve_names(groups_of(model), None)
    assert list(names.values()) == [f"allreduce.noname.{i}.{j}" for i in (0, 1) for j in (0, 1)]


def test_given_names_may_come_from_a_generator_and_cover_more(model):
    names = resolve_names(groups_of(model)[1:], model.named_parameters())
    assert list(names.values()) == ["1.weight", "1.bias"]


@pytest.mark.parametrize(
    ("named", "text"),
    [
        (lambda m: m.parameters(), "sequence of tuples"),
        (lambda m: [("a", 3)], "sequence of tuples"),
        (lambda m: 5, r"sequence of tuples.*it is a int"),
        (lambda m: "weights", r"sequence of tuples.*contains a str"),
        (lambda m: [(0, p) for p in m.parameters()], r"shape \[2, 2\] is 0, not a string"),
        (lambda m: [("a", p) for p in m.parameters()], "duplicates: a"),
        (lambda m: list(m.named_parameters())[:2], r"without a name: \[\[1, 2\], \[1\]\]"),
    ],
)
def test_wrong_names(model, named, text):
    with pytest.raises(ValueError, match=text):
        resolve_names(groups_of(model), named(model))


def test_numbers_of_groups(model):
    names = resolve_names(groups_of(model), None)
    parameters = list(names)
    for count in (1, 2, 3, 4, 9):
        groups = resolve_groups(count, names, hvd.global_process_set)
        assert len(groups) == min(count, 4)
        flat = [parameter for group in groups for parameter in group]
        assert all(one is other for one, other in zip(flat, parameters, strict=True))
    assert resolve_groups(None, names, hvd.global_process_set) == []
    assert resolve_groups(0, names, hvd.global_process_set) == []


def test_listed_groups_and_the_rest(model):
    names = resolve_names(groups_of(model), None)
    first, second, third, fourth = names
    stranger = torch.ones(1)
    groups = resolve_groups([[second], [fourth, stranger]], names, hvd.global_process_set)
    ids = [[id(parameter) for parameter in group] for group in groups]
    assert ids == [[id(second)], [id(fourth)], [id(first), id(third)]]


@pytest.mark.parametrize("groups", [-1, "two", 1.5, [1], [[1]], ({},)])
def test_wrong_groups(model, groups):
    names = resolve_names(groups_of(model), None)
    with pytest.raises(ValueError, match="groups"):
        resolve_groups(groups, names, hvd.global_process_set)


def test_a_parameter_in_two_groups(model):
    names = resolve_names(groups_of(model), None)
    first = next(iter(names))
    with pytest.raises(ValueError, match="more than once"):
        resolve_groups([[first], [first]], names, hvd.global_process_set)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, ValueError),
        ({"backward_passes_per_step": 0}, ValueError),
        ({"backward_passes_per_step": -1}, ValueError),
        ({"op": hvd.Adasum}, NotImplementedError),
    ],
)
def test_contradicting_options(model, options, error):
    with pytest.raises(error):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


def test_num_groups_is_deprecated_and_used_as_groups(model):
    with pytest.warns(DeprecationWarning, match="groups"):
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), num_groups=2
        )
    assert [len(group) for group in optimizer._grouping] == [2, 2]


def test_before_init_wrapping_says_so(model):
    hvd.shutdown()
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))


def test_alone_no_hook_is_set_and_step_after_synchronize_warns_once(model):
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert not any(state.hook for state in optimizer._reducer._states.values())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.synchronize()
    with pytest.warns(UserWarning, match="skip_synchronize") as caught:
        optimizer.step()
    assert len(caught) == 1
