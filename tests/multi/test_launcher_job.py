"""What workers of horovodrun get, and what is shown of their output."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from launcher_process import COMMAND, launch, python

from horovod.runner import huge_pages

IDENTITY = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"]
PRINT_IDENTITY = f"import os; print(*[os.environ['HOROVOD_' + n] for n in {IDENTITY}])"


def lines_of(rank: int, out: bytes) -> list[str]:
    prefix = f"[{rank}]<stdout>:"
    return [line[len(prefix) :] for line in out.decode().splitlines() if line.startswith(prefix)]


def test_two_declared_hosts_on_this_machine_are_two_hosts() -> None:
    done = launch("-np", "3", "-H", "localhost:2,127.0.0.1:2", *python(PRINT_IDENTITY))
    assert done.returncode == 0, done.stderr
    assert lines_of(0, done.stdout) == ["0 3 0 2 0 2 localhost"]
    assert lines_of(1, done.stdout) == ["1 3 1 2 0 1 localhost"]
    assert lines_of(2, done.stdout) == ["2 3 0 1 1 2 127.0.0.1"]


def test_host_names_of_this_machine_are_accepted(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# ours\n\n[::1] slots=1   # loopback\nlocalhost slots = 1\n")
    done = launch("-np", "2", "-hostfile", str(hostfile), *python(PRINT_IDENTITY))
    assert done.returncode == 0, done.stderr
    assert lines_of(0, done.stdout) == ["0 2 0 1 0 2 ::1"]


def test_environment_and_arguments_arrive_byte_for_byte(tmp_path: Path) -> None:
    values = {b"HVD_T_ANY": bytes(range(1, 256)), b"HVD_T_LONG": b"x" * 100_000, b"HVD_T_NONE": b""}
    values |= {b"BASH_FUNC_f%%": b"() {  echo 'a b'\n}", b"HVD.dotted": b"$HOME `id` \"'\\\n"}
    code = (
        "import os, sys; v = {k: os.environb.get(k) for k in eval(sys.argv[1])}; "
        "open(f\"seen.{os.environ['HOROVOD_RANK']}\", 'w').write(repr((v, os.fsencode(sys.argv[2]))))"
    )
    argument = b"\xff \n'\"$HOME"
    done = launch(
        "-np", "2", *python(code), repr(list(values)), argument,
        env={**os.environb, **values}, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        assert eval((tmp_path / f"seen.{rank}").read_text()) == (values, argument)


def test_secret_key_differs_per_job_and_is_neither_shown_nor_on_a_command_line() -> None:
    code = (
        "import os, base64; p = os.environ['_HOROVOD_SECRET_KEY'];"
        "assert len(base64.b64decode(p)) == 32; print(p[::-1]); a = os.getppid()\n"
        "while a > 1:\n"
        "  assert p not in open(f'/proc/{a}/cmdline').read()\n"
        "  a = int(open(f'/proc/{a}/stat').read().rsplit(')')[1].split()[1])"
    )
    old = {**os.environ, "_HOROVOD_SECRET_KEY": "stale"}
    runs = [launch("-np", "1", "--verbose", *python(code), env=old) for _ in range(2)]
    keys = {run.stdout.decode().strip().partition(":")[2][::-1] for run in runs}
    assert len(keys) == 2
    for run in runs:
        assert run.returncode == 0, run.stderr
        assert not any(key.encode() in run.stderr for key in keys)


def test_thread_count_defaults_to_a_fair_share_and_is_said_once() -> None:
    without = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    code = "import os; print(os.environ['OMP_NUM_THREADS'])"
    share = max(1, len(os.sched_getaffinity(0)) // 2)
    two = ("-H", "localhost:1,127.0.0.1:1", "-np", "2")
    done = launch(*two, "--verbose", *python(code), env=without)
    assert lines_of(0, done.stdout) == [str(share)]
    assert done.stderr.count(b"OMP_NUM_THREADS is not set") == 1
    chosen = launch(*two, "--verbose", *python(code), env={**without, "OMP_NUM_THREADS": "7"})
    assert lines_of(0, chosen.stdout) == ["7"]
    assert b"OMP_NUM_THREADS" not in chosen.stderr


def test_huge_pages_are_asked_for_where_the_kernel_leaves_it_to_programs() -> None:
    without = {k: v for k, v in os.environ.items() if k != huge_pages.VARIABLE}
    code = "import os; print(os.environ.get('GLIBC_TUNABLES'))"
    said = b"GLIBC_TUNABLES is not set: ranks get glibc.malloc.hugetlb=1"
    asked = huge_pages.only_on_request()
    two = ("-H", "localhost:1,127.0.0.1:1", "-np", "2", "--verbose")
    done = launch(*two, *python(code), env=without)
    assert lines_of(0, done.stdout) == [huge_pages.REQUEST if asked else "None"]
    assert done.stderr.count(said) == asked
    for own in ("", "glibc.malloc.perturb=3"):
        done = launch(*two, *python(code), env={**without, huge_pages.VARIABLE: own})
        assert lines_of(1, done.stdout) == [own]
        assert said not in done.stderr


@pytest.mark.skipif(not huge_pages.only_on_request(), reason="the kernel decides by itself")
def test_huge_pages_spare_page_faults() -> None:
    size = 64 << 20  # above what glibc keeps
    code = (
        "import resource\n"
        "def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "before = faults()\n"
        f"for _ in range(3): b'x' * {size}\n"
        "print((faults() - before) // 3)"
    )
    without = {k: v for k, v in os.environ.items() if k != huge_pages.VARIABLE}
    small = size // resource.getpagesize()
    by_hand = launch("-np", "1", *python(code), env={**without, huge_pages.VARIABLE: ""})
    assert int(lines_of(0, by_hand.stdout)[0]) >= small
    ours = launch("-np", "1", *python(code), env=without)
    assert int(lines_of(0, ours.stdout)[0]) < small / 2  # the kernel may lack some huge ones


def test_output_keeps_every_byte_and_never_cuts_a_character(tmp_path: Path) -> None:
    # One byte at a time, several ranks at once.
    text = "grüße €uro 𝄞 \r 10%\r 20%\r\nend\n\n" * 3 + "no newline at the end"
    code = f"import os\nfor b in {text.encode()!r} + bytes([255]): os.write(1, bytes([b]))"
    done = launch("-np", "3", "--output-filename", str(tmp_path / "out"), *python(code))
    assert done.returncode == 0, done.stderr
    raw = text.encode() + b"\xff"
    for rank in range(3):
        assert (tmp_path / "out" / f"rank.{rank}" / "stdout").read_bytes() == raw
        assert (tmp_path / "out" / f"rank.{rank}" / "stderr").read_bytes() == b""
    # Taking the prefixes away gives the bytes of all ranks.
    pieces = re.split(rb"\[([0-2])\]<stdout>:", done.stdout)[1:]
    shown = {b"0": b"", b"1": b"", b"2": b""}
    for rank_name, piece in zip(pieces[::2], pieces[1::2], strict=True):
        if not piece.endswith(b"\xff"):
            piece.decode()  # raises where a character was cut
        shown[rank_name] += piece
    assert list(shown.values()) == [raw] * 3


def test_streams_go_where_they_belong_and_may_be_huge() -> None:
    code = "import sys; sys.stdout.write('o' * 99 + '\\n'); sys.stderr.write('e\\n');"
    code += "[print('x' * 200) for _ in range(40_000)]"
    done = launch("-np", "2", *python(code))
    assert done.stderr.splitlines().count(b"[1]<stderr>:e") == 1
    assert lines_of(1, done.stdout) == ["o" * 99] + ["x" * 200] * 40_000


def test_prefix_timestamp_puts_the_time_first() -> None:
    done = launch("-np", "1", "-prefix-timestamp", "echo", "hi")
    assert re.fullmatch(rb"\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d \d{4}\[0\]<stdout>:hi\n", done.stdout)


def test_rank_directories_are_as_wide_as_the_greatest_rank(tmp_path: Path) -> None:
    done = launch("-np", "11", "--output-filename", str(tmp_path), "echo", "hi")
    assert done.returncode == 0, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir())[:2] == ["rank.00", "rank.01"]


def test_knob_flags_and_config_file_reach_the_workers(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("params:\n  cycle_time_ms: 7\n  fusion_threshold_mb: 3\n")
    names = ["FUSION_THRESHOLD", "CYCLE_TIME", "CACHE_CAPACITY", "LOG_LEVEL"]
    code = f"import os; print(*[os.environ.get('HOROVOD_' + n) for n in {names}])"
    done = launch(
        "-np", "1", "--config-file", str(config), "--fusion-threshold-mb", "2", *python(code),
        env={**os.environ, "HOROVOD_CYCLE_TIME": "9", "HOROVOD_LOG_LEVEL": "info"},
    )  # fmt: skip
    assert lines_of(0, done.stdout) == ["2097152 7 None info"]


def test_a_module_in_the_working_directory_does_not_hide_one_of_the_launcher(
    tmp_path: Path,
) -> None:
    (tmp_path / "selectors.py").write_text("raise SystemExit('wrong one')")
    (tmp_path / "msgpack.py").write_text("raise SystemExit('wrong one')")
    script = "from horovod.runner.launch import run_commandline as r; r()"
    arguments = ["-np", "1", "echo", "fine"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", script, *arguments], cwd=tmp_path, capture_output=True
    )
    assert done.stdout == b"[0]<stdout>:fine\n", done.stderr


def test_script_without_first_line_runs_as_a_shell_would_run_it(tmp_path: Path) -> None:
    script = tmp_path / "job"
    script.write_text("echo from $1\n")
    script.chmod(0o755)
    assert launch("-np", "1", str(script), "shell").stdout == b"[0]<stdout>:from shell\n"


def test_command_that_cannot_start_is_127_or_126(tmp_path: Path) -> None:
    missing = launch("-np", "2", "no-such-command")
    assert missing.returncode == 127
    assert b"'no-such-command'" in missing.stderr and b"does not exist" in missing.stderr
    plain = tmp_path / "plain"
    plain.write_text("echo")
    denied = launch("-np", "2", str(plain))
    assert denied.returncode == 126
    assert b"is not executable" in denied.stderr


def test_bad_requests_end_at_once_with_a_reason() -> None:
    for arguments, code, text in (
        (["-np", "0", "true"], 2, b"-np 0: at least one process"),
        (["-np", "3", "-H", "localhost:2", "true"], 1,
         b"Requested more processes (3) than there are available slots (2)"),
        (["-np", "1", "-H", "no such host:1", "true"], 1, b"Invalid host input"),
        (["-np", "1", "--min-np", "1", "true"], 2, b"elastic training is not available yet"),
        (["-np", "1", "--torus-allreduce", "true"], 2, b"choice of algorithm is not available yet"),
        (["-np", "1", "--hostfile", "/no/such", "true"], 1, b"/no/such"),
        (["true"], 2, b"-np is missing"),
    ):  # fmt: skip
        done = launch(*arguments)
        assert (done.returncode, text in done.stderr) == (code, True), done.stderr
        assert b"Traceback" not in done.stderr


def test_version_and_check_build_need_neither_core_nor_frameworks() -> None:
    assert launch("--version").stdout == b"1.0.0\n"
    shown = launch("--check-build").stdout.decode()
    assert shown.startswith("Horovod v1.0.0:\n\nAvailable Frameworks:\n    [")
    assert "\n\nAvailable Controllers:\n    [ ] MPI\n    [X] Gloo\n\nAvailable Tensor" in shown
    assert COMMAND[-1] == "horovod.runner"
