"""Programs of rows by name, and their results against float64."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.zoo.norms import NORMS, Norm
from tests.zoo.reductions import REDUCTIONS, Reduction
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.runtime.executable import Executable

PROGRAMS: dict[str, Norm | Reduction] = {f"norm {n.name}": n for n in NORMS}
PROGRAMS |= {r.name: r for r in REDUCTIONS}


def assert_beside_float64(name: str, run: Executable, inputs: Sequence[torch.Tensor]) -> None:
    """Results of a program are no worse than eager's, or than a few roundings."""
    program, (rows, columns), dtype = PROGRAMS[name], inputs[0].shape, inputs[0].dtype
    exact = program.eager(*(x.double() for x in inputs))
    eager = program.eager(*inputs)
    for ours, theirs, truth in zip(run(inputs), eager, exact, strict=True):
        error, bar = ((t.double() - truth).abs().max() for t in (ours, theirs))
        eps = max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
        points = rows * columns if name == "full_sum" else rows
        floor = 8 * eps * truth.abs().max() + 4e-7 * (rows**0.5 + points**0.5)
        assert error <= max(1.5 * bar, floor), (name, rows, columns)


def assert_on_a_gpu(name: str, rows: int, columns: int, dtype: DataType) -> None:
    """The same results in a stream and replayed as a CUDA graph, as float64 has them."""
    program = PROGRAMS[name]
    given = [t.cuda() for t in program.inputs(rows, columns, dtype.torch)]
    compiled = CompiledFusion(program.definition(rows, columns, dtype).fusion)
    ours = compiled(given)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = compiled(given)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    exact = program.eager(*(t.double() for t in given))
    for found, replayed, truth in zip(ours, captured, exact, strict=True):
        assert torch.equal(found, replayed)
        error = (found.double() - truth).abs().max() / truth.abs().max()
        assert error <= max(2 * torch.finfo(dtype.torch).eps, 4e-7 * rows**0.5)
