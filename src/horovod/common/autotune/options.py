"""What the environment asks of autotune."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from horovod.common import knobs
from horovod.common.autotune.space import Setting, Space


@dataclass(frozen=True, slots=True)
class Options:
    """How to tune.

    Attributes:
        enabled: whether to tune at all.
        space: what may be chosen; what the user set explicitly is fixed.
        warmup_samples: so many samples are discarded at first.
        steps_per_sample: training steps of one score.
        most_samples: samples of one optimisation.
        most_noise: noise variance over signal variance that scores have at most, 0..1.
        seed: with the same scores, the same seed gives the same settings.
        log_path: CSV file, or None.
    """

    enabled: bool
    space: Space
    warmup_samples: int
    steps_per_sample: int
    most_samples: int
    most_noise: float
    seed: int
    log_path: str | None


def options_from_environment(env: Mapping[str, str] | None = None) -> Options:
    """Reads the knobs of autotune, and which of the tuned values are set explicitly.

    Args:
        env: the environment; None for os.environ.

    Raises:
        ValueError: a variable has an illegal value.
    """
    start = Setting(
        threshold_bytes=knobs.value_of("HOROVOD_FUSION_THRESHOLD", env),
        cycle_time_ms=float(knobs.value_of("HOROVOD_CYCLE_TIME", env)),
        cache_enabled=knobs.value_of("HOROVOD_CACHE_CAPACITY", env) > 0,
    )
    return Options(
        enabled=knobs.value_of("HOROVOD_AUTOTUNE", env),
        space=Space(
            start,
            threshold_free=not knobs.is_set("HOROVOD_FUSION_THRESHOLD", env),
            cycle_time_free=not knobs.is_set("HOROVOD_CYCLE_TIME", env),
            cache_free=not knobs.is_set("HOROVOD_CACHE_CAPACITY", env),
        ),
        warmup_samples=knobs.value_of("HOROVOD_AUTOTUNE_WARMUP_SAMPLES", env),
        steps_per_sample=knobs.value_of("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", env),
        most_samples=knobs.value_of("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", env),
        most_noise=knobs.value_of("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", env),
        seed=knobs.value_of("HOROVOD_AUTOTUNE_SEED", env),
        log_path=knobs.value_of("HOROVOD_AUTOTUNE_LOG", env),
    )
