"""Every knob as one row: variable, flag, YAML key, type, default and meaning.

The launcher's flags and configuration file, the documentation and the core's `Config` are made from
this table. Precedence: explicit flag, configuration file, environment, default. Everything here is a
pure function of the environment it is given; nothing heavy is imported.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")
MEBIBYTE = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Knob:
    """One thing a user can set.

    Attributes:
        variable: environment variable.
        flags: command-line flags; for a bool, those that set the variable to 1.
        negative_flag: for a bool, the flag that sets the variable to 0.
        yaml_key: dotted key of the configuration file.
        type: "int", "float", "bool", "str", "path", "choice" or "int_list" (comma-separated).
        default: value when nothing is set; None means "not set".
        help: one sentence.
        scope: who reads it: "engine", "start", "log", "launcher" or "identity" (set by the launcher).
        config: field of the core's Config that takes the value.
        scale: variable = scale x value of the flag and YAML key (MB to bytes).
        minimum: smallest legal value of the variable.
        maximum: largest legal value of the variable.
        choices: legal values of a "choice", compared without regard to case.
        inverted: the YAML key says the opposite of the variable (enabled / disable).
        config_inverted: so does the Config field.
    """

    variable: str
    type: str
    default: Any
    help: str
    scope: str
    flags: tuple[str, ...] = ()
    negative_flag: str | None = None
    yaml_key: str | None = None
    config: str | None = None
    scale: int = 1
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    inverted: bool = False
    config_inverted: bool = False

    def is_within_bounds(self, value: float) -> bool:
        """Returns whether a number is a legal value of the variable; NaN is not."""
        low = -math.inf if self.minimum is None else self.minimum
        high = math.inf if self.maximum is None else self.maximum
        return low <= value <= high

    def bounds_text(self) -> str:
        """Returns " >= 1 and <= 5", or what of it applies."""
        bounds = [(">=", self.minimum), ("<=", self.maximum)]
        text = " and".join(f" {sign} {bound:g}" for sign, bound in bounds if bound is not None)
        return text


KNOBS: tuple[Knob, ...] = (
    Knob(
        "HOROVOD_FUSION_THRESHOLD",
        "int",
        128 * MEBIBYTE,
        "Bytes that tensors which are executed together may have at most; 0 turns fusion off.",
        "engine",
        flags=("--fusion-threshold-mb",),
        yaml_key="params.fusion_threshold_mb",
        config="fusion_threshold_bytes",
        scale=MEBIBYTE,
        minimum=0,
    ),
    Knob(
        "HOROVOD_CYCLE_TIME",
        "float",
        1.0,
        "Milliseconds a tensor that is ready on all ranks waits at most for others to fuse with.",
        "engine",
        flags=("--cycle-time-ms",),
        yaml_key="params.cycle_time_ms",
        config="cycle_time_ms",
        minimum=0,
    ),
    Knob(
        "HOROVOD_CACHE_CAPACITY",
        "int",
        1024,
        "Entries of the response cache; 0 turns it off.",
        "engine",
        flags=("--cache-capacity",),
        yaml_key="params.cache_capacity",
        config="cache_capacity",
        minimum=0,
    ),
    Knob(
        "HOROVOD_DISABLE_GROUP_FUSION",
        "bool",
        False,
        "Fuse a grouped operation only within its group.",
        "engine",
        config="disable_group_fusion",
    ),
    Knob(
        "HOROVOD_DYNAMIC_PROCESS_SETS",
        "bool",
        False,
        "Allow process sets to be added and removed after initialisation.",
        "engine",
        config="dynamic_process_sets",
    ),
    Knob(
        "HOROVOD_STALL_CHECK_DISABLE",
        "bool",
        False,
        "Do not report tensors that some ranks submitted and others did not.",
        "engine",
        flags=("--no-stall-check",),
        negative_flag="--stall-check",
        yaml_key="stall_check.enabled",
        config="stall_check",
        inverted=True,
        config_inverted=True,
    ),
    Knob(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        "int",
        60,
        "Seconds after which a tensor that waits for other ranks is reported.",
        "engine",
        flags=("--stall-check-warning-time-seconds",),
        yaml_key="stall_check.warning_time_seconds",
        config="stall_warning_seconds",
        minimum=0,
    ),
    Knob(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        "int",
        1800,
        "Seconds after which a stalled job is shut down; 0 means never; must exceed the warning time.",
        "engine",
        flags=("--stall-check-shutdown-time-seconds",),
        yaml_key="stall_check.shutdown_time_seconds",
        config="stall_shutdown_seconds",
        minimum=0,
    ),
    Knob(
        "HOROVOD_TIMELINE",
        "path",
        None,
        "File of the timeline, a trace for Chrome's tracing page and Perfetto; DYNAMIC waits for "
        "hvd.start_timeline.",
        "engine",
        flags=("--timeline-filename",),
        yaml_key="timeline.filename",
        config="timeline_path",
    ),
    Knob(
        "HOROVOD_TIMELINE_MARK_CYCLES",
        "bool",
        False,
        "Mark in the timeline when tensors that were ready were flushed for execution.",
        "engine",
        flags=("--timeline-mark-cycles",),
        negative_flag="--no-timeline-mark-cycles",
        yaml_key="timeline.mark_cycles",
        config="timeline_mark_cycles",
    ),
    Knob(
        "HOROVOD_TIMELINE_ALL_RANKS",
        "bool",
        False,
        "Every rank writes a timeline, not rank 0 alone; the rank is put into the file's name.",
        "engine",
        flags=("--timeline-all-ranks",),
        negative_flag="--no-timeline-all-ranks",
        yaml_key="timeline.all_ranks",
        config="timeline_all_ranks",
    ),
    Knob(
        "HOROVOD_TIMELINE_MAX_MB",
        "int",
        1024,
        "Mebibytes of a timeline file; then it is renamed to FILE.1 and a new one begun; 0: no limit.",
        "engine",
        flags=("--timeline-max-mb",),
        yaml_key="timeline.max_mb",
        config="timeline_max_mb",
        minimum=0,
    ),
    Knob(
        "HOROVOD_AUTOTUNE",
        "bool",
        False,
        "Try fusion thresholds and cycle times while training, and keep the best.",
        "start",
        flags=("--autotune",),
        negative_flag="--no-autotune",
        yaml_key="autotune.enabled",
    ),
    Knob(
        "HOROVOD_AUTOTUNE_LOG",
        "path",
        None,
        "CSV file of what autotune tried; written by rank 0.",
        "start",
        flags=("--autotune-log-file",),
        yaml_key="autotune.log_file",
    ),
    Knob(
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        "int",
        3,
        "Samples that autotune discards at first.",
        "start",
        flags=("--autotune-warmup-samples",),
        yaml_key="autotune.warmup_samples",
        minimum=0,
    ),
    Knob(
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE",
        "int",
        10,
        "Training steps of one score of autotune; a sample is the median of five scores.",
        "start",
        flags=("--autotune-steps-per-sample",),
        yaml_key="autotune.steps_per_sample",
        minimum=1,
    ),
    Knob(
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES",
        "int",
        20,
        "Samples of one optimisation of autotune.",
        "start",
        flags=("--autotune-bayes-opt-max-samples",),
        yaml_key="autotune.bayes_opt_max_samples",
        minimum=1,
    ),
    Knob(
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE",
        "float",
        0.8,
        "How far autotune distrusts a score, from 0 to 1.",
        "start",
        flags=("--autotune-gaussian-process-noise",),
        yaml_key="autotune.gaussian_process_noise",
        minimum=0,
        maximum=1,
    ),
    Knob(
        "HOROVOD_AUTOTUNE_SEED",
        "int",
        0,
        "Seed of autotune's choices: equal scores give equal choices.",
        "start",
        minimum=0,
    ),
    Knob(
        "HOROVOD_METRICS_PORT",
        "int",
        None,
        "Serve metrics for Prometheus at this port + local rank.",
        "start",
        flags=("--metrics-port",),
        yaml_key="metrics.port",
        minimum=1,
    ),
    Knob(
        "HOROVOD_METRICS_ADDRESS",
        "str",
        "127.0.0.1",
        "Address at which metrics are served; 0.0.0.0 lets other hosts read them.",
        "start",
        flags=("--metrics-address",),
        yaml_key="metrics.address",
    ),
    Knob(
        "HOROVOD_MONITOR",
        "float",
        0.0,
        "Seconds between the reports that a worker sends to horovodrun --monitor, which sets it; 0: none.",
        "start",
        minimum=0,
    ),
    Knob(
        "HOROVOD_STRAGGLER_WARNING_SHARE",
        "float",
        0.1,
        "Warn once when the others wait for one rank for more than this share of the time; 0: never.",
        "engine",
        config="straggler_share",
        minimum=0,
    ),
    Knob(
        "HOROVOD_FLIGHT_RECORDER_DIR",
        "path",
        None,
        "Folder for what ranks write about their last operations when a job stalls or breaks; unset: "
        "a folder of the job below the folder for temporary files.",
        "start",
        flags=("--flight-recorder-dir",),
        yaml_key="flight_recorder.directory",
    ),
    Knob(
        "HOROVOD_FLIGHT_RECORDER_SIZE",
        "int",
        2000,
        "Operations that each rank remembers; 0 turns the flight recorder off.",
        "engine",
        config="flight_recorder_size",
        minimum=0,
    ),
    Knob(
        "HOROVOD_CHECK_CONSISTENCY_STEPS",
        "int",
        0,
        "Compare the parameters of all ranks after every so many optimizer steps; 0: never.",
        "start",
        flags=("--check-consistency-steps",),
        yaml_key="params.check_consistency_steps",
        minimum=0,
    ),
    Knob(
        "HOROVOD_THREAD_AFFINITY",
        "int_list",
        (),
        "Core of the engine's thread for each local rank, comma-separated; unset leaves it to the kernel.",
        "engine",
        flags=("--thread-affinity",),
        yaml_key="library_options.thread_affinity",
        config="thread_affinity",
        minimum=0,
    ),
    Knob(
        "HOROVOD_ARENA_SLOT_BYTES",
        "int",
        512 * 1024,
        "Bytes of one staging slot in the memory that the ranks of a host share.",
        "engine",
        config="slot_bytes",
        minimum=4096,
    ),
    Knob(
        "HOROVOD_ARENA_SLOTS",
        "int",
        4,
        "Staging slots per rank in the memory that the ranks of a host share.",
        "engine",
        config="slots",
        minimum=3,
    ),
    Knob(
        "HOROVOD_ARENA_DISABLE",
        "bool",
        False,
        "Share no memory between the ranks of a host; they use TCP like ranks of different hosts.",
        "start",
    ),
    Knob(
        "HOROVOD_CONTROLLER",
        "choice",
        "gloo",
        "How ranks find each other and negotiate: gloo is the built-in way. mpi is an error in the "
        "variable, and in the file the same as --mpi.",
        "start",
        choices=("gloo",),
        yaml_key="controller",
    ),
    Knob(
        "HOROVOD_MPI_THREADS_DISABLE",
        "bool",
        False,
        "Under mpirun, initialise MPI with MPI_THREAD_SINGLE instead of MPI_THREAD_MULTIPLE.",
        "start",
        flags=("--mpi-threads-disable",),
        negative_flag="--no-mpi-threads-disable",
        yaml_key="library_options.mpi_threads_disable",
    ),
    Knob(
        "HOROVOD_CPU_OPERATIONS",
        "choice",
        "gloo",
        "Who moves tensors in host memory: gloo and native both name the built-in backend; "
        "mpi and ccl are warned about, and the built-in one is used.",
        "start",
        choices=("gloo", "native", "mpi", "ccl"),
    ),
    Knob(
        "HOROVOD_GLOO_TIMEOUT_SECONDS",
        "int",
        30,
        "Seconds within which all ranks must have found and connected each other.",
        "start",
        flags=("--gloo-timeout-seconds",),
        yaml_key="library_options.gloo_timeout_seconds",
        minimum=1,
    ),
    Knob(
        "HOROVOD_START_TIMEOUT",
        "int",
        30,
        "Seconds within which all processes of the job must have started and found each other; "
        "horovodrun gives one more for every two further hosts.",
        "start",
        flags=("--start-timeout",),
        minimum=1,
    ),
    Knob(
        "HOROVOD_LOG_LEVEL",
        "choice",
        "WARNING",
        "Least serious messages that are written to stderr.",
        "log",
        flags=("--log-level",),
        yaml_key="logging.level",
        config="log_level",
        choices=LOG_LEVELS,
    ),
    Knob(
        "HOROVOD_LOG_HIDE_TIME",
        "bool",
        False,
        "Leave the time out of log messages.",
        "log",
        flags=("--log-without-timestamp",),
        negative_flag="--log-with-timestamp",
        yaml_key="logging.with_timestamp",
        config="log_hide_time",
        inverted=True,
    ),
    Knob(
        "HOROVOD_ENABLE_XLA_OPS",
        "bool",
        None,
        "1: collectives in every tf.function are compiled by XLA; 0: in none. Unset: where "
        "jit_compile=True.",
        "start",
    ),
    Knob("HOROVOD_RANK", "int", None, "Rank of this process.", "identity", minimum=0),
    Knob("HOROVOD_SIZE", "int", None, "Number of processes.", "identity", minimum=1),
    Knob("HOROVOD_LOCAL_RANK", "int", None, "Rank within the host.", "identity", minimum=0),
    Knob("HOROVOD_LOCAL_SIZE", "int", None, "Processes on this host.", "identity", minimum=1),
    Knob(
        "HOROVOD_CROSS_RANK",
        "int",
        None,
        "Number of this host among those that have this local rank.",
        "identity",
        minimum=0,
    ),
    Knob(
        "HOROVOD_CROSS_SIZE",
        "int",
        None,
        "Number of hosts that have this local rank.",
        "identity",
        minimum=1,
    ),
    Knob("HOROVOD_HOSTNAME", "str", None, "Name of the host, its identity in the job.", "identity"),
    Knob(
        "HOROVOD_GLOO_RENDEZVOUS_ADDR",
        "str",
        None,
        "Address of the launcher's rendezvous store.",
        "identity",
    ),
    Knob(
        "HOROVOD_GLOO_RENDEZVOUS_PORT",
        "int",
        None,
        "Port of the launcher's rendezvous store.",
        "identity",
        minimum=1,
    ),
)

KNOB_BY_VARIABLE: dict[str, Knob] = {knob.variable: knob for knob in KNOBS}

# Variables of Horovod 0.28 whose feature does not exist yet: known, without effect, said once.
LATER: dict[str, str] = {
    "HOROVOD_HIERARCHICAL_ALLREDUCE": "choice of algorithm",
    "HOROVOD_HIERARCHICAL_ALLGATHER": "choice of algorithm",
    "HOROVOD_TORUS_ALLREDUCE": "choice of algorithm",
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum",
    "HOROVOD_NUM_NCCL_STREAMS": "NCCL backend",
    "HOROVOD_BATCH_D2D_MEMCOPIES": "GPU backends",
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "GPU backends",
    "HOROVOD_DISABLE_NVTX_RANGES": "GPU backends",
    "HOROVOD_CCL_CACHE": "oneCCL backend",
    "HOROVOD_CCL_BGT_AFFINITY": "oneCCL backend",
    "HOROVOD_ELASTIC": "elastic jobs",
    "HOROVOD_ELASTIC_TIMEOUT": "elastic jobs",
    "HOROVOD_SPARK_START_TIMEOUT": "Spark",
    "HOROVOD_SPARK_PYTHONPATH": "Spark",
    "HOROVOD_SPARK_WORK_DIR": "Spark",
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": "Spark",
}

# Backends that may be asked for but are not available yet: the variable was one of the build, too, and
# is often left in an environment, so it is no reason to refuse to start.
ABSENT_CPU_BACKENDS = frozenset({"mpi", "ccl"})

# Known and rightly without effect: upstream's build and test variables, and a network interface by
# name (addresses are chosen by the route to the rendezvous).
WITHOUT_EFFECT: frozenset[str] = frozenset(
    {
        "HOROVOD_GLOO_IFACE",
        "HOROVOD_GPU",
        "HOROVOD_GPU_OPERATIONS",
        "HOROVOD_GPU_ALLREDUCE",
        "HOROVOD_GPU_ALLGATHER",
        "HOROVOD_GPU_BROADCAST",
        "HOROVOD_GPU_ALLTOALL",
        "HOROVOD_GPU_REDUCESCATTER",
        "HOROVOD_ALLOW_MIXED_GPU_IMPL",
        "HOROVOD_CUDA_HOME",
        "HOROVOD_CUDA_INCLUDE",
        "HOROVOD_CUDA_LIB",
        "HOROVOD_BUILD_CUDA_CC_LIST",
        "HOROVOD_ROCM_HOME",
        "HOROVOD_NCCL_HOME",
        "HOROVOD_NCCL_INCLUDE",
        "HOROVOD_NCCL_LIB",
        "HOROVOD_NCCL_LINK",
        "HOROVOD_NVTX_INCLUDE",
        "HOROVOD_BUILD_ARCH_FLAGS",
        "HOROVOD_DEBUG",
        "HOROVOD_CMAKE",
        "HOROVOD_SKIP_COMPILE",
        "HOROVOD_LOCAL_VERSION",
        "HOROVOD_TEST_GPU",
        "HOROVOD_MIXED_INSTALL",
    }
)
INSTALL_TIME_PREFIXES = ("HOROVOD_WITH_", "HOROVOD_WITHOUT_")

_TRUE = frozenset({"true", "yes", "on", "y", "t"})
_FALSE = frozenset({"false", "no", "off", "n", "f"})


@dataclass(slots=True)
class Review:
    """What should be said about an environment: `warnings` to the user, `notes` at info level."""

    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def _bad_value(knob: Knob, text: str, expected: str) -> ValueError:
    return ValueError(f"{knob.variable}={text!r}: expected {expected}. It means: {knob.help}")


def _parse_number(knob: Knob, text: str, convert: type[int | float]) -> int | float:
    expected = "a whole number" if convert is int else "a number"
    expected += knob.bounds_text()
    try:
        value = convert(text)
    except ValueError:
        raise _bad_value(knob, text, expected) from None
    if not knob.is_within_bounds(value):
        raise _bad_value(knob, text, expected)
    return value


def _parse_bool(knob: Knob, text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in _TRUE or lowered in _FALSE:
        return lowered in _TRUE
    try:
        return int(lowered) > 0
    except ValueError:
        raise _bad_value(knob, text, "1 or 0") from None


def _parse_choice(knob: Knob, text: str) -> str:
    for choice in knob.choices:
        if choice.lower() == text.strip().lower():
            return choice
    raise _bad_value(knob, text, "one of " + ", ".join(knob.choices))


def _parse_int_list(knob: Knob, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise _bad_value(knob, text, "whole numbers >= 0 with commas between them")
    return tuple(int(part) for part in parts)


def parse(knob: Knob, text: str) -> Any:
    """Turns the text of a variable into a value of the knob's type.

    Raises:
        ValueError: naming the variable, the text and what was expected.
    """
    if knob.type == "int":
        return _parse_number(knob, text, int)
    if knob.type == "float":
        return _parse_number(knob, text, float)
    if knob.type == "bool":
        return _parse_bool(knob, text)
    if knob.type == "choice":
        return _parse_choice(knob, text)
    if knob.type == "int_list":
        return _parse_int_list(knob, text)
    return text


def value_of(variable: str, env: Mapping[str, str] | None = None) -> Any:
    """Returns the typed value of a knob: from `env` (os.environ), or its default when unset or empty."""
    knob = KNOB_BY_VARIABLE[variable]
    text = (os.environ if env is None else env).get(variable, "")
    return parse(knob, text) if text else knob.default


def is_set(variable: str, env: Mapping[str, str] | None = None) -> bool:
    """True when the variable has a value; an empty one counts as unset."""
    return bool((os.environ if env is None else env).get(variable))


def start_timeout(env: Mapping[str, str] | None = None) -> float:
    """Seconds within which all ranks must have found and connected each other.

    The longer of HOROVOD_START_TIMEOUT and HOROVOD_GLOO_TIMEOUT_SECONDS, among those that are set.
    """
    names = ("HOROVOD_START_TIMEOUT", "HOROVOD_GLOO_TIMEOUT_SECONDS")
    chosen = [name for name in names if is_set(name, env)] or names
    return float(max(value_of(name, env) for name in chosen))


def config_from_environment(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Returns the core's Config: its field names and the values that the environment asks for.

    Raises:
        ValueError: a variable has an illegal value.
    """
    config: dict[str, Any] = {}
    for knob in KNOBS:
        value = value_of(knob.variable, env)
        if knob.config is not None:
            config[knob.config] = not value if knob.config_inverted else value
    config["thread_affinity"] = list(config["thread_affinity"])
    config["timeline_path"] = config["timeline_path"] or ""
    config["log_level"] = LOG_LEVELS.index(config["log_level"])
    for name in ("stall_warning_seconds", "stall_shutdown_seconds", "cycle_time_ms"):
        config[name] = float(config[name])
    if _stall_shutdown_ignored(config):
        config["stall_shutdown_seconds"] = 0.0
    return config


