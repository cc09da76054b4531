"""The questions of `horovodrun config`, answered from a stream."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
import yaml

from horovod.runner.config_file import read_config
from horovod.runner.configure import configure, default_text
from horovod.runner.knob_options import option_knobs

KNOBS = [knob for knob in option_knobs() if knob.yaml_key]


def answer(*arguments: str, **by_key: str) -> tuple[int, str]:
    """Answers the questions in their order; `by_key`: by last word, or by section__word."""
    asked = io.StringIO()

    class Answers(io.StringIO):
        """Looks at the question that stands there last."""

        def readline(self, *_: int) -> str:
            question = asked.getvalue().rpartition("\n")[2]
            key = question.split("[")[0].strip()
            section, _, word = key.rpartition(".")
            name = f"{section}__{word}" if f"{section}__{word}" in by_key else word
            replies = by_key.get(name, "").split("|")
            by_key[name] = "|".join(replies[1:])
            return replies[0] + "\n"

    code = configure(list(arguments), Answers(), asked)
    return code, asked.getvalue()


def test_enter_keeps_every_default(tmp_path: Path) -> None:
    path = str(tmp_path / "new.yaml")
    code, text = answer(path)
    assert code == 0
    assert read_config(path) == {}
    for knob in KNOBS:
        assert f"{knob.yaml_key} [{default_text(knob)}]:" in text
        assert knob.help in text
    assert Path(path).stat().st_mode & 0o444
    assert list(tmp_path.iterdir()) == [Path(path)]


def test_answers_become_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "new.yaml")
    code, _ = answer(
        path,
        fusion_threshold_mb="32",
        cycle_time_ms="2.5",
        stall_check__enabled="no",
        thread_affinity="0, 3",
        level="info",
        with_timestamp="y",
    )
    assert code == 0
    assert yaml.safe_load(Path(path).read_text()) == {
        "params": {"fusion_threshold_mb": 32, "cycle_time_ms": 2.5},
        "stall_check": {"enabled": False},
        "library_options": {"thread_affinity": [0, 3]},
        "logging": {"level": "info", "with_timestamp": True},
    }
    assert read_config(path) == {
        "fusion_threshold_mb": 32,
        "cycle_time_ms": 2.5,
        "no_stall_check": True,
        "thread_affinity": "0,3",
        "log_level": "INFO",
        "log_without_timestamp": False,
    }


@pytest.mark.parametrize(
    ("name", "wrong", "reason"),
    [
        ("cache_capacity", "many", "expected a whole number, found 'many'"),
        ("cache_capacity", "-1", "--cache-capacity=-1 must be >= 0"),
        ("cycle_time_ms", "nan", "must be >= 0"),
        ("cycle_time_ms", "fast", "expected a number, found 'fast'"),
        ("stall_check__enabled", "perhaps", "expected yes or no, found 'perhaps'"),
        ("thread_affinity", "0,x", "expected numbers with commas between them"),
        ("level", "loud", "'loud' is not one of TRACE"),
        ("controller", "mpi", "'mpi' is not one of gloo"),
    ],
)
def test_a_wrong_answer_is_explained_and_asked_again(tmp_path, name, wrong, reason) -> None:
    path = str(tmp_path / "new.yaml")
    code, text = answer(path, **{name: f"{wrong}|"})
    assert code == 0
    assert reason in text
    assert text.count(f"{name.replace('__', '.')} [") == 2
    assert read_config(path) == {}


def test_a_file_is_replaced_only_when_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "old.yaml"
    path.write_text("logging: {level: debug}\n")
    code, text = answer(str(path))
    assert code == 1 and "exists already. Replace it? [no]" in text
    assert read_config(str(path)) == {"log_level": "DEBUG"}
    asked = io.StringIO()
    assert configure([str(path)], io.StringIO("what\nyes\n" + "\n" * len(KNOBS)), asked) == 0
    assert "expected yes or no, found 'what'" in asked.getvalue()
    assert read_config(str(path)) == {}
    assert answer(str(path), "--overwrite", level="error")[0] == 0
    assert read_config(str(path)) == {"log_level": "ERROR"}


def test_the_end_of_the_answers_leaves_no_file(tmp_path: Path) -> None:
    asked = io.StringIO()
    assert configure([str(tmp_path / "new.yaml")], io.StringIO("\n\n"), asked) == 1
    assert asked.getvalue().endswith("\nNothing has been written.\n")
    assert not list(tmp_path.iterdir())


def test_the_file_is_asked_for_and_may_be_the_usual_one(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert answer()[0] == 0
    assert read_config("horovod.yaml") == {}


def test_places_where_no_file_can_be_are_refused(tmp_path, capsys) -> None:
    assert answer(str(tmp_path))[0] == 1
    assert "expected the name of a file, found a directory" in capsys.readouterr().err
    assert answer(str(tmp_path / "none" / "x.yaml"))[0] == 1
    assert "does not exist; make it first" in capsys.readouterr().err
