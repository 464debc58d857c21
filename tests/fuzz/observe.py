"""One run of a program: what it returns, what becomes of its arguments, its gradients."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.fuzz.program import Program
from thunder_fuser.runtime.binding.memory_overlap import overlaps_itself


@dataclass(slots=True)
class Run:
    """What one call did. `arguments` are those that it was given, as they are afterwards."""

    arguments: list[torch.Tensor]
    results: list[Any] = field(default_factory=list)
    gradients: list[torch.Tensor | None] = field(default_factory=list)
    error: Exception | None = None
    warning: str = ""

    def sharing(self) -> list[tuple[int, int] | None]:
        """For each result: the first argument or result with its memory, and bytes from there."""
        members = [*self.arguments, *self.results]
        found: list[tuple[int, int] | None] = []
        for k in range(len(self.arguments), len(members)):
            mine = members[k]
            first = next(j for j in range(k + 1) if _in_one_memory(members[j], mine))
            shared = first < k and mine.numel()
            found.append((first, mine.data_ptr() - members[first].data_ptr()) if shared else None)
        return found


def _in_one_memory(a: Any, b: Any) -> bool:
    if a is b:
        return True
    if not (a.numel() and b.numel()):
        return False
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def run(program: Program, function: Callable[..., Any], layout: int, *, wide: bool = False) -> Run:
    """Call `function` with the program's arguments in one of their layouts."""
    made = Run(program.inputs(layout, wide=wide))
    # An update may make an argument depend on another one.
    wanted = [t for t in made.arguments if t.requires_grad]
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", RuntimeWarning)
        try:
            made.results = tree_leaves(function(*made.arguments))
            _change(program, made)
            if program.takes_gradients:
                made.gradients = _gradients(program, made, wanted)
        except Exception as error:
            made.error = error
    made.warning = "; ".join(str(w.message) for w in told if issubclass(w.category, RuntimeWarning))
    return made


def _change(program: Program, made: Run) -> None:
    """What the user does before the backward: elements change places, so that whatever they mean
    (classes, indices) still means something. What autograd has saved it may refuse to read then.
    """
    members = [*made.arguments, *made.results]
    if not all(t.numel() for t in members):
        # They share no elements, whatever memory they say they lie in; but they may be views.
        return
    tensors = dict(zip(program.results, made.results, strict=False))
    tensors |= {a.name: t for a, t in zip(program.arguments, made.arguments, strict=True)}
    for name in program.changed:
        t = tensors[name]
        place = t.untyped_storage().data_ptr()
        is_alone = [m.untyped_storage().data_ptr() for m in members].count(place) == 1
        if is_alone and not overlaps_itself(t.shape, t.stride()):
            memory = t.detach()
            memory.copy_(memory.clone().flip(tuple(range(t.dim()))))


def _gradients(
    program: Program, made: Run, wanted: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """The gradients of all results together, each with weights of its own."""
    # Thunder's results require gradients where torch's do not.
    ends = {k: t for k, t in enumerate(made.results) if t.requires_grad}
    if not wanted or not ends:
        return [None] * len(wanted)
    weights = [_weights(program.seed, k, t) for k, t in ends.items()]
    return list(torch.autograd.grad(list(ends.values()), wanted, weights, allow_unused=True))


def _weights(seed: int, k: int, like: torch.Tensor) -> torch.Tensor:
    rng = random.Random(f"{seed} {k}")
    drawn = [rng.choice((-1.0, -0.5, 0.25, 0.5, 1.0, 2.0)) for _ in range(like.numel())]
    return torch.tensor(drawn, dtype=torch.float64).to(like.dtype).reshape(like.shape)
