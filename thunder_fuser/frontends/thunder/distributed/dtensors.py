"""DTensors in Thunder's traces: each is traced as a plain tensor of its global shape.

Thunder 0.2.6 has a proxy class of their own for DTensors, for which it supports ten operations;
four of these have gradients, and none takes a number and a tensor. In functions compiled with
this executor a DTensor is traced as any tensor, so that all of Thunder's operations and gradients
apply. At run time the values of such a trace are DTensors. Operations left to torch run on
DTensors; a fusion runs as a program of this rank (sharding/dtensors.py), made for the mesh and the
placements of its inputs: a trace is valid for all of them.
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
    """Return a plain TensorProxy for a DTensor; Thunder's own proxy without this executor, and None
    for any other value.
    """
    data = get_compile_data()
    ours = data is not None and any(
        getattr(e, "traces_whole_tensors", False) for e in data.executors_list
    )
    if ours and has_dtensors((x,)):
        return tensorproxy(x, name=name, history=history)
    return _proxify(x, name, history)


def register() -> None:
    """Patch Thunder to create the proxies of DTensors here."""
    dtensor_proxy.proxify_dtensor = _as_whole


def has_dtensors(inputs: Sequence[Any]) -> bool:
    """True if one of the inputs is a DTensor."""
    return torch.distributed.is_available() and any(isinstance(x, DTensor) for x in inputs)


class FusionOnDTensors:
    """A fusion of a trace on DTensors, and on plain tensors that Thunder put into the same fusion.

    0-dim plain tensors are numbers, equal on all ranks, as in torch. Other plain tensors must not
    meet DTensors in an expression of the fusion.
    """

    def __init__(self, fusion: Fusion, name: str) -> None:
        from thunder_fuser.sharding.dtensors import DTensorPrograms

        self.fusion = fusion
        self.name = name
        self.programs = DTensorPrograms(fusion, name)
        self._seeds = _seeds(fusion)

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """Run the fusion; collective, so every rank must call it. FuserTypeError if a plain tensor
        meets a DTensor; see `DTensorPrograms.program` for further errors.
        """
        apart = self._apart(inputs)
        program = self.programs.program(inputs)
        if self._seeds:
            # Every rank has drawn a seed and offsets; all of them use those of the first rank.
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
        """Return the values that are computed from plain tensors and no DTensor."""
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
                call = f"{expr.origin.symbol or expr.op} joins it with a DTensor"
                raise FuserTypeError(
                    f"{self.name}: input {joined} is a plain tensor "
                    f"{list(inputs[joined].shape)}, and {call}{line_of(expr.origin)}; {MAKE_IT_ONE}"
                )
            if meets:
                on_mesh.add(expr.output)
            elif joined is not None:
                plain[expr.output] = joined
        return set(plain)


def _seeds(fusion: Fusion) -> list[int]:
    """Return positions, among the inputs, of seeds and offsets of random numbers."""
    states = {v for e in fusion.exprs if isinstance(e, RandomOp) for v in e.inputs[:2]}
    return [k for k, v in enumerate(fusion.inputs) if isinstance(v, Scalar) and v in states]
