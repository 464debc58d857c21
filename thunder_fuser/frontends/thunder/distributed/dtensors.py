"""DTensors in Thunder's traces: each is a tensor as large as the whole.

What a program says of a DTensor, it says of the whole tensor. Thunder 0.2.6 has proxies of a kind
of their own for them, for which it knows ten operations; four of these have gradients, and none
takes a number beside a tensor. Of functions that a fuser of ours compiles, a DTensor is traced as
any tensor is, so that there is every operation, and every gradient, that Thunder has. At run time
the values of such a trace are DTensors. What is left to torch is an operation of torch on DTensors;
a fusion runs as a program of this rank (sharding/dtensors.py), made for the mesh and the placements
that come: a trace is good for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from thunder.core.compile_data import get_compile_data
from thunder.core.proxies import Proxy, tensorproxy
from thunder.torch.experimental import dtensor_proxy

from thunder_fuser.errors import FuserTypeError
from thunder_fuser.ir.fusion import Fusion, RandomOp, Scalar, Val
from thunder_fuser.ir.size_equations import line_of

if torch.distributed.is_available():
    from torch.distributed.tensor import DTensor

_proxify: Callable[..., Proxy | None] = dtensor_proxy.proxify_dtensor


def _as_whole(x: Any, name: str | None = None, history: Any = None) -> Proxy | None:
    """The proxy of a DTensor; None for all else."""
    data = get_compile_data()
    ours = data is not None and any(
        getattr(e, "traces_whole_tensors", False) for e in data.executors_list
    )
    if ours and has_dtensors((x,)):
        return tensorproxy(x, name=name, history=history)
    return _proxify(x, name, history)


def register() -> None:
    """Have Thunder ask here."""
    dtensor_proxy.proxify_dtensor = _as_whole


def has_dtensors(inputs: Sequence[Any]) -> bool:
    """Whether one of them is a DTensor."""
    return torch.distributed.is_available() and any(isinstance(x, DTensor) for x in inputs)


class FusionOnDTensors:
    """A fusion of a trace, on DTensors and on what Thunder has put beside them.

    Plain tensors of no dimensions are numbers, the same on all ranks, as torch has it. Other plain
    tensors may have nothing to do with DTensors but that the fusion has both.
    """

    def __init__(self, fusion: Fusion, name: str) -> None:
        from thunder_fuser.sharding.dtensors import DTensorPrograms

        self.fusion = fusion
        self.name = name
        self.programs = DTensorPrograms(fusion, name)
        self._seeds = _seeds(fusion)

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """A collective: every rank calls it. FuserTypeError where a plain tensor meets a DTensor;
        see `DTensorPrograms.program` for what else it raises.
        """
        apart = self._apart(inputs)
        program = self.programs.program(inputs)
        if self._seeds:
            # Every rank has drawn; what they draw with is that of one.
            inputs = list(inputs)
            device = next(x.device for x in inputs if isinstance(x, torch.Tensor))
            numbers = program.of_first_rank([int(inputs[k]) for k in self._seeds], device)
            for k, number in zip(self._seeds, numbers, strict=True):
                inputs[k] = number
        outputs = self.programs.run(program, inputs)
        return [
            x.to_local() if t in apart else x
            for t, x in zip(self.fusion.outputs, outputs, strict=True)
        ]

    def _apart(self, inputs: Sequence[Any]) -> set[Val]:
        """Values that plain tensors have been made into, and no DTensor."""
        from thunder_fuser.sharding.dtensors import MAKE_IT_ONE

        on_mesh: set[Val] = set()
        plain: dict[Val, int] = {}
        for k, (value, x) in enumerate(zip(self.fusion.inputs, inputs, strict=True)):
            if isinstance(x, DTensor):
                on_mesh.add(value)
            elif isinstance(x, torch.Tensor) and x.ndim:
                plain[value] = k
        if not plain:
            return set()
        for expr in self.fusion.exprs:
            joined = next((plain[v] for v in expr.inputs if v in plain), None)
            meets = not on_mesh.isdisjoint(expr.inputs)
            if meets and joined is not None:
                raise FuserTypeError(
                    f"{self.name}: input {joined} is a plain tensor "
                    f"{list(inputs[joined].shape)}, and "
                    f"{expr.op} joins it with a DTensor{line_of(expr.origin)}; {MAKE_IT_ONE}"
                )
            if meets:
                on_mesh.add(expr.output)
            elif joined is not None:
                plain[expr.output] = joined
        return set(plain)


def _seeds(fusion: Fusion) -> list[int]:
    """Positions, among the inputs, of the numbers that random numbers are drawn with."""
    states = {v for e in fusion.exprs if isinstance(e, RandomOp) for v in e.inputs[:2]}
    return [k for k, v in enumerate(fusion.inputs) if isinstance(v, Scalar) and v in states]
