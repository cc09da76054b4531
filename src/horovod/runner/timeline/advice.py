"""One sentence per section of the report: what the figures mean and what to do about it."""

from __future__ import annotations

from statistics import median, median_high

from horovod.runner.timeline.figures import Figures, RankShare, SizeClass, Straggler
from horovod.runner.timeline.job import ranks_text
from horovod.runner.timeline.units import count, duration, percent, rate, shown, size

MUCH = 0.15  # of the time of a step: worth doing something about
SMALL = 256 * 1024  # responses up to that size cost more for being started than for their bytes
HELD_UP = 2.5  # so much faster than on average is the fastest response where others are held up
SMALL_LABELS = ("up to 1 KiB", "1 to 16 KiB", "16 to 256 KiB")


def mean_share(figures: Figures, part: str) -> float:
    """A part of the wall time ("compute", "waiting", ...) as a share, mean over ranks."""
    shares = [share.share(getattr(share, part)) for share in figures.shares]
    return sum(shares) / len(shares)


def hidden_share(shares: list[RankShare]) -> float | None:
    """Which share of all communication ran while no caller was blocked; None if it can't be known."""
    known = [share for share in shares if share.from_callers]
    everything = sum(share.hidden + share.communicating for share in known)
    return sum(share.hidden for share in known) / everything if everything > 0 else None


def time_advice(figures: Figures) -> str:
    """About the partition of the time."""
    compute, communicating = (mean_share(figures, p) for p in ("compute", "communicating"))
    # The slowest rank does not wait: of two ranks the other one tells what could be gained.
    waiting = median_high(share.share(share.waiting) for share in figures.shares)
    if figures.size == 1:
        return f"One rank waits for nobody: {percent(compute)} of the time is computation."
    where = (
        f"of the step time of rank {figures.present[0]}" if figures.single else "of the step time"
    )
    if not figures.single and waiting >= MUCH:
        where += " of the median rank"
    if waiting + communicating >= MUCH and lost_to_the_slowest(figures) >= 0.1:
        return (
            f"{percent(waiting)} {where} is waiting for others and {percent(communicating)} is "
            f"communication that "
            "the program waits for, much of it because of the one named below: find out why it is "
            "slow before "
            "tuning anything else."
        )
    if waiting >= MUCH and waiting >= communicating:
        data = sum(s.data_wait for s in figures.shares) / (
            sum(s.waiting for s in figures.shares) or 1
        )
        if data > 0.5:
            return (
                f"{percent(waiting)} {where} is waiting, most of it within running operations for data of "
                "other ranks: look for a slow connection (horovodrun doctor measures it) or for ranks that "
                "share cores."
            )
        return (
            f"{percent(waiting)} {where} is waiting for others, and no single rank is to blame: give all "
            "ranks equal work (batches of equal cost, equal input pipelines), or larger batches."
        )
    if communicating >= MUCH:
        return (
            f"{percent(communicating)} {where} is communication that the program waits for: send less "
            "(compression=hvd.Compression.fp16), send less often (backward_passes_per_step), or use larger "
            "batches."
        )
    return (
        f"{percent(compute)} {where} is computation; of the rest {percent(communicating)} is "
        f"communication that the "
        "program waits for, so faster communication would gain little."
    )


def hidden_advice(figures: Figures) -> str:
    """About communication behind computation."""
    hidden = hidden_share(figures.shares)
    if figures.size == 1:
        return "One rank has nothing to communicate."
    if not any(share.from_callers for share in figures.shares):
        return (
            "No caller was seen blocked, as in graphs of TensorFlow, so what is hidden can't be told apart; "
            "the bars show all execution as communicating."
        )
    if hidden is None:
        return "Nothing was executed in these steps."
    exposed = mean_share(figures, "communicating")
    text = f"{percent(hidden)} of the communication ran behind computation"
    if exposed < 0.05:
        return f"{text}, and the rest costs {percent(exposed)} of the step: nothing to do here."
    if hidden < 0.3:
        return (
            f"{text}, the rest costs {percent(exposed)} of the step: let gradients be reduced "
            f"while others are "
            "computed (hvd.DistributedOptimizer does; calls without _async do not)."
        )
    return (
        f"{text}, the rest costs {percent(exposed)} of the step: what is submitted last can't be hidden, so "
        "keep the layers next to the input small, or compress."
    )


def standout(figures: Figures) -> Straggler | None:
    """The rank that is the slowest far more often than chance, if there is one."""
    late = figures.lateness
    if not late.ranking:
        return None
    first = late.ranking[0]
    often = first.share >= 0.5 or first.share >= max(0.2, 4 / max(len(late.ranks), 1))
    return first if often else None


