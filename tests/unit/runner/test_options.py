"""Flags, configuration file and the variables that come of them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from horovod.common.knobs import KNOBS
from horovod.runner.cli import LATER_FLAGS, SHELLS, build_parser, parse_args
from horovod.runner.common.util.config_parser import set_env_from_args
from horovod.runner.completion import completion_script
from horovod.runner.config_file import LATER_KEYS, ConfigError, read_config
from horovod.runner.knob_options import destination, option_knobs
from horovod.runner.launch import SUBCOMMANDS


def exported(*flags: str) -> dict[str, str]:
    return set_env_from_args({}, parse_args(["-np", "1", *flags, "true"]))


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as left:
        parse_args(list(arguments))
    assert left.value.code == 2
    return capsys.readouterr().err


def test_flags_that_are_not_given_export_nothing() -> None:
    assert exported() == {}


def test_every_kind_of_knob_becomes_its_variable() -> None:
    assert exported("--fusion-threshold-mb", "2") == {"HOROVOD_FUSION_THRESHOLD": "2097152"}
    assert exported("--cycle-time-ms", "20") == {"HOROVOD_CYCLE_TIME": "20.0"}
    assert exported("--no-stall-check") == {"HOROVOD_STALL_CHECK_DISABLE": "1"}
    assert exported("--stall-check") == {"HOROVOD_STALL_CHECK_DISABLE": "0"}
    assert exported("--log-level", "debug") == {"HOROVOD_LOG_LEVEL": "DEBUG"}
    assert exported("--log-with-timestamp") == {"HOROVOD_LOG_HIDE_TIME": "0"}
    assert exported("--thread-affinity", "0,1") == {"HOROVOD_THREAD_AFFINITY": "0,1"}
    assert exported("--mpi-threads-disable") == {"HOROVOD_MPI_THREADS_DISABLE": "1"}
    assert exported("--no-mpi-threads-disable") == {"HOROVOD_MPI_THREADS_DISABLE": "0"}


def test_every_row_with_a_flag_has_one() -> None:
    args = parse_args(["--check-build"])
    for knob in KNOBS:
        if knob.flags:
            assert hasattr(args, destination(knob))


def test_command_begins_at_the_first_word_and_keeps_its_own_flags() -> None:
    args = parse_args(["-np", "2", "--gloo", "python", "-np", "--verbose", "--", "x"])
    assert (args.num_proc, args.verbose, args.use_gloo) == (2, False, True)
    assert args.command == ["python", "-np", "--verbose", "--", "x"]
    assert parse_args(["-np", "2", "--", "prog", "--", "y"]).command == ["prog", "--", "y"]


def test_wrong_values_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for flags, text in (
        (["--cache-capacity=-1"], "--cache-capacity=-1 must be >= 0"),
        (["--cycle-time-ms=-0.5"], "--cycle-time-ms=-0.5 must be >= 0"),
        (["--fusion-threshold-mb", "many"], "invalid int value: 'many'"),
        (["--log-level", "loud"], "invalid choice"),
        (["--thread-affinity", "0,x"], "--thread-affinity=0,x must be numbers"),
        (["--stall-check", "--no-stall-check"], "not allowed with"),
        (["--hosts", "a:1", "--hostfile", "h"], "not allowed with"),
        (["--no-such-flag"], "unrecognized arguments: --no-such-flag"),
    ):
        assert text in refusal(capsys, "-np", "1", *flags, "true")


@pytest.mark.parametrize(("names", "count", "feature"), LATER_FLAGS)
def test_flags_of_later_work_say_so(capsys, names, count, feature) -> None:
    values = ["1"] * (1 if count is None else count)
    for name in names:
        assert f"{name}: {feature} is not available yet" in refusal(
            capsys, "-np", "1", name, *values, "true"
        )


def test_jsrun_outside_of_lsf_is_refused_in_the_known_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LSB_JOBID", raising=False)
    assert (
        "error: Horovod did not detect an LSF job.  The jsrun launcher can only be used in that "
        "environment. Please, pick a different launcher for other environments.\n"
    ) in refusal(capsys, "-np", "1", "--jsrun", "true")


def test_flags_of_other_hosts_are_read(tmp_path: Path) -> None:
    key = tmp_path / "id"
    key.touch()
    args = parse_args(
        ["-np", "2", "-p", "2222", "-i", str(key), "--ssh-accept-new-host-keys", "--dry-run"]
        + ["--network-interfaces", "eth0, eth1", "--network-interface", "ib0", "true"]
    )
    assert (args.ssh_port, args.ssh_identity_file) == (2222, str(key))
    assert (args.ssh_accept_new_host_keys, args.dry_run) == (True, True)
    assert args.nics == ["eth0", "eth1", "ib0"]
    assert parse_args(["-np", "1", "--ssh-port=22", "x"]).ssh_port == 22


def test_flags_of_other_hosts_that_are_not_given_are_none() -> None:
    args = parse_args(["-np", "2", "true"])
    assert (args.ssh_port, args.ssh_identity_file, args.nics, args.start_timeout) == (None,) * 4
    assert (args.ssh_accept_new_host_keys, args.dry_run, args.check_gpu) == (False,) * 3
    assert parse_args(["--check-gpu"]).check_gpu
    assert exported("--start-timeout", "90") == {"HOROVOD_START_TIMEOUT": "90"}


def test_a_key_below_the_home_directory_is_found(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "id").touch()
    found = parse_args(["-np", "1", "--ssh-identity-file=~/id", "true"])
    assert found.ssh_identity_file == str(tmp_path / "id")


def test_wrong_values_of_ssh_and_interfaces_are_refused(tmp_path, capsys) -> None:
    for flags, text in (
        (["-p", "0"], "-p/--ssh-port: expected a port from 1 to 65535, found '0'"),
        (["-p", "65536"], "expected a port from 1 to 65535, found '65536'"),
        (["--ssh-port", "ssh"], "expected a port from 1 to 65535, found 'ssh'"),
        (["-i", str(tmp_path / "none")], "expected a private key, found no such file: "),
        (["-i", str(tmp_path)], "expected a private key, found a directory: "),
        (["--network-interfaces", "eth0,,eth1"], "such as eth0,eth1, found 'eth0,,eth1'"),
        (["--network-interface", "eth 0"], "--network-interface: expected names of network"),
        (["--start-timeout", "0"], "--start-timeout=0 must be >= 1"),
        (["--print-completion", "tcsh"], "invalid choice: 'tcsh'"),
    ):
        assert text in refusal(capsys, "-np", "1", *flags, "true")


def test_a_key_that_may_not_be_read_is_refused(tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "id").touch()
    monkeypatch.setattr("os.access", lambda *_: False)  # root may read everything
    assert "cannot be read by this user" in refusal(
        capsys, "-np", "1", "-i", str(tmp_path / "id"), "true"
    )


def test_former_spellings_are_read_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="use --network-interfaces eth0,eth1 for a list"):
        args = parse_args(["-np", "1", "--network-interface", "eth0,eth1", "true"])
    assert args.nics == ["eth0", "eth1"]
    with pytest.warns(DeprecationWarning, match="use --log-without-timestamp"):
        assert exported("--log-hide-timestamp") == {"HOROVOD_LOG_HIDE_TIME": "1"}
    with pytest.warns(DeprecationWarning, match="use --log-with-timestamp"):
        assert exported("--no-log-hide-timestamp") == {"HOROVOD_LOG_HIDE_TIME": "0"}


def test_help_has_its_groups_and_fits_80_columns(monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = build_parser().format_help()
    for heading in (
        "Job",
        "Hosts",
        "SSH, SLURM",
        "Output",
        "MPI",
        "Tuning",
        "Diagnosis",
        "Information",
    ):
        assert f"\n{heading}:\n" in text
    assert "Not available yet" not in text
    assert 5 <= text.count("\n    horovodrun ") <= 10
    assert "docs/launcher.md" in text
    assert max(map(len, text.splitlines())) <= 80
    for word in SUBCOMMANDS:
        assert f"\n       horovodrun {word} " in text


def test_every_example_of_the_help_is_a_legal_command_line(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "job").touch()
    examples = re.findall(r"^    horovodrun (-np .*)$", build_parser().format_help(), re.MULTILINE)
    assert len(examples) >= 5
    for example in examples:
        assert parse_args(shlex.split(example)).command[0] == "python"


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_flag_that_help_shows(shell: str) -> None:
    parser = build_parser()
    text = completion_script(parser, shell)
    for action in parser._actions:
        for name in action.option_strings:
            word = name.lstrip("-") if shell == "fish" else name
            shown = re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text)
            assert (shown is None) == (action.help == "==SUPPRESS=="), name


def test_completion_of_an_unknown_shell_is_refused() -> None:
    with pytest.raises(ValueError, match="expected bash, zsh or fish, found 'tcsh'"):
        completion_script(build_parser(), "tcsh")


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return str(path)


FULL = """
controller: gloo
params: {fusion_threshold_mb: 32, cycle_time_ms: 10, cache_capacity: 2048}
autotune:
    enabled: false
    warmup_samples: 5
