"""Training steps of whole models: forward and backward, by us, torch and torch.compile."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import thunder
import torch
from torch import Tensor, nn

import thunder_fuser
from benchmarks.contenders import COMPILED, EAGER, OURS, Program, compiled_by_torch, failure
from benchmarks.table import Column, Table
from benchmarks.timing import Call, clock_for, interleaved
from tests.zoo.models import MODELS, Model, Sizes, in_float64
from thunder_fuser import log

_TEXT = Sizes(2, 512, 8, 256, 2048, 1000, batch=2)
_HOST: Mapping[str, Sizes] = {
    "Llama": Sizes(2, 512, 8, 256, 1408, 1000, groups=4, batch=2),
    "GPT-2": _TEXT,
    "BERT": _TEXT,
    "ViT": Sizes(2, 384, 6, 197, 1536, 100, batch=2, side=224, patch=16),
    "Mixtral-like": Sizes(2, 256, 8, 128, 512, 1000, groups=4, experts=4),
    "DiT": Sizes(2, 384, 6, 64, 1536, 0, batch=2),
    "U-Net": Sizes(1, 64, 4, 0, 0, 0, batch=2, groups=32, side=32),
    "ResNet": Sizes(4, 64, 0, 0, 0, 100, batch=2, side=64),
}
"""Sizes for a CPU: a step takes a part of a second."""

_DTYPES = (torch.float32, torch.bfloat16)

_NOTE = (
    "Models of tests/zoo/models.py without dropout: the loss and its backward, timed as the "
    "workloads are.  Torch computes matrix products, attention and convolutions for everyone. "
    "Everyone's gradients were compared with float64 before the first timed step: they may be off "
    "by twice what eager's are."
)


def trained(
    device: torch.device, names: Sequence[str], seconds: float, name: str = "", small: bool = False
) -> Table:
    """A row for each dtype and each model whose name contains `name`; `seconds` of timing each."""
    names = [n for n in (OURS, EAGER, COMPILED) if n in names]
    unit, scale = ("us", 1e6) if device.type == "cuda" else ("ms", 1e3)
    columns = (
        Column("model", "model"),
        Column("dtype", "dtype"),
        Column("kernels", "kernels"),
        *(Column(f"{n}, {unit}", n, scale, 2) for n in names),
        *(Column(f"{OURS} / {n}", f"over {n}", digits=2) for n in names if n != OURS),
    )
    chosen = [(m, d) for m in MODELS if name.lower() in m.name.lower() for d in _DTYPES]
    rows = []
    with log.status("training", total=len(chosen)) as status:
        for model, dtype in chosen:
            status.step(model.name)
            sizes = replace(model.small if small else _sizes(model, device), dropout=0.0)
            rows.append(_row(model, sizes, dtype, device, names, seconds))
    return Table(f"Training steps on {device.type}", _NOTE, columns, tuple(rows))


def _sizes(model: Model, device: torch.device) -> Sizes:
    return model.full if device.type == "cuda" else _HOST[model.name]


def _row(
    model: Model,
    sizes: Sizes,
    dtype: torch.dtype,
    device: torch.device,
    names: Sequence[str],
    seconds: float,
) -> Mapping[str, Any]:
    torch.manual_seed(0)
    net = model.make(sizes).to(device, dtype)
    batch = model.batch(sizes, dtype, str(device))
    expected, allowed = _expected(net, batch)
    row: dict[str, Any] = {"model": model.name, "dtype": str(dtype).removeprefix("torch.")}
    calls: dict[str, Call] = {}
    for name in names:
        own = copy.deepcopy(net)
        try:
            program = _prepared(own, name)
            off = _distance(_gradients(program, own, batch), expected)
        except Exception as error:  # whatever it is, it belongs in the table
            row |= {name: failure(error), "failed": row.get("failed") or name == OURS}
            continue
        if not off <= allowed:
            problem = f"wrong: gradients are off by {off:.2g}, allowed {allowed:.2g}"
            row |= {name: problem, "failed": True}
            continue
        calls[name] = partial(_step, program, own, batch)
        if name == OURS:
            row["kernels"] = sum(r.plan.kernels for r in thunder_fuser.fusions(program))
    timings = interleaved(calls, clock_for(device), seconds) if calls else {}
    row |= {name: timing.seconds for name, timing in timings.items()}
    if OURS in timings:
        row |= {f"over {n}": timings[OURS].over(t) for n, t in timings.items() if n != OURS}
    return row


def _prepared(net: nn.Module, name: str) -> Program:
    if name == OURS:
        compiled: Program = thunder.jit(net, executors=[thunder_fuser.executor])
        return compiled
    return net if name == EAGER else compiled_by_torch(net)


def _step(program: Program, net: nn.Module, batch: Sequence[Tensor]) -> None:
    program(*batch).backward()
    net.zero_grad(set_to_none=True)


def _expected(net: nn.Module, batch: Sequence[Tensor]) -> tuple[list[Tensor], float]:
    """Gradients in float64, and how far a contender's may be from them."""
    exact = copy.deepcopy(net).double()
    given = [x.double() if x.is_floating_point() else x for x in batch]
    with in_float64():
        expected = _gradients(exact, exact, given)
    eager = copy.deepcopy(net)
    off = _distance(_gradients(eager, eager, batch), expected)
    return expected, 2 * off + 4 * torch.finfo(next(net.parameters()).dtype).eps


def _gradients(program: Program, net: nn.Module, batch: Sequence[Tensor]) -> list[Tensor]:
    program(*batch).backward()
    found = [p.grad.double() for p in net.parameters() if p.grad is not None]
    net.zero_grad(set_to_none=True)
    return found


def _distance(found: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Relative, of all gradients together; infinite if there are not as many."""
    if len(found) != len(expected):
        return float("inf")
    differences = torch.stack([(a - b).norm() for a, b in zip(found, expected, strict=True)])
    return float(differences.norm() / torch.stack([x.norm() for x in expected]).norm())
