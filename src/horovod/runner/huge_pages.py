"""Whether the programs of this machine should ask for huge pages, which spares them page faults.

PyTorch frees its gradients in every training step. glibc gives blocks above 32 MiB back to the kernel
when they are freed, so the next step meets each of their pages anew, with a fault. In huge pages there
are 512 times fewer. What it brings: `benchmarks/training.py`, in the row "independent, huge pages".
"""

from __future__ import annotations

from pathlib import Path

VARIABLE = "GLIBC_TUNABLES"  # read by glibc 2.35 and later, see "Memory Allocation Tunables" there
REQUEST = "glibc.malloc.hugetlb=1"  # madvise(MADV_HUGEPAGE) on what is allocated
LARGEST_PAGE = 4 << 20  # bytes. Pages of 512 MiB, as some arm64 have, would swell every process


def only_on_request(root: Path = Path("/")) -> bool:
    """True where the kernel gives huge pages to those that ask for them, and these are of a usual size.

    Elsewhere asking changes nothing: it gives them always, or never.
    """
    folder = root / "sys/kernel/mm/transparent_hugepage"
    try:
        choice = (folder / "enabled").read_text()
        page = int((folder / "hpage_pmd_size").read_text())
    except (OSError, ValueError):  # a kernel without them
        return False
    return "[madvise]" in choice and page <= LARGEST_PAGE
