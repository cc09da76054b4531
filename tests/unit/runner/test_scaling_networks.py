"""The layers of the known networks."""

from __future__ import annotations

import pytest

from horovod.runner.scaling.networks import NETWORKS, program_of
from horovod.runner.scaling.programs import Submit, Wait

# Parameters as everybody counts them; multiplications per image in 1e9, to three digits.
KNOWN = {
    "vgg16": (138_357_544, 15.5),
    "resnet101": (44_549_160, 7.80),
    "inception3": (23_834_568, 5.71),
}


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_parameters_and_multiplications_are_those_of_the_papers(name: str) -> None:
    parameters, multiplications = KNOWN[name]
    layers = NETWORKS[name]()
    assert sum(layer.parameters for layer in layers) == parameters
    assert sum(layer.multiplications for layer in layers) / 1e9 == pytest.approx(
        multiplications, rel=5e-3
    )


def test_the_last_layer_is_ready_first_and_the_first_when_the_step_ends() -> None:
    program = program_of(NETWORKS["vgg16"](), 0.3)
    submits = [action for action in program.actions if isinstance(action, Submit)]
    assert submits[0].name.startswith("fc16")
    assert submits[0].gap == pytest.approx(0.1, rel=0.01)  # the forward pass, and a small layer
    assert submits[-1].name.startswith("conv1.")
    assert isinstance(program.actions[-1], Wait)
    assert program.compute == pytest.approx(0.3)
    assert program.bytes == 4 * KNOWN["vgg16"][0]
