"""Launch limits, at the limit and one beyond it."""

from __future__ import annotations

import pytest

from tests.runtime.hand_written import kernel
from thunder_fuser.device_table import DATASHEETS
from thunder_fuser.errors import KernelError
from thunder_fuser.runtime.limits import check_limits

H200 = DATASHEETS["sm_90"]


@pytest.mark.parametrize(
    "geometry",
    [
        {"block": (1024, 1, 1)},
        {"block": (16, 1, 64)},
        {"grid": (2**31 - 1, 65535, 65535)},
        {"shared_bytes": 227 * 1024},
        {"grid": (0, 1, 1)},
    ],
)
def test_what_fits_is_accepted(geometry: dict[str, object]) -> None:
    check_limits(kernel("k", "", **geometry), H200)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ({"block": (1025, 1, 1)}, "1025 threads in a block, the limit is 1024"),
        ({"block": (32, 33, 1)}, "1056 threads in a block, the limit is 1024"),
        ({"block": (1, 1, 65)}, "65 along z in the block, the limit is 64"),
        ({"grid": (2**31, 1, 1)}, "2147483648 along x in the grid, the limit is 2147483647"),
        ({"grid": (1, 65536, 1)}, "65536 along y in the grid, the limit is 65535"),
        ({"grid": (1, 1, 70000)}, "70000 along z in the grid, the limit is 65535"),
        ({"shared_bytes": 227 * 1024 + 1}, "232449 bytes of shared memory in a block"),
    ],
)
def test_what_does_not_fit_is_named(geometry: dict[str, object], message: str) -> None:
    with pytest.raises(KernelError) as caught:
        check_limits(kernel("big", "", **geometry), H200)  # type: ignore[arg-type]
    assert str(caught.value).startswith("kernel big cannot run on NVIDIA H200 (sm_90): ")
    assert message in str(caught.value)
    assert "THUNDER_FUSER_STRICT=0 runs it in torch" in str(caught.value)


def test_what_the_compiler_found_counts() -> None:
    k = kernel("k", "", block=(1000, 1, 1), shared_bytes=200 * 1024)
    check_limits(k, H200, registers=64, static_shared_bytes=27 * 1024)
    # 1000 threads are 32 warps, and registers are given out to whole warps.
    with pytest.raises(KernelError, match="66560 registers in a block, the limit is 65536"):
        check_limits(k, H200, registers=65)
    with pytest.raises(KernelError, match="232449 bytes of shared memory"):
        check_limits(k, H200, static_shared_bytes=27 * 1024 + 1)
