"""The names of torch's elastic training: they can be imported, using one raises."""

from __future__ import annotations

import pytest

import horovod.torch as hvd
from horovod.common.elastic import ObjectState
from horovod.torch.elastic import sampler, state

CLASSES = [
    state.TorchState,
    state.StateHandler,
    state.ModelStateHandler,
    state.OptimizerStateHandler,
    state.SamplerStateHandler,
    sampler.ElasticSampler,
]
TEXT = "^Elastic training is not available yet"


@pytest.mark.parametrize("cls", CLASSES)
def test_a_class_can_neither_be_instantiated_nor_subclassed(cls):
    text = rf"{TEXT}, so {cls.__module__}\.{cls.__name__} cannot"
    with pytest.raises(NotImplementedError, match=text):
        cls(None)
    with pytest.raises(NotImplementedError, match=text):
        type("Mine", (cls,), {})


def test_functions_raise_when_called():
    with pytest.raises(NotImplementedError, match=f"{TEXT}.*elastic.run cannot"):

        @hvd.elastic.run
        def train(state):
            pass

    with pytest.raises(NotImplementedError, match=f"{TEXT}.*get_handler_registry"):
        hvd.elastic.get_handler_registry()
    with pytest.raises(NotImplementedError, match=f"{TEXT}.*set_handler_registry"):
        hvd.elastic.set_handler_registry([])


def test_the_package_has_all_names_and_no_others():
    for cls in CLASSES:
        assert getattr(hvd.elastic, cls.__name__) is cls
    assert issubclass(hvd.elastic.TorchState, ObjectState)
    assert not hasattr(hvd.elastic, "anything")
