"""`horovodrun flight-recorder` on folders: what it prints, and what it says of damaged files."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from flight_recorder_simulator import Stay, World, begin, step, training, write_all

from horovod.runner.flight_recorder.command import flight_recorder
from horovod.runner.flight_recorder.reader import DumpError, parse_dump, read_folder
from horovod.runner.launch import run_commandline


@pytest.fixture
def written() -> dict[int, dict]:
    programs = [training(4), training(4), [*training(3), Stay("loader.py:9 in next")]]
    return World(programs, hosts=["a", "a", "b"]).run().dumps()


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    status = flight_recorder([str(word) for word in argv])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# --- what it prints ------------------------------------------------------------------------------------


def test_the_report_names_the_rank_its_frame_and_last_operations(tmp_path, written, capsys):
    write_all(tmp_path, written)
    status, out, err = run(capsys, tmp_path)
    assert (status, err) == (0, "")
    assert out.startswith("DIVERGED FIRST: rank 2 (short)\n")
    assert "loader.py:9 in next" in out
    table = [line.split() for line in out.splitlines() if line.startswith(("0, 1 ", "2 "))]
    assert table[0][2:8] == ["a", "stall", "25", "20", "5", "0"]
    assert table[1][1:7] == ["b", "stall", "20", "20", "0", "0"]
    assert "Last operations of rank 2:" in out
    assert "Last operations of ranks 0, 1 (times of rank 0):" in out


def test_last_says_how_many_operations_are_listed(tmp_path, written, capsys):
    write_all(tmp_path, written)
    listed = run(capsys, tmp_path, "--last", "7")[1].split("Last operations of rank 2:")[1]
    assert len(listed.strip().split("\n\n")[0].splitlines()) == 7
    assert "Last operations" not in run(capsys, tmp_path, "--last", "0")[1]


def test_json_holds_the_same_for_programs(tmp_path, written, capsys):
    write_all(tmp_path, written)
    content = json.loads(run(capsys, tmp_path, "--json", "--last", "2")[1])
    assert content["size"] == 3
    assert content["findings"][0]["kind"] == "short"
    assert content["findings"][0]["ranks"] == [2]
    assert [rank["pending"] for rank in content["ranks"]] == [5, 5, 0]
    assert content["ranks"][2]["at"] == "loader.py:9 in next"
    assert len(content["ranks"][0]["last_operations"]) == 2
    assert content["ranks"][0]["blocked"][0]["name"] == "allreduce.layer0.weight"
    assert content["absent"] == []


def test_the_word_flight_recorder_of_horovodrun_leads_here(tmp_path, written, capsys):
    write_all(tmp_path, written)
    assert run_commandline(["flight-recorder", str(tmp_path)]) == 0
    assert "DIVERGED FIRST: rank 2" in capsys.readouterr().out


def test_names_of_any_characters_are_shown_harmlessly(tmp_path, capsys):
    names = ['with "quotes"', "line\nbreak", "bell\a", "naïve-日本", "x" * 500]
    programs = [[*begin(), *step(names=names)], [*begin()]]
    write_all(tmp_path, World(programs).run().dumps())
    status, out, _ = run(capsys, tmp_path)
    assert status == 0
    assert "\a" not in out and "line\\nbreak" in out and "naïve-日本" in out


def test_reports_of_many_ranks_stay_short(tmp_path, capsys):
    programs = [training(5, seed=rank) for rank in range(64)]
    programs[9] = training(4, seed=9)
    write_all(tmp_path, World(programs).run().dumps())
    out = run(capsys, tmp_path)[1]
    assert out.startswith("DIVERGED FIRST: rank 9 ")
    assert len(out.splitlines()) < 120


# --- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda folder: folder / "absent", "does not exist; expected the folder"),
        (lambda folder: _file(folder / "file"), "is a file; expected the folder"),
        (lambda folder: folder, "has no file rank<r>.json"),
    ],
)
def test_what_is_no_folder_of_dumps_is_refused(tmp_path, capsys, make, said):
    status, out, err = run(capsys, make(tmp_path))
    assert (status, out) == (1, "")
    assert err.startswith("horovodrun: error: ") and said in err


def _file(path: Path) -> Path:
    path.write_text("x")
    return path


def test_a_truncated_file_is_placed_by_line_and_column(tmp_path, written, capsys):
    text = json.dumps(written[0], indent=1)
    (tmp_path / "rank0.json").write_text(text[: text.index('"hosts"')])
    status, _, err = run(capsys, tmp_path)
    assert status == 1
    assert f"{tmp_path}/rank0.json:7:2: no valid JSON: the file ends too early" in err


def test_a_damaged_file_among_good_ones_is_said_and_the_rest_is_analysed(tmp_path, written, capsys):
    write_all(tmp_path, written)
    (tmp_path / "rank2.json").write_text('{"format": "horovod-flight-recorder",\n "version" 1}')
    status, out, _ = run(capsys, tmp_path)
    assert status == 0
    assert out.startswith("DIVERGED FIRST: rank 2 (no-file)")
    assert "The file of rank 2 cannot be read" in out
    assert "rank2.json:2:12: no valid JSON: Expecting ':' delimiter." in " ".join(out.split())
    assert json.loads(run(capsys, tmp_path, "--json")[1])["unreadable"].keys() == {"2"}


def test_bytes_that_are_not_utf8_are_placed():
    with pytest.raises(DumpError, match=r"r\.json:2:3: this byte is not UTF-8"):
        parse_dump(b'{\n "\xff": 1}', "r.json")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"version": 2}, "version is 2, and this horovodrun reads version 1"),
        ({"format": "chrome"}, 'format is "chrome", expected "horovod-flight-recorder"'),
        ({"rank": 3}, "rank is 3, expected 0 to 2 as size is 3"),
        ({"rank": True}, "rank is true, expected a whole number"),
        ({"hosts": ["a"]}, "hosts has 1 entries, expected 3 as size is 3"),
        ({"hosts": ["a", "b", 3]}, "hosts[2] is 3, expected a text"),
        ({"reason": "boredom"}, 'reason is "boredom", expected one of abort, stall'),
        ({"operations": {}}, "operations is {}, expected a list"),
        ({"operations": [7]}, "operations[0] is 7, expected an object"),
        ({"blocked": [{"name": "g"}]}, "blocked[0].since is missing"),
        ({"time": "now"}, 'time is "now", expected a number'),
        ({"process_sets": {"x": []}}, 'process_sets has the key "x"'),
    ],
)
def test_wrong_fields_are_named(written, change, said):
    with pytest.raises(DumpError) as raised:
        parse_dump(json.dumps(written[0] | change).encode(), "r.json")
    assert str(raised.value).startswith("r.json: ")
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"state": "flying"}, 'operations[1].state is "flying", expected one of submitted'),
        ({"kind": "gossip"}, 'operations[1].kind is "gossip"'),
        ({"name": None}, "operations[1].name is null, expected a text"),
        ({"shape": [1, "2"]}, 'operations[1].shape[1] is "2", expected a whole number'),
        ({"serial": 0}, "operations[1].serial does not exceed the one before it"),
    ],
)
def test_wrong_fields_of_operations_are_named(written, change, said):
    written[0]["operations"][1] |= change
    with pytest.raises(DumpError) as raised:
        parse_dump(json.dumps(written[0]).encode(), "r.json")
    assert said in str(raised.value)


def test_dumps_of_different_jobs_are_refused(tmp_path, written, capsys):
    write_all(tmp_path, written)
    other = World([training(1)] * 2).run().dumps()
    write_all(tmp_path, {1: other[1]})
    status, _, err = run(capsys, tmp_path)
    assert status == 1
    assert "dumps of different jobs" in err and "of a job of 3 ranks" in err
    written[1]["hosts"] = ["a", "c", "b"]
    write_all(tmp_path, {1: written[1]})
    assert "are on a, c, b" in run(capsys, tmp_path)[2]


def test_a_file_of_another_rank_is_refused(tmp_path, written):
    write_all(tmp_path, {0: written[0], 2: written[1]})
    assert "its name says rank 2, and in it rank is 1" in read_folder(tmp_path).unreadable[2]


def test_a_dump_much_older_than_the_others_is_pointed_out(tmp_path, written, capsys):
    written[1]["time"] -= 7200
    write_all(tmp_path, written)
    assert "7200 s before the newest dump" in " ".join(run(capsys, tmp_path)[1].split())


def test_other_files_in_the_folder_do_not_matter(tmp_path, written):
    write_all(tmp_path, written)
    for name in ("rank0.json.tmp", "rank.json", "notes.txt"):
        (tmp_path / name).write_text("{")
    (tmp_path / "rank7").mkdir()
    assert sorted(read_folder(tmp_path).dumps) == [0, 1, 2]


def test_what_random_damage_leaves_is_refused_or_analysed_without_a_crash(
    tmp_path, written, capsys
):
    rng = random.Random(7)
    good = json.dumps(written[1]).encode()
    write_all(tmp_path, written)
    for _ in range(100):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / "rank1.json").write_bytes(
            data[: rng.choice([len(data), rng.randrange(len(data))])]
        )
        status, out, err = run(capsys, tmp_path)
        assert (status == 0 and out) or (status == 1 and err)