def host_standout(figures: Figures) -> tuple[str, float] | None:
    """A host whose ranks are together the slowest in most steps, and in which share of them."""
    late = figures.lateness
    sums: dict[str, float] = {}
    for entry in late.ranking:
        sums[entry.host] = sums.get(entry.host, 0.0) + entry.share
    if not sums or len(set(late.ranks.values())) < 2:
        return None
    host = max(sums, key=sums.__getitem__)
    expected = sum(h == host for h in late.ranks.values()) / len(late.ranks)
    return (host, sums[host]) if sums[host] >= min(0.9, max(0.5, 2 * expected)) else None


def lost_to_the_slowest(figures: Figures) -> float:
    """How far the rank or host that stands out is behind, as a share of a step; 0 if none does."""
    one, host = standout(figures), host_standout(figures)
    late = [s.late for s in figures.lateness.ranking if s is one or (host and s.host == host[0])]
    return median(late) / figures.step if late and figures.step else 0.0


def slowest_advice(figures: Figures) -> str:
    """About the slowest rank."""
    late = figures.lateness
    if len(late.ranks) < 2:
        return (
            "When the ranks were ready is not in this file, so nobody can be called slow."
            if figures.size > 1
            else "One rank has nobody to wait for."
        )
    if not figures.steps.marked and late.ranking:
        first = late.ranking[0]
        return (
            f"Rank {first.rank} on host {shown(first.host)} was latest, by {duration(first.late)}; "
            f"the recording "
            "has no marks of steps, so how often can't be said."
        )
    one, host = standout(figures), host_standout(figures)
    if host is not None and (one is None or one.share < 0.75 * host[1]):
        name, share = host
        times = [s.late for s in late.ranking if s.host == name]
        return (
            f"In {percent(share)} of the steps the slowest rank was on host {shown(name)}, typically "
            f"{duration(median(times))} behind: look at that host (other programs, temperature and clock of "
            "its processors, its network and disk)."
        )
    if one is not None:
        cost = _cost_text(figures, one)
        return (
            f"Rank {one.rank} on host {shown(one.host)} was last in {percent(one.share)} of the "
            f"steps, typically "
            f"{duration(one.late)} behind{cost}: look at its data (larger or costlier batches?), its input "
            "pipeline, and what else runs there."
        )
    if late.nobody >= 0.8 * len(late.matrix):
        return (
            f"In {percent(late.nobody / len(late.matrix))} of the steps all ranks arrived within "
            f"{duration(late.threshold)}: nothing to do here."
        )
    typical = median(s.late for s in late.ranking)
    return (
        f"The last place changes from step to step ({count(len(late.ranking), 'rank')} had it, typically "
        f"{duration(typical)} behind), so no rank is slow by itself: batches of unequal cost or a "
        f"noisy machine do "
        "this."
    )


def _cost_text(figures: Figures, straggler: Straggler) -> str:
    if straggler.cost is None:
        return ""
    share = straggler.cost / figures.step if figures.step else 0.0
    return f", which cost each other rank {duration(straggler.cost)} ({percent(share)} of a step)"


def tensor_advice(figures: Figures) -> str:
    """About the tensors that were waited for."""
    if not figures.tensors:
        return "No tensor was waited for."
    worst = figures.tensors[0]
    name = shown(worst.name)
    text = f"{name} waited longest, typically {duration(worst.typical)} from the first rank to the last"
    if worst.last_rank is None or worst.last_share < 0.5:
        several = len(set(figures.lateness.ranks.values())) > 1
        if worst.last_host is not None and worst.last_host_share >= 0.75 and several:
            return (
                f"{text}, and in {percent(worst.last_host_share)} of the times the last rank was on host "
                f"{shown(worst.last_host)}: that host is slow, not a layer."
            )
        return f"{text}; who is last changes, so the cause is not one rank."
    alike = [t for t in figures.tensors if t.last_rank == worst.last_rank and t.last_share >= 0.5]
    if len(alike) == len(figures.tensors) and len(alike) > 1:
        return (
            f"{text}, and rank {worst.last_rank} is last for all {len(alike)} of these tensors: "
            f"that rank is slow, "
            "not a layer."
        )
    return (
        f"{text}, and rank {worst.last_rank} was last in {percent(worst.last_share)} of the times: "
        f"look at what "
        "that rank does before it submits this tensor."
    )


