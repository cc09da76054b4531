"""The command lines of `horovodrun scaling` and `horovodrun predict`: options, output, bad input."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from horovod.runner.launch import run_commandline
from horovod.runner.scaling.command import _read

NETWORK = ("--hosts", "4", "--bandwidth", "10Gbit/s")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    try:
        code = run_commandline(list(words))
    except SystemExit as left:
        code = int(left.code or 0)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return code, captured.out, captured.err


# --- predict -------------------------------------------------------------------------------------


def test_predict_prints_a_table_for_each_exchange_and_a_verdict(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = run(capsys, "predict", "--model", "vgg16", "--step-time", "400ms", *NETWORK)
    assert code == 0
    for name in ("ring", "hierarchical", "parameter-server"):
        rows = out.split(f"\n{name}\n")[1].split("\n\n")[0].splitlines()
        assert [row.split()[0] for row in rows] == ["HOSTS", "1", "2", "4"]
    assert "On 4 hosts" in out.splitlines()[-1] and "limited by" in out.splitlines()[-1]


def test_predict_as_json_has_what_the_table_has(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("predict", "--model", "resnet101", "--step-time", "0.5s", *NETWORK)
    code, out, _ = run(capsys, *words, "--exchange", "ring", "--json", "-")
    document = json.loads(out)
    assert code == 0 and list(document["predictions"]) == ["ring"]
    first, *_, last = document["predictions"]["ring"]
    assert first["ranks"] == 1 and first["efficiency"] == pytest.approx(1.0)
    assert last["speed_up"] == pytest.approx(4 * last["efficiency"])
    assert document["workload"]["bytes"] == 4 * 44_549_160
    code, out, _ = run(capsys, *words, "--json", str(tmp_path / "p.json"))
    assert code == 0 and "HOSTS" in out
    assert json.loads((tmp_path / "p.json").read_text())["format"] == "horovod-prediction"


def test_predict_saves_the_model_it_used(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    model = str(tmp_path / "m.json")
    words = ("predict", "--model", "vgg16", "--step-time", "400ms", *NETWORK, "--json", "-")
    _, before, _ = run(capsys, *words, "--save-model", model)
    _, after, _ = run(capsys, "predict", "--from-json", model, *NETWORK, "--json", "-")
    for one, other in zip(
        json.loads(before)["predictions"]["ring"],
        json.loads(after)["predictions"]["ring"],
        strict=True,
    ):
        assert other["step_seconds"] == pytest.approx(one["step_seconds"], rel=1e-9)


def test_a_list_of_hosts_is_taken_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "vgg16", "--step-time", "1s", "--bandwidth", "1Gbit/s", "--json", "-")
    _, out, _ = run(capsys, "predict", *words, "--hosts", "6,1,12")
    assert [row["hosts"] for row in json.loads(out)["predictions"]["ring"]] == [1, 6, 12]
    _, out, _ = run(capsys, "predict", *words, "--hosts", "6")
    assert [row["hosts"] for row in json.loads(out)["predictions"]["ring"]] == [1, 2, 4, 6]


MODEL = ("--model", "vgg16", "--step-time", "1s")


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ((), 2, "--hosts"),
        (NETWORK, 2, "give what is to be predicted"),
        ((*MODEL, *NETWORK, "t.json"), 2, "one of them"),
        (("--model", "vgg16", *NETWORK), 2, "belong together"),
        (("--step-time", "1s", "t.json", *NETWORK), 2, "belong together"),
        (("--model", "alexnet", "--step-time", "1s", *NETWORK), 2, "invalid choice"),
        ((*MODEL, "--hosts", "2"), 2, "--bandwidth is missing"),
        ((*MODEL, "--hosts", "0", "--bandwidth", "1Gbit/s"), 2, "expected 1 to"),
        ((*MODEL, "--hosts", "two", "--bandwidth", "1Gbit/s"), 2, "expected a number of hosts"),
        ((*MODEL, *NETWORK, "--ranks-per-host", "0"), 2, "a whole number from 1 up, found '0'"),
        ((*MODEL, "--hosts", "2", "--bandwidth", "10"), 2, "expected a rate such as 25Gbit/s"),
        ((*MODEL, *NETWORK, "--latency", "20"), 2, "expected a time with its unit"),
        ((*MODEL, *NETWORK, "--fusion-threshold", "big"), 2, "expected a size"),
        ((*MODEL, *NETWORK, "--link-efficiency", "0%"), 2, "greater than 0"),
        ((*MODEL, *NETWORK, "--jitter", "150%"), 2, "expected a share"),
        ((*MODEL, *NETWORK, "--exchange", "star"), 2, "expected ring, hierarchical"),
        (("--model", "vgg16", "--step-time", "0s", *NETWORK), 2, "greater than 0"),
        (("missing.json", *NETWORK), 1, "missing.json: No such file"),
        (("--from-json", "/", *NETWORK), 1, "/: Is a directory"),
        ((*MODEL, *NETWORK, "--json", "/nowhere/p.json"), 1, "can't be written"),
    ],
)
def test_predict_explains_bad_input(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    found, _, err = run(capsys, "predict", *words)
    assert found == code
    assert expected in err


# --- scaling -------------------------------------------------------------------------------------


def test_the_command_line_is_split_into_ours_horovodruns_and_the_scripts() -> None:
    request = _read(
        [
            *("--np", "4,1,2,2", "-H", "a:2,b:2", "--quiet", "-p", "2222", "--verbose"),
            *("--json", "o.json", "--mpi-args=--quiet", "--mpi"),
            *("python", "train.py", "--np", "9", "--json", "x", "-H"),
        ]
    )
    assert request.own.np == [1, 2, 4]
    assert request.own.quiet and request.own.json == Path("o.json") and request.own.plot is None
    assert request.launcher == [
        *("-H", "a:2,b:2", "-p", "2222", "--verbose", "--mpi-args=--quiet", "--mpi")
    ]
    assert request.command == ["python", "train.py", "--np", "9", "--json", "x", "-H"]


def test_two_dashes_end_the_options() -> None:
    request = _read(["--np", "2", "--verbose", "--", "--strange-program", "--np", "1"])
    assert request.launcher == ["--verbose"]
    assert request.command == ["--strange-program", "--np", "1"]


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        ((), 2, "--np"),
        (("--np", "0", "python"), 2, "at least one process"),
        (("--np", "1,x", "python"), 2, "expected numbers of processes such as 1,2,4"),
        (("--np", "", "python"), 2, "expected numbers of processes"),
        (("--np", "2"), 2, "no command given"),
        (("--np", "2", "-np", "2", "python"), 2, "give the sizes with --np"),
        (("--np", "2", "--dry-run", "python"), 2, "give that option to horovodrun itself"),
        (("--np", "2", "--no-such-flag", "python"), 2, "--no-such-flag"),
        (("--np", "2", "--pattern", "(", "python"), 2, "expected a regular expression"),
        (
            ("--np", "2", "--measure", "steps", "--pattern", "(x)", "python"), 2,
            "no use with --measure steps",
        ),
        (("--np", "1,4", "-H", "a:1,b:2", "python"), 1, "4 ranks need 4 slots, but the hosts have 3"),
        (("--np", "1", "-H", "a:x", "python"), 1, "a:x"),
        (("--np", "1", "-hostfile", "missing", "python"), 1, "host file missing"),
        (("--np", "1", "-H", "far:1", "--measure", "steps", "python"), 1, "rank 0 on this machine"),
        (("--np", "1", "--json", "nowhere/o.json", "python"), 1, "there is no folder"),
        (("--np", "1", "--json", ".", "python"), 1, "found a directory"),
        (("--np", "1", "--plot", "p.pdf", "python"), 1, "ends in .png"),
    ],
)  # fmt: skip
def test_scaling_explains_bad_input_before_anything_runs(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    expected: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    found, out, err = run(capsys, "scaling", *words)
    assert found == code
    assert expected in err
    assert "run 1 of" not in err
    assert list(tmp_path.iterdir()) == []


def test_help_of_both_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("scaling", "predict"):
        code, out, _ = run(capsys, command, "--help")
        assert code == 0 and f"horovodrun {command}" in out and "examples:" in out
