"""Fallback to torch for kernels that could not be prepared, with warnings and refusals.

A fusion that cannot be planned runs in torch as a whole (`frontends/thunder/call.py`). In a plan,
only those segments run in torch whose kernel cannot be generated, is rejected by the compiler or
the driver, or exceeds the device's limits; the others keep their kernels. Both evaluate a Fusion
(`ir/reference.py`).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch

from thunder_fuser.config import current
from thunder_fuser.errors import (
    CompileError,
    FuserError,
    InternalError,
    LimitError,
    LoadError,
    Refusal,
    TargetError,
)
from thunder_fuser.runtime.compilation.failures import save_failure
from thunder_fuser.runtime.scarcity import is_passing
from thunder_fuser.segment.plan import SegmentedFusion, counted
from thunder_fuser.segment.ties import tied_to

_EXPECTED = (FuserError, torch.OutOfMemoryError, MemoryError)
"""Errors that torch would raise, too, unless in `_REPLACEABLE`: invalid inputs, out of memory."""
_REPLACEABLE = (InternalError, CompileError, LimitError, LoadError, TargetError)
"""Errors that do not affect torch: bugs of ours, a missing compiler or driver, device limits."""


_NO_MEMORY = "DefaultCPUAllocator"
"""In the text of torch's RuntimeError for a CPU without memory, which has no class of its own."""
_FINAL = "_thunder_fuser_is_final"
"""Attribute of errors that were raised after a kernel may have updated an input."""


def is_replaceable(error: Exception) -> bool:
    """True if torch can run the operations instead."""
    if is_final(error):
        return False
    expected = isinstance(error, _EXPECTED) or _NO_MEMORY in str(error)
    return not expected or isinstance(error, _REPLACEABLE)


def is_final(error: Exception) -> bool:
    """True if `keep_from_torch` has marked the error."""
    return bool(getattr(error, _FINAL, False))


def keep_from_torch(error: Exception) -> None:
    """Mark an error of a call that torch must not repeat: an input may be updated already."""
    with suppress(AttributeError):  # of extensions' errors without a dictionary
        setattr(error, _FINAL, True)


class Failures:
    """Errors of segments whose kernels could not be prepared, by segment index."""

    def __init__(self, *, tolerant: bool = True) -> None:
        self.of_segments: dict[int, Exception] = {}
        self._tolerant = tolerant

    @contextmanager
    def of(self, *segments: int) -> Iterator[None]:
        """Record an error inside the block for `segments`, if `tolerates` accepts it."""
        try:
            yield
        except Exception as error:
            if not self.tolerates(error):
                raise
            self.of_segments.update(dict.fromkeys(segments, error))

    def tolerates(self, error: Exception) -> bool:
        """True if torch may run a segment instead. False for TargetError: if nothing can be
        compiled at all, the whole fusion falls back. So it does for errors that may pass, until
        they have.
        """
        if not self._tolerant or current().strict or isinstance(error, TargetError):
            return False
        if is_passing(error):
            return False
        return is_replaceable(error)


def left_to_torch(
    plan: SegmentedFusion, failures: Failures, name: str, device: torch.device
) -> dict[int, Refusal]:
    """Return the reason for each segment that runs in torch, including segments tied to failed
    ones, and warn once.
    """
    found: dict[int, Refusal] = {}
    notes: list[str] = []
    for index, error in sorted(failures.of_segments.items()):
        segment = plan.segments[index]
        found[index] = Refusal("fallback", f"{type(error).__name__}: {error}", segment.head)
        script = save_failure(f"{name}-segment-{index}", ".py", segment.repro(str(device)))
        notes.append(f"{found[index]}" + (f"\n    {script} reproduces it" if script else ""))
    for index, (other, value) in sorted(tied_to(plan, failures.of_segments).items()):
        reason = f"it computes {value.name} again, which must be what segment {other} makes of it"
        found[index] = Refusal("fallback", reason, plan.segments[index].head)
        notes.append(str(found[index]))
    if found:
        segments = counted(plan.kernels - plan.copies, "segment")
        others = ", the others keep their kernels" * (len(found) < plan.kernels - plan.copies)
        head = f"{name}: torch runs {len(found)} of {segments}{others}:"
        _warn("\n  ".join([head, *notes]))
    return found


def warn_of_failure(name: str, error: Exception, script: str) -> None:
    """Warn that the fusion `name` runs in torch from now on."""
    to_reproduce = f"\n{script} reproduces it." if script else ""
    is_bug = not isinstance(error, TargetError)
    _warn(f"{name} runs in torch: {type(error).__name__}: {error}{to_reproduce}", is_bug)


def warn_of_scarcity(name: str, error: Exception) -> None:
    """Warn that the fusion `name` runs in torch until what the system lacks is there."""
    text = f"{name} runs in torch for now, and a later call tries again"
    _warn(f"{text}: {type(error).__name__}: {error}", is_bug=False)


def _warn(text: str, is_bug: bool = True) -> None:
    fault = "This is a bug in thunder_fuser. " if is_bug else ""
    remedy = "THUNDER_FUSER_STRICT=1 turns this warning into an error."
    warnings.warn(f"{text}\n{fault}{remedy}", RuntimeWarning, stacklevel=5)
