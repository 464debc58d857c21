"""Prices of bytes moved, arithmetic and launches on a device, for the planner's decisions.

Integers, because minimum cuts need integer capacities. The unit is half the time of an fp32
instruction, since most arithmetic is hidden behind the memory traffic of other threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo

_HIDDEN = 2


@dataclass(frozen=True, slots=True)
class PriceUnits:
    """Integer prices of a device, in half the time of an fp32 instruction.

    byte    price of moving one byte
    launch  fixed price of a kernel
    """

    device: DeviceInfo
    byte: int
    launch: int

    @staticmethod
    def of(device: DeviceInfo) -> PriceUnits:
        rate = _HIDDEN * device.fp32_rate
        return PriceUnits(
            device,
            max(1, round(rate / device.copy_bandwidth)),
            round(rate * device.launch_seconds),
        )

    @property
    def sector(self) -> int:
        """Price of one memory sector, the smallest transfer of a kernel."""
        return self.byte * self.device.sector_bytes

    def __call__(self, kernels: int, moved: int) -> int:
        """Return the price of `kernels` launches that move `moved` bytes together."""
        return kernels * self.launch + moved * self.byte
