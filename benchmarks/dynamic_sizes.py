"""What a call of another size costs: first calls of models with sequences of many lengths.

CPU time as in compile_time.py, with that of the compilers' processes, each length once.
"""

from __future__ import annotations

import gc
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import thunder
import torch
import torch._inductor.config
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

import thunder_fuser
from benchmarks.compile_time import first_call
from benchmarks.contenders import COMPILED, OURS, Program, failure
from benchmarks.table import Column, Table
from tests.zoo.models import MODELS, Model
from thunder_fuser.config import options

LENGTHS = range(65, 75)
_MODELS = ("GPT-2", "BERT")
_STATIC = "each size compiled in"

_COLUMNS = (
    Column("model", "model"),
    Column("compiled by", "name"),
    Column("kernels", "kernels"),
    Column("first length, s", "first", digits=2),
    Column("second, s", "second", digits=2),
    Column("later ones, median, s", "later", digits=2),
    Column("all, s", "all", digits=1),
)
_NOTE = (
    "The first forward and backward of models of tests/zoo/models.py, of one layer and small "
    f"sizes, with each of {len(LENGTHS)} sequence lengths from {LENGTHS[0]} on, on a CPU, in CPU "
    "seconds with those of compilers, each once, with empty caches. Kernels: different ones that "
    f"all lengths together need. {_STATIC}: with dynamic_sizes=False. {COMPILED} traces the second "
    "length with a symbolic size; Thunder traces each length."
)


def table(name: str = "", lengths: Sequence[int] = LENGTHS) -> Table:
    """Rows of each model whose name contains `name`."""
    chosen = [m for m in MODELS if m.name in _MODELS and name.lower() in m.name.lower()]
    rows = tuple(row for model in chosen for row in _rows(model, lengths))
    return Table("First calls of other sizes", _NOTE, _COLUMNS, rows)


def _rows(model: Model, lengths: Sequence[int]) -> Iterator[Mapping[str, Any]]:
    sizes = replace(model.small, layers=1)
    batches = [
        model.batch(replace(sizes, length=length), torch.float32, "cpu") for length in lengths
    ]

    def net() -> nn.Module:
        torch.manual_seed(0)
        return model.make(replace(sizes, length=max(lengths)))

    def ours() -> Program:
        return thunder.jit(net(), executors=[thunder_fuser.executor])  # type: ignore[no-any-return]

    for dynamic, name in ((True, OURS), (False, f"{OURS}, {_STATIC}")):
        gc.collect()  # libraries of kernels that nobody has any more
        with (
            tempfile.TemporaryDirectory() as folder,
            options(cache_dir=folder, dynamic_sizes=dynamic),
        ):
            yield {"model": model.name, "name": name, **_times(ours(), batches)}
    with fresh_cache(), torch._inductor.config.patch(compile_threads=1):
        theirs = compiled_by_torch(net())
        yield {"model": model.name, "name": COMPILED, **_times(theirs, batches)}


def compiled_by_torch(program: nn.Module) -> Program:
    """As is usual where sizes change: the second length makes them symbolic."""
    torch.compiler.reset()
    compiled: Program = torch.compile(program)
    return compiled


def _times(program: Program, batches: Sequence[Sequence[Tensor]]) -> dict[str, Any]:
    seconds: list[float] = []
    kernels: set[str] = set()
    try:
        for batch in batches:
            seconds.append(sum(first_call(program, batch)))
            if isinstance(program, thunder.ThunderModule):
                for report in thunder_fuser.fusions(program):
                    kernels |= {kernel.name for kernel in report.kernels}
    except Exception as error:  # whatever it is, it belongs in the table
        return {"first": failure(error), "failed": True}
    first, second, *later = seconds
    found = {"first": first, "second": second, "all": sum(seconds)}
    found |= {"later": statistics.median(later)} if later else {}
    return {**found, **({"kernels": len(kernels)} if kernels else {})}
