"""Comparison of parameters: fingerprints, the texts about what differs, and what it asks of the core."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import numpy as np
import pytest
from fake_core import FakeCore

from horovod.common import consistency
from horovod.common.consistency import ConsistencyCheck, Fingerprint, difference, fingerprint
from horovod.common.exceptions import HorovodConsistencyError
from horovod.common.process_sets import ProcessSet, global_process_set

Become = Callable[[int, int], FakeCore]
W = Fingerprint("w", "float32", (2, 3), 1)
B = Fingerprint("b", "float32", (3,), 2)


def other(f: Fingerprint, checksum: int = 99) -> Fingerprint:
    return Fingerprint(f.name, f.dtype, f.shape, checksum)


# --- fingerprints ----------------------------------------------------------------------------------------


def test_a_fingerprint_has_the_checksum_of_the_bytes():
    data = np.arange(6, dtype=np.float32)
    found = fingerprint("w", "float32", [2, 3], data)
    assert found == Fingerprint("w", "float32", (2, 3), zlib.crc32(data.tobytes()))


def test_parts_count_as_one_after_the_other():
    whole = np.arange(6, dtype=np.int64)
    assert fingerprint("w", "int64", [6], whole[:2], whole[2:]) == fingerprint(
        "w", "int64", [6], whole
    )


def test_one_changed_bit_changes_the_checksum():
    data = np.zeros(1000, np.float32)
    before = fingerprint("w", "float32", [1000], data)
    data.view(np.uint32)[777] ^= 1
    assert fingerprint("w", "float32", [1000], data) != before


@pytest.mark.parametrize("dtype", ["float16", "int8", "bool", "complex64", "float64"])
def test_arrays_of_any_strides_and_type_have_the_checksum_of_their_logical_order(dtype):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype)
    turned = array.transpose(2, 0, 1)[::-1]
    found = consistency.fingerprint_of_array("w", turned)
    assert found == Fingerprint("w", dtype, (4, 2, 3), zlib.crc32(turned.tobytes()))
    scalar = consistency.fingerprint_of_array("s", array[1, 2, 3])
    assert (scalar.shape, scalar.checksum) == ((), zlib.crc32(array[1, 2, 3].tobytes()))
    assert consistency.fingerprint_of_array("e", array[:0]).checksum == 0


# --- what differs -------------------------------------------------------------------------------------------


def test_the_first_differing_parameter_is_named_with_groups_of_ranks_the_largest_first():
    text = difference(
        {
            0: (40, [W, other(B, 0xFF)]),
            1: (40, [W, B]),
            2: (40, [W, B]),
            3: (40, [W, other(B, 0xEE)]),
        }
    )
    assert text.startswith(
        "After optimizer step 40 parameter 'b' (float32, shape [3], number 2 of 2) differs: its checksum is "
        "00000002 on ranks 1, 2; 000000ff on rank 0; 000000ee on rank 3. No other does. "
    )
    assert "broadcast" in text


def test_it_says_how_many_more_differ():
    two = difference({0: (1, [W, B]), 1: (1, [other(W), other(B)])})
    assert "parameter 'w'" in two and "So does 1 more." in two
    three = difference({0: (1, [W, B, B]), 1: (1, [other(W), other(B), other(B)])})
    assert "So do 2 more." in three


def test_other_names_shapes_types_and_counts_are_no_matter_of_values():
    renamed = Fingerprint("c", *("float32", (3,), 2))
    text = difference({0: (1, [W, B]), 1: (1, [W, renamed])})
    assert (
        "number 2 is 'b' (float32, shape [3]) on rank 0; 'c' (float32, shape [3]) on rank 1" in text
    )
    text = difference({0: (1, [W, B]), 1: (1, [W]), 2: (1, [W, B])})
    assert "(2 on ranks 0, 2; 1 on rank 1): number 2 is 'b'" in text and "none on rank 1" in text
    text = difference({0: (1, [Fingerprint("w", "float16", (2, 3), 1)]), 1: (1, [W])})
    assert "'w' (float16, shape [2, 3]) on rank 0" in text
    assert "differs" not in text


def test_names_can_be_left_out_of_the_comparison():
    renamed = Fingerprint("c", "float32", (3,), 3)
    text = difference({0: (1, [W, B]), 1: (1, [W, renamed])}, names_matter=False)
    assert "parameter 'b' (float32, shape [3], number 2 of 2) differs" in text


def test_different_steps_are_told_apart_from_values():
    text = difference({0: (2, [W]), 1: (3, [W])})
    assert "step 2 on rank 0; step 3 on rank 1" in text


def test_many_ranks_and_groups_are_cut():
    by_rank = {rank: (1, [other(W, rank if rank < 6 else 7)]) for rank in range(100)}
    text = difference(by_rank)
    assert "00000007 on ranks 6, 7, 8" in text and "and 78 more" in text
    assert "others on 3 more ranks" in text


# --- when and whether ----------------------------------------------------------------------------------


def test_a_check_is_due_every_so_many_steps():
    check = ConsistencyCheck(3, "c", global_process_set)
    assert [check.is_due() for _ in range(7)] == [False, False, True, False, False, True, False]


def test_where_the_broadcast_comes_after_the_first_step_that_is_not_compared():
    check = ConsistencyCheck(1, "c", global_process_set, first=2)
    assert [check.is_due() for _ in range(3)] == [False, True, True]


def test_where_an_optimizer_accumulates_itself_only_its_steps_count():
    check = ConsistencyCheck(2, "c", global_process_set)
    check.calls_per_step = 3
    due = [check.is_due() for _ in range(12)]
    assert [i + 1 for i, is_due in enumerate(due) if is_due] == [6, 12]


@pytest.mark.parametrize("value", [None, "", "0"])
def test_there_is_no_check_unless_it_is_asked_for(world: Become, monkeypatch, value):
    world(0, 2)
    monkeypatch.delenv("HOROVOD_CHECK_CONSISTENCY_STEPS", raising=False)
    if value is not None:
        monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", value)
    assert consistency.make_check("c", global_process_set) is None


def test_there_is_no_check_without_somebody_to_compare_with(world: Become, monkeypatch):
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", "2")
    world(0, 1)
    assert consistency.make_check("c", global_process_set) is None
    world(2, 3)
    assert consistency.make_check("c", global_process_set) is not None
    assert consistency.make_check("c", ProcessSet([0, 1])) is None


@pytest.mark.parametrize("value", ["-1", "often"])
def test_wrong_values_are_refused(world: Become, monkeypatch, value):
    world(0, 2)
    monkeypatch.setenv("HOROVOD_CHECK_CONSISTENCY_STEPS", value)
    with pytest.raises(ValueError, match="HOROVOD_CHECK_CONSISTENCY_STEPS"):
        consistency.make_check("c", global_process_set)


# --- comparing ------------------------------------------------------------------------------------------


def test_equal_parameters_cost_one_small_operation(world: Become):
    core = world(0, 1)
    ConsistencyCheck(1, "consistency", global_process_set).compare([W, B])
    assert [s["names"] for s in core.submissions] == [["allreduce.consistency"]]
    assert core.submissions[0]["inputs"][0][2] == (7,)


def test_the_digest_depends_on_everything_but_names_that_do_not_matter():
    digest = consistency._digest
    base = digest(5, [W, B], True)
    renamed = Fingerprint("c", "float32", (3,), 2)
    others = [[W], [B, W], [W, other(B)], [W, Fingerprint("b", "int32", (3,), 2)], [W, renamed]]
    assert all(digest(5, changed, True)[1:] != base[1:] for changed in others)
    assert digest(6, [W, B], True)[0] != base[0]
    assert digest(5, [W, B], False) == digest(5, [W, renamed], False)
    assert all(0 < number < 2**62 for number in base)


def test_ranks_that_differ_exchange_everything_and_raise(world: Become, monkeypatch):
    core = world(0, 1)
    check = ConsistencyCheck(1, "consistency", global_process_set)
    monkeypatch.setattr(check, "_agree", lambda numbers: (False, True))
    monkeypatch.setattr(consistency, "difference", lambda by_rank, names: repr(by_rank))
    check.is_due()
    with pytest.raises(HorovodConsistencyError) as raised:
        check.compare([W, B])
    assert str(raised.value) == repr({0: (1, [W, B])})
    assert [s["names"] for s in core.submissions] == [
        ["allgather.consistency.parameters.sz"],
        ["allgather.consistency.parameters.t"],
    ]


def test_where_a_rank_has_joined_nothing_is_exchanged(world: Become, monkeypatch):
    core = world(0, 1)
    check = ConsistencyCheck(1, "consistency", global_process_set)
    monkeypatch.setattr(check, "_agree", lambda numbers: (False, False))
    check.is_due()
    with pytest.raises(HorovodConsistencyError, match=r"After optimizer step 1 .* has joined"):
        check.compare([W, B])
    assert core.submissions == []


def test_that_it_cannot_be_done_is_said_once_by_one_rank(world: Become, monkeypatch):
    said: list[str] = []
    monkeypatch.setattr(
        consistency.logger, "warning", lambda text, *values: said.append(text % values)
    )
    world(1, 2)
    ConsistencyCheck(1, "consistency", global_process_set).excuse("it is noon")
    world(0, 2)
    check = ConsistencyCheck(1, "consistency", global_process_set)
    check.excuse("the moon is full")
    check.excuse("the moon is full")
    assert said == [
        "HOROVOD_CHECK_CONSISTENCY_STEPS is set, but parameters are not compared: the moon is full"
    ]
