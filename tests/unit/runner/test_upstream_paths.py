"""Import paths and small helpers of Horovod 0.28, and the report of --check-build."""

from __future__ import annotations

import subprocess
import sys
import types

import pytest

from horovod.runner import check_build as check_build_module
from horovod.runner.common.util import env, host_hash, secret, settings, timeout
from horovod.runner.launch import check_build


def test_importing_horovod_and_the_launcher_is_light() -> None:
    code = (
        "import sys, horovod, horovod.runner.launch; from horovod import run; "
        "print(sorted({'yaml', 'asyncio', 'psutil', 'cloudpickle', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_run_and_version_are_names_of_the_package() -> None:
    import horovod
    from horovod.runner import run

    assert horovod.run is run
    assert horovod.__version__ == "1.0.0"
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        horovod.walk  # noqa: B018


def test_variables_that_may_leave_the_host() -> None:
    assert env.is_exportable("PATH") and env.is_exportable("CUDA_DEVICE_ORDER")
    for name in ("BASH_FUNC_f%%", "OLDPWD", "NVIDIA_CUDA_VISIBLE_DEVICES", "_HOROVOD_SECRET_KEY"):
        assert not env.is_exportable(name)


def test_rank_and_size_from_any_launcher(monkeypatch) -> None:
    for name in ("HOROVOD_RANK", "HOROVOD_SIZE", "PMI_RANK", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert env.get_env_rank_and_size() == (0, 1)
    monkeypatch.setenv("PMI_RANK", "2")
    monkeypatch.setenv("PMI_SIZE", "4")
    assert env.get_env_rank_and_size() == (2, 4)


def test_kubeflow_is_seen_by_its_agent(monkeypatch) -> None:
    assert not env.is_kubeflow_mpi()
    monkeypatch.setenv("OMPI_MCA_plm_rsh_agent", "/etc/mpi/kubexec.sh")
    assert env.is_kubeflow_mpi()


def test_host_hash_is_stable_and_salted() -> None:
    assert host_hash.host_hash() == host_hash.host_hash()
    assert host_hash.host_hash("a") != host_hash.host_hash("b")


def test_digests_fit_their_key() -> None:
    key = secret.make_secret_key()
    digest = secret.compute_digest(key, b"m")
    assert len(digest) == secret.DIGEST_LENGTH
    assert secret.check_digest(digest, b"m", key)
    assert not secret.check_digest(digest, b"n", key)


def test_timeout_says_what_was_waited_for(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(timeout.time, "monotonic", lambda: now[0])
    limit = timeout.Timeout(5, "Timed out after {timeout} s waiting for {activity}.")
    limit.check_time_out_for("hosts")
    assert limit.remaining() == 5
    now[0] = 6.0
    assert limit.timed_out()
    with pytest.raises(timeout.TimeoutException, match="after 5 s waiting for hosts"):
        limit.check_time_out_for("hosts")


def test_settings_hold_what_they_are_given() -> None:
    made = settings.Settings(hosts="a:1", num_proc=1, verbose=2)
    assert (made.hosts, made.num_proc, made.verbose, made.elastic) == ("a:1", 1, 2, False)


def test_check_build_reports_frameworks_with_both_package_and_door(monkeypatch) -> None:
    present = {"tensorflow", "torch", "horovod.torch"}
    finder = types.SimpleNamespace(
        util=types.SimpleNamespace(find_spec=lambda name: name if name in present else None)
    )
    monkeypatch.setattr(check_build_module, "importlib", finder)
    assert check_build() == (
        "Horovod v1.0.0:\n\n"
        "Available Frameworks:\n    [ ] TensorFlow\n    [X] PyTorch\n    [ ] MXNet\n\n"
        "Available Controllers:\n    [ ] MPI\n    [X] Gloo\n\n"
        "Available Tensor Operations:\n"
        "    [ ] NCCL\n    [ ] DDL\n    [ ] CCL\n    [ ] MPI\n    [X] Gloo"
    )
    assert "[ ] TensorFlow (horovod.tensorflow does not exist yet)" in check_build(verbose=True)
