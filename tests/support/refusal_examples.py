"""The words that examples of the catalogue of refusals and errors are written in."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from functools import reduce
from pathlib import Path
from typing import Any
from unittest import mock

import thunder
import torch
from thunder.core.devices import cpu
from thunder.core.prims import PrimIDs
from thunder.core.proxies import tensorproxy
from thunder.core.trace import TraceCtx, tracectx
from torch.nn import functional as F

import thunder_fuser
from tests.runtime.hand_written import kernel
from tests.zoo.plan_programs import fake
from thunder_fuser import DataType, FusionDefinition
from thunder_fuser.compile import generate_kernels
from thunder_fuser.config import options
from thunder_fuser.device_table import H200
from thunder_fuser.errors import Refusal
from thunder_fuser.frontends.thunder.claims.table import refuse_call
from thunder_fuser.runtime.compilation.private import problem_of
from thunder_fuser.runtime.host.target import HOST

_seen: set[str] = set()


def jit(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    """The function under Thunder; with fake tensors it is compiled, and does not run."""
    compiled = thunder.jit(function, executors=[thunder_fuser.executor], **settings)

    def called(*inputs: Any) -> None:
        if any(isinstance(x, torch.Tensor) and x.device.type == "cuda" for x in inputs):
            thunder.compile_data(compiled).get_computation_and_inputs(*inputs)
        else:
            compiled(*inputs)

    return called


def define(program: Callable[..., Any], shape: tuple[int, ...] = (64, 64), count: int = 1) -> None:
    """A definition of `count` tensors, planned for an H200."""
    with FusionDefinition() as fd:
        found = program(fd, *(fd.define_tensor(shape=shape, contiguity=True) for _ in range(count)))
        for value in found if isinstance(found, (tuple, list)) else (found,):
            fd.add_output(value)
    plan = fd.plan()
    generate_kernels(plan, H200)
    _seen.update(r.code for segment in plan.segments for r in segment.refusals)


def ask(primitive: str, *operands: Any, **others: Any) -> None:
    """What a claim says of a call that Thunder itself does not let through."""

    def proxy(x: Any) -> Any:
        return tensorproxy(x, name=None, history=None) if isinstance(x, torch.Tensor) else x

    with tracectx(TraceCtx()):
        named = {name: proxy(x) for name, x in others.items()}
        refuse_call(PrimIDs[primitive], tuple(map(proxy, operands)), named)


@contextlib.contextmanager
def planted(place: str) -> Iterator[None]:
    """A bug in a function of this package."""
    with options(strict=False), mock.patch(place, side_effect=KeyError("planted")):
        yield


def patched(place: str, value: object) -> Any:
    """Another limit."""
    return mock.patch(place, value)


WORDS: dict[str, Any] = {
    "torch": torch,
    "F": F,
    "thunder": thunder,
    "thunder_fuser": thunder_fuser,
    "jit": jit,
    "define": define,
    "ask": ask,
    "planted": planted,
    "patched": patched,
    "options": options,
    "problem_of": problem_of,
    "HOST": HOST,
    "kernel": kernel,
    "reduce": reduce,
    "DataType": DataType,
    "cpu": cpu,
}


def run(example: str) -> None:
    """Execute it: `x` is a matrix [64, 64], `gpu` one that is not there, `n` 1 to 64."""
    with tempfile.TemporaryDirectory() as folder:
        words = WORDS | {"x": torch.rand(64, 64), "n": torch.arange(1, 65), "folder": Path(folder)}
        if "gpu" in example:
            (words["gpu"],) = fake((64, 64), dtype=torch.float32)
        exec(example, words)


def codes_of(example: str) -> set[str]:
    """Of all refusals that are made while it runs. What torch raises itself is no matter."""
    _seen.clear()
    made = Refusal.__init__

    def noted(self: Refusal, code: str, *rest: Any, **named: Any) -> None:
        _seen.add(code)
        made(self, code, *rest, **named)

    with mock.patch.object(Refusal, "__init__", noted), contextlib.suppress(RuntimeError):
        run(example)
    return set(_seen)
