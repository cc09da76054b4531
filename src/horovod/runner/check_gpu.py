"""The report of --check-gpu: devices, driver and NCCL of this machine, or why there are none.

Nothing of a framework is imported: the kernel's files are read, and the driver's library and NCCL are
asked by ctypes.
"""

from __future__ import annotations

import ctypes
import os
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

DRIVER_LIBRARY = "libcuda.so.1"
NCCL_LIBRARY = "libnccl.so.2"
_SUCCESS = 0
_NAME_BYTES = 256

Load = Callable[[str], Any]


class Places(NamedTuple):
    """Where to look; tests put their own folders here."""

    nvidia: Path = Path("/proc/driver/nvidia")
    devices: Path = Path("/dev")
    kfd: Path = Path("/sys/class/kfd/kfd/topology/nodes")
    site_packages: tuple[Path, ...] = ()


class GpuReport(NamedTuple):
    """The lines, and whether a GPU can be used here."""

    lines: list[str]
    usable: bool

    def text(self) -> str:
        """What --check-gpu prints."""
        verdict = "a GPU is usable here" if self.usable else "no GPU is usable here"
        return "\n".join([*self.lines, f"Verdict: {verdict}"])


def check_gpu(
    places: Places | None = None,
    environment: Mapping[str, str] | None = None,
    load: Load = ctypes.CDLL,
) -> GpuReport:
    """Looks for GPUs of NVIDIA and AMD; `load` opens a library and raises OSError if there is none."""
    if places is None:
        paths = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
        places = Places(site_packages=tuple(Path(path) for path in dict.fromkeys(paths)))
    nvidia_lines, nvidia_usable = _nvidia(places, load)
    amd_lines, amd_usable = _amd(places)
    lines = [
        *nvidia_lines,
        _visible(os.environ if environment is None else environment),
        _nccl(places.site_packages, load),
        *amd_lines,
    ]
    return GpuReport(lines, nvidia_usable or amd_usable)


def _nvidia(places: Places, load: Load) -> tuple[list[str], bool]:
    driver, usable = _driver_devices(load)
    return [
        f"NVIDIA driver: {_driver_version(places.nvidia / 'version')}",
        f"NVIDIA devices of the kernel: {_kernel_devices(places.nvidia / 'gpus')}",
        f"NVIDIA device files: {_device_files(places.devices)}",
        *driver,
    ], usable


def _driver_version(path: Path) -> str:
    try:
        return path.read_text(errors="replace").partition("\n")[0].strip() or f"{path} is empty"
    except OSError as error:
        return f"not loaded ({path}: {error.strerror})"


def _kernel_devices(folder: Path) -> str:
    try:
        devices = sorted(folder.iterdir())
    except OSError as error:
        return f"none ({folder}: {error.strerror})"
    return _joined((_model(device) for device in devices), f"none ({folder} is empty)")


def _model(device: Path) -> str:
    """'model at PCI address', as the kernel module describes the device."""
    try:
        text = (device / "information").read_text(errors="replace")
    except OSError as error:
        return f"{device.name} ({error.strerror})"
    fields = dict(line.partition(":")[::2] for line in text.splitlines())
    return f"{fields.get('Model', 'unknown model').strip()} at {device.name}"


def _device_files(folder: Path) -> str:
    names = sorted(path for path in folder.glob("nvidia*") if path.name[6:].isdigit())
    control = folder / "nvidiactl"
    found = [
        path.name + ("" if os.access(path, os.R_OK | os.W_OK) else " (no right to use it)")
        for path in [*names, control]
        if path.exists()
    ]
    missing = f"none in {folder}; a container needs them passed in (docker run --gpus all)"
    return _joined(found, missing)


