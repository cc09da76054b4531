"""The small functions under the flight recorder's reader: names, steps, stacks, words."""

from __future__ import annotations

import faulthandler
import tempfile
import threading
import traceback

import pytest
from flight_recorder_simulator import simulate, training

from horovod.runner.flight_recorder.names import difference, family
from horovod.runner.flight_recorder.stacks import main_frames, where
from horovod.runner.flight_recorder.steps import period, step_lengths
from horovod.runner.flight_recorder.words import quoted, ranks_text, seconds, spans


@pytest.mark.parametrize(
    ("one", "other", "text", "later"),
    [
        ("allreduce.w", "allreduce.optimizer1.w", "the prefix 'optimizer1.'", 1),
        ("allreduce.model.w", "allreduce.w", "the prefix 'model.'", 0),
        ("dense/kernel", "dense_1/kernel", "the counter '_1'", 1),
        ("w", "w_2", "the counter '_2'", 1),
        ("w", "w.copy", "the suffix '.copy'", 1),
        ("dense_1/kernel", "dense_3/kernel", "a counter (1 and 3)", 1),
        ("grad.10", "grad.1", "a counter (10 and 1)", 0),
    ],
)
def test_names_that_differ_in_one_point(one, other, text, later):
    found = difference(one, other)
    assert found is not None
    assert (found.text, found.later) == (text, later)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a", "a"),
        ("a", "ab"),
        ("loss", "accuracy"),
        ("layer1.w1", "layer2.w2"),
        ("allreduce.noname.3", "allreduce.noname.4"),
        ("allreduce.w", "broadcast.w"),
        ("", "a"),
    ],
)
def test_names_that_are_equal_or_differ_in_more(one, other):
    assert difference(one, other) is None


def test_numbers_of_unnamed_operations_do_not_make_a_name():
    assert family("allreduce.noname.3") == family("allreduce.noname.77") != family("allreduce.x.3")


def test_steps_begin_where_a_name_comes_again():
    operations = simulate([training(4)])[0].operations
    assert step_lengths(operations) == [10, 5, 5, 5]  # the broadcasts come once
    assert period(step_lengths(operations)) == 5
    assert period([5, 5]) is None
    assert period([9, 5, 7, 6, 1]) is None


def _stacks(of: str) -> str:
    if of == "traceback":
        return "".join(traceback.format_stack())
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


@pytest.mark.parametrize("of", ["faulthandler", "traceback"])
def test_the_innermost_frame_of_the_main_thread_is_found(of):
    leave = threading.Event()
    other = threading.Thread(target=leave.wait)
    other.start()
    try:
        frames = main_frames(_stacks(of))
    finally:
        leave.set()
        other.join()
    assert frames[0].function == "_stacks"
    assert frames[1].function == "test_the_innermost_frame_of_the_main_thread_is_found"
    assert frames[0].file.endswith("test_flight_recorder_parts.py")


def test_a_frame_inside_horovod_names_its_caller():
    stacks = (
        "Thread 1 (most recent call first):\n"
        '  File "/x/site-packages/horovod/common/collectives.py", line 310 in synchronize\n'
        '  File "/x/site-packages/horovod/torch/optimizer.py", line 20 in step\n'
        '  File "/home/me/horovod/train.py", line 7 in main\n'
    )
    assert (
        where(stacks)
        == "common/collectives.py:310 in synchronize, called from horovod/train.py:7 in main"
    )
    assert where("") == "" == where("no frames\nhere")


def test_a_thread_that_is_called_main_wins():
    stacks = (
        'Thread 0x1 "MainThread" (most recent call first):\n  File "a.py", line 1 in f\n'
        'Thread 0x2 "Loader" (most recent call first):\n  File "b.py", line 2 in g\n'
    )
    assert where(stacks) == "a.py:1 in f"


def test_stacks_as_the_engine_takes_them_are_read():
    stacks = (
        'Thread "MainThread":\n  File "train.py", line 9, in <module>\n    main()\n'
        '  File "loader.py", line 4, in next_batch\n    thread = "MainThread"\n'
        'Thread "Thread-1":\n  File "other.py", line 1, in run\n    work()\n'
    )
    assert where(stacks) == "loader.py:4 in next_batch"


def test_words():
    assert spans([5, 0, 1, 2, 3, 7, 8]) == "0-3, 5, 7, 8"
    assert ranks_text([3]) == "rank 3" and ranks_text([3, 4]) == "ranks 3, 4"
    assert [seconds(value) for value in (12.34, 0.0123, 0.0000045)] == ["12.3 s", "12.3 ms", "4 us"]
    assert len(quoted("x" * 1000)) < 110
