"""What differs between two runs of a program, judged by a third one in double precision.

Integers, booleans and whatever torch computes without rounding are exact. Other numbers may be 16
times as far from the truth as torch's own, and a few units in the last place of the largest: sums
may be taken in another order. NaN and infinities are where torch and the truth agree that they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tests.fuzz.observe import Run

_ULPS = 6
_ULPS_OF_DOUBLE = 256
"""Where the truth is no wider than what it judges."""
_TIMES = 16
_PARTIAL_SUMS = 2.0**12
"""How far below the largest double a sum may be of which a part exceeds it in another order. In
other dtypes the truth is wide enough for such parts."""
_HUGE = 1e4
"""Numbers that exceed the median by this factor have an error of their own."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as it is in torch. `kind` is its class, `where` the tensor."""

    kind: str
    where: str
    expected: object
    got: object

    def __str__(self) -> str:
        return f"{self.kind} of {self.where}: expected {self.expected}, got {self.got}"


Truth = Callable[[], Run | None]


def differences(torchs: Run, ours: Run, truth: Truth) -> list[Difference]:
    """All differences; `truth` is called when rounding has to be judged."""
    if torchs.error is not None:
        missing = ours.error is None
        return [Difference("missing error", "the call", torchs.error, "none")] if missing else []
    if ours.error is not None:
        name = type(ours.error).__name__
        return [Difference(f"exception {name}", "the call", "none", ours.error)]
    found = []
    if ours.warning and not torchs.warning:
        found.append(Difference("warning", "the call", "none", ours.warning))
    if len(torchs.results) != len(ours.results):
        return [Difference("number", "results", len(torchs.results), len(ours.results))]
    for k, (expected, got) in enumerate(zip(torchs.results, ours.results, strict=True)):
        where = f"result {k}"
        found += _of_values(where, expected, got, lambda k=k: _nth(truth, "results", k))
    found += _of_memory(torchs, ours)
    for k, (expected, got) in enumerate(zip(torchs.arguments, ours.arguments, strict=True)):
        found += _of_values(f"argument {k}", expected, got, lambda k=k: _nth(truth, "arguments", k))
    for k, (expected, got) in enumerate(zip(torchs.gradients, ours.gradients, strict=True)):
        found += _of_gradient(k, expected, got, truth)
    return found


def _of_gradient(
    k: int, expected: torch.Tensor | None, got: torch.Tensor | None, truth: Truth
) -> list[Difference]:
    if expected is None or got is None:
        # No gradient is one of zeros.
        other = got if expected is None else expected
        nothing = other is None or not bool(other.any())
        return [] if nothing else [Difference("gradient", f"gradient {k}", expected, got)]
    return _of_values(f"gradient {k}", expected, got, lambda: _nth(truth, "gradients", k))


def _nth(truth: Truth, what: str, k: int) -> torch.Tensor | None:
    run = truth()
    if run is None or run.error is not None:
        return None
    found: torch.Tensor | None = getattr(run, what)[k]
    return found


def _of_memory(torchs: Run, ours: Run) -> list[Difference]:
    """Strides, and which results share memory with arguments or with each other.

    A view of a tensor that is not returned itself need not leave the gaps that this one would fill.
    """
    found = []
    shared = torchs.sharing(), ours.sharing()
    owners = {owner[0] - len(torchs.arguments) for owner in shared[0] if owner}
    for k, (expected, got) in enumerate(zip(torchs.results, ours.results, strict=True)):
        if shared[0][k] != shared[1][k]:
            found.append(Difference("sharing", f"result {k}", shared[0][k], shared[1][k]))
        if expected.shape != got.shape or _steps(expected) == _steps(got):
            continue
        is_alone = shared[0][k] is None and k not in owners
        if not (is_alone and _has_gaps(expected) and _steps(_closed(expected)) == _steps(got)):
            found.append(Difference("strides", f"result {k}", expected.stride(), got.stride()))
    return found


def _steps(t: torch.Tensor) -> list[int] | None:
    """The strides that matter."""
    if not t.numel():
        return None
    return [step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1]


def _has_gaps(t: torch.Tensor) -> bool:
    return _steps(t) != _steps(_closed(t))


def _closed(t: torch.Tensor) -> torch.Tensor:
    """A dense tensor with the dimensions in the same order in memory."""
    return torch.empty_like(t)


def _of_values(
    where: str,
    expected: torch.Tensor,
    got: torch.Tensor,
    truth: Callable[[], torch.Tensor | None],
) -> list[Difference]:
    if expected.dtype != got.dtype:
        return [Difference("dtype", where, expected.dtype, got.dtype)]
    if expected.shape != got.shape:
        return [Difference("shape", where, tuple(expected.shape), tuple(got.shape))]
    expected, got = _plain(expected), _plain(got)
    if bool(_same(expected, got).all()):
        return []
    wide = truth()
    wide = None if wide is None else _plain(wide)
    if wide is None or wide.shape != expected.shape:
        return []
    wrong = _wrong(expected, got, wide)
    if not bool(wrong.any()):
        return []
    at = tuple(wrong.nonzero()[0].tolist())
    a, b = expected[at].item(), got[at].item()
    nonfinite = expected.is_floating_point() and not (
        expected[at].isfinite() and got[at].isfinite()
    )
    kind = "NaN and infinities" if nonfinite else "values"
    place = f"{where}{list(at)} ({int(wrong.sum())} of {wrong.numel()} wrong)"
    return [Difference(kind, place, a, b)]


def _plain(t: torch.Tensor) -> torch.Tensor:
    t = t.detach()
    return torch.view_as_real(t.resolve_conj()) if t.is_complex() else t


def _same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a == b) | (a != a) & (b != b)


def _wrong(expected: torch.Tensor, got: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Where `got` is further from the truth than rounding explains."""
    if not expected.is_floating_point():
        return (got != expected) & (expected == truth)
    eps = torch.finfo(expected.dtype).eps
    ulps = _ULPS_OF_DOUBLE if expected.dtype is torch.float64 else _ULPS
    e, g, t = expected.double(), got.double(), truth.double()
    # What is not finite in one of the two overflowed: nothing can be said.
    wrong = ~t.isfinite() & _same(e, t) & ~_same(g, t)
    hangs_on_order = torch.zeros_like(wrong)
    if expected.dtype is torch.float64:
        near = torch.finfo(torch.float64).max / _PARTIAL_SUMS
        hangs_on_order = (e.isinf() & (g.abs() > near)) | (g.isinf() & (e.abs() > near))
    finite = e.isfinite() & t.isfinite()
    size = t.abs()
    median = size[finite & (size > 0)].median() if bool((finite & (size > 0)).any()) else size
    huge = finite & (size > _HUGE * median)
    for group in (finite & ~huge, huge):
        if bool(group.any()):
            scale = size[group].max()
            allowed = _TIMES * (e - t).abs()[group].max() + ulps * eps * scale
            allowed = allowed + torch.finfo(expected.dtype).smallest_normal * eps * 2
            wrong |= group & ~((g - t).abs() <= allowed)
    return wrong & ~hangs_on_order