def _driver_devices(load: Load) -> tuple[list[str], bool]:
    """What the driver's own library says, which is what counts."""
    try:
        driver = load(DRIVER_LIBRARY)
    except OSError as error:
        return [f"NVIDIA driver library: not found ({error})"], False
    count = ctypes.c_int()
    for name, arguments in (("cuInit", (0,)), ("cuDeviceGetCount", (ctypes.byref(count),))):
        code = _call(driver, name, *arguments)
        if code != _SUCCESS:
            return [f"NVIDIA driver library: {name} failed: {_cuda_error(driver, code)}"], False
    lines = [f"NVIDIA driver library: {DRIVER_LIBRARY} works and sees {count.value} device(s)"]
    lines += [f"    GPU {index}: {_device_name(driver, index)}" for index in range(count.value)]
    return lines, count.value > 0


def _call(library: Any, name: str, *arguments: Any) -> int | None:
    """The status of a function; None if the library has no such function."""
    function = getattr(library, name, None)
    return None if function is None else int(function(*arguments))


def _cuda_error(driver: Any, code: int | None) -> str:
    if code is None:
        return "the library has no such function"
    text = ctypes.c_char_p()
    if _call(driver, "cuGetErrorString", code, ctypes.byref(text)) == _SUCCESS and text.value:
        return f"{text.value.decode(errors='replace')} (error {code})"
    return f"error {code}"


def _device_name(driver: Any, index: int) -> str:
    device, name = ctypes.c_int(), ctypes.create_string_buffer(_NAME_BYTES)
    code = _call(driver, "cuDeviceGet", ctypes.byref(device), index)
    if code == _SUCCESS:
        code = _call(driver, "cuDeviceGetName", name, _NAME_BYTES, device)
    if code != _SUCCESS:
        return f"its name is not known: {_cuda_error(driver, code)}"
    return name.value.decode(errors="replace")


def _visible(environment: Mapping[str, str]) -> str:
    value = environment.get("CUDA_VISIBLE_DEVICES")
    if value is None:
        return "CUDA_VISIBLE_DEVICES: not set, all devices are visible"
    hidden = "" if value.strip() else ", which hides every device"
    return f"CUDA_VISIBLE_DEVICES: {value!r}{hidden}"


def _nccl(site_packages: Iterable[Path], load: Load) -> str:
    """The loader's own search first, then NVIDIA's package in this Python."""
    places = [NCCL_LIBRARY]
    places += [str(folder / "nvidia/nccl/lib" / NCCL_LIBRARY) for folder in site_packages]
    reasons = []
    for place in places:
        try:
            library = load(place)
        except OSError as error:
            reasons.append(str(error))
            continue
        version = ctypes.c_int()
        code = _call(library, "ncclGetVersion", ctypes.byref(version))
        if code == _SUCCESS:
            return f"NCCL: {_nccl_version(version.value)} ({place})"
        reasons.append(f"{place}: ncclGetVersion gave {code}")
    return f"NCCL: not found ({'; '.join(reasons)})"


def _nccl_version(number: int) -> str:
    """21903 is 2.19.3; before 2.9 it was 2804 for 2.8.4."""
    unit = 10000 if number >= 10000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def _amd(places: Places) -> tuple[list[str], bool]:
    kfd = places.devices / "kfd"
    if not kfd.exists():
        return [f"AMD devices: none ({kfd} does not exist)"], False
    found = [node.name for node in _nodes(places.kfd) if _computes(node)]
    if not found:
        return [f"AMD devices: none ({kfd} exists, but no node in {places.kfd} has a GPU)"], False
    nodes = f"AMD devices: {len(found)} (nodes {', '.join(found)} of {places.kfd})"
    if not os.access(kfd, os.R_OK | os.W_OK):
        return [f"{nodes}, but this user has no right to use {kfd} (group render or video)"], False
    return [nodes], True


def _nodes(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []  # reported by the caller as a folder without a GPU


def _computes(node: Path) -> bool:
    """A node of the topology is a GPU when it has vector units; processors have none."""
    try:
        properties = (node / "properties").read_text(errors="replace")
    except OSError:
        return False
    fields = dict(line.partition(" ")[::2] for line in properties.splitlines())
    return fields.get("simd_count", "0").strip() not in ("", "0")


def _joined(parts: Iterable[str], nothing: str) -> str:
    return ", ".join(parts) or nothing