def size_advice(figures: Figures) -> str:
    """About sizes and bandwidth."""
    classes = figures.sizes
    time = sum(c.time for c in classes)
    if not classes or time <= 0:
        return "Nothing was executed in these steps."
    small = sum(c.time for c in classes if c.label in SMALL_LABELS)
    steps = max(1, len(figures.steps.numbers))
    small_per_step = sum(c.responses for c in classes if c.label in SMALL_LABELS) / steps
    if (
        small > 0.3 * time
        and small_per_step <= 4
        and sum(c.bytes for c in classes) / steps < 4 * SMALL
    ):
        return (
            f"Only {size(sum(c.bytes for c in classes) / steps)} are exchanged in a step: latency "
            f"decides, not "
            "bandwidth, so there is nothing to tune here."
        )
    if small > 0.3 * time and small_per_step > 4:
        return (
            f"{percent(small / time)} of the execution time goes to responses of at most "
            f"{size(SMALL)}, which cost "
            "more to start than to send: let more be fused (a higher HOROVOD_CYCLE_TIME, or num_groups of "
            "the optimizer)."
        )
    best: SizeClass = max(classes, key=lambda c: c.bytes)
    hosts = len(set(figures.hosts))
    text = f"Most bytes went in {best.kind} responses of {best.label}, at {rate(best.bandwidth)}"
    if best.best > HELD_UP * best.bandwidth:
        return (
            f"{text} on average and {rate(best.best)} at best: executions are often held up, by a "
            f"rank that is "
            "late or has no core free, or by other traffic on the network."
        )
    compare = (
        "compare it with what horovodrun doctor measures between the hosts"
        if hosts > 1
        else "compare it with benchmarks/allreduce.py for this machine"
    )
    return f"{text}: {compare}; far less means that something else uses the cores or the network."


def fusion_advice(figures: Figures) -> str:
    """About fusion."""
    fusion = figures.fusion
    if not fusion.responses:
        return "Nothing was executed in these steps."
    per_step = fusion.responses / max(1, len(figures.steps.numbers))
    tensors = fusion.tensors / fusion.responses
    text = (
        f"{tensors:.1f} tensors per response, {percent(fusion.fused_tensors / fusion.tensors)} "
        f"of them fused"
    )
    if fusion.typical_bytes < SMALL and per_step > 16 and tensors < 4:
        return (
            f"{text}, and a typical response has only {size(fusion.typical_bytes)}: raise "
            f"HOROVOD_CYCLE_TIME so "
            "that more tensors meet, and use the _async calls or groups where the program waits "
            "for each tensor."
        )
    if (
        fusion.decision is not None
        and fusion.decision > 0.1 * figures.step > 0
        and figures.steps.marked
    ):
        return (
            f"{text}, but a complete tensor waits {duration(fusion.decision)} until it is decided "
            f"to execute it: "
            "lower HOROVOD_CYCLE_TIME."
        )
    if fusion.typical_bytes >= SMALL:
        return (
            f"{text}; a typical response has {size(fusion.typical_bytes)}, large enough: leave "
            f"it as it is."
        )
    return (
        f"{text}, in {per_step:,.1f} responses per step: so few that fusing more would gain little."
    )


def pending_advice(figures: Figures) -> str:
    """About what was under way when the recording ended."""
    silent = sorted({rank for pending in figures.pending for rank in pending.silent})
    number = count(len(figures.pending), "tensor")
    if not silent:
        return f"{number} had not been executed when the recording ended, as is usual when a job is stopped."
    everywhere = [r for r in silent if all(r in p.silent for p in figures.pending if p.silent)]
    who = ranks_text(everywhere or silent)
    place = ""
    if len(everywhere) == 1:
        place = f" on host {shown(figures.hosts[everywhere[0]])}"
    verb = "has" if who.startswith("rank ") else "have"
    return (
        f"When the recording ended {number} were waiting, and {who}{place} {verb} not submitted them, or not "
        "all: if the job hung, look there first (horovodrun flight-recorder shows what each rank did last)."
    )


def unknown(figures: Figures) -> str:
    """What one file alone can't tell; empty if there are others."""
    if not figures.single:
        return ""
    rank = figures.present[0]
    text = (
        f"This is the file of rank {rank} alone: how the other {count(figures.size - 1, 'rank')} spent "
        "their time, what was hidden there, and how long they were blocked can't be known from it"
    )
    if rank == 0:
        text += "; when each rank was ready is known as rank 0 heard of it, often of a whole host at once"
    return f"{text}. Record with --timeline-all-ranks and give all files."


def sections(figures: Figures) -> dict[str, str]:
    """All sentences, by section."""
    found = {
        "time": time_advice(figures),
        "hidden": hidden_advice(figures),
        "slowest": slowest_advice(figures),
        "tensors": tensor_advice(figures),
        "sizes": size_advice(figures),
        "fusion": fusion_advice(figures),
    }
    if figures.pending:
        found["pending"] = pending_advice(figures)
    return found
