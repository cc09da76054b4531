"""The knob table and what it makes of an environment."""

from __future__ import annotations

import subprocess
import sys

import pytest

from horovod.common import knobs


def test_an_empty_environment_gives_the_defaults_of_the_core() -> None:
    assert knobs.config_from_environment({}) == {
        "fusion_threshold_bytes": 134217728,
        "cycle_time_ms": 1.0,
        "cache_capacity": 1024,
        "disable_group_fusion": False,
        "dynamic_process_sets": False,
        "stall_check": True,
        "stall_warning_seconds": 60.0,
        "stall_shutdown_seconds": 1800.0,
        "straggler_share": 0.1,
        "flight_recorder_size": 2000,
        "timeline_path": "",
        "timeline_mark_cycles": False,
        "timeline_all_ranks": False,
        "timeline_max_mb": 1024,
        "slot_bytes": 524288,
        "slots": 4,
        "log_level": 3,
        "log_hide_time": False,
        "thread_affinity": [],
    }


@pytest.mark.parametrize(
    ("variable", "text", "field", "value"),
    [
        ("HOROVOD_FUSION_THRESHOLD", "0", "fusion_threshold_bytes", 0),
        ("HOROVOD_CYCLE_TIME", "20.0", "cycle_time_ms", 20.0),
        ("HOROVOD_STALL_CHECK_DISABLE", "1", "stall_check", False),
        ("HOROVOD_LOG_HIDE_TIME", "1", "log_hide_time", True),
        ("HOROVOD_LOG_LEVEL", "trace", "log_level", 0),
        ("HOROVOD_THREAD_AFFINITY", "0,2", "thread_affinity", [0, 2]),
        ("HOROVOD_DISABLE_GROUP_FUSION", "true", "disable_group_fusion", True),
        ("HOROVOD_DISABLE_GROUP_FUSION", "", "disable_group_fusion", False),
    ],
)
def test_a_variable_sets_its_field(variable: str, text: str, field: str, value: object) -> None:
    assert knobs.config_from_environment({variable: text})[field] == value


@pytest.mark.parametrize(
    ("variable", "text", "expected"),
    [
        ("HOROVOD_CYCLE_TIME", "fast", "a number >= 0"),
        ("HOROVOD_CYCLE_TIME", "nan", "a number >= 0"),
        ("HOROVOD_CACHE_CAPACITY", "-1", "a whole number >= 0"),
        ("HOROVOD_CACHE_CAPACITY", "1.5", "a whole number >= 0"),
        ("HOROVOD_LOG_LEVEL", "loud", "one of TRACE, DEBUG"),
        ("HOROVOD_DYNAMIC_PROCESS_SETS", "maybe", "1 or 0"),
        ("HOROVOD_CONTROLLER", "mpi", "one of gloo"),
        ("HOROVOD_CPU_OPERATIONS", "nccl", "one of gloo, native, mpi, ccl"),
        ("HOROVOD_THREAD_AFFINITY", "0,,2", "whole numbers >= 0"),
    ],
)
def test_an_illegal_value_is_named_with_what_was_expected(
    variable: str, text: str, expected: str
) -> None:
    with pytest.raises(ValueError, match=f"{variable}='{text}'.*expected {expected}"):
        knobs.config_from_environment({variable: text})


def test_an_unknown_variable_is_warned_about_with_the_nearest_name() -> None:
    review = knobs.review_environment({"HOROVOD_FUSION_TRESHOLD": "1"})
    (warning,) = review.warnings
    assert warning == (
        "Unknown environment variable HOROVOD_FUSION_TRESHOLD is ignored. "
        "Did you mean HOROVOD_FUSION_THRESHOLD?"
    )


def test_variables_of_the_installation_are_harmless() -> None:
    env = {"HOROVOD_WITH_PYTORCH": "1", "HOROVOD_GPU_OPERATIONS": "NCCL", "PATH": "/bin"}
    review = knobs.review_environment(env)
    assert (review.warnings, review.notes) == ([], [])


def test_a_feature_that_comes_later_gives_a_note_when_it_is_asked_for() -> None:
    assert knobs.review_environment({"HOROVOD_ELASTIC": "1"}).notes == [
        "HOROVOD_ELASTIC is set but has no effect yet (elastic jobs)."
    ]
    assert knobs.review_environment({"HOROVOD_ELASTIC": "0"}).notes == []


@pytest.mark.parametrize("text", ["MPI", "mpi", "CCL", "ccl"])
def test_a_cpu_backend_that_does_not_exist_yet_is_warned_about_once(text: str) -> None:
    env = {"HOROVOD_CPU_OPERATIONS": text}
    assert knobs.config_from_environment(env) == knobs.config_from_environment({})
    (warning,) = knobs.review_environment(env).warnings
    assert warning == (
        f"HOROVOD_CPU_OPERATIONS={text}: this backend is not available yet; "
        "the built-in one is used."
    )


@pytest.mark.parametrize("text", ["", "gloo", "GLOO", "native"])
def test_the_cpu_backend_that_is_there_is_not_spoken_of(text: str) -> None:
    assert knobs.review_environment({"HOROVOD_CPU_OPERATIONS": text}).warnings == []


def test_a_stall_shutdown_before_the_warning_is_ignored_and_said() -> None:
    env = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}
    assert knobs.config_from_environment(env)["stall_shutdown_seconds"] == 0.0
    assert "ignored" in knobs.review_environment(env).warnings[0]
    env["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "10"
    assert knobs.config_from_environment(env)["stall_shutdown_seconds"] == 30.0
    assert knobs.review_environment(env).warnings == []


def test_the_start_timeout_is_the_longer_of_those_that_are_set() -> None:
    assert knobs.start_timeout({}) == 30
    assert knobs.start_timeout({"HOROVOD_START_TIMEOUT": "5"}) == 5
    both = {"HOROVOD_START_TIMEOUT": "5", "HOROVOD_GLOO_TIMEOUT_SECONDS": "90"}
    assert knobs.start_timeout(both) == 90


def test_no_name_is_in_two_tables() -> None:
    tables = [set(knobs.KNOB_BY_VARIABLE), set(knobs.LATER), set(knobs.WITHOUT_EFFECT)]
    assert len(set().union(*tables)) == sum(len(table) for table in tables)
    assert len(knobs.KNOB_BY_VARIABLE) == len(knobs.KNOBS)


def test_the_leaves_that_the_launcher_uses_load_nothing_heavy() -> None:
    code = (
        "import sys, horovod.common.knobs, horovod.common.exceptions\n"
        "print([m for m in ('numpy', 'torch', 'horovod._core', 'horovod.common.engine') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
