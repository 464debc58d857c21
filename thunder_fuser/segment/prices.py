"""Time model of a device: seconds for bytes, arithmetic and launches.

Whole numbers, because minimum cuts want them: the unit is the time of an fp32 instruction, or
rather half of it, as most arithmetic hides behind the bytes of other threads.
"""

from __future__ import annotations

from dataclasses import dataclass

from thunder_fuser.device import DeviceInfo

_HIDDEN = 2


@dataclass(frozen=True, slots=True)
class PriceUnits:
    """byte    moving it
    launch  a kernel, however small
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
        """The least that a kernel moves."""
        return self.byte * self.device.sector_bytes

    def __call__(self, kernels: int, moved: int) -> int:
        """Of so many launches, and bytes."""
        return kernels * self.launch + moved * self.byte
