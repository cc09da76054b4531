"""The thread that tunes: applies what the tuner asks for, measures, reports. On rank 0 only."""

from __future__ import annotations

import threading
from dataclasses import replace

from horovod.common.autotune.log_file import LogFile
from horovod.common.autotune.measure import Engine, Stopped, measure
from horovod.common.autotune.options import Options
from horovod.common.autotune.space import Setting
from horovod.common.autotune.tuner import Sample, Tuner
from horovod.common.exceptions import HorovodInternalError
from horovod.common.log import logger

NOTHING_FREE_TEXT = (
    "Autotune has nothing to tune: HOROVOD_FUSION_THRESHOLD, HOROVOD_CYCLE_TIME and "
    "HOROVOD_CACHE_CAPACITY are all set. Unset those that it may choose."
)


class Driver:
    """Tunes one engine, from `start` to `stop`."""

    def __init__(self, tuner: Tuner, engine: Engine) -> None:
        """Takes the tuner, which may have learnt from an earlier engine, and a running engine."""
        self._tuner = tuner
        self._engine = engine
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="horovod-autotune", daemon=True)

    def start(self) -> None:
        """Begins; returns at once."""
        self._thread.start()

    def stop(self) -> None:
        """Ends tuning, finished or not; harmless when it has ended. Waits for the thread."""
        self._stopped.set()
        self._thread.join()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until tuning has ended by itself; False on timeout (seconds)."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        log_file = LogFile(self._tuner.options.log_path, self._tuner.history)
        try:
            self._tune(log_file)
        except Stopped:
            self._say_unfinished()
        except (ValueError, HorovodInternalError) as error:
            # The engine refuses calls while it ends; anything else it refuses is a fault to show.
            if self._engine.is_running() and not self._stopped.is_set():
                logger.error("Autotune ends because the engine refused a call: %s", error)
            self._say_unfinished()
        finally:
            log_file.close()

    def _tune(self, log_file: LogFile) -> None:
        tuner = self._tuner
        while (setting := tuner.ask()) is not None:
            self._apply(setting)
            score = measure(self._engine, tuner.options.steps_per_sample, self._stopped.is_set)
            if tuner.tell(setting, score):
                log_file.add(tuner.history[-1])
                logger.info(
                    "Autotune, sample %d: %s: %.6g bytes/us.",
                    len(tuner.history),
                    setting.describe(),
                    score,
                )
        winner = tuner.winner()
        self._apply(winner.setting)
        log_file.add(winner)
        logger.warning("%s", verdict(tuner, winner))

    def _apply(self, setting: Setting) -> None:
        self._engine.set_parameters(
            setting.threshold_bytes, setting.cycle_time_ms, setting.cache_enabled
        )

    def _say_unfinished(self) -> None:
        best = self._tuner.best_so_far()
        if best is None:
            logger.warning("Autotune was stopped during its first samples; it has chosen nothing.")
            return
        logger.warning(
            "Autotune was stopped before it had finished. Best of %d samples so far: %s, %.6g bytes/us. "
            "To start with these values: %s",
            len(self._tuner.history),
            best.setting.describe(),
            best.score,
            best.setting.variables(),
        )


def verdict(tuner: Tuner, winner: Sample) -> str:
    """The sentence by which people learn what won."""
    text = f"Autotune has finished after {len(tuner.history)} samples. "
    if winner.setting == tuner.start:
        return (
            f"{text}Nothing was clearly better than the starting values, which stay: "
            f"{winner.setting.describe()}, {winner.score:.6g} bytes/us."
        )
    gain = winner.score / max(tuner.score_of_start(), 1e-12)
    return (
        f"{text}Chosen: {winner.setting.describe()}, {winner.score:.6g} bytes/us; that is {gain:.2f} "
        f"times what the starting values gave ({tuner.start.describe()}). To start with the chosen "
        f"values: {winner.setting.variables()}"
    )


class Autotune:
    """Autotune of one process: keeps what was learnt while engines come and go."""

    def __init__(self) -> None:
        self._tuners: dict[tuple[int, Options], Tuner] = {}
        self._driver: Driver | None = None

    def start(self, options: Options, rank: int, size: int, engine: Engine) -> Driver | None:
        """Begins to tune, if that was asked for and this is rank 0. Returns at once.

        Goes on from what was learnt with the same number of ranks and the same options; the path of
        the log may differ.

        Args:
            options: see `options_from_environment`.
            rank: of this process.
            size: number of ranks.
            engine: it runs already, with the starting values.

        Returns:
            The driver, or None when there is nothing to do here.
        """
        if rank != 0 or not options.enabled:
            return None
        if not options.space.anything_free:
            logger.warning("%s", NOTHING_FREE_TEXT)
            return None
        self.stop()
        key = (size, replace(options, log_path=None))
        tuner = self._tuners.get(key)
        if tuner is None:
            tuner = self._tuners[key] = Tuner(options)
        else:
            tuner.options = options
            tuner.resume()
        self._driver = Driver(tuner, engine)
        self._driver.start()
        return self._driver

    def stop(self) -> None:
        """Ends tuning if it is under way; what was learnt is kept."""
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.stop()
