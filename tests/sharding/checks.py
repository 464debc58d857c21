"""Definitions by the names of their tensors, and what their shardings are held to."""

from __future__ import annotations

from typing import Any

import torch

from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.frontends.definition import DataType, FusionDefinition
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.reference import evaluate
from thunder_fuser.sharding import Shardings, simulate


def fusion_of(define: Any) -> tuple[Fusion, dict[str, TensorView]]:
    """A definition, and its tensors by the names that it gives."""
    with FusionDefinition() as fd:
        names = define(fd)
    fusion = fd.compiled.fusion
    return fusion, {name: t.val for name, t in names.items()}


def tensor(fd: Any, *shape: int) -> Any:
    return fd.define_tensor(shape=list(shape), contiguity=True, dtype=DataType.Double)


def kinds(shardings: Shardings) -> list[str]:
    return sorted(c.kind for c in shardings.communications if c.kind != "slice")


def _by_kernels(fusion: Fusion, inputs: Any) -> list[torch.Tensor]:
    return CompiledFusion(fusion)(inputs)


def is_right(shardings: Shardings) -> bool:
    """Ranks together against the whole, by the reference and by compiled kernels."""
    generator = torch.Generator().manual_seed(0)
    given = [
        torch.randn(tuple(t.sizes), generator=generator, dtype=torch.float64)
        for t in shardings.fusion.tensor_inputs
    ]
    truth = evaluate(shardings.fusion, given).outputs
    runs = [simulate(shardings, given), simulate(shardings, given, _by_kernels)]
    return all(
        torch.allclose(found, whole, rtol=1e-11, atol=1e-11)
        for run in runs
        for found, whole in zip(run, truth, strict=True)
    )
