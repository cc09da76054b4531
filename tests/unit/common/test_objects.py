"""Objects through bytes, with a stand-in core that answers like a job of one rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fake_core import FakeCore

from horovod.common.objects import allgather_object, broadcast_object

Become = Callable[[int, int], FakeCore]


def test_the_root_gets_its_own_object_back(world: Become) -> None:
    core = world(0, 1)
    thing = {"a": [1, 2]}
    assert broadcast_object(thing, 0, name="state") is thing
    assert [s["names"] for s in core.submissions] == [["broadcast.state.sz"], ["broadcast.state.t"]]


def test_without_a_name_the_type_of_the_object_does_not_matter(world: Become) -> None:
    core = world(0, 1)
    broadcast_object(None)
    assert [s["names"] for s in core.submissions] == [
        ["broadcast.noname.1"],
        ["broadcast.noname.2"],
    ]


@pytest.mark.parametrize("thing", [None, 7, "text", {"deep": [lambda: 3]}])
def test_objects_are_gathered(world: Become, thing: object) -> None:
    core = world(0, 1)
    (answer,) = allgather_object(thing, name="o")
    assert type(answer) is type(thing)
    assert [s["names"] for s in core.submissions] == [["allgather.o.sz"], ["allgather.o.t"]]


def test_a_wrong_root_is_an_error(world: Become) -> None:
    world(0, 1)
    with pytest.raises(ValueError, match="invalid root rank 3"):
        broadcast_object(1, 3)
