"""The names of elastic training: they can be imported, using one says that it is not there yet."""

from __future__ import annotations

import pytest

from horovod.common import elastic

TEXT = r"^Elastic training is not available yet, so horovod\.common\.elastic\.{} cannot be used"


@pytest.mark.parametrize("name", ["State", "ObjectState"])
def test_a_class_can_neither_be_instantiated_nor_subclassed(name: str) -> None:
    cls = getattr(elastic, name)
    with pytest.raises(NotImplementedError, match=TEXT.format(name)):
        cls(bcast_object=None, get_rank=None)
    with pytest.raises(NotImplementedError, match=TEXT.format(name)):
        type("Mine", (cls,), {})
    with pytest.raises(NotImplementedError, match=TEXT.format(name)):
        type("Mine", (dict, cls), {})


def test_the_loop_cannot_be_entered() -> None:
    with pytest.raises(NotImplementedError, match=TEXT.format("run_fn")):
        elastic.run_fn(lambda state: None, lambda: None)


def test_a_state_of_objects_is_a_state() -> None:
    assert issubclass(elastic.ObjectState, elastic.State)
