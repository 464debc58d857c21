"""What one call cost, as `execute(profile=True)` measures it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FusionProfile:
    """`host_time_ms` is the wall time of one call until the device has finished, compiling included
    if it was the first; `bytes` is what the plan says that the kernels move."""

    host_time_ms: float
    segments: int
    kernels: tuple[str, ...]
    bytes: int

    @property
    def effective_bandwidth_gbs(self) -> float:
        return self.bytes / self.host_time_ms / 1e6
