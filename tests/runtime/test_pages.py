"""Huge pages under results that the system maps anew."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from thunder_fuser import FusionDefinition
from thunder_fuser.runtime.host import pages
from thunder_fuser.runtime.host.pages import FRESH_BYTES, ask_for_huge_pages

_OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def mappings() -> Iterator[tuple[range, set[str]]]:
    """Mappings of this process, and what the kernel was advised of each: proc_pid_smaps(5)."""
    for text in re.split(r"^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text(), flags=re.M):
        if text:
            begin, end = (int(word, 16) for word in text.split()[0].split("-"))
            flags = re.search(r"VmFlags: (.*)", text)
            yield range(begin, end), set(flags.group(1).split() if flags else ())


def is_huge(address: int) -> bool:
    return any(address in place and "hg" in flags for place, flags in mappings())


@pytest.mark.skipif(not _OFFERED.exists(), reason="this system has no transparent huge pages")
def test_large_results_lie_in_huge_pages() -> None:
    rows = FRESH_BYTES // 4096
    with FusionDefinition() as fd:
        x = fd.from_pytorch(torch.empty(rows, 1))
        y = fd.from_pytorch(torch.empty(1024))
        fd.add_output(fd.ops.add(x, y))
        fd.add_output(fd.ops.neg(x))
    column, row = torch.randn(rows, 1), torch.randn(1024)
    large, small = fd.execute([column, row])
    torch.testing.assert_close(large, column + row, rtol=0, atol=0)
    assert large.nbytes == FRESH_BYTES
    # The first and the last page may be shared with something else.
    assert is_huge(large.data_ptr() + mmap.PAGESIZE)
    assert is_huge(large.data_ptr() + large.nbytes - 2 * mmap.PAGESIZE)
    assert not is_huge(small.data_ptr())


def test_nothing_is_asked_of_less_than_a_page() -> None:
    memory = ctypes.create_string_buffer(mmap.PAGESIZE)
    assert not ask_for_huge_pages(ctypes.addressof(memory) + 1, mmap.PAGESIZE - 2)


def test_systems_without_huge_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "_madvise", None)
    memory = torch.empty(4 * mmap.PAGESIZE, dtype=torch.uint8)
    assert not ask_for_huge_pages(memory.data_ptr(), memory.nbytes)
