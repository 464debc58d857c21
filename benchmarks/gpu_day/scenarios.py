"""What only a GPU shows: streams, threads, graphs, captures, traps. A wrong barrier hangs, so each
scenario has a process of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import thunder
import torch
from torch import Tensor

import thunder_fuser
from benchmarks.gpu_day.rows import Row, Settings, Values
from thunder_fuser import DataType, FusionDefinition

Inputs = list[Tensor]


def rows(settings: Settings) -> Iterator[Row]:
    """One row a scenario. Dry: only those that a CPU can run, on one."""
    for name, scenario in SCENARIOS.items():
        if not settings.dry:
            yield Row(f"scenario {name}", partial(_run, scenario, "cuda"), isolated=True)
        elif name in ON_ANY_DEVICE:
            yield Row(f"scenario {name}", partial(_run, scenario, "cpu"), needs="")


def _run(scenario: Callable[[str], Values | None], device: str) -> Values:
    values = scenario(device)
    if values is None and device == "cuda":  # otherwise the device may be unusable
        torch.cuda.synchronize()
    return values or {}


class _NormBackward:
    """A kernel with a grid barrier (row sums beside column sums), and its float64 truth."""

    def __init__(self, device: str, groups: int = 1) -> None:
        self.device = device
        rows, columns = (8192, 4096) if device == "cuda" else (64, 256)
        self.shape = [groups, rows // groups if groups > 1 else rows, columns]
        with FusionDefinition() as fd:
            x, y = (fd.define_tensor(self.shape, True, DataType.Float) for _ in range(2))
            product = fd.ops.mul(x, y)
            row = fd.ops.sum(product, [2], keepdim=True)
            fd.add_output(fd.ops.sub(y, fd.ops.mul(x, row)))
            fd.add_output(fd.ops.sum(product, [1]))
        self.definition = fd

    def inputs(self) -> Inputs:
        return [torch.randn(self.shape, device=self.device) for _ in range(2)]

    def __call__(self, inputs: Inputs) -> list[Tensor]:
        return list(self.definition.execute(inputs))

    def check(self, found: Sequence[Tensor], inputs: Inputs) -> None:
        x, y = (t.double() for t in inputs)
        product = x * y
        truth = y - x * product.sum(2, keepdim=True), product.sum(1)
        for k, (mine, exact) in enumerate(zip(found, truth, strict=True)):
            distance = float((mine - exact).norm() / exact.norm())
            assert distance < 1e-5, f"result {k} is off by {distance:.3g}"


def one_call(device: str) -> None:
    """A grid barrier at all."""
    case = _NormBackward(device)
    inputs = case.inputs()
    case.check(case(inputs), inputs)


def many_groups(device: str) -> None:
    """More groups of rows than blocks can be resident: 300 of them."""
    case = _NormBackward(device, groups=300 if device == "cuda" else 6)
    inputs = case.inputs()
    case.check(case(inputs), inputs)


def threads(device: str) -> None:
    """Four threads with a stream each."""
    case = _NormBackward(device)
    wrong: list[BaseException] = []

    def work(inputs: Inputs) -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream() if device == "cuda" else None):  # type: ignore[arg-type]
                for _ in range(50):
                    outputs = case(inputs)
                if device == "cuda":
                    torch.cuda.current_stream().synchronize()
                case.check(outputs, inputs)
        except BaseException as error:
            wrong.append(error)

    workers = [threading.Thread(target=work, args=(case.inputs(),)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if wrong:
        raise wrong[0]


def streams(device: str) -> None:
    """One thread, four streams that take turns."""
    case = _NormBackward(device)
    given = [(torch.cuda.Stream(), case.inputs()) for _ in range(4)]
    torch.cuda.synchronize()
    for _ in range(100):
        found = []
        for stream, inputs in given:
            with torch.cuda.stream(stream):
                found.append(case(inputs))
    torch.cuda.synchronize()
    for (_, inputs), outputs in zip(given, found, strict=True):
        case.check(outputs, inputs)


def graph_after_graph(device: str) -> None:
    """Two captures on the one stream that torch captures on; the second is replayed first."""
    case = _NormBackward(device)
    made = [_captured(case) for _ in range(2)]
    for graph, inputs, outputs in reversed(made):
        graph.replay()
        torch.cuda.synchronize()
        case.check(outputs, inputs)


def graphs_side_by_side(device: str) -> None:
    """Two graphs replayed on two streams at once: they may not share a barrier's counter."""
    case = _NormBackward(device)
    made = [(*_captured(case), torch.cuda.Stream()) for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(200):
        for graph, _, _, stream in made:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    for _, inputs, outputs, _ in made:
        case.check(outputs, inputs)


def _captured(
    case: _NormBackward, warm: bool = True
) -> tuple[torch.cuda.CUDAGraph, Inputs, list[Tensor]]:
    inputs = case.inputs()
    if warm:
        case(inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = case(inputs)
    return graph, inputs, outputs


def first_call_in_a_capture(device: str) -> None:
    """Compiling and loading while a stream captures."""
    case = _NormBackward(device)
    graph, inputs, outputs = _captured(case, warm=False)
    graph.replay()
    torch.cuda.synchronize()
    case.check(outputs, inputs)


def _dropout(x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(torch.relu(x), 0.5)


def dropout_in_a_capture(device: str) -> None:
    """A replayed graph draws new numbers, at the rate that was asked for."""
    function: Any = thunder.jit(_dropout, executors=[thunder_fuser.executor])
    x = torch.ones(1 << 20, device=device)
    function(x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = function(x)
    graph.replay()
    first = y.clone()
    graph.replay()
    assert not torch.equal(first, y), "two replays drew the same numbers"
    kept = float((y != 0).double().mean())
    assert abs(kept - 0.5) < 0.01, f"{kept:.3f} of the elements were kept"


def index_out_of_bounds(device: str) -> Values:
    """An error at the latest with the next synchronisation, and no wrong number."""
    x = torch.randn(7, 5, device=device)
    index = torch.tensor([0, 6, 9, 1], device=device)
    with FusionDefinition() as fd:
        fd.add_output(fd.ops.index_select(fd.from_pytorch(x), fd.from_pytorch(index), 0))
    try:
        fd.execute([x, index])
        if device == "cuda":
            torch.cuda.synchronize()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    raise AssertionError("an index out of bounds went unnoticed")


SCENARIOS: dict[str, Callable[[str], Values | None]] = {
    f.__name__: f
    for f in (
        one_call,
        many_groups,
        threads,
        streams,
        graph_after_graph,
        graphs_side_by_side,
        first_call_in_a_capture,
        dropout_in_a_capture,
        index_out_of_bounds,
    )
}
ON_ANY_DEVICE = ("one_call", "many_groups", "threads", "index_out_of_bounds")
