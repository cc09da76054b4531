"""What goes along with a running engine so that a user can see it: started after it, ended with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import horovod
from horovod import _core
from horovod.common import (
    autotune,
    clock,
    engine,
    knobs,
    metrics_server,
    monitor_feed,
    stacks,
)
from horovod.common.dtypes import Collective
from horovod.common.log import logger

DYNAMIC = "DYNAMIC"
NOT_ARMED_TEXT = "Set HOROVOD_TIMELINE=DYNAMIC to enable dynamic timeline usage."


def begin(env: Mapping[str, str]) -> None:
    """Everything that the environment asks for, once the engine runs. Collective."""
    stacks.begin()
    _begin_timeline(env)
    metrics_server.start(
        knobs.value_of("HOROVOD_METRICS_PORT", env),
        knobs.value_of("HOROVOD_METRICS_ADDRESS", env),
        engine.identity(),
        metrics,
    )
    monitor_feed.start(env, engine.state.rounds - 1, metrics)
    who = engine.identity()
    autotune.start(autotune.options_from_environment(env), who.rank, who.size)
    if engine.identity().rank == 0:
        logger.info("%s", start_text(env))


def prepare_end() -> None:
    """Before the engine ends: what still reads from it."""
    autotune.stop()
    monitor_feed.stop()
    metrics_server.stop()


def end() -> None:
    """After the engine has ended."""
    stacks.end()


def metrics() -> dict[str, Any]:
    """See `HorovodBasics.metrics`."""
    engine.identity()
    return {**_core.metrics(), "reconnects": engine.reconnects()}


def _begin_timeline(env: Mapping[str, str]) -> None:
    """The core has begun it already, unless files of several hosts are to be laid together."""
    if not knobs.is_set("HOROVOD_TIMELINE", env):
        return
    several_clocks = (
        knobs.value_of("HOROVOD_TIMELINE_ALL_RANKS", env) and len(engine.host_ranks()) > 1
    )
    offset = clock.measure() if several_clocks else clock.ClockOffset(0.0, 0.0)
    try:
        _core.set_clock(offset.offset, offset.error)
    except ValueError as error:
        logger.error("No timeline is written, and the job goes on without it: %s.", error)
    if several_clocks:  # nothing is announced before all have begun theirs
        engine.control(Collective.BARRIER, "horovod.clock.begin")


def start_timeline(path: str, mark_cycles: bool) -> None:
    """Begins a timeline on rank 0, or on all ranks with HOROVOD_TIMELINE_ALL_RANKS; see `HorovodBasics`."""
    _require_armed()
    _core.control_timeline(os.path.abspath(path), mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline that is being written, on all ranks."""
    _require_armed()
    _core.control_timeline("", False)


def _require_armed() -> None:
    engine.identity()
    if not knobs.is_set("HOROVOD_TIMELINE"):
        raise ValueError(NOT_ARMED_TEXT)


def start_text(env: Mapping[str, str]) -> str:
    """One line that says what has been started: world, hosts, transports, algorithms, knobs."""
    hosts = engine.host_ranks()
    size = sum(map(len, hosts.values()))
    places = "; ".join(f"{host}: {_ranks_text(ranks)}" for host, ranks in hosts.items())
    transports = []
    if any(len(ranks) > 1 for ranks in hosts.values()):
        transports.append("shared memory within a host")
    if len(hosts) > 1:
        transports.append("TCP between hosts")
    wanted = "several hosts" if len(hosts) > 1 else "one host"
    rows = [line for line in _core.algorithm_table().splitlines() if f", {wanted}," in line]
    set_knobs = [
        f"{knob.variable}={env[knob.variable]}"
        for knob in knobs.KNOBS
        if knob.scope not in ("identity", "launcher")
        and knobs.is_set(knob.variable, env)
        and knobs.value_of(knob.variable, env) != knob.default
    ]
    return (
        f"Horovod {horovod.__version__}: {size} rank(s) on {len(hosts)} host(s) ({places}); "
        f"transports: {', '.join(transports) or 'none'}; algorithms: "
        f"{'; '.join(rows) if size > 1 else 'a single rank copies'}; "
        f"knobs that differ from their defaults: {', '.join(set_knobs) or 'none'}."
    )


def _ranks_text(ranks: list[int]) -> str:
    if len(ranks) > 2 and ranks == list(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))
