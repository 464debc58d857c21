"""Who is measured: thunder_fuser, torch and torch.compile on one program, all checked first.

Nobody is timed who computes the wrong numbers, and nobody disappears from a table: what is absent
says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import thunder
import torch
from torch import Tensor

import thunder_fuser
from benchmarks.workloads import Workload
from thunder_fuser.config import options

OURS, FAST, EAGER, COMPILED = "thunder_fuser", "fast", "torch", "torch.compile"
PEERS = (EAGER, COMPILED)
NAMES = (OURS, FAST, *PEERS)
"""`fast` is thunder_fuser under the option precision="fast": like torch.compile, it keeps what a
program rounds between two operations in float32."""

Program = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to run a workload.

    call      takes no arguments; None where `problem` says why
    is_wrong  it ran, and its numbers are wrong
    """

    name: str
    call: Callable[[], Any] | None
    problem: str = ""
    is_wrong: bool = False


def contenders(
    workload: Workload, arguments: Sequence[Tensor], names: Sequence[str] = NAMES
) -> list[Contender]:
    """One contender a name, compiled for `arguments` and compared with float64."""
    try:
        truth = _Run.of(workload, [exact(t) for t in arguments], EAGER).results
        eager = _Run.of(workload, arguments, EAGER).results
    except RuntimeError as error:  # memory does not suffice
        return [Contender(name, None, failure(error)) for name in names]
    allowed = [
        2 * _distance(e, t) + 4 * (torch.finfo(e.dtype).eps if e.is_floating_point() else 0.0)
        for e, t in zip(eager, truth, strict=True)
    ]
    found = []
    for name in names:
        try:
            run = _Run.of(workload, arguments, name)
            problem = run.problem(truth, allowed)
            call = None if problem else run.call
            found.append(Contender(name, call, problem, is_wrong=bool(problem)))
        except Exception as error:  # whatever it is, it belongs in the table
            found.append(Contender(name, None, failure(error)))
    return found


def failure(error: Exception) -> str:
    """What a table says about it: a line."""
    first = str(error).strip().partition("\n")[0]
    return f"fails: {type(error).__name__}: {first}"


@dataclass(frozen=True, slots=True)
class _Run:
    """A contender that has run once: what it returned and what it wrote into its arguments."""

    call: Callable[[], Any]
    results: list[Tensor]

    @staticmethod
    def of(workload: Workload, arguments: Sequence[Tensor], name: str) -> _Run:
        own = [t.clone() for t in arguments]
        call = prepared(workload, own, name)
        # Ours are compiled at the first call, under the options of that call.
        with options(precision="fast" if name == FAST else "strict"):
            returned = call()
        outputs = [returned] if isinstance(returned, Tensor) else list(returned or ())
        with torch.no_grad():
            return _Run(call, [t.detach().clone() for t in (*outputs, *own)])

    def problem(self, truth: Sequence[Tensor], allowed: Sequence[float]) -> str:
        """What is wrong with the results, or ""."""
        if len(self.results) != len(truth):
            return f"wrong: {len(self.results)} results, expected {len(truth)}"
        for k, (mine, exact, most) in enumerate(zip(self.results, truth, allowed, strict=True)):
            # Written so that NaN is wrong too.
            if not (distance := _distance(mine, exact)) <= most:
                return f"wrong: result {k} is off by {distance:.2g}, allowed {most:.2g}"
        return ""


def prepared(workload: Workload, arguments: Sequence[Tensor], name: str) -> Callable[[], Any]:
    """The workload on these arguments as `name` runs it; compiled at its first call."""
    if name == EAGER:
        return workload.in_torch(arguments)
    program: Program = workload.program
    if name in (OURS, FAST):
        compiled = jit(workload)
    else:
        compiled = compiled_by_torch(program)
    return partial(compiled, *arguments)


def jit(workload: Workload) -> Program:
    """The workload's program through Thunder with our executor."""
    compiled: Program = thunder.jit(workload.program, executors=[thunder_fuser.executor])
    return compiled


def compiled_by_torch(program: Program) -> Program:
    """For one kind of inputs, as ours is; what was compiled before it is forgotten."""
    # Programs that share a function would otherwise count as recompilations of one, up to a limit.
    torch.compiler.reset()
    compiled: Program = torch.compile(program, dynamic=False, fullgraph=True)
    return compiled


def exact(tensor: Tensor) -> Tensor:
    """Numbers in float64; integers are exact."""
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _distance(found: Tensor, exact: Tensor) -> float:
    """Relative, of all elements together."""
    exact = exact.to(torch.float64)
    difference = (found.to(torch.float64) - exact).norm()
    return float(difference / exact.norm().clamp_min(torch.finfo(torch.float64).tiny))
