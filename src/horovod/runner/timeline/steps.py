"""Which steps a report is about."""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from horovod.runner.timeline.errors import TimelineError
from horovod.runner.timeline.figures import Steps
from horovod.runner.timeline.recording import Recording

# The first step compiles, allocates and broadcasts. Where it is that much longer it would hide the others.
FIRST_STEP_FACTOR = 3
FEWEST_STEPS = 4  # from that many on the first may be left out


def choose_steps(recording: Recording, wanted: tuple[int | None, int | None] | None) -> Steps:
    """The complete steps of a recording, or those numbered from wanted[0] to wanted[1].

    A step is complete if the next one has begun. Raises TimelineError if none is in the range.
    """
    marks = recording.steps
    if len(marks) < 2:
        if wanted is not None:
            raise TimelineError(
                "--steps: the recording has no two marks of steps, so no step can be chosen"
            )
        return Steps([0], [recording.begin, recording.end], marked=False)
    numbers = [number for number, _ in marks[:-1]]
    times = [time for _, time in marks]
    if wanted is not None:
        return _range(numbers, times, wanted)
    durations = [end - begin for begin, end in pairwise(times)]
    if len(durations) >= FEWEST_STEPS and durations[0] > FIRST_STEP_FACTOR * median(durations[1:]):
        text = (
            f"Step {numbers[0]}, the first, took {durations[0] / median(durations[1:]):.0f} times as long as "
            f"the others and is left out; --steps {numbers[0]}: takes it in."
        )
        return Steps(numbers[1:], times[1:], marked=True, left_out=text)
    return Steps(numbers, times, marked=True)


def _range(numbers: list[int], times: list[float], wanted: tuple[int | None, int | None]) -> Steps:
    low = numbers[0] if wanted[0] is None else wanted[0]
    high = numbers[-1] if wanted[1] is None else wanted[1]
    chosen = [i for i, number in enumerate(numbers) if low <= number <= high]
    if not chosen:
        raise TimelineError(
            f"--steps: no complete step from {low} to {high}; the recording has {numbers[0]} to {numbers[-1]}"
        )
    first, last = chosen[0], chosen[-1]
    left = len(numbers) - len(chosen)
    text = (
        f"Only steps {numbers[first]} to {numbers[last]}; {left} others are left out."
        if left
        else ""
    )
    return Steps(numbers[first : last + 1], times[first : last + 2], marked=True, left_out=text)


def parse_range(text: str) -> tuple[int | None, int | None]:
    """Reads "10:50", "10:" or ":50". Raises ValueError."""
    low, colon, high = text.partition(":")
    try:
        if not colon:
            raise ValueError
        bounds = (int(low) if low else None, int(high) if high else None)
        if None not in bounds and bounds[0] > bounds[1]:  # type: ignore[operator]
            raise ValueError
    except ValueError:
        raise ValueError(f"expected FIRST:LAST, for example 10:50 or 10:, got {text!r}") from None
    return bounds
