"""Names, handles and checks of collectives; a stand-in core records what would be sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from fake_core import FakeCore

from horovod.common import collectives, engine
from horovod.common.collectives import HostTensor, barrier, join, poll, resolve_op, synchronize
from horovod.common.dtypes import (
    SUPPORTED,
    Adasum,
    Average,
    Collective,
    DataType,
    Max,
    Min,
    ReduceOp,
    Sum,
)
from horovod.common.exceptions import HorovodInternalError
from horovod.common.process_sets import ProcessSet, add_process_set, global_process_set

UNEVEN_ROWS = (
    "splits not provided, but first dimension of tensor is not an even multiple of the "
    "number of workers."
)
Become = Callable[[int, int], FakeCore]
ROW = (0, DataType.FLOAT32, (0,))


def submit(
    kind: Collective = Collective.ALLREDUCE, tensor: HostTensor = ROW, **options: Any
) -> int:
    moves_out = kind in (Collective.ALLREDUCE, Collective.BROADCAST)
    tensors = options.pop("tensors", [tensor])
    options.setdefault("name", None)
    options.setdefault("finish", lambda outputs: outputs)
    return collectives.submit(kind, tensors, tensors if moves_out else None, **options)


# --- names and handles ---


def test_a_name_gets_the_operation_in_front(world: Become) -> None:
    core = world(0, 1)
    submit(name="x")
    submit(Collective.ALLGATHER, name="x")
    submit(name="x", grouped=True, tensors=[ROW, ROW])
    assert [s["names"] for s in core.submissions] == [
        ["allreduce.x"],
        ["allgather.x"],
        ["grouped_allreduce.x_1of2", "grouped_allreduce.x_2of2"],
    ]
    assert [s["group"] for s in core.submissions] == ["", "", "grouped_allreduce.x"]
    assert [s["cacheable"] for s in core.submissions] == [True, True, True]


def test_memory_is_the_hosts_unless_a_door_says_otherwise(world: Become) -> None:
    core = world(0, 1)
    submit()
    submit(device=0)
    assert [s["device"] for s in core.submissions] == [-1, 0]


def test_operations_without_a_name_are_numbered(world: Become) -> None:
    core = world(0, 1)
    submit()
    submit(Collective.BROADCAST, root_rank=0)
    assert [s["names"][0] for s in core.submissions] == ["allreduce.noname.1", "broadcast.noname.2"]
    assert not core.submissions[0]["cacheable"]


def test_a_submission_that_fails_consumes_a_number(world: Become) -> None:
    core = world(0, 1)
    submit()
    with pytest.raises(ValueError):
        submit(Collective.BROADCAST, root_rank=7)
    submit()
    assert [s["names"][0] for s in core.submissions] == ["allreduce.noname.1", "allreduce.noname.3"]


def test_named_operations_of_some_ranks_leave_the_numbers_in_step(world: Become) -> None:
    core = world(0, 1)
    submit(name="only here")
    barrier()
    submit()
    assert core.submissions[-1]["names"] == ["allreduce.noname.1"]


def test_an_operation_on_a_subset_does_not_change_names_on_the_others(world: Become) -> None:
    core = world(0, 2)
    some = add_process_set([0])
    submit(process_set=some)
    submit()
    assert [s["names"][0] for s in core.submissions[1:]] == [
        "allreduce.noname.1",
        "allreduce.noname.1",
    ]


def test_the_handle_gives_what_finish_makes_of_the_outputs_once(world: Become) -> None:
    world(0, 1)
    handle = submit(
        Collective.ALLGATHER, finish=lambda outputs: [output.shape for output in outputs]
    )
    assert synchronize(handle) == [(0,)]
    assert synchronize(handle) is None
    # Where the caller gave the memory there is nothing to hand out.
    assert synchronize(submit(finish=lambda outputs: outputs)) == []
    with pytest.raises(ValueError, match="no operation with handle"):
        poll(handle)


def test_an_empty_group_is_done_at_once(world: Become) -> None:
    core = world(0, 1)
    handle = submit(grouped=True, tensors=[])
    assert poll(handle)
    assert synchronize(handle) == []
    assert core.submissions == []


def test_waiting_makes_an_operation_urgent_unless_it_is(world: Become) -> None:
    core = world(0, 1)
    synchronize(submit())
    synchronize(submit(urgent=True))
    assert core.marked_urgent == [0]


def test_memory_is_kept_while_ctrl_c_interrupts_the_wait(world: Become) -> None:
    core = world(0, 1)
    handle = submit()
    core.error = KeyboardInterrupt()  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        synchronize(handle)
    assert synchronize(handle) is not None


def test_a_failed_operation_forgets_its_handle(world: Become) -> None:
    core = world(0, 1)
    handle = submit()
    core.error = HorovodInternalError("Mismatched data types")
    with pytest.raises(HorovodInternalError, match="Mismatched"):
        synchronize(handle)
    assert synchronize(handle) is None


def test_outstanding_handles_fail_after_shutdown(world: Become) -> None:
    world(0, 1)
    handle = submit()
    collectives.end_round()
    engine.state.active = False
    assert poll(handle)
    with pytest.raises(HorovodInternalError, match=r"Horovod has been shut down\. This was caused"):
        synchronize(handle)
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        submit()


def test_join_and_barrier(world: Become) -> None:
    core = world(0, 2)
    join()
    barrier()
    assert [(s["kind"], s["names"]) for s in core.submissions] == [
        (Collective.JOIN, ["join.noname"]),
        (Collective.BARRIER, ["barrier.noname"]),
    ]


# --- operators and factors ---


def test_average_is_sum_divided_by_the_size_of_the_set(world: Become) -> None:
    core = world(0, 4)
    some = add_process_set([0, 1])
    submit(op=Average, postscale=3.0)
    submit(op=Average, process_set=some)
    assert [(s["op"], s["postscale"]) for s in core.submissions[1:]] == [(1, 0.75), (1, 0.5)]


def test_average_and_op_together_are_an_error() -> None:
    with pytest.raises(ValueError) as error:
        resolve_op(True, Sum)
    assert str(error.value) == (
        "The op parameter supersedes average. Please provide only one of them."
    )


def test_the_old_parameter_average_warns() -> None:
    with pytest.warns(DeprecationWarning):
        assert resolve_op(True, None) is Average
    with pytest.warns(DeprecationWarning):
        assert resolve_op(False, None) is Sum
    assert resolve_op(None, None) is Average
    assert resolve_op(None, 3) is Min


def test_what_is_no_operator_is_an_error(world: Become) -> None:
    with pytest.raises(ValueError, match="op=17 is not one of"):
        resolve_op(None, 17)


def test_adasum_says_that_it_comes_later(world: Become) -> None:
    world(0, 1)
    with pytest.raises(NotImplementedError, match="Adasum is not available yet"):
        submit(op=Adasum)


@pytest.mark.parametrize("op", [Min, Max, Adasum])
def test_reducescatter_knows_average_and_sum_only(world: Become, op: ReduceOp) -> None:
    world(0, 1)
    with pytest.raises(RuntimeError) as error:
        submit(Collective.REDUCESCATTER, op=op)
    assert str(error.value) == "Reducescatter currently only supports AVERAGE and SUM."


def test_an_operator_that_a_dtype_does_not_have_is_named(world: Become) -> None:
    core = world(0, 1)
    with pytest.raises(ValueError, match=r"allreduce\.x: Min is not defined for complex64 tensors"):
        submit(tensor=(0, DataType.COMPLEX64, (1,)), op=Min, name="x")
    with pytest.raises(ValueError, match=r"Average is not defined for bool tensors\. Use Sum"):
        submit(tensor=(0, DataType.BOOL, (1,)), op=Average)
    assert core.submissions == []


def test_nothing_of_a_group_is_submitted_when_one_member_is_wrong(world: Become) -> None:
    core = world(0, 1)
    wrong = (0, DataType.BOOL, (1,))
    with pytest.raises(ValueError, match=r"grouped_allreduce\.g_2of2"):
        submit(tensors=[ROW, wrong], grouped=True, op=Average, name="g")
    assert core.submissions == []


def test_the_table_of_operators_is_that_of_the_core() -> None:
    complex_types = {DataType.COMPLEX64, DataType.COMPLEX128}
    for dtype in DataType:
        assert SUPPORTED[Sum][dtype]
        assert SUPPORTED[Average][dtype] == (dtype is not DataType.BOOL)
        assert SUPPORTED[Min][dtype] == (dtype not in complex_types)
        assert not SUPPORTED[Adasum][dtype]


# --- process sets ---


@pytest.mark.parametrize(
    ("kind", "title"), [(Collective.ALLREDUCE, "Allreduce"), (Collective.ALLGATHER, "Allgather")]
)
def test_a_set_that_is_not_registered_is_an_error(
    world: Become, kind: Collective, title: str
) -> None:
    world(0, 2)
    with pytest.raises(ValueError) as error:
        submit(kind, process_set=ProcessSet([0]))
    assert str(error.value) == (
        f"{title}: Process set provided does not exist, or has not been registered."
    )


def test_a_set_of_an_earlier_round_is_an_error_even_if_its_id_exists(world: Become) -> None:
    world(0, 3)
    stale = ProcessSet([0, 1])
    stale.process_set_id = 1
    add_process_set([0, 2])
    with pytest.raises(ValueError, match="does not exist"):
        submit(process_set=stale)


def test_a_rank_outside_the_set_gets_an_error(world: Become) -> None:
    world(1, 2)
    foreign = add_process_set([0])
    with pytest.raises(ValueError) as error:
        submit(process_set=foreign)
    assert str(error.value) == "Allreduce: Rank 1 is not a member of the provided process set."
    with pytest.raises(ValueError, match="Barrier: Rank 1 is not a member"):
        barrier(foreign)


def test_the_root_must_be_in_the_set_and_is_a_global_rank(world: Become) -> None:
    core = world(1, 3)
    some = add_process_set([1, 2])
    submit(Collective.BROADCAST, root_rank=2, process_set=some)
    assert core.submissions[-1]["root"] == 2
    with pytest.raises(ValueError) as error:
        submit(Collective.BROADCAST, root_rank=0, process_set=some)
    assert str(error.value) == "broadcast received invalid root rank 0 for provided process set"


# --- shapes and splits ---


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (Collective.ALLGATHER, "ALLGATHER"),
        (Collective.ALLTOALL, "ALLTOALL"),
        (Collective.REDUCESCATTER, "REDUCESCATTER"),
    ],
)
def test_scalars_are_refused_where_rows_are_needed(
    world: Become, kind: Collective, word: str
) -> None:
    world(0, 1)
    text = f"Process-set rank zero tried to {word} a rank-zero tensor."
    with pytest.raises(ValueError, match=text):
        submit(kind, (0, DataType.FLOAT32, ()))


@pytest.mark.parametrize(
    ("rows", "splits", "text"),
    [
        (4, [4], "Number of entries in splits does not equal number of workers."),
        (4, [3, 2], "Sum of splits entries is greater than the first dimension of tensor."),
        (4, [5, -1], "alltoall expects splits that are not negative, not [5, -1]."),
        (
            3,
            None,
            UNEVEN_ROWS,
        ),
    ],
)
def test_splits_that_do_not_fit(
    world: Become, rows: int, splits: list[int] | None, text: str
) -> None:
    world(0, 2)
    with pytest.raises(ValueError) as error:
        submit(Collective.ALLTOALL, (0, DataType.FLOAT32, (rows,)), splits=splits)
    assert str(error.value) == text


def test_splits_are_equal_when_none_are_given(world: Become) -> None:
    core = world(0, 2)
    submit(Collective.ALLTOALL, (0, DataType.FLOAT32, (6, 2)))
    assert core.submissions[0]["splits"] == [3, 3]


@pytest.mark.parametrize(
    ("dimensions", "is_int32", "text"),
    [
        (2, True, "alltoall expects a 1D splits tensor"),
        (1, False, "alltoall expects splits to contain 32-bit integer elements."),
    ],
)
def test_the_form_of_splits(dimensions: int, is_int32: bool, text: str) -> None:
    with pytest.raises(ValueError) as error:
        collectives.check_splits(dimensions, is_int32)
    assert str(error.value) == text


def test_a_fork_can_neither_submit_nor_wait(world: Become) -> None:
    world(0, 2)
    handle = submit()
    engine.state.active, engine.state.forked = False, True
    for call in (submit, lambda: synchronize(handle), lambda: poll(handle), barrier):
        with pytest.raises(ValueError, match=r"was forked after hvd\.init"):
            call()
    assert global_process_set.included()
    assert engine.identity().rank == 0
