"""What of whole models our kernels do, forward and backward, and what torch keeps.

Fake tensors stand for parameters and batches on a GPU, so that nothing runs and none is needed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import thunder
import torch
from thunder.core.proxies import TensorProxy
from thunder.core.symbol import BoundSymbol
from thunder.core.trace import TraceCtx
from torch._subclasses.fake_tensor import FakeTensorMode

import thunder_fuser
from benchmarks.table import Column, Table
from tests.zoo.models import MODELS, Model
from thunder_fuser import FusionReport, fusions_of_trace

_COLUMNS = (
    Column("model", "model"),
    Column("layers", "layers"),
    Column("pass", "pass"),
    Column("fusions", "fusions"),
    Column("kernels", "kernels"),
    Column("MB", "bytes", 1e-6, 1),
    Column("of ideal", "ratio", 1.0, 3),
    Column("torch's, MB", "bytes_in_torch", 1e-6, 1),
    Column("our share", "share", 1.0, 3),
    Column("matrix products, attention, convolutions", "products"),
    Column("else in torch", "kept"),
)
_NOTE = (
    "Planned, not measured: models of tests/zoo/models.py in bfloat16 through "
    "`thunder.jit(model, executors=[thunder_fuser.executor])` on fake CUDA tensors.  MB: what our "
    "kernels move, and the ideal of their fusions.  Torch's: what other calls move that are "
    "neither matrix products, attention nor convolutions, every operand and result once; views "
    "move nothing, and a reshape of what attention gives is one, as its kernels leave "
    "[batch, time, heads, size] in memory.  Our share: of the bytes of both."
)

_PRODUCTS = ("linear", "matmul", "bmm", "fuser_attention", "fuser_convolution")
_VIEWS = frozenset(
    (
        "permute",
        "reshape",
        "shallow_copy",
        "split",
        "torch_prims_reshape_impl",
        "torch_slice_prim_impl",
        "transpose",
        "unsqueeze",
    )
)


@dataclass(frozen=True, slots=True)
class Kept:
    """Of one trace: our fusions, and what torch runs, by name: calls and bytes."""

    fusions: tuple[FusionReport, ...]
    products: Counter[str]
    others: Counter[str]
    bytes_in_torch: int

    @property
    def bytes(self) -> int:
        return sum(f.plan.bytes for f in self.fusions)

    @property
    def bytes_ideal(self) -> int:
        return sum(f.plan.bytes_ideal for f in self.fusions)

    @property
    def share(self) -> float:
        """Of the bytes that no matrix product, attention or convolution moves."""
        return self.bytes / (self.bytes + self.bytes_in_torch)


def kept(model: Model, layers: int | None = None) -> Mapping[str, Kept]:
    """By the name of the pass; with so many layers instead of the model's own."""
    sizes = model.full if layers is None else replace(model.full, layers=layers)
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.bfloat16)
        with FakeTensorMode(), torch.device("cuda"):
            net, batch = model.make(sizes), model.batch(sizes, torch.bfloat16, "cuda")
    finally:
        torch.set_default_dtype(default)
    compiled = thunder.jit(net, executors=[thunder_fuser.executor])
    entry, _, _ = thunder.compile_data(compiled).get_computation_and_inputs(*batch)
    traces = {"forward": entry.computation_traces[-1], "backward": entry.backward_traces[-1]}
    return {name: _kept(trace) for name, trace in traces.items()}


def _kept(trace: TraceCtx) -> Kept:
    products: Counter[str] = Counter()
    others: Counter[str] = Counter()
    moved = 0
    for call in trace.bound_symbols:
        name = call.sym.name.removeprefix("torch.ops.aten.")
        if call.sym.is_fusion or call.sym.executor is None or not _tensors(call.flat_proxy_outs):
            continue
        if name.startswith(_PRODUCTS):
            products[name] += 1
        elif name not in _VIEWS:
            others[name] += 1
            moved += _bytes(call)
    return Kept(fusions_of_trace(trace), products, others, moved)


def _tensors(proxies: Sequence[Any]) -> list[TensorProxy]:
    return [p for p in proxies if isinstance(p, TensorProxy)]


def _bytes(call: BoundSymbol) -> int:
    proxies = _tensors([*call.flat_proxy_args, *call.flat_proxy_outs])
    return sum(p.numel * p.dtype.bytes for p in proxies)


def table(name: str = "", layers: int | None = None) -> Table:
    """A row for each pass of each model whose name contains `name`."""
    chosen = [m for m in MODELS if name.lower() in m.name.lower()]
    return Table(
        "Whole models", _NOTE, _COLUMNS, tuple(row for m in chosen for row in _rows(m, layers))
    )


def _rows(model: Model, layers: int | None) -> Iterator[Mapping[str, Any]]:
    for which, found in kept(model, layers).items():
        yield {
            "model": model.name,
            "layers": model.full.layers if layers is None else layers,
            "pass": which,
            "fusions": len(found.fusions),
            "kernels": sum(f.plan.kernels for f in found.fusions),
            "bytes": found.bytes,
            "ratio": found.bytes / found.bytes_ideal,
            "bytes_in_torch": found.bytes_in_torch,
            "share": found.share,
            "products": sum(found.products.values()),
            "kept": ", ".join(f"{n} {name}" for name, n in sorted(found.others.items())),
        }
