"""Output scrolls above the table, every line of it intact, whatever it looks like."""

from __future__ import annotations

import random

import pytest
from monitor_terminal import Terminal

from horovod.runner.monitor import screen as screen_module
from horovod.runner.monitor.screen import Screen, Size

TABLE = ["title", "rank 0", "rank 1", "all"]


class Rig:
    """A screen on a terminal, with a table that can be changed."""

    def __init__(self, columns: int = 40, lines: int = 12, table: list[str] | None = None) -> None:
        self.terminal = Terminal(columns, lines)
        self.table = table or TABLE
        self.screen = Screen(self.terminal.write, lambda: self.terminal.size, self.lines)

    def lines(self, size: Size) -> list[str]:
        return [line[: size[0] - 1] for line in self.table]

    def output(self, data: bytes) -> None:
        self.screen.output(data)
        self.screen.draw()


def test_the_table_stands_below_the_output_and_nowhere_else() -> None:
    rig = Rig()
    for number in range(100):
        rig.output(b"line %d\n" % number)
    assert rig.terminal.everything() == [f"line {n}" for n in range(100)] + TABLE
    assert rig.terminal.cursor_is_sane()


def test_a_table_that_changes_its_height_leaves_nothing_behind() -> None:
    rig = Rig()
    rig.output(b"one\n")
    for table in (TABLE[:1], TABLE * 2, TABLE[:2]):
        rig.table = table
        rig.screen.draw()
        assert rig.terminal.everything() == ["one", *table]
    rig.output(b"two\n")
    assert rig.terminal.everything() == ["one", "two", *TABLE[:2]]


def test_without_output_the_table_is_written_over_and_never_erased_first() -> None:
    rig = Rig()
    rig.screen.draw()
    written: list[bytes] = []
    rig.screen._write = written.append
    rig.screen.draw()
    (data,) = written
    assert data.index(b"title") < data.index(b"\x1b[J") and data.endswith(b"\x1b[J")


def test_output_and_table_go_out_in_one_write() -> None:
    rig = Rig()
    rig.screen.draw()
    written: list[bytes] = []
    rig.screen._write = written.append
    for _ in range(5):
        rig.screen.output(b"line\n")
    rig.screen.draw()
    assert len(written) == 1


