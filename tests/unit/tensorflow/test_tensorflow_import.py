"""Importing the door: what is said where TensorFlow is missing or too old, and what the plug-in links to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from horovod.common.native import library_path

PLUGIN = library_path("tensorflow", "libhorovod_tensorflow.so")


def import_with(tmp_path: Path, package: str | None) -> str:
    """Imports the door with this text as the package `tensorflow` (None: there is none)."""
    code = "import horovod.tensorflow"
    if package is None:
        code = "import sys; sys.modules['tensorflow'] = None; " + code
    else:
        (tmp_path / "tensorflow.py").write_text(package)
        code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); " + code
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def test_without_tensorflow(tmp_path: Path) -> None:
    said = import_with(tmp_path, None)
    assert said.startswith("ImportError: horovod.tensorflow needs TensorFlow 2.15 or newer")
    assert "pip install tensorflow" in said


def test_something_else_of_that_name(tmp_path: Path) -> None:
    said = import_with(tmp_path, "__version__ = '0.1'")
    assert "version 0.1" in said
    assert "no load_op_library" in said


OLD = """
import ctypes
__version__ = "1.15.0"
class errors:
    class NotFoundError(Exception):
        pass
def load_op_library(path):
    ctypes.CDLL(path)
"""


def test_a_tensorflow_without_the_functions(tmp_path: Path) -> None:
    said = import_with(tmp_path, OLD)
    assert "TensorFlow 1.15.0" in said
    assert "does not export TF_NewStatus" in said


def test_the_plugin_links_to_no_framework() -> None:
    listed = subprocess.run(["ldd", str(PLUGIN)], capture_output=True, text=True, check=True)
    libraries = [line.split()[0] for line in listed.stdout.splitlines()]
    assert not [name for name in libraries if "tensorflow" in name or "xla" in name]
    known = ("linux-vdso", "libstdc++", "libm.", "libgcc_s", "libc.", "libdl", "libpthread", "/lib")
    assert all(name.startswith(known) for name in libraries), libraries
