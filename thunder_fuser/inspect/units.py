"""Formatting of byte counts, times and FLOPs in reports."""

from __future__ import annotations

_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def bytes_text(size: float) -> str:
    """Format bytes as `12.3 MB`, in powers of 1,000."""
    for unit, name in _BYTES:
        if size >= unit:
            return (
                f"{size / unit:.3g} {name}" if size < 999.5 * unit else f"{size / unit:,.0f} {name}"
            )
    return f"{size:.0f} B"


def seconds_text(seconds: float) -> str:
    """Format a time as `12.3 us`; "" for 0, which means unknown."""
    if not seconds:
        return ""
    for unit, name in _SECONDS:
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds / 1e-6:.2g} us"


def flops_text(flops: int) -> str:
    """Format FLOPs as `1.2 GFLOP`; "" for 0."""
    for unit, name in ((10**12, "TFLOP"), (10**9, "GFLOP"), (10**6, "MFLOP")):
        if flops >= unit:
            return f"{flops / unit:.3g} {name}"
    return f"{flops} FLOP" if flops else ""


def line_text(line: str) -> str:
    """Shorten `folder/model.py:12` to `model.py:12`."""
    return line.replace("\\", "/").rpartition("/")[2]