def test_much_output_is_not_held_back_until_the_next_draw() -> None:
    rig = Rig(table=["t"])
    line = b"x" * 39 + b"\n"
    for _ in range(2 * screen_module.PENDING_LIMIT // len(line)):
        rig.screen.output(line)
    assert len(rig.terminal.everything()) > screen_module.PENDING_LIMIT // len(line)


def test_a_line_without_an_end_stands_above_the_table_until_its_end_comes() -> None:
    rig = Rig()
    rig.output(b"one\nbegin")
    assert rig.terminal.everything() == ["one", "begin", *TABLE]
    rig.output(b" and")
    assert rig.terminal.everything() == ["one", "begin and", *TABLE]
    rig.output(b" end\nnext\n")
    assert rig.terminal.everything() == ["one", "begin and end", "next", *TABLE]


def test_a_long_line_without_an_end_is_cut_and_comes_in_full_with_its_end() -> None:
    rig = Rig(columns=10)
    rig.output(b"0123456789abcdef")
    assert rig.terminal.everything() == ["012345678", *TABLE]
    rig.output(b"!\n")
    assert rig.terminal.everything() == ["0123456789", "abcdef!", *TABLE]


def test_a_line_too_long_to_hold_is_written_as_it_comes_and_the_table_waits(monkeypatch) -> None:
    monkeypatch.setattr(screen_module, "OPEN_LIMIT", 30)
    rig = Rig(columns=20)
    rig.output(b"a" * 31)
    assert rig.terminal.everything() == ["a" * 20, "a" * 11]
    rig.screen.draw()
    rig.output(b"b" * 20)
    assert rig.terminal.everything() == ["a" * 20, "a" * 11 + "b" * 9, "b" * 11]
    rig.output(b"c\nd\n")
    assert rig.terminal.everything() == ["a" * 20, "a" * 11 + "b" * 9, "b" * 11 + "c", "d", *TABLE]


def test_a_progress_bar_is_one_line_above_the_table() -> None:
    rig = Rig()
    for percent in range(0, 100, 10):
        rig.output(b"[0]<stderr>:\r[0]<stderr>: %d%%\r" % percent)
        assert rig.terminal.everything() == [f"[0]<stderr>: {percent}%", *TABLE]
    rig.output(b"[0]<stderr>:done\n")
    assert rig.terminal.everything() == ["[0]<stderr>:done", *TABLE]


def test_windows_line_ends_and_overwritten_lines_look_as_without_a_table() -> None:
    plain, rig = Terminal(40, 12), Rig()
    for data in (b"one\r\n", b"two\rTW\n", b"\r\n", b"a\rb\rc\nd\r\n"):
        plain.write(data)
        rig.output(data)
    assert rig.terminal.everything() == [*plain.everything(), *TABLE]


def test_an_open_line_with_escapes_wide_and_broken_characters_fits_in_one_line() -> None:
    rig = Rig(columns=12)
    for data in (
        "\x1b[31m漢字漢字漢字漢字\x1b[0m".encode(),
        b"\xff\xfe\x00\x07bad",
        b"tab\tand\tmore",
        b"\x1b[",
    ):
        rig.output(data)
        assert len(rig.terminal.everything()) == 1 + len(TABLE)
        assert rig.terminal.everything()[1:] == TABLE
        rig.output(b"\x1b[0m\r")


def test_colours_of_the_output_pass() -> None:
    rig = Rig()
    rig.output(b"\x1b[31mred\x1b[0m\n")
    row = rig.terminal.screen.buffer[0]
    assert (row[0].data, row[0].fg) == ("r", "red")


def test_a_wider_or_lower_terminal_keeps_output_and_table() -> None:
    rig = Rig(columns=40, lines=20)
    for number in range(5):
        rig.output(b"line %d\n" % number)
    assert not rig.screen.was_resized()
    rig.terminal.resize(60, 10)
    assert rig.screen.was_resized()
    rig.screen.draw()
    assert rig.terminal.everything()[-len(TABLE) :] == TABLE
    rig.output(b"line 5\n")
    assert rig.terminal.everything() == [f"line {n}" for n in range(6)] + TABLE


def narrowed(wraps: bool) -> list[str]:
    """A terminal with six lines of output after it has become narrower than the table."""
    rig = Rig(columns=40, lines=20, table=["=" * 39] * 4)
    for number in range(5):
        rig.output(b"line %d\n" % number)
    if wraps:
        rig.terminal = Terminal(20, 20)
        for line in [*(f"line {n}" for n in range(5)), *["=" * 39] * 4]:
            rig.terminal.write(f"{line}\n".encode())
        rig.screen._write = rig.terminal.write
    else:
        rig.terminal.resize(20, 20)
    rig.screen.draw()
    rig.output(b"line 5\n")
    assert rig.terminal.cursor_is_sane()
    return rig.terminal.everything()


def test_a_narrower_terminal_that_cuts_lines_shows_output_and_table() -> None:
    assert narrowed(wraps=False) == [f"line {n}" for n in range(6)] + ["=" * 19] * 4


def test_one_that_wraps_them_keeps_pieces_of_the_old_table_but_loses_no_output() -> None:
    seen = narrowed(wraps=True)
    assert [line for line in seen if line.startswith("line")] == [f"line {n}" for n in range(6)]
    assert seen[-4:] == ["=" * 19] * 4


def test_what_the_user_typed_below_the_table_disappears() -> None:
    rig = Rig()
    rig.output(b"one\n")
    rig.terminal.write(b"^C")
    rig.output(b"two\n")
    assert rig.terminal.everything() == ["one", "two", *TABLE]


def test_after_an_absence_a_new_table_begins_where_the_cursor_is() -> None:
    rig = Rig(lines=30)
    rig.output(b"one\n")
    rig.terminal.write(b"[1]+  Stopped\n$ fg\nhorovodrun\n")
    rig.screen.forget()
    rig.output(b"two\n")
    expected = ["one", *TABLE, "[1]+  Stopped", "$ fg", "horovodrun", "two", *TABLE]
    assert rig.terminal.everything() == expected


@pytest.mark.parametrize("last", [b"", b"no end", b"bar\r"])
def test_the_end_leaves_output_then_table_then_the_cursor(last: bytes) -> None:
    rig = Rig()
    rig.output(b"one\n" + last)
    rig.screen.output(b"two\n" if not last else b"")
    rig.table = ["summary"]
    rig.screen.close()
    rest = last.decode().strip() or "two"
    assert rig.terminal.everything() == ["one", rest, "summary"]
    assert rig.terminal.cursor_is_sane()


@pytest.mark.parametrize("seed", range(20))
def test_random_output_cut_anywhere_arrives_line_by_line(seed: int) -> None:
    choose = random.Random(seed)
    columns = choose.choice([20, 40, 80])
    rig = Rig(columns, choose.choice([8, 12, 24]))
    lines = [f"{n}:" + "x" * choose.randrange(2 * columns) for n in range(60)]
    data = "".join(f"{line}\n" for line in lines).encode()
    position = 0
    while position < len(data):
        step = choose.randrange(1, 100)
        rig.screen.output(data[position : position + step])
        position += step
        if choose.random() < 0.7:
            rig.table = TABLE[: choose.randrange(1, 5)]
            rig.screen.draw()
            assert rig.terminal.visible()[-len(rig.table) :] == rig.table
    rig.screen.draw()
    wrapped = [line[at : at + columns] for line in lines for at in range(0, len(line), columns)]
    assert rig.terminal.everything() == [*wrapped, *rig.table]
