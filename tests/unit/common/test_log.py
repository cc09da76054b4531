"""Format and levels of log messages."""

from __future__ import annotations

import logging
import re

import pytest

from horovod.common import log


def _record(level: int = logging.WARNING) -> logging.LogRecord:
    return logging.LogRecord("horovod", level, "/a/connect.py", 42, "say %s", ("it",), None)


def test_a_message_has_time_level_place_and_rank() -> None:
    text = log.HorovodFormatter(hide_time=False, rank=3).format(_record())
    assert re.fullmatch(
        r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}: W connect\.py:42\] \[3\]: say it", text
    )


def test_the_time_can_be_hidden_and_the_rank_may_be_unknown() -> None:
    assert log.HorovodFormatter(True, None).format(_record()) == "[W connect.py:42] say it"


@pytest.mark.parametrize(("level", "letter"), [(log.TRACE, "T"), (logging.CRITICAL, "F")])
def test_levels_have_letters(level: int, letter: str) -> None:
    assert log.HorovodFormatter(True, 0).format(_record(level)).startswith(f"[{letter} ")


def test_the_level_comes_from_the_environment(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure(rank=1, env={"HOROVOD_LOG_LEVEL": "info", "HOROVOD_LOG_HIDE_TIME": "1"})
    log.logger.debug("too little")
    log.logger.info("enough")
    log.configure(env={})
    log.logger.info("too little again")
    assert re.fullmatch(r"\[I test_log\.py:\d+\] \[1\]: enough\n", capsys.readouterr().err)
