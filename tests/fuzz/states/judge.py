"""The verdict on programs with state: results, what is kept, and which tensors are one, after each
of several calls.
"""

from __future__ import annotations

import functools
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import thunder
import torch

import thunder_fuser
from tests.fuzz.states.program import Meter, Point, Record, Slotted, StatefulProgram

_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class StateVerdict:
    """`outcome` is "right", "refused ..", "raises", or what is wrong; `message` says where."""

    program: StatefulProgram
    outcome: str
    message: str = ""


@dataclass(slots=True)
class _Run:
    """What each call returned and left behind; tensors are copied, since later calls change them.

    shared  for each tensor of the last call's results and of what is kept, the first one of them
            that is the same object, and the first one in the same memory
    """

    seen: list[Any] = field(default_factory=list)
    shared: list[list[tuple[int, int]]] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    error: Exception | None = None


def judge_states(
    programs: Iterable[StatefulProgram], *, shrink: bool = False
) -> Iterator[StateVerdict]:
    """A verdict for each program, cut down if it is wrong and `shrink` is set."""
    for program in programs:
        verdict = _judged(program)
        if shrink and verdict.outcome.startswith(("wrong", "raises")):
            verdict = _shrunk(verdict)
        yield verdict


def _shrunk(verdict: StateVerdict) -> StateVerdict:
    for _ in range(_ROUNDS):
        for candidate in sorted(verdict.program.smaller(), key=lambda p: p.size):
            if candidate.size < verdict.program.size:
                found = _judged(candidate)
                if found.outcome == verdict.outcome:
                    verdict = found
                    break
        else:
            break
    return verdict


def _judged(program: StatefulProgram) -> StateVerdict:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torchs = _run(program, lambda f: f)
        if torchs.error is not None and not torchs.seen:
            return StateVerdict(program, "refused by torch")
        with thunder_fuser.options(strict=True):
            ours = _run(program, _compiled)
    if isinstance(ours.error, NotImplementedError):
        return StateVerdict(program, "refused", str(ours.error))
    for k, (expected, got) in enumerate(zip(torchs.seen, ours.seen, strict=False)):
        if found := _difference(expected, got):
            return StateVerdict(program, "wrong value", f"call {k}: {found}")
        if torchs.shared[k] != ours.shared[k]:
            message = f"call {k}: {ours.shared[k]}, expected {torchs.shared[k]}"
            return StateVerdict(program, "wrong identity", message)
        gradient = torchs.gradients[k]
        if gradient is not None and (found := _difference(gradient, ours.gradients[k])):
            return StateVerdict(program, "wrong gradient", f"call {k}: {found}")
    if len(ours.seen) < len(torchs.seen):
        error = ours.error
        return StateVerdict(program, f"raises {type(error).__name__}", str(error))
    if (ours.error is None) != (torchs.error is None):
        return StateVerdict(program, "wrong: no error", str(torchs.error))
    return StateVerdict(program, "right")


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    made: Callable[..., Any] = thunder.jit(function, executors=[thunder_fuser.executor])
    return made


def _run(program: StatefulProgram, compiler: Callable[[Callable[..., Any]], Any]) -> _Run:
    run = _Run()
    function, before, kept = program.made()
    compiled = compiler(function)
    for k, x in enumerate(program.inputs()):
        try:
            before(k)
            result = compiled(x)
            members = [x, result, kept()]
        except Exception as error:
            run.error = error
            break
        # Thunder's results want gradients where torch's do not.
        wanting = [t.requires_grad for t in _tensors(members[-1])]
        run.seen.append([*_copied(members), wanting])
        run.gradients.append(_gradient(result[-1], x))
        run.shared.append(_sharing([*_tensors(members)]))
    return run


def _gradient(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
    """The gradient, if there is one: eager torch has none where a later update changes what it
    has saved.
    """
    if not (x.requires_grad and y.requires_grad):
        return None
    try:
        return torch.autograd.grad(y.sum(), x, retain_graph=True, allow_unused=True)[0]
    except RuntimeError:
        return None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple | deque):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, Meter):
        yield from _tensors(value.last)
    elif isinstance(value, Slotted):
        yield from _tensors([value.n, getattr(value, "m", None)])
    elif isinstance(value, Record):
        yield from _tensors([value.n, value.rate, value.last, value.doubled])


def _sharing(tensors: Sequence[torch.Tensor]) -> list[tuple[int, int]]:
    objects = [id(t) for t in tensors]
    memories = [t.untyped_storage().data_ptr() for t in tensors]
    return [(objects.index(o), memories.index(m)) for o, m in zip(objects, memories, strict=True)]


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Counter):
        return Counter(value)
    if isinstance(value, defaultdict):
        return defaultdict(value.default_factory, {k: _copied(v) for k, v in value.items()})
    if isinstance(value, OrderedDict):
        return OrderedDict((k, _copied(v)) for k, v in value.items())
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, deque):
        return deque(map(_copied, value), value.maxlen)
    if isinstance(value, Point):
        return Point(*map(_copied, value))
    if isinstance(value, list | tuple):
        return type(value)(map(_copied, value))
    if isinstance(value, Slotted):
        return [_copied(getattr(value, name, "missing")) for name in ("n", "m")]
    if isinstance(value, Record):
        return [_copied(part) for part in (value.n, value.rate, value.last, value.doubled)]
    if isinstance(value, Meter):
        return [value.total, value.count, _copied(value.last)]
    if isinstance(value, FunctionType | functools.partial):
        return type(value)  # Each program makes its own.
    return set(value) if isinstance(value, set) else value


def _difference(expected: Any, got: Any) -> str:
    """What is not the same, or nothing."""
    if type(expected) is not type(got):
        return f"{got!r}, expected {expected!r}"
    if isinstance(expected, torch.Tensor):
        same = expected.dtype == got.dtype and expected.shape == got.shape
        if same and torch.allclose(expected, got, rtol=1e-4, atol=1e-5, equal_nan=True):
            return ""
    elif isinstance(expected, dict):
        if list(expected) == list(got):
            return _difference(list(expected.values()), list(got.values()))
    elif isinstance(expected, list | tuple | deque):
        limits = [x.maxlen for x in (expected, got) if isinstance(x, deque)]
        if len(expected) == len(got) and len(set(limits)) < 2:
            return next(filter(None, map(_difference, expected, got)), "")
    elif isinstance(expected, float):
        if expected == got or abs(expected - got) <= 1e-6 * abs(expected):
            return ""
    elif expected == got:
        return ""
    return f"{got!r}, expected {expected!r}"
