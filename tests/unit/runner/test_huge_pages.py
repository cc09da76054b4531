"""When horovodrun tells its workers to ask for huge pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from horovod.runner.huge_pages import only_on_request

FOLDER = "sys/kernel/mm/transparent_hugepage"
TWO_MIB = "2097152\n"


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"enabled": "always [madvise] never\n", "hpage_pmd_size": TWO_MIB}, True),
        ({"enabled": "[always] madvise never\n", "hpage_pmd_size": TWO_MIB}, False),
        ({"enabled": "always madvise [never]\n", "hpage_pmd_size": TWO_MIB}, False),
        # Pages of arm64 kernels whose small ones have 64 KiB.
        ({"enabled": "always [madvise] never\n", "hpage_pmd_size": "536870912\n"}, False),
        ({"enabled": "always [madvise] never\n", "hpage_pmd_size": "many\n"}, False),
        ({"enabled": "always [madvise] never\n"}, False),
        ({"hpage_pmd_size": TWO_MIB}, False),
        ({}, False),
    ],
)
def test_only_where_the_kernel_leaves_it_to_the_program(
    tmp_path: Path, files: dict[str, str], expected: bool
) -> None:
    (tmp_path / FOLDER).mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / FOLDER / name).write_text(text)
    assert only_on_request(tmp_path) is expected


def test_a_kernel_without_huge_pages(tmp_path: Path) -> None:
    assert not only_on_request(tmp_path)
