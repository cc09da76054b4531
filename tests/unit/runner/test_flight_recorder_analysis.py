"""Divergences that were planted in simulated ranks are found, with the right rank and kind."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from flight_recorder_simulator import (
    GRADIENTS,
    Action,
    Call,
    Die,
    Stay,
    Wait,
    begin,
    join,
    simulate,
    start,
    step,
    training,
)

from horovod.runner.flight_recorder import findings as kinds
from horovod.runner.flight_recorder.analysis import analyse
from horovod.runner.flight_recorder.findings import Finding

SIZES = [2, 3, 4, 64]
MANY = [3, 4, 64]  # where the smaller group can be told
Program = list[Action]


def first_of(programs: Sequence[Program], **options) -> Finding:
    return analyse(simulate(programs, **options))[0]


def one_differs(
    size: int, usual: Callable[[int], Program], odd: Program, culprit: int
) -> list[Program]:
    return [odd if rank == culprit else usual(rank) for rank in range(size)]


def text(finding: Finding) -> str:
    return " ".join([*finding.sentences, *finding.evidence])


# --- nothing wrong ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, *SIZES])
@pytest.mark.parametrize("capacity", [2000, 12])
def test_ranks_that_do_the_same_in_any_order_have_not_diverged(size, capacity):
    programs = [training(6, seed=rank) for rank in range(size)]
    found = analyse(simulate(programs, seed=size, capacity=capacity))
    assert [finding.kind for finding in found] == [kinds.NONE]
    assert found[0].ranks == ()


def test_without_divergence_it_says_who_came_last_and_what_takes_longest():
    dumps = simulate([training(4), training(4)], seed=3)
    sentences = text(analyse(dumps)[0])
    assert "Nothing was under way" in sentences
    assert "Longest to execute was" in sentences


def test_the_rank_that_is_mostly_last_is_named():
    dumps = simulate([training(30)] * 3)
    # Rank 2's clock shows what a slow rank's would: everything half a second after the others.
    operations = dumps[2].operations
    moved = tuple(
        replace(operation, submitted=operation.submitted + 0.5) for operation in operations
    )
    dumps[2] = replace(dumps[2], operations=moved)
    sentences = text(analyse(dumps)[0])
    assert "Rank 2 on a was the last to submit in 100% of 155 operations" in sentences


def test_an_operation_that_is_executed_is_under_way_and_no_divergence():
    dumps = simulate([training(3), training(3)])
    last = dumps[1].operations[-1]
    running = replace(last, state="executing", finished=None)
    dumps[1] = replace(dumps[1], operations=(*dumps[1].operations[:-1], running))
    finding = analyse(dumps)[0]
    assert finding.kind == kinds.NONE
    assert "executing on rank 1, done on rank 0" in text(finding)


# --- a rank that stops --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("capacity", [2000, 23])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_rank_with_fewer_batches_is_short_by_the_steps_it_lacks(size, capacity, ordered):
    culprit = size - 1
    programs = one_differs(
        size,
        lambda rank: training(9, seed=None if ordered else rank),
        training(8, seed=None if ordered else culprit),
        culprit,
    )
    finding = first_of(programs, capacity=capacity, seed=size)
    assert (finding.kind, finding.ranks) == (kinds.SHORT, (culprit,))
    assert "stopped after 45 operations at the end of a step, 5 short of the 50" in text(finding)
    assert "A step has 5 operations, so that is 1 step." in text(finding)


@pytest.mark.parametrize("size", MANY)
def test_several_ranks_with_fewer_batches_are_all_named(size):
    programs = [training(9) if rank > 1 else training(8) for rank in range(size)]
    finding = first_of(programs)
    assert (finding.kind, finding.ranks) == (kinds.SHORT, (0, 1))


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_hangs_in_the_middle_of_a_step_is_named_with_its_line(size):
    stuck = [*training(5), *step()[:2], Stay("data/loader.py:77 in next_batch")]
    finding = first_of(one_differs(size, lambda _: training(6), stuck, 1))
    assert (finding.kind, finding.ranks) == (kinds.IDLE, (1,))
    assert "Rank 1 was busy outside Horovod at data/loader.py:77 in next_batch" in text(finding)
    assert f'never submitted "{GRADIENTS[2]}"' in text(finding)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_never_begins_is_named(size):
    finding = first_of(one_differs(size, lambda _: training(2), [Stay("train.py:3 in main")], 0))
    assert (finding.kind, finding.ranks) == (kinds.NOTHING_SUBMITTED, (0,))
    assert "train.py:3 in main" in text(finding)


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_that_leaves_out_an_operation_and_goes_on_is_named(size):
    broken = [*training(4), *(a for a in step() if getattr(a, "name", "") != GRADIENTS[3])]
    finding = first_of(one_differs(size, lambda _: training(5), broken, 1))
    assert (finding.kind, finding.ranks) == (kinds.MISSING, (1,))
    assert f'never submitted "{GRADIENTS[3]}", and went on' in text(finding)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_rank_without_a_file_that_others_wait_for_is_named(size, culprit):
    dead = [*training(3), *step()[:3], Die()]
    finding = first_of(one_differs(size, lambda _: training(5), dead, culprit))
    assert (finding.kind, finding.ranks) == (kinds.NO_FILE, (culprit,))
    assert "no file" in text(finding)


def test_a_rank_that_had_not_come_so_far_when_another_died_is_not_blamed():
    dead = [*training(3), Die()]
    slow = [*training(3), Stay()]
    found = analyse(simulate([training(5), dead, slow]))
    assert [(finding.kind, finding.ranks) for finding in found] == [(kinds.NO_FILE, (1,))]


def test_a_file_that_cannot_be_read_is_said_and_not_taken_for_a_death():
    dumps = simulate([training(3), [*training(2)], training(3)])
    del dumps[1]
    finding = analyse(dumps, {1: "rank1.json:1:3: no valid JSON"})[0]
    assert (finding.kind, finding.ranks) == (kinds.NO_FILE, (1,))
    assert "The file of rank 1 cannot be read" in text(finding)
    assert "died" not in text(finding)


# --- ranks that do different things -------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("rename", "said"),
    [
        (lambda name: name.replace("allreduce.", "allreduce.optimizer1."), "prefix 'optimizer1.'"),
        (lambda name: name + ".copy", "suffix '.copy'"),
        (lambda name: name.replace(".weight", "_1.weight"), "counter '_1'"),
    ],
)
@pytest.mark.parametrize("ordered", [True, False])
def test_other_names_are_paired_and_the_rank_that_counted_on_is_named(size, rename, said, ordered):
    culprit = 1
    renamed = [rename(name) for name in GRADIENTS]
    odd = [*begin(), *step(None if ordered else random.Random(5), names=renamed)]
    programs = one_differs(
        size, lambda rank: training(3, seed=None if ordered else rank), odd, culprit
    )
    finding = first_of(programs, seed=size)
    assert (finding.kind, finding.ranks) == (kinds.NAMES, (culprit,))
    assert said in text(finding)
    assert "5 pairs" in text(finding)
    assert "twice" in text(finding)


@pytest.mark.parametrize("size", SIZES)
def test_another_order_of_blocking_calls_names_who_changed_it(size):
    usual = [Call("a"), Call("b"), Call("c")] * 4
    odd = [*usual[:9], Call("b"), Call("a"), Call("c")]
    for culprit in (0, 1):
        finding = first_of(one_differs(size, lambda _: usual, odd, culprit))
        assert (finding.kind, finding.ranks) == (kinds.ORDER, (culprit,))
        assert '"b" where' in text(finding)
        assert "another order" in text(finding)


def test_another_order_from_the_start_leaves_open_which_of_two_is_wrong():
    first = [Call("alpha", shape=(2,)), Call("beta", shape=(3,))]
    finding = first_of([first, [first[1], first[0]]])
    assert (finding.kind, finding.ranks) == (kinds.DIFFERENT, ())
    assert "another order" in text(finding)


@pytest.mark.parametrize("size", MANY)
def test_another_order_from_the_start_is_that_of_the_smaller_group(size):
    usual = [Call("alpha", shape=(2,)), Call("beta", shape=(3,))]
    finding = first_of(one_differs(size, lambda _: usual, [usual[1], usual[0]], 2))
    assert (finding.kind, finding.ranks) == (kinds.DIFFERENT, (2,))


@pytest.mark.parametrize("size", SIZES)
def test_a_collective_of_rank_0_alone_is_named_where_the_others_go_on(size):
    odd = [*training(3), Call("allreduce.loss_of_validation"), *training(3)[5:]]
    finding = first_of(one_differs(size, lambda _: training(6), odd, 0))
    assert (finding.kind, finding.ranks) == (kinds.EXTRA, (0,))
    assert "hvd.rank() == 0" in text(finding)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    ("culprit", "after"), [(1, Call("allreduce.validation")), (0, Call("b", "barrier"))]
)
def test_a_rank_that_leaves_the_loop_for_what_comes_after_it_is_short(
    size, ordered, culprit, after
):
    seed = None if ordered else 5
    odd = [*training(5, seed=seed), after]
    usual = [*training(6, seed=seed), after]
    finding = first_of(one_differs(size, lambda _: usual, odd, culprit))
    assert (finding.kind, finding.ranks) == (kinds.SHORT, (culprit,))
    assert "ended a step after 30 operations" in text(finding)


@pytest.mark.parametrize("size", MANY)
def test_a_collective_of_rank_0_alone_is_named_where_the_others_have_ended(size):
    odd = [*training(3), Call("allreduce.final")]
    finding = first_of(one_differs(size, lambda _: training(3), odd, 0))
    assert (finding.kind, finding.ranks) == (kinds.EXTRA, (0,))


def test_between_two_ranks_a_last_collective_of_one_is_told_with_both_explanations():
    finding = first_of([[*training(3), Call("allreduce.final")], training(3)])
    assert finding.kind == kinds.IDLE
    assert "may be one that only rank 0 calls" in text(finding)


@pytest.mark.parametrize("size", MANY)
def test_a_rank_that_leaves_out_what_is_new_and_trains_on_is_named(size):
    usual = [*training(3), Call("allreduce.loss_of_validation"), *training(2)[5:]]
    finding = first_of(one_differs(size, lambda _: usual, training(6), 1))
    assert (finding.kind, finding.ranks) == (kinds.MISSING, (1,))


@pytest.mark.parametrize("size", MANY)
def test_names_with_the_ranks_number_in_them_are_nobodys_fault_alone(size):
    programs = [[*begin(), Call(f"allreduce.grad_of_{rank}x")] for rank in range(size)]
    finding = first_of(programs)
    assert (finding.kind, finding.ranks) == (kinds.DIFFERENT, ())
    assert "a rank's number" in text(finding)


# --- the same name, but not the same operation ------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("usual", "odd", "what"),
    [
        (Call("g", shape=(3, 4)), Call("g", shape=(4, 3)), "shape"),
        (Call("g"), Call("g", dtype="float64"), "data type"),
        (Call("g"), Call("g", op="max"), "reduction operator"),
        (
            Call("g", kind="broadcast", op="", root=0),
            Call("g", kind="broadcast", op="", root=1),
            "root rank",
        ),
        (
            Call("g", kind="allgather", op="", shape=(1, 4)),
            Call("g", kind="allgather", op="", shape=(1, 5)),
            "shape",
        ),
        (Call("g"), Call("g", kind="reducescatter"), "kind of operation"),
    ],
)
def test_a_mismatch_names_what_differs_and_the_smaller_group(size, usual, odd, what):
    programs = one_differs(
        size, lambda _: [*training(2), usual], [*training(2), odd], min(size - 1, 2)
    )
    finding = first_of(programs)
    assert finding.kind == kinds.MISMATCH
    assert finding.ranks == (() if size == 2 else (2,))
    assert f"{what}" in finding.sentences[0]
    assert "Mismatched things." in text(finding)


def test_first_dimensions_of_allgather_may_differ():
    programs = [
        [Call("g", kind="allgather", op="", shape=(rank, 4)), Call("h")] for rank in range(3)
    ]
    assert first_of(programs).kind == kinds.NONE


def test_the_earlier_of_two_divergences_comes_first():
    programs = [
        [*training(2), Call("g"), Call("h"), Stay()],
        [*training(2), Call("g", dtype="int32"), Stay()],
        [*training(2), Call("g")],
    ]
    found = analyse(simulate(programs))
    assert (found[0].kind, found[0].ranks) == (kinds.MISMATCH, (1,))


def test_what_was_left_out_before_a_mismatch_comes_before_it():
    usual = [*training(2), start("g"), Call("h")]
    odd = [*training(2), Call("h", dtype="int32")]
    found = analyse(simulate([usual, usual, odd]))
    assert [(finding.kind, finding.ranks) for finding in found] == [
        (kinds.MISSING, (2,)),
        (kinds.MISMATCH, (2,)),
    ]


# --- join and process sets ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_ranks_that_joined_are_not_waited_for(size):
    programs = [[*training(3 + rank % 2), join()] for rank in range(size)]
    assert first_of(programs).kind == kinds.NONE


@pytest.mark.parametrize("size", MANY)
def test_a_rank_that_joined_is_not_blamed_for_what_another_lacks(size):
    programs: list[Program] = [[*training(5), join()] for _ in range(size)]
    programs[0] = [*training(3), join()]
    programs[1] = [*training(3), Stay()]
    finding = first_of(programs)
    assert finding.ranks == (1,)


@pytest.mark.parametrize("size", MANY)
def test_a_rank_that_hangs_while_others_have_joined_is_named(size):
    programs = [[*training(3), join()] for _ in range(size)]
    programs[1] = [*training(3), Stay("train.py:50 in validate")]
    finding = first_of(programs)
    assert (finding.kind, finding.ranks) == (kinds.JOIN, (1,))
    assert "train.py:50 in validate" in text(finding)


def test_a_divergence_within_a_process_set_leaves_other_ranks_out():
    def member(rank, steps):
        inner = [Call("allreduce.inner", process_set=1) for _ in range(steps)]
        return [*training(2), *inner]

    programs = [member(0, 4), member(1, 4), member(2, 3), training(2)]
    dumps = simulate(programs, process_sets={1: (0, 1, 2)})
    finding = analyse(dumps)[0]
    assert finding.ranks == (2,)
    assert "of process set 1" in text(finding)


# --- windows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
def test_unnamed_operations_are_paired_by_their_numbers(size):
    def unnamed(count):
        return [Call(f"allreduce.noname.{i}") for i in range(1, count + 1)]

    finding = first_of(one_differs(size, lambda _: unnamed(60), unnamed(59), 1), capacity=7)
    assert finding.ranks == (1,)
    assert '"allreduce.noname.60"' in text(finding)


def test_rings_that_begin_at_different_places_are_aligned():
    # Rank 1 does many operations with rank 2 alone, so its window of the world is much shorter.
    def pair(count):
        return [Call(f"pair.{i % 3}", process_set=1) for i in range(count)]

    base = training(10)
    programs = [
        [*base, *step()],
        [*base, *pair(25), *step()],
        [*base, *pair(25)],
    ]
    finding = analyse(simulate(programs, capacity=33, process_sets={1: (1, 2)}))[0]
    assert finding.ranks == (2,)
    assert finding.kind in (kinds.SHORT, kinds.IDLE)


def test_an_asynchronous_operation_that_nobody_waits_for_is_found_too():
    finding = first_of([[start("a"), start("b"), Wait("b")], [start("b"), Wait("b"), Stay()]])
    assert finding.ranks == (1,)
    assert 'callers there are blocked on "b"' not in text(finding)
    assert "no caller is blocked on it" in text(finding)
