"""The verdict on programs: right, wrong, or not ours to answer for.

All programs of a batch are traced and planned first, with kernels that do nothing; then one call of
the compiler makes all kernels, and the programs run again.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import thunder
import torch

import thunder_fuser
from tests.fuzz.compare import Difference, differences
from tests.fuzz.kernels import Device, Rehearsal, compiled_together, devices
from tests.fuzz.maker import is_bad_index
from tests.fuzz.memory import misjudged_peaks
from tests.fuzz.observe import Run, run
from tests.fuzz.program import Line, Program

LAYOUTS = (0, 1)


@dataclass(frozen=True, slots=True)
class Verdict:
    """`outcome` is "right", "wrong", or why the program says nothing about us."""

    program: Program
    outcome: str
    layout: int = 0
    found: tuple[Difference, ...] = ()

    @property
    def signature(self) -> tuple[str, ...]:
        return tuple(sorted({d.kind for d in self.found}))


# ---- verdicts


def judge(
    programs: Sequence[Program],
    device: int | Callable[[int], Device] = 0,
    *,
    optimised: bool = False,
    memory: bool = False,
) -> list[Verdict]:
    """One verdict for each program, planned for the device of that number, or of its seed;
    `memory`: also whether it holds what its plans say.
    """
    jitted: list[Callable[..., Any]] = [
        thunder.jit(p.function(), executors=[thunder_fuser.executor], **p.options) for p in programs
    ]

    def chosen(program: Program) -> Device:
        return (
            devices()[device % len(devices())] if isinstance(device, int) else device(program.seed)
        )

    def both(program: Program, function: Callable[..., Any]) -> list[Run]:
        rehearsal.plan_for(chosen(program))
        return [run(program, function, layout) for layout in LAYOUTS]

    with compiled_together(chosen(programs[0]), optimised=optimised) as rehearsal:
        for is_on in (True, False):
            rehearsal.is_on = is_on
            ours = [both(p, fn) for p, fn in zip(programs, jitted, strict=True)]
        verdicts = [_verdict(p, runs) for p, runs in zip(programs, ours, strict=True)]
        if memory:
            verdicts = [
                _with_memory(*pair, rehearsal) for pair in zip(verdicts, jitted, strict=True)
            ]
        return verdicts


def _with_memory(verdict: Verdict, function: Callable[..., Any], rehearsal: Rehearsal) -> Verdict:
    if verdict.outcome != "right":
        return verdict
    found = misjudged_peaks(verdict.program, function, rehearsal)
    return replace(verdict, outcome="wrong", found=tuple(found)) if found else verdict


def _verdict(program: Program, ours: Sequence[Run]) -> Verdict:
    in_torch = program.function()
    for layout, run_of_ours in zip(LAYOUTS, ours, strict=True):
        torchs = run(program, in_torch, layout)
        if torchs.error is not None and not is_bad_index(torchs.error):
            if layout == 0:
                return Verdict(program, "refused by torch")
            break
        truth = _Truth(program, layout)
        found = differences(torchs, run_of_ours, truth)
        if found:
            return _explained(program, layout, torchs, found, truth)
    return Verdict(program, "right")


class _Truth:
    """The program in double precision, run when somebody asks for it."""

    def __init__(self, program: Program, layout: int) -> None:
        self._program = program
        self._layout = layout
        self._run: Run | None = None

    def __call__(self) -> Run:
        if self._run is None:
            default = torch.get_default_dtype()
            torch.set_default_dtype(torch.float64)
            try:
                function = self._program.function(wide=True)
                self._run = run(self._program, function, self._layout, wide=True)
            finally:
                torch.set_default_dtype(default)
        return self._run


def _explained(
    program: Program, layout: int, torchs: Run, found: Sequence[Difference], truth: _Truth
) -> Verdict:
    """Wrong, unless Thunder alone does the same or torch's own answer is an accident."""
    alone = thunder.jit(program.function(), executors=[])
    # Thunder alone saves other tensors than torch, whatever is changed: that excuses none of ours.
    plain = replace(program, changed=())
    if program.changed:
        # But what torch's call returns as a view of hidden memory (a folded matmul) autograd does
        # not let the user change when it comes out of Thunder's Function; and Thunder's rule for
        # detach, which is no executor's to replace, saves the operand for a gradient of nothing.
        late = str(run(program, alone, layout).error or "")
        if "inside a custom Function" in late or (late and ".detach()" in program.source):
            return Verdict(program, "refused by Thunder")
        torchs, truth = run(plain, plain.function(), layout), _Truth(plain, layout)
    runs = [run(plain, alone, k) for k in range(layout + 1)]
    refused = runs[-1].error is not None and torchs.error is None
    if refused and any(map(_is_refusal, found)):
        return Verdict(program, "refused by Thunder")
    if not refused and program.takes_gradients and _updates_late(alone):
        return Verdict(program, "wrong in Thunder")
    # What Thunder alone does not run excuses no other error of ours, and no other numbers.
    theirs = [] if refused else differences(torchs, runs[-1], truth)
    thunders = {(d.kind, d.where.split("[")[0]) for d in theirs}
    ours = [d for d in found if (d.kind, d.where.split("[")[0]) not in thunders]
    # Who cannot go on with a wrong value of Thunder's raises in the place of returning it.
    if not ours or (thunders and found[0].kind.startswith("exception")):
        return Verdict(program, "wrong in Thunder")
    numeric = [d for d in ours if d.kind in ("values", "NaN and infinities")]
    if numeric == ours and is_accidental(plain, layout, torchs):
        return Verdict(program, "unstable")
    return Verdict(program, "wrong", layout, tuple(ours))


