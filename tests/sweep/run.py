"""Functions compiled in groups, and compared with torch on special values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import thunder
import torch
from torch import Tensor

from tests.frontends.thunder.programs import jit
from tests.sweep.compare import Difference, differences
from tests.sweep.functions import Entry
from tests.sweep.values import operands, rows
from thunder_fuser import options

GROUP = 24
"""Functions of one program: a compiler takes as long to start as to compile several."""


@dataclass(slots=True)
class Tally:
    """What was compared: functions on one dtype, and elements of their results."""

    functions: int = 0
    values: int = 0

    def add(self, result: Tensor) -> None:
        self.functions += 1
        self.values += result.numel()


_WIDER = {
    torch.float32: torch.float64,
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.complex64: torch.complex128,
}


def inputs_of(entry: Entry, dtype: torch.dtype) -> tuple[Tensor, ...]:
    return (rows(dtype),) if entry.is_reduction else operands(dtype, entry.operands)


def sweep(entries: Mapping[str, Entry], dtype: torch.dtype, tally: Tally) -> Iterator[Difference]:
    """What differs from torch, in the order of the functions."""
    for arity in (1, 2, 3):
        for is_reduction in (False, True):
            group = {
                name: entry
                for name, entry in entries.items()
                if (entry.operands, entry.is_reduction) == (arity, is_reduction)
                and runs_in_torch(entry, dtype)
                and can_be_traced(entry, dtype)
            }
            names = list(group)
            for begin in range(0, len(names), GROUP):
                part = {n: group[n] for n in names[begin : begin + GROUP]}
                yield from _compared(part, dtype, tally)


def sweep_gradients(
    entries: Mapping[str, Entry], dtype: torch.dtype, tally: Tally
) -> Iterator[Difference]:
    """The same for gradients, of which each function has an input of its own."""
    able = {
        name: entry
        for name, entry in entries.items()
        if entry.operands == 1 and _has_gradient(entry, dtype) and _traces_gradient(entry, dtype)
    }
    names = list(able)
    for begin in range(0, len(names), GROUP):
        group = {n: able[n] for n in names[begin : begin + GROUP]}
        yield from _compared_gradients(group, dtype, tally)


# ---- results


def _compared(group: Mapping[str, Entry], dtype: torch.dtype, tally: Tally) -> Iterator[Difference]:
    given = inputs_of(next(iter(group.values())), dtype)
    ours = _run(group, given)
    if isinstance(ours, Exception):
        if len(group) == 1:
            (name,) = group
            text = f"{type(ours).__name__}: {str(ours).splitlines()[0][:100]}"
            yield Difference(name, dtype, "error", 1, text)
            return
        for name, entry in group.items():
            yield from _compared({name: entry}, dtype, tally)
        return
    for (name, entry), found in zip(group.items(), ours, strict=True):
        tally.add(found)
        noise = given[0].abs() if entry.cancels else None
        theirs = _in_torch(entry, given)
        yield from differences(name, given, found, theirs, _truth(entry, given), noise)


def _run(group: Mapping[str, Entry], given: Sequence[Tensor]) -> list[Tensor] | Exception:
    functions = [e.function for e in group.values()]
    try:
        with options(strict=True):
            results = jit(lambda *xs: tuple(f(*xs) for f in functions))(*given)
    except Exception as error:
        return error
    return list(results)


def _in_torch(entry: Entry, given: Sequence[Tensor]) -> list[Tensor]:
    """Of what lies together, which torch computes by vectors, and of what does not."""
    apart = [torch.stack([x, x], -1)[..., 0] for x in given]
    return [entry.function(*given), entry.function(*apart)]


def _truth(entry: Entry, given: Sequence[Tensor]) -> Tensor | None:
    if given[0].dtype not in _WIDER:
        return None
    wide = _WIDER[given[0].dtype]
    return entry.function(*(x.to(wide) for x in given))


def runs_in_torch(entry: Entry, dtype: torch.dtype) -> bool:
    try:
        return isinstance(entry.function(*inputs_of(entry, dtype)), Tensor)
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return False


def can_be_traced(entry: Entry, dtype: torch.dtype) -> bool:
    """Whether Thunder takes the function at all."""
    try:
        thunder.jit(entry.function, executors=[])(*inputs_of(entry, dtype))
    except Exception:
        return False
    return True


# ---- gradients


def _leaves(entries: Mapping[str, Entry], dtype: torch.dtype) -> list[Tensor]:
    return [inputs_of(e, dtype)[0].clone().requires_grad_() for e in entries.values()]


def _gradients(run: Callable[..., Sequence[Tensor]], leaves: Sequence[Tensor]) -> list[Tensor]:
    results = run(*leaves)
    return list(torch.autograd.grad(list(results), list(leaves), [_seed(r) for r in results]))


def _seed(result: Tensor) -> Tensor:
    """Of several sizes and signs: what some functions give to ones adds up to nothing."""
    pattern = torch.tensor([1.0, 0.5, -2.0, 1.5])
    places = torch.arange(result.numel()).reshape(result.shape) % len(pattern)
    return pattern[places].to(result.dtype)


def _compared_gradients(
    group: Mapping[str, Entry], dtype: torch.dtype, tally: Tally
) -> Iterator[Difference]:
    functions = [e.function for e in group.values()]

    def run(*xs: Tensor) -> tuple[Tensor, ...]:
        return tuple(f(x) for f, x in zip(functions, xs, strict=True))

    leaves = _leaves(group, dtype)
    try:
        with options(strict=True):
            ours = _gradients(jit(run), leaves)
    except Exception as error:
        if len(group) == 1:
            (name,) = group
            text = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
            yield Difference(f"grad {name}", dtype, "error", 1, text)
            return
        for name, entry in group.items():
            yield from _compared_gradients({name: entry}, dtype, tally)
        return
    eager = _gradients(run, leaves)
    # What torch computes by vectors, and what it does not.
    apart = _gradients(run, [torch.stack([x, x], -1)[..., 0] for x in leaves])
    truth: Sequence[Tensor | None] = [None] * len(leaves)
    if dtype in _WIDER:
        wide = [x.detach().to(_WIDER[dtype]).requires_grad_() for x in leaves]
        truth = _gradients(run, wide)
    for (name, entry), leaf, mine, *theirs, exact in zip(
        group.items(), leaves, ours, eager, apart, truth, strict=True
    ):
        tally.add(mine)
        noise = 2.0 + leaf.detach().abs() if entry.cancels else None
        if entry.is_reduction:
            noise = _largest_of_rows(theirs[0])
            mine, *theirs = (t + 0.0 for t in (mine, *theirs))  # zeros of either sign are equal
        yield from differences(f"grad {name}", [leaf.detach()], mine, theirs, exact, noise)


def _largest_of_rows(x: Tensor) -> Tensor:
    sizes = x.abs()
    finite = torch.where(sizes.isfinite(), sizes, 0.0)
    return finite.amax(-1, keepdim=True).expand_as(sizes)


def _has_gradient(entry: Entry, dtype: torch.dtype) -> bool:
    if not (dtype.is_floating_point or dtype.is_complex) or not runs_in_torch(entry, dtype):
        return False
    try:
        _gradients(lambda x: (entry.function(x),), _leaves({"": entry}, dtype))
    except RuntimeError:
        return False
    return True


def _traces_gradient(entry: Entry, dtype: torch.dtype) -> bool:
    try:
        compiled = thunder.jit(entry.function, executors=[])
        _gradients(lambda x: (compiled(x),), _leaves({"": entry}, dtype))
    except Exception:
        return False
    return True