timeline:
    filename: /tmp/t.json
    mark_cycles: true
stall_check:
    enabled: false
    warning_time_seconds: 120
library_options:
    thread_affinity: [0, 1]
logging:
    level: info
    with_timestamp: true
"""


def test_config_file_gives_values_where_flags_do_not(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    assert exported("--cycle-time-ms", "3.5", "--config-file", path) == {
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_CYCLE_TIME": "3.5",
        "HOROVOD_CACHE_CAPACITY": "2048",
        "HOROVOD_AUTOTUNE": "0",
        "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "5",
        "HOROVOD_TIMELINE": "/tmp/t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "120",
        "HOROVOD_THREAD_AFFINITY": "0,1",
        "HOROVOD_LOG_LEVEL": "INFO",
        "HOROVOD_LOG_HIDE_TIME": "0",
    }
    assert exported("--stall-check", "--config-file", path)["HOROVOD_STALL_CHECK_DISABLE"] == "0"


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("params:\n  fusion_threshold: 3\n", 2, "did you mean 'params.fusion_threshold_mb'?"),
        ("param:\n  cycle_time_ms: 3\n", 1, "did you mean 'params'?"),
        ("params:\n  level: info\n", 2, "did you mean 'logging.level'?"),
        ("\nzzz: 1\n", 2, "unknown key 'zzz'; known are"),
        ("params:\n  cycle_time_ms: fast\n", 2, "expected a number, found 'fast' (str)"),
        ("params:\n  cache_capacity: 1.5\n", 2, "expected a whole number, found 1.5 (float)"),
        ("params:\n\n  cache_capacity: yes\n", 3, "expected a whole number, found True (bool)"),
        ("params:\n  cache_capacity: -1\n", 2, "must be >= 0"),
        ("stall_check:\n  enabled: 1\n", 2, "expected true or false, found 1 (int)"),
        ("logging:\n  level: loud\n", 2, "'loud' is not one of TRACE, DEBUG"),
        ("controller: tcp\n", 1, "'tcp' is not one of gloo, mpi"),
        ("params: 3\n", 1, "section 'params' must hold"),
        ("- a\n", 1, "the file must hold"),
        ("params:\n  cache_capacity: 1\n  cache_capacity: 2\n", 3, "given twice"),
        ("params: {a: 1\nx: [\n", 2, "not valid YAML"),
        ("timeline:\n  max_mb: -1\n", 2, "must be >= 0"),
        ("autotune:\n  gaussian_process_noise: 1.5\n", 2, "must be >= 0 and <= 1"),
        (
            "params:\n  torus_allreduce: true\n",
            2,
            "the choice of algorithm is not available yet",
        ),
    ],
)
def test_what_is_wrong_in_a_config_file_has_file_and_line(tmp_path, text, line, reason) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        read_config(path)
    assert str(raised.value).startswith(f"{path}:{line}: ")
    assert reason in str(raised.value)


def test_config_file_that_cannot_be_read_is_refused(tmp_path, capsys) -> None:
    missing = str(tmp_path / "none.yaml")
    assert missing in refusal(capsys, "-np", "1", "--config-file", missing, "true")
    assert read_config(write(tmp_path, "")) == {}
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_config(str(binary))


def test_what_is_refused_is_documented() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "launcher.md").read_text()
    flags = {name for names, _, _ in LATER_FLAGS for name in names}
    for word in (*flags, *LATER_KEYS):
        assert f"`{word}`" in text, word


def test_keys_of_later_work_are_not_knobs() -> None:
    assert not {str(knob.yaml_key) for knob in option_knobs()} & set(LATER_KEYS)
