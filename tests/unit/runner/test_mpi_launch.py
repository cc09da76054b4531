"""The command lines of mpirun and jsrun, and how the MPI that is installed is told."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from horovod.runner import js_run, lsf, mpi_launch, mpi_run
from horovod.runner.cli import parse_args
from horovod.runner.config_file import read_config
from horovod.runner.hosts import HostInfo, parse_hosts
from horovod.runner.launch import run_commandline
from horovod.runner.mpi_launch import MACHINEFILE, MpiOptions, plan_mpirun
from horovod.runner.mpi_probe import Flavour, find_mpirun
from horovod.runner.plan import Plan, assign
from horovod.runner.ssh import SshOptions

TEXTS = {
    Flavour.OPEN_MPI: "mpirun (Open MPI) 4.1.4",
    Flavour.SPECTRUM_MPI: "mpirun (IBM Spectrum MPI) 10.3.1",
    Flavour.MPICH: "HYDRA build details:\\n    Version: 4.1",
    Flavour.INTEL_MPI: "Intel(R) MPI Library for Linux* OS, Version 2021.18",
}


PLAIN = MpiOptions()


def program(path: Path, script: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def planted(tmp_path: Path, flavour: Flavour, name: str = "mpirun") -> dict[str, str]:
    """An environment whose only program is an mpirun that prints this version."""
    program(tmp_path / "bin" / name, f"echo '{TEXTS[flavour]}'")
    return {"PATH": str(tmp_path / "bin"), "LANG": "C"}


def made_plan(hosts: str = "a:2,b:2", processes: int = 4, **fields: object) -> Plan:
    parsed = parse_hosts(hosts)
    plan = Plan(processes, parsed, assign(processes, parsed), ["python", "train me.py"], {})
    return plan._replace(**fields)  # type: ignore[arg-type]


def command(plan: Plan, env: dict[str, str], options: MpiOptions = PLAIN) -> str:
    """The command line behind the path of mpirun; no word of these tests needs quotes but the last."""
    start = plan_mpirun(plan, options, env)
    assert start.command[0] == str(Path(env["PATH"]) / "mpirun")
    assert start.command[-2:] == plan.command
    return " ".join(start.command[1:-2])


# --- which MPI ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flavour", TEXTS)
def test_the_version_text_tells_where_nothing_else_does(tmp_path: Path, flavour: Flavour) -> None:
    found = find_mpirun(planted(tmp_path, flavour))
    assert (found.path, found.flavour) == (str(tmp_path / "bin" / "mpirun"), flavour)
    assert any("--version' says" in sentence for sentence in found.seen)


@pytest.mark.parametrize(
    ("beside", "flavour"),
    [
        ("bin/ompi_info", Flavour.OPEN_MPI),
        ("bin/prterun", Flavour.OPEN_MPI),
        ("bin/mpiexec.hydra", Flavour.MPICH),
        ("bin/hydra_bstrap_proxy", Flavour.INTEL_MPI),
        ("lib/libopen-pal.so.40", Flavour.OPEN_MPI),
        ("lib/libmpi_ibm.so.3", Flavour.SPECTRUM_MPI),
        ("lib/libmpich.so.12", Flavour.MPICH),
    ],
)
def test_what_lies_beside_it_tells_without_a_version(tmp_path, beside, flavour) -> None:
    path = program(tmp_path / "bin" / "mpirun", "echo 'ACME launcher 1.0'")
    program(tmp_path / beside, "exit 1")
    found = find_mpirun({"PATH": str(tmp_path / "bin")})
    assert (found.path, found.flavour) == (path, flavour)


def test_the_special_library_of_a_family_is_told_by_any_hint(tmp_path: Path) -> None:
    env = planted(tmp_path, Flavour.OPEN_MPI)
    program(tmp_path / "lib" / "libmpi_ibm.so", "")
    assert find_mpirun(env).flavour is Flavour.SPECTRUM_MPI
    other = tmp_path / "other"
    env = planted(other, Flavour.MPICH)
    assert find_mpirun({**env, "I_MPI_ROOT": str(other)}).flavour is Flavour.INTEL_MPI
    left_over = {**env, "I_MPI_ROOT": str(tmp_path / "lib"), "MPI_ROOT": str(tmp_path / "lib")}
    assert find_mpirun(left_over).flavour is Flavour.MPICH


def test_the_program_behind_links_comes_before_its_neighbours(tmp_path: Path) -> None:
    """/usr/bin holds the programs of both, and mpirun is a link to that of one."""
    for name in ("orterun", "ompi_info", "mpiexec.hydra", "hydra_pmi_proxy"):
        program(tmp_path / "bin" / name, "echo 'no text'")
    for target, flavour in (("mpiexec.hydra", Flavour.MPICH), ("orterun", Flavour.OPEN_MPI)):
        (tmp_path / "bin" / "mpirun").unlink(missing_ok=True)
        (tmp_path / "bin" / "mpirun").symlink_to(target)
        assert find_mpirun({"PATH": str(tmp_path / "bin")}).flavour is flavour


def test_mpiexec_serves_where_there_is_no_mpirun(tmp_path: Path) -> None:
    found = find_mpirun(planted(tmp_path, Flavour.MPICH, "mpiexec"))
    assert (os.path.basename(found.path), found.flavour) == ("mpiexec", Flavour.MPICH)


def test_the_names_of_horovod_028_say_the_same(tmp_path: Path) -> None:
    expected = {
        Flavour.OPEN_MPI: (mpi_run._OMPI_IMPL, mpi_run.is_open_mpi),
        Flavour.SPECTRUM_MPI: (mpi_run._SMPI_IMPL, mpi_run.is_spectrum_mpi),
        Flavour.MPICH: (mpi_run._MPICH_IMPL, mpi_run.is_mpich),
        Flavour.INTEL_MPI: (mpi_run._IMPI_IMPL, mpi_run.is_intel_mpi),
    }
    for flavour, (name, _) in expected.items():
        env = planted(tmp_path / name, flavour)
        assert mpi_run._get_mpi_implementation(env) == name and mpi_run.mpi_available(env)
        assert [ask(env) for _, ask in expected.values()].count(True) == 1
    for script, name in (("exit 3", mpi_run._MISSING_IMPL), ("echo x", mpi_run._UNKNOWN_IMPL)):
        program(tmp_path / "mpirun", script)
        env = {"PATH": str(tmp_path)}
        assert mpi_run._get_mpi_implementation(env) == name and not mpi_run.mpi_available(env)


def test_without_an_mpi_there_are_three_choices(tmp_path: Path) -> None:
    env = {"PATH": str(tmp_path)}
    with pytest.raises(ValueError, match=r"^horovod does not find an installed MPI\.\n") as raised:
        plan_mpirun(made_plan(), MpiOptions(), env)
    assert f"neither mpirun nor mpiexec in PATH={tmp_path}" in str(raised.value)
    assert all(f"\n{number}. " in str(raised.value) for number in (1, 2, 3))
    program(tmp_path / "mpirun", "echo ACME launcher")
    with pytest.raises(ValueError, match="--version' says 'ACME launcher'"):
        plan_mpirun(made_plan(), MpiOptions(), env)


# --- Open MPI and Spectrum MPI -----------------------------------------------------------------

OPEN_MPI_FLAGS = "--mca pml ob1 --mca btl ^openib"
EXPORTED = "-x LANG -x PATH -x PYTHONUNBUFFERED"


def test_open_mpi(tmp_path: Path) -> None:
    assert command(made_plan(), planted(tmp_path, Flavour.OPEN_MPI)) == (
        "--allow-run-as-root --tag-output -np 4 -H a:2,b:2 --bind-to none --map-by slot "
        f"{OPEN_MPI_FLAGS} {EXPORTED}"
    )


def test_open_mpi_with_all_flags(tmp_path: Path) -> None:
    plan = made_plan(
        "a:1,b:3",
        3,
        interfaces=["eth0", "eth1"],
        output_directory="/logs",
        timestamps=True,
        ssh=SshOptions(2222, "/keys/id", True),
        variables={"HOROVOD_CYCLE_TIME": "5"},
    )
    options = MpiOptions.from_texts("--quiet --x 'y z'", True, "--bind-to core")
    assert command(plan, planted(tmp_path, Flavour.OPEN_MPI), options) == (
        f"--allow-run-as-root --tag-output -np 3 -H a:1,b:3 --bind-to core {OPEN_MPI_FLAGS} "
        "--mca plm_rsh_args -p 2222 -i /keys/id -o StrictHostKeyChecking=accept-new "
        "--mca btl_tcp_if_include eth0,eth1 --output-filename /logs --timestamp-output "
        "-x HOROVOD_CYCLE_TIME -x LANG -x NCCL_IB_DISABLE -x NCCL_SOCKET_IFNAME -x PATH "
        "-x PYTHONUNBUFFERED --quiet --x y z"
    )
    environment = plan_mpirun(plan, options, planted(tmp_path, Flavour.OPEN_MPI)).environment
    assert environment["NCCL_SOCKET_IFNAME"] == "eth0,eth1"
    assert (environment["NCCL_IB_DISABLE"], environment["HOROVOD_CYCLE_TIME"]) == ("1", "5")


def test_spectrum_mpi(tmp_path: Path) -> None:
    env = planted(tmp_path, Flavour.SPECTRUM_MPI)
    head = "--allow-run-as-root --tag-output -np 4 -H a:2,b:2 "
    assert command(made_plan(), env) == (
        f"{head}--bind-to socket --map-by socket --rank-by core {EXPORTED}"
    )
    assert command(made_plan(), env, MpiOptions(tcp=True, binding=())) == (
        f"{head}-tcp -x LANG -x NCCL_IB_DISABLE -x PATH -x PYTHONUNBUFFERED"
    )


def test_open_mpi_starts_its_agents_at_once_on_many_hosts(tmp_path: Path) -> None:
    env = planted(tmp_path, Flavour.OPEN_MPI)
    hosts = ",".join(f"n{number}:1" for number in range(64))
    many = "--mca plm_rsh_no_tree_spawn true --mca plm_rsh_num_concurrent 64"
    assert f" {OPEN_MPI_FLAGS} {many} -x " in command(made_plan(hosts, 64), env)
    assert "plm_rsh" not in command(made_plan(hosts.rpartition(",")[0], 63), env)


def test_values_of_variables_are_on_no_command_line(tmp_path: Path) -> None:
    for flavour in TEXTS:
        env = planted(tmp_path / flavour.name, flavour) | {"TOKEN": "horse-battery"}
        start = plan_mpirun(made_plan(), MpiOptions(), env, {"_HOROVOD_SECRET_KEY": "c2VjcmV0"})
        line = " ".join(start.command)
        assert "horse-battery" not in line and "c2VjcmV0" not in line
        assert start.environment["TOKEN"] == "horse-battery"
        assert start.environment["_HOROVOD_SECRET_KEY"] == "c2VjcmV0"
        assert flavour.is_hydra or ("-x TOKEN" in line and "-x _HOROVOD_SECRET_KEY" in line)


def test_what_belongs_to_one_host_or_another_launcher_is_not_exported(tmp_path: Path) -> None:
    env = planted(tmp_path, Flavour.OPEN_MPI) | {
        "BASH_FUNC_f%%": "() { :; }",
        "OLDPWD": "/",
        "CUDA_VISIBLE_DEVICES": "0",
        "SSH_AUTH_SOCK": "/tmp/agent",
        "OMPI_MCA_pml": "ob1",
        "PMIX_RANK": "0",
        "HOROVOD_RANK": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "_HOROVOD_SECRET_KEY": "a2V5",
    }
    start = plan_mpirun(made_plan(), MpiOptions(), env)
    assert " ".join(start.command).count("-x ") == 3  # LANG, PATH, PYTHONUNBUFFERED
    assert start.environment["SSH_AUTH_SOCK"] == "/tmp/agent"  # mpirun's own ssh needs it
    assert not {"HOROVOD_RANK", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "_HOROVOD_SECRET_KEY"} & set(
        start.environment
    )


# --- MPICH and Intel MPI -----------------------------------------------------------------------


@pytest.mark.parametrize("flavour", [Flavour.MPICH, Flavour.INTEL_MPI])
def test_hydra(tmp_path: Path, flavour: Flavour) -> None:
    env = planted(tmp_path, flavour)
    assert command(made_plan(), env) == "-l -np 4 -ppn 2 -hosts a,b"
    plan = made_plan(interfaces=["eth0"], output_directory="/logs")
    assert command(plan, env, MpiOptions(extra=("-v",), binding=("-bind-to", "core"))) == (
        "-l -np 4 -ppn 2 -hosts a,b -iface eth0 -bind-to core "
        "-outfile-pattern /logs/rank.%r/stdout -errfile-pattern /logs/rank.%r/stderr -v"
    )
    assert plan_mpirun(plan, MpiOptions(), env).environment["NCCL_SOCKET_IFNAME"] == "eth0"


@pytest.mark.parametrize("flavour", [Flavour.MPICH, Flavour.INTEL_MPI])
def test_hydra_gets_a_machine_file_where_hosts_differ(tmp_path: Path, flavour: Flavour) -> None:
    start = plan_mpirun(made_plan("a:1,b:3"), MpiOptions(), planted(tmp_path, flavour))
    assert start.command[1:-2] == ["-l", "-np", "4", "-machinefile", MACHINEFILE]
    assert start.machinefile == "a:1\nb:3\n"
    text = mpi_launch.dry_run_text(start)
    assert "\n    a:1\n    b:3" in text and "-machinefile '<machinefile>'" in text


def test_the_machine_file_can_be_read_by_the_program(tmp_path: Path) -> None:
    copied = tmp_path / "copied"
    path = program(tmp_path / "mpirun", f'cat "$2" > {copied}')
    start = mpi_launch.Start([path, "-machinefile", MACHINEFILE], dict(os.environ), "a:1\nb:3\n")
    assert mpi_launch.run_child(made_plan(), start) == 0
    assert copied.read_text() == "a:1\nb:3\n"


def test_ssh_of_intel_mpi_and_mpich(tmp_path: Path) -> None:
    plan = made_plan(ssh=SshOptions(2222, "/keys/id"))
    assert command(plan, planted(tmp_path / "i", Flavour.INTEL_MPI)) == (
        "-l -np 4 -ppn 2 -hosts a,b -bootstrap=ssh -bootstrap-exec-args -p 2222 -i /keys/id"
    )
    env = planted(tmp_path / "m", Flavour.MPICH)
    assert command(plan, env) == "-l -np 4 -ppn 2 -hosts a,b -bootstrap=ssh"
    start = plan_mpirun(plan, MpiOptions(), env)
    assert start.environment["HYDRA_LAUNCHER_EXTRA_ARGS"] == "-p 2222 -i /keys/id"


def test_what_an_mpi_cannot_do_is_an_error(tmp_path: Path) -> None:
    env = planted(tmp_path, Flavour.MPICH)
    for plan, text in (
        (made_plan(timestamps=True), "MPICH cannot put the time before its output"),
        (made_plan(interfaces=["a", "b"]), "MPICH do not support multiple interfaces"),
        (made_plan("me@a:2", 2), "mpirun takes no user before a host"),
        (made_plan("[fe80::1]:2", 2), "mpirun takes no IPv6 address"),
        (made_plan(hosts="a:4", ssh=SshOptions(None, "/my key")), "no path with blanks"),
        (made_plan()._replace(hosts=parse_hosts("a")), "number of slots is not known of: a"),
    ):
        with pytest.raises(ValueError, match=text):
            plan_mpirun(plan, MpiOptions(), env)
    with pytest.raises(ValueError, match="--mpi-args: expected words as for a shell, found"):
        MpiOptions.from_texts("'open", False, None)


# --- the command horovodrun --------------------------------------------------------------------


def test_horovodrun_becomes_mpirun(tmp_path: Path) -> None:
    program(
        tmp_path / "mpirun",
        '[ "$1" = --version ] && { echo "Open MPI"; exit; }\necho "pid $$ $*"\nexit 7',
    )
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [sys.executable, "-m", "horovod.runner", "-np", "2", "--mpi", "train", "--mpi"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate(timeout=30)
    assert process.returncode == 7
    assert output.startswith(f"pid {process.pid} --allow-run-as-root")
    assert output.endswith(" train --mpi\n")


def test_dry_run_of_mpi_starts_nothing(tmp_path, capsys, monkeypatch) -> None:
    env = planted(tmp_path, Flavour.MPICH)
    monkeypatch.setenv("PATH", env["PATH"])
    assert run_commandline(["--dry-run", "--mpi", "-np", "2", "train", "--api-key", "x1"]) == 0
    output = capsys.readouterr().out
    assert f"{env['PATH']}/mpirun -l -np 2 -ppn 2 -hosts localhost train --api-key <red" in output
    assert "x1" not in output


def test_flags_of_mpi_need_it_and_exclude_other_launchers(capsys) -> None:
    for flags, text in (
        (["--mpi-args=-v"], "--mpi-args is for mpirun: give --mpi, too"),
        (["--binding-args=-v"], "--binding-args is for mpirun: give --mpi, too"),
        (["--mpi", "--gloo"], "not allowed with"),
        (["--mpi", "--jsrun"], "not allowed with"),
    ):
        with pytest.raises(SystemExit):
            parse_args(["-np", "1", *flags, "true"])
        assert text in capsys.readouterr().err


def test_the_config_file_chooses_mpi_unless_a_flag_does(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("controller: mpi\nlibrary_options: {mpi_threads_disable: true}\n")
    assert read_config(str(path)) == {"use_mpi": True, "mpi_threads_disable": True}
    given = ["-np", "1", "--config-file", str(path)]
    assert parse_args([*given, "true"]).use_mpi
    assert not parse_args([*given, "--gloo", "true"]).use_mpi


# --- LSF ---------------------------------------------------------------------------------------

LSF = {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "h1 8 h2 8"}
# There is no jsrun here: this one says what it was given.
FAKE_JSRUN = """\
echo "not the real jsrun: $*"
cat "$2"
exit 5
"""


@pytest.fixture
def no_csm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "CSM_ALLOCATION_ID", "LSB_DJOB_HOSTFILE"):
        monkeypatch.delenv(name, raising=False)


def test_hosts_of_a_job_come_from_its_variables(tmp_path: Path) -> None:
    found = lsf.allocation(LSF)
    assert found == ([HostInfo("h1", 8), HostInfo("h2", 8)], {"h1": 8, "h2": 8})
    (tmp_path / "hosts").write_text("n1\nn1\nn2\n")
    of_file = {**LSF, "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")}
    assert lsf.allocation(of_file).hosts == [HostInfo("n1", 2), HostInfo("n2", 1)]


def test_the_launch_host_of_csm_is_no_compute_host(tmp_path: Path) -> None:
    program(tmp_path / "csm_node_attributes_query", 'echo "x: 1"; echo "  discovered_gpus: 6"')
    env = {**LSF, "LSB_MCPU_HOSTS": "batch 1 h1 42 h2 42", "PATH": str(tmp_path)}
    assert [host.hostname for host in lsf.allocation(env).hosts] == ["batch", "h1", "h2"]
    found = lsf.allocation({**env, "CSM_ALLOCATION_ID": "3"})
    assert found == ([HostInfo("h1", 6), HostInfo("h2", 6)], {"h1": 42, "h2": 42})


def test_a_slot_is_a_gpu_where_they_are_known() -> None:
    env = {"LSB_JOBID": "1", "LSB_MCPU_HOSTS": "localhost 8", "CUDA_VISIBLE_DEVICES": "0,1,2"}
    assert lsf.allocation(env).hosts == [HostInfo("localhost", 3)]
    elsewhere = {**LSF, "LSB_MCPU_HOSTS": "h1.invalid 8", "CUDA_VISIBLE_DEVICES": "0"}
    assert lsf.allocation(elsewhere).hosts == [HostInfo("h1.invalid", 8)]


def test_a_job_that_does_not_say_its_hosts_is_an_error(tmp_path: Path) -> None:
    for variables, text in (
        ({}, "but not on which hosts"),
        ({"LSB_MCPU_HOSTS": "h1 8 h2"}, "found LSB_DJOB_HOSTFILE='' and LSB_MCPU_HOSTS='h1 8 h2'"),
        ({"LSB_MCPU_HOSTS": "h1 many"}, "but not on which hosts"),
        ({"LSB_DJOB_HOSTFILE": str(tmp_path / "none")}, "No such file"),
    ):
        with pytest.raises(ValueError, match=text):
            lsf.allocation({"LSB_JOBID": "12", **variables})


def test_hosts_and_processes_are_filled_in(no_csm: None) -> None:
    def filled(**given: object) -> tuple[object, object]:
        fields = {"num_proc": None, "hosts": None, "hostfile": None, "use_jsrun": None} | given
        args = argparse.Namespace(**fields)
        lsf.fill_in_from_job(args, LSF)
        return args.num_proc, args.hosts

    assert filled() == (16, "h1:8,h2:8")
    assert filled(num_proc=3) == (3, "h1:8,h2:8")
    assert filled(num_proc=3, hosts="h2:4") == (3, "h2:4")


def test_threads_of_a_core(tmp_path: Path) -> None:
    path = tmp_path / "siblings"
    for text, count in (("0\n", 1), ("0-3\n", 4), ("0,4\n", 2)):
        path.write_text(text)
        assert lsf.threads_per_core(str(path)) == count
    assert lsf.threads_per_core(str(tmp_path / "none")) == 1


def test_rankfile() -> None:
    allocation = lsf.Allocation([], {"h1": 8, "h2": 4})
    assert js_run.rankfile_text(made_plan("h1:2,h2:1", 3), allocation, 4) == (
        "overlapping_rs: allow\ncpu_index_using: logical\n\n"
        "rank: 0: { hostname: h1; cpu: {0-15} ; gpu: * ; mem: * }\n"
        "rank: 1: { hostname: h1; cpu: {16-31} ; gpu: * ; mem: * }\n\n"
        "rank: 2: { hostname: h2; cpu: {0-15} ; gpu: * ; mem: * }\n"
    )
    with pytest.raises(ValueError, match=r"host h2 has 4 hardware thread.* too few for 5 ranks"):
        js_run.rankfile_text(made_plan("h2:5", 5), allocation, 1)
    with pytest.raises(
        ValueError, match="host x does not belong to this LSF job, which has h1, h2"
    ):
        js_run.rankfile_text(made_plan("x:2", 2), allocation, 1)


def test_jsrun(tmp_path: Path) -> None:
    env = {**LSF, "PATH": str(tmp_path)}
    with pytest.raises(ValueError, match="jsrun is not in PATH"):
        js_run.plan_jsrun(made_plan(), MpiOptions(), env, "/r")
    path = program(tmp_path / "jsrun", FAKE_JSRUN)
    start = js_run.plan_jsrun(made_plan(), MpiOptions(), env, "/r")
    assert start.command == [path, "--erf_input", "/r", "python", "train me.py"]
    plan = made_plan(output_directory="/logs")
    options = MpiOptions(extra=("-a", "b c"), tcp=True)
    assert js_run.plan_jsrun(plan, options, env, "/r").command == [
        *(path, "--erf_input", "/r", "--stdio_stderr", "/logs", "--stdio_stdout", "/logs"),
        *("--smpiargs", "-tcp -a 'b c'", "python", "train me.py"),
    ]
    with pytest.raises(ValueError, match="--jsrun cannot honour --binding-args"):
        js_run.plan_jsrun(plan, MpiOptions(binding=()), env, "/r")
    with pytest.raises(ValueError, match=r"^Horovod did not detect an LSF job\.  The jsrun"):
        js_run.plan_jsrun(plan, MpiOptions(), {"PATH": str(tmp_path)}, "/r")


def test_the_end_of_horovodrun_ends_jsrun(tmp_path: Path, no_csm: None) -> None:
    program(
        tmp_path / "jsrun",
        "trap 'kill $!; echo ended; exit 9' TERM\nsleep 30 &\necho started\nwait",
    )
    env = {**os.environ, **LSF, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "horovod.runner", "--jsrun", "true"]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.terminate()
        assert process.stdout.readline() == "ended\n"
        assert process.wait(30) == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["jsrun"]


def test_horovodrun_calls_jsrun_with_the_hosts_of_the_job(tmp_path: Path, no_csm: None) -> None:
    program(tmp_path / "jsrun", FAKE_JSRUN)
    env = {**os.environ, **LSF, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "horovod.runner", "--jsrun", "python", "train.py"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 5, done.stderr
    assert done.stdout.startswith(f"not the real jsrun: --erf_input {tmp_path}/horovod-rankfile-")
    assert done.stdout.count("\nrank: ") == 16 and "hostname: h2; cpu: {" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["jsrun"]
    shown = subprocess.run(
        [*words[:4], "--dry-run", *words[4:]], env=env, capture_output=True, text=True, timeout=30
    )
    assert "jsrun --erf_input '<rankfile>' python train.py\n\nRankfile:\n    over" in shown.stdout
