"""HOROVOD_CHECK_CONSISTENCY_STEPS with torch: parameters that ranks have and should not have apart."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import horovod.torch as hvd
from horovod.common import collectives
from horovod.common.exceptions import HorovodConsistencyError

LAUNCHES = ["-np 2", "-np 3"]


@pytest.fixture(scope="module", autouse=True)
def _job() -> Iterator[None]:
    hvd.init(process_sets="dynamic")
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def _every_second_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "2")


def small_model() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def distributed(model: nn.Module, **options) -> torch.optim.Optimizer:
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return hvd.DistributedOptimizer(plain, model.named_parameters(), **options)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int,
    before: Callable[[int], None] = lambda step: None,
) -> None:
    """Steps from 1; `before` is called before each."""
    for step in range(1, steps + 1):
        before(step)
        optimizer.zero_grad()
        model(torch.full((2, 3), 1.0 + hvd.rank())).sum().backward()
        optimizer.step()


def everybody_else() -> str:
    others = list(range(1, hvd.size()))
    return f"rank {others[0]}" if len(others) == 1 else "ranks " + ", ".join(map(str, others))


def change(parameter: Tensor, at: tuple[int, ...], value: float, rank: int = 0) -> None:
    if hvd.rank() == rank:
        with torch.no_grad():
            parameter[at] = value


def test_equal_parameters_raise_nothing():
    model = small_model()
    optimizer = distributed(model)
    train(model, optimizer, 6)
    assert optimizer._consistency.steps == 6


def test_the_first_differing_parameter_is_named_on_all_ranks_at_the_next_check():
    model = small_model()
    optimizer = distributed(model)
    seen = []

    def tamper(step: int) -> None:
        seen.append(step)
        if step == 3:
            change(model[2].bias, (1,), 5.0)
            change(model[2].weight, (0, 0), 5.0)

    with pytest.raises(HorovodConsistencyError) as raised:
        train(model, optimizer, 10, tamper)
    assert seen == [1, 2, 3, 4]
    text = str(raised.value)
    assert text.startswith("After optimizer step 4 parameter '2.weight' (float32, shape [2, 4], ")
    assert "number 3 of 4) differs" in text
    assert "on rank 0" in text and f"on {everybody_else()}" in text
    assert "So does 1 more." in text
    if hvd.size() > 2:  # the larger group comes first
        assert text.index(everybody_else()) < text.index("on rank 0")
    assert len(set(hvd.allgather_object(text))) == 1


def test_the_job_goes_on_after_the_error():
    model = small_model()
    optimizer = distributed(model)
    change(model[0].weight, (0, 0), 9.0)
    with pytest.raises(HorovodConsistencyError):
        train(model, optimizer, 2)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    train(model, optimizer, 2)
    assert float(hvd.allreduce(torch.ones(()), op=hvd.Sum)) == hvd.size()


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_not_a_number_is_equal_to_itself(value):
    model = small_model()
    optimizer = distributed(model)
    with torch.no_grad():
        model[0].weight[0, 0] = value
    train(model, optimizer, 2)


def test_a_missing_broadcast_is_found():
    torch.manual_seed(hvd.rank())
    model = nn.Linear(3, 2)
    with pytest.raises(HorovodConsistencyError, match="'weight'"):
        train(model, distributed(model), 2)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.int8, torch.bool],
    ids=str,
)
def test_frozen_parameters_of_every_type_are_compared(dtype):
    model = small_model()
    model.extra = nn.Parameter(torch.zeros(5, dtype=dtype), requires_grad=False)
    optimizer = distributed(model)
    train(model, optimizer, 2)
    change(model.extra, (3,), 1.0)
    name = str(dtype).removeprefix("torch.")
    with pytest.raises(HorovodConsistencyError, match=rf"'extra' \({name}, shape \[5\]"):
        train(model, optimizer, 2)


def test_strides_do_not_matter_and_values_do():
    model = nn.Conv2d(3, 2, 3)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    if hvd.rank() == 0:
        model = model.to(memory_format=torch.channels_last)
    optimizer = distributed(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 3, 4, 4)).sum().backward()
        optimizer.step()


def test_parameters_without_elements_or_dimensions_are_compared():
    model = small_model()
    model.empty = nn.Parameter(torch.zeros(0, 3), requires_grad=False)
    model.scalar = nn.Parameter(torch.zeros(()), requires_grad=False)
    optimizer = distributed(model)
    train(model, optimizer, 2)
    change(model.scalar, (), 1.0, rank=1)
    with pytest.raises(HorovodConsistencyError, match=r"'scalar' \(float32, shape \[\]"):
        train(model, optimizer, 2)


def test_embeddings_with_sparse_gradients_are_compared():
    torch.manual_seed(1)
    model = nn.Embedding(6, 2, sparse=True)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters()
    )

    def step() -> None:
        optimizer.zero_grad()
        model(torch.tensor([hvd.rank(), 5])).sum().backward()
        optimizer.step()

    step()
    step()
    change(model.weight, (3, 0), 1.0)
    step()
    with pytest.raises(HorovodConsistencyError, match="'weight'"):
        step()


def test_with_several_passes_only_real_steps_count():
    model = small_model()
    optimizer = distributed(model, backward_passes_per_step=3)
    change(model[0].bias, (0,), 3.0)
    passes = 0
    with pytest.raises(HorovodConsistencyError, match="After optimizer step 2 "):
        while passes < 20:
            optimizer.zero_grad()
            for _ in range(3):
                model(torch.ones(2, 3)).sum().backward()
                passes += 1
            optimizer.step()
    assert passes == 6


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_a_gradient_scaler_skips_do_not_count(fused):
    model = small_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
    optimizer = hvd.DistributedOptimizer(plain, model.named_parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 3)).sum()
        if step == 1 and hvd.rank() == 0:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert optimizer._consistency.steps == 3


def test_a_compiled_model_is_compared():
    model = small_model()
    compiled = torch.compile(model, backend="eager")
    optimizer = distributed(model)
    train(compiled, optimizer, 2)
    change(model[0].weight, (1, 1), 2.0)
    with pytest.raises(HorovodConsistencyError, match=r"'0\.weight'"):
        train(compiled, optimizer, 2)


def test_other_numbers_of_parameters_are_reported():
    model = small_model()
    if hvd.rank() == 1:
        model.more = nn.Parameter(torch.zeros(2), requires_grad=False)
    with pytest.raises(HorovodConsistencyError) as raised:
        train(model, distributed(model), 2)
    text = str(raised.value)
    assert "ranks have different parameters" in text
    assert "5 on rank 1" in text
    assert "is none on rank" in text or "'more' (float32, shape [2]) on rank 1" in text


def test_other_names_are_reported():
    model = small_model()
    model.register_parameter(f"of_rank_{min(hvd.rank(), 1)}", nn.Parameter(torch.zeros(2), False))
    with pytest.raises(HorovodConsistencyError) as raised:
        train(model, distributed(model), 2)
    text = str(raised.value)
    assert "number 1 is" in text
    assert "'of_rank_0' (float32, shape [2]) on rank 0" in text
    assert f"'of_rank_1' (float32, shape [2]) on {everybody_else()}" in text


def test_ranks_that_compare_after_different_steps_are_told():
    model = small_model()
    optimizer = distributed(model)
    if hvd.rank() == 0:
        optimizer._consistency.steps = 10
    with pytest.raises(HorovodConsistencyError, match="different numbers of optimizer steps"):
        train(model, optimizer, 2)


def test_members_of_a_process_set_compare_among_themselves():
    if hvd.size() < 3:
        pytest.skip("needs a rank outside of the set")
    subset = hvd.add_process_set([0, 1])
    try:
        model = small_model()
        if hvd.rank() > 1:
            with torch.no_grad():
                model[0].weight += hvd.rank()
        optimizer = distributed(model, process_set=subset)
        train(model, optimizer, 4)
        assert (optimizer._consistency is None) == (hvd.rank() > 1)
        change(model[0].weight, (0, 0), 8.0)
        if hvd.rank() < 2:
            with pytest.raises(HorovodConsistencyError, match=r"on rank 0; .* on rank 1"):
                train(model, optimizer, 2)
    finally:
        hvd.remove_process_set(subset)


@pytest.mark.parametrize("tampered", [False, True])
def test_ranks_that_have_joined_are_left_out(tampered):
    if hvd.size() < 3:
        pytest.skip("needs two ranks that go on")
    model = small_model()
    optimizer = distributed(model)
    train(model, optimizer, 2)
    if hvd.rank() != 2:
        if tampered:
            change(model[0].weight, (0, 0), 8.0)
            with pytest.raises(
                HorovodConsistencyError, match=r"step 4 .* because a rank has joined"
            ):
                train(model, optimizer, 2)
        else:
            train(model, optimizer, 2)
    hvd.join()


def test_two_optimizers_compare_each_its_own():
    one, other = small_model(), nn.Linear(2, 2)
    hvd.broadcast_parameters(other.state_dict(), root_rank=0)
    first, second = distributed(one), distributed(other)
    change(other.weight, (0, 0), 4.0)
    train(one, first, 2)
    with pytest.raises(HorovodConsistencyError, match="'weight'"):
        for _ in range(2):
            second.zero_grad()
            other(torch.ones(2)).sum().backward()
            second.step()


def test_copies_and_pickles_of_the_optimizer_go_on_comparing():
    model = small_model()
    optimizer = distributed(model)
    for make in (copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        assert make(optimizer)._consistency is not None


@pytest.mark.parametrize("value", ["", "0"])
def test_it_is_off_by_default_and_then_sends_nothing(monkeypatch, value):
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", value)
    model = small_model()
    optimizer = distributed(model)
    assert optimizer._consistency is None
    change(model[0].weight, (0, 0), 8.0)
    names = []
    submit = collectives.submit
    monkeypatch.setattr(
        collectives,
        "submit",
        lambda *args, **options: (names.append(options["name"]), submit(*args, **options))[1],
    )
    train(model, optimizer, 4)
    assert not any("consistency" in (name or "") for name in names)


def test_a_wrong_value_is_refused_where_the_optimizer_is_made(monkeypatch):
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "often")
    with pytest.raises(ValueError, match="HOROVOD_CHECK_CONSISTENCY_STEPS='often'"):
        distributed(small_model())