_OVERLAPPING = "more than one element of the written-to tensor"


def _is_refusal(found: Difference) -> bool:
    """Whether it is an error that says what a compiled function does not do."""
    return isinstance(found.got, NotImplementedError) or _OVERLAPPING in str(found.got)


def _updates_late(alone: Callable[..., Any]) -> bool:
    """Whether Thunder moves an update that the program makes into the backward."""
    backwards = thunder.last_backward_traces(alone)
    symbols = backwards[-1].bound_symbols if backwards else ()
    return any(b.sym.name == "copy_" for b in symbols)


def is_accidental(program: Program, layout: int, torchs: Run) -> bool:
    """Whether inputs that differ in their last bits change torch's answer, too.

    Not for a program that torch computes without rounding anything.
    """
    return not _is_exact(program, layout) and _is_unstable(program, layout, torchs)


_CENTRES = re.compile(r"\b(var|std|var_mean|std_mean|\w+_norm)\((\w*)")
"""Calls that take a mean away. That of equal elements is exact in Welford's algorithm and an ulp
off where a sum is divided: which of them torch has is not to be seen from outside.
"""


def _is_exact(program: Program, layout: int) -> bool:
    if any(_CENTRES.search(line.row) for line in program.lines):
        return False
    made = tuple(line.makes for line in program.lines if line.makes)
    all_of_it = program.trimmed(program.lines, (*made, *program.results))
    narrow = run(all_of_it, all_of_it.function(), layout)
    wide = _Truth(all_of_it, layout)()
    pairs = zip(
        [*narrow.results, *narrow.gradients], [*wide.results, *wide.gradients], strict=False
    )
    return all(a is None or b is None or _are_one_number(a, b) for a, b in pairs)


def _are_one_number(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Of few bits: what double precision holds came about without rounding only then."""
    if a.shape != b.shape:
        return False
    few = b.to(torch.complex64 if b.is_complex() else torch.float32) if _is_wide(b) else b
    return bool(((a.to(b.dtype) == b) & (few == b)).all())


def _with_centres_moved(program: Program) -> Program:
    """With elements that a call centres moved by an ulp or two: the program itself may have made
    them equal, whatever its arguments are.
    """

    def moved(match: re.Match[str]) -> str:
        x = match[2]
        steps = f"torch.arange({x}.numel(), dtype=torch.float64).remainder(3).view({x}.shape)"
        return f"{match[1]}({x} * (1 + torch.finfo({x}.dtype).eps * {steps}).to({x}.dtype)"

    lines = (
        replace(line, text=_CENTRES.sub(moved, line.text)) if _CENTRES.search(line.row) else line
        for line in program.lines
    )
    return replace(program, lines=tuple(lines))


_SUMS = re.compile(r"\bF\.(interpolate|grid_sample)\(")
"""Calls whose terms cancel out but for the rounding of their weights, or do so altogether."""
_WITHOUT_RESIDUES = (
    "(lambda t: t.where(t.abs() > 4 * torch.finfo(t.dtype).eps * t.detach().abs().amax(), 0))"
)


def _without_residues(program: Program) -> Program:
    """With 0 where such a sum leaves no more than rounding does: a quotient by it is anything."""

    def exact(line: Line) -> Line:
        made, _, text = line.text.partition(" = ")
        return replace(line, text=f"{made} = {_WITHOUT_RESIDUES}({text})")

    lines = (exact(x) if x.makes and _SUMS.search(x.row) else x for x in program.lines)
    return replace(program, lines=tuple(lines))


def _is_wide(t: torch.Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def _is_unstable(program: Program, layout: int, torchs: Run) -> bool:
    rng = random.Random(program.seed)

    def shifted(t: torch.Tensor, apart: bool) -> torch.Tensor:
        """`apart`: also those that lie in one place, whose variance is nothing."""
        if not t.is_floating_point():
            return t
        eps = torch.finfo(t.dtype).eps
        if apart and 0 in t.stride():
            t = t.contiguous()
        copy = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage()).clone()
        factors = [1 + eps * rng.choice((-2, -1, 1, 2)) for _ in range(copy.numel())]
        copy *= torch.tensor(factors, dtype=torch.float64).to(t.dtype)
        return copy.as_strided(t.size(), t.stride(), t.storage_offset())

    alike = ((program, False),) * 3
    for changed, apart in (
        *alike,
        (_with_centres_moved(program), True),
        (_without_residues(program), False),
    ):
        moved = changed.with_arguments(
            lambda a, apart=apart: type(a)(
                a.name, tuple(shifted(t, apart) for t in a.layouts), a.requires_grad
            )
        )
        again = run(moved, moved.function(), layout)
        # As if the answer of the moved program were ours.
        if any(
            d.kind in ("values", "NaN and infinities")
            for d in differences(torchs, again, _Truth(program, layout))
            if not d.where.startswith("argument")
        ):
            return True
    return False
