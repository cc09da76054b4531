"""The report of --check-gpu, with folders and libraries of the test in place of the machine's.

MockDriver and MockNccl stand in for libcuda.so.1 and libnccl.so.2; no GPU is used here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from horovod.runner.check_gpu import Places, check_gpu


class MockDriver:
    """Answers like the driver's library, with the devices that a test gives it."""

    def __init__(self, names: list[str], init: int = 0) -> None:
        self.names, self.init = names, init

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.init

    def cuGetErrorString(self, code: int, text: Any) -> int:
        if code != 100:
            return 1
        text._obj.value = b"no CUDA-capable device is detected"
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self.names)
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: Any) -> int:
        name.value = self.names[device.value].encode()[: size - 1]
        return 0


class MockNccl:
    """Answers like NCCL."""

    def __init__(self, version: int, code: int = 0) -> None:
        self.version, self.code = version, code

    def ncclGetVersion(self, version: Any) -> int:
        version._obj.value = self.version
        return self.code


class Libraries:
    """Loads the mocks of a test, and says of the others what the loader would say."""

    def __init__(self, **mocks: Any) -> None:
        self.mocks = {name.replace("_", "."): mock for name, mock in mocks.items()}

    def __call__(self, path: str) -> Any:
        for name, mock in self.mocks.items():
            if path.endswith(name):
                return mock
        raise OSError(f"{path}: cannot open shared object file: No such file or directory")


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("nvidia", "dev", "kfd"):
        (tmp_path / name).mkdir()
    return Places(tmp_path / "nvidia", tmp_path / "dev", tmp_path / "kfd", (tmp_path / "site",))


def test_a_machine_without_gpu_says_why_in_every_line(places: Places) -> None:
    report = check_gpu(places, {}, Libraries())
    assert not report.usable
    text = report.text()
    for line in (
        f"NVIDIA driver: not loaded ({places.nvidia}/version: No such file or directory)",
        f"NVIDIA devices of the kernel: none ({places.nvidia}/gpus: No such file or directory)",
        f"NVIDIA device files: none in {places.devices}; a container needs them passed in",
        "NVIDIA driver library: not found (libcuda.so.1: cannot open shared object file",
        "CUDA_VISIBLE_DEVICES: not set, all devices are visible",
        "NCCL: not found (libnccl.so.2: cannot open",
        f"{places.site_packages[0]}/nvidia/nccl/lib/libnccl.so.2: cannot open",
        f"AMD devices: none ({places.devices}/kfd does not exist)",
        "Verdict: no GPU is usable here",
    ):
        assert line in text


def test_a_machine_with_nvidia_gpus(places: Places) -> None:
    (places.nvidia / "version").write_text("NVRM version: Module  550.1\nGCC version: 12\n")
    gpu = places.nvidia / "gpus" / "0000:01:00.0"
    gpu.mkdir(parents=True)
    (gpu / "information").write_text("Model: \t\t Test GPU\nIRQ: 1\n")
    (places.nvidia / "gpus" / "0000:02:00.0").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (places.devices / name).touch()
    mocks = Libraries(libcuda_so_1=MockDriver(["Mock A", "Mock B"]), libnccl_so_2=MockNccl(22105))
    report = check_gpu(places, {"CUDA_VISIBLE_DEVICES": "1,0"}, mocks)
    assert report.usable
    assert report.lines[:7] == [
        "NVIDIA driver: NVRM version: Module  550.1",
        f"NVIDIA devices of the kernel: Test GPU at {gpu.name}, 0000:02:00.0 (No such file or directory)",
        "NVIDIA device files: nvidia0, nvidia1, nvidiactl",
        "NVIDIA driver library: libcuda.so.1 works and sees 2 device(s)",
        "    GPU 0: Mock A",
        "    GPU 1: Mock B",
        "CUDA_VISIBLE_DEVICES: '1,0'",
    ]
    assert "NCCL: 2.21.5 (libnccl.so.2)" in report.lines
    assert report.text().endswith("Verdict: a GPU is usable here")


def test_a_driver_that_refuses_is_quoted(places: Places) -> None:
    for init, text in ((100, "no CUDA-capable device is detected (error 100)"), (7, "error 7")):
        report = check_gpu(places, {}, Libraries(libcuda_so_1=MockDriver([], init)))
        assert f"NVIDIA driver library: cuInit failed: {text}" in report.lines
        assert not report.usable
    report = check_gpu(places, {}, Libraries(libcuda_so_1=object()))
    assert "cuInit failed: the library has no such function" in report.text()


def test_hidden_devices_are_not_usable(places: Places) -> None:
    mocks = Libraries(libcuda_so_1=MockDriver([]))
    report = check_gpu(places, {"CUDA_VISIBLE_DEVICES": ""}, mocks)
    assert "CUDA_VISIBLE_DEVICES: '', which hides every device" in report.lines
    assert "works and sees 0 device(s)" in report.text()
    assert not report.usable


def test_nccl_of_this_pythons_packages_is_found_too(places: Places) -> None:
    found = places.site_packages[0] / "nvidia/nccl/lib/libnccl.so.2"
    mocks = Libraries(**{"lib/libnccl_so_2": MockNccl(2804)})
    assert f"NCCL: 2.8.4 ({found})" in check_gpu(places, {}, mocks).lines
    broken = check_gpu(places, {}, Libraries(libnccl_so_2=MockNccl(0, 3)))
    assert "NCCL: not found (libnccl.so.2: ncclGetVersion gave 3;" in broken.text()


def test_amd_gpus_are_nodes_with_vector_units(places: Places) -> None:
    (places.devices / "kfd").touch()
    assert "no node in" in check_gpu(places, {}, Libraries()).text()
    for name, units in (("0", 0), ("1", 304)):
        (places.kfd / name).mkdir()
        (places.kfd / name / "properties").write_text(f"cpu_cores_count 8\nsimd_count {units}\n")
    report = check_gpu(places, {}, Libraries())
    assert f"AMD devices: 1 (nodes 1 of {places.kfd})" in report.lines
    assert report.usable
