"""Stage 1: is the device what we plan for, and does anything hang?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.gpu_day import facts, micro, scenarios
from benchmarks.gpu_day.rows import Row, Settings, Values
from thunder_fuser import doctor


def rows(settings: Settings) -> Sequence[Row]:
    return [*_device(settings), *scenarios.rows(settings), *micro.rows(settings)]


def _device(settings: Settings) -> Iterator[Row]:
    yield Row("doctor", _doctor, needs="")
    if not settings.dry:
        yield Row("nvidia-smi", facts.nvidia_smi)
        yield Row("device as the driver describes it", facts.described)


def _doctor() -> Values:
    status = doctor.main()
    assert status == 0, "python -m thunder_fuser doctor found something wrong"
    return {}
