"""Refusals as values, and the exception hierarchy. Refusal texts are at the check that refuses; the
catalogue of codes is refusal_codes.py.

A *refusal* is an expected result: "this op cannot be fused", "these two segments cannot merge".  It
is a value, is collected, and is shown in reports.  An *exception* needs action by the user (a wrong
argument, a missing compiler) or by the maintainers (an `InternalError`).

A message states the failure, the op or argument, the expected and the actual value, and the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

REPORT = "report it; THUNDER_FUSER_STRICT=0 runs it in torch meanwhile"
"""Remedy for faults of generated kernels."""
_LINES = 3
"""Most source lines listed for one refusal that occurs in many places."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Reason why something was not fused, merged, vectorised or scheduled.

    code     short stable identifier for grouping: "dtype", "rank", "cycle" (refusal_codes.py)
    text     message
    subject  name of the op or tensor; "" if there is none
    origin   "file:line" of the user's program; "" if not known
    """

    code: str
    text: str
    subject: str = ""
    origin: str = ""

    def __str__(self) -> str:
        subject = f"{self.subject}: " if self.subject else ""
        origin = f" (at {self.origin})" if self.origin else ""
        return f"[{self.code}] {subject}{self.text}{origin}"


def counted_refusals(found: Iterable[Refusal]) -> list[str]:
    """Format refusals, one line for all that differ only in origin, with count and source lines."""
    groups: dict[Refusal, Counter[str]] = {}
    for refusal in found:
        groups.setdefault(replace(refusal, origin=""), Counter())[refusal.origin] += 1
    texts = []
    for refusal, places in groups.items():
        lines = [place for place in places if place]
        more = f", and {len(lines) - _LINES} more lines" if len(lines) > _LINES else ""
        at = f" (at {', '.join(lines[:_LINES])}{more})" if lines else ""
        texts.append(f"{places.total()} x {refusal}{at}")
    return texts


class FuserError(RuntimeError):
    """Base of everything that thunder_fuser raises on purpose."""


class FuserValueError(FuserError, ValueError):
    """An argument has the right type and an impossible value."""


class FuserTypeError(FuserError, TypeError):
    """An argument has the wrong type."""


class FuserIndexError(FuserError, IndexError):
    """An index among a tensor's elements, found as the program runs, that does not exist."""


class CompileError(FuserError):
    """A compiler rejected a generated kernel.

    `log` is the compiler's complete output and `source` the file that holds the rejected text
    (None if it could not be saved).
    """

    def __init__(self, message: str, *, source: Path | None = None, log: str = "") -> None:
        super().__init__(message)
        self.source = source
        self.log = log


class KernelError(FuserError):
    """A kernel misbehaved as it ran: out of bounds, divergence at a barrier, a race."""


class LimitError(KernelError):
    """A kernel asks for more than its device has."""


class LoadError(KernelError):
    """A driver does not take a compiled kernel, of which nothing has run."""


class TargetError(FuserError):
    """A target cannot be used here: no host compiler, no driver, no NVRTC."""


class ResourceError(TargetError):
    """The system lacks memory, disk or descriptors at this moment, or ended a compiler."""


class InternalError(FuserError):
    """A bug in thunder_fuser. Where torch runs instead, a warning names a script that shows it."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}\nThis is a bug in thunder_fuser, not in your program.")