def _stall_shutdown_ignored(config: Mapping[str, Any]) -> bool:
    return 0 < config["stall_shutdown_seconds"] <= config["stall_warning_seconds"]


def known_variables() -> frozenset[str]:
    """Names that may be set without being taken for a mistake."""
    return frozenset(KNOB_BY_VARIABLE) | frozenset(LATER) | WITHOUT_EFFECT


def review_environment(env: Mapping[str, str] | None = None) -> Review:
    """Looks for variables that are misspelt, have no effect yet, or contradict each other."""
    environment = os.environ if env is None else env
    review = Review()
    known = known_variables()
    for name in sorted(environment):
        if not name.startswith("HOROVOD_") or name.startswith(INSTALL_TIME_PREFIXES):
            continue
        if name in LATER and environment[name] not in ("", "0"):
            review.notes.append(f"{name} is set but has no effect yet ({LATER[name]}).")
        elif name not in known:
            nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
            hint = f" Did you mean {nearest[0]}?" if nearest else ""
            review.warnings.append(f"Unknown environment variable {name} is ignored.{hint}")
    backend = value_of("HOROVOD_CPU_OPERATIONS", environment)
    if backend in ABSENT_CPU_BACKENDS:
        review.warnings.append(
            f"HOROVOD_CPU_OPERATIONS={environment['HOROVOD_CPU_OPERATIONS']}: this backend is not "
            "available yet; the built-in one is used."
        )
    warning_time = value_of("HOROVOD_STALL_CHECK_TIME_SECONDS", environment)
    shutdown_time = value_of("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", environment)
    asked_for = is_set("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", environment)
    if asked_for and 0 < shutdown_time <= warning_time:
        review.warnings.append(
            f"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS={shutdown_time} is ignored because it does not "
            f"exceed HOROVOD_STALL_CHECK_TIME_SECONDS={warning_time}."
        )
    return review
