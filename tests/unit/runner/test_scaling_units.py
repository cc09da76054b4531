"""Rates, times and sizes of `horovodrun predict`."""

from __future__ import annotations

import pytest

from horovod.runner.scaling.units import (
    number_text,
    parse_rate,
    parse_size,
    parse_time,
    rate_text,
    size_text,
    time_text,
)


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("25Gbit/s", 25e9 / 8),
        ("25 Gbit/s", 25e9 / 8),
        ("1gbit", 1e9 / 8),
        ("500mbit", 500e6 / 8),
        ("100Gbps", 100e9 / 8),
        ("3.1GB/s", 3.1e9),
        ("1GiB/s", 2.0**30),
        ("8bit/s", 1.0),
        ("1e9B/s", 1e9),
    ],
)
def test_a_rate_knows_bits_from_bytes_and_decimal_from_binary(
    text: str, bytes_per_second: float
) -> None:
    assert parse_rate(text) == pytest.approx(bytes_per_second)


@pytest.mark.parametrize(
    "text", ["", "25", "fast", "25Gbit/h", "-1Gbit/s", "0Gbit/s", "nanGbit/s", "1e999GB/s", "25 G"]
)
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected a rate such as 25Gbit/s"):
        parse_rate(text)


def test_times_and_sizes() -> None:
    assert parse_time("20us") == pytest.approx(20e-6)
    assert parse_time("1.5ms") == pytest.approx(1.5e-3)
    assert parse_time("0s") == 0
    assert parse_size("64MiB") == 64 * 2**20
    assert parse_size("100MB") == 100e6
    assert parse_size("4096") == 4096
    for parse, text in ((parse_time, "20"), (parse_time, "3 days"), (parse_size, "64Mbit")):
        with pytest.raises(ValueError, match="expected a"):
            parse(text)


def test_texts_have_three_digits_and_no_exponent() -> None:
    assert time_text(0.41558) == "416 ms"
    assert time_text(20e-6) == "20 us"
    assert time_text(1.5e-7) == "0.15 us"
    assert size_text(553430176) == "553 MB"
    assert rate_text(25e9 / 8) == "25 Gbit/s"
    assert number_text(1234567.0) == "1,234,567"
    assert number_text(0.001234) == "0.00123"
