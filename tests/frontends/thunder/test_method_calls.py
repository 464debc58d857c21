"""Methods of tensors are called in one step; what is traced and computed is as before."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import thunder
import torch
from thunder.core import interpreter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from tests.frontends.thunder.programs import jit
from thunder_fuser.frontends.thunder.patches.interpreter import method_calls


def of_variants(x: torch.Tensor) -> Any:
    y = x.add(1, alpha=2).mul(x).neg().exp().reciprocal()
    return y.reshape(-1, 2).transpose(0, dim1=1), y.reshape(shape=(6,))


def of_temporaries(x: torch.Tensor) -> Any:
    return (x + 1).mul_(2).view(-1).sum(0, keepdim=True).to(torch.float64)


def of_updates(x: torch.Tensor) -> Any:
    y = x.clone()
    y.fill_(3).add_(x)
    y[0].copy_(x[1])
    return y.unbind(0)[1], y


def of_a_method_kept(x: torch.Tensor) -> Any:
    scaled, total = x.mul, x.sum
    return [scaled(k) for k in (2, 3)], total(dim=1)


def of_keywords(x: torch.Tensor) -> Any:
    return SUMMED(x), x.sum(1, keepdim=True)


def of_a_mistake(x: torch.Tensor) -> Any:
    return x.mul()


SUMMED = functools.partial(torch.sum, dim=1)
PROGRAMS = [of_variants, of_temporaries, of_updates, of_a_method_kept, of_keywords]
# A proxy that was called `value` in a function that was interpreted kept that name.
NAME = re.compile(r"\b(t\d+|value)\b")


def traced(program: Callable[..., Any], x: torch.Tensor) -> tuple[list[str], Any]:
    """Lines of what is checked and computed, with the lines of the program but without the names of
    tensors; and the results.
    """
    compiled = jit(program)
    found = compiled(x)
    texts = (thunder.last_prologue_traces(compiled)[-1], thunder.last_traces(compiled)[0])
    lines = [line for text in texts for line in str(text).splitlines()]
    return [NAME.sub("t", x) for x in lines if not x.startswith("# Constructed by")], found


@pytest.mark.parametrize("program", PROGRAMS)
def test_traces_are_as_before(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.arange(1.0, 7.0).reshape(2, 3)
    lines, found = traced(program, x)
    torch.testing.assert_close(found, program(x))
    monkeypatch.setitem(
        interpreter._default_lookaside_map, functools.partial.__call__, method_calls._original
    )
    before, same = traced(program, x)
    assert lines == before
    torch.testing.assert_close(found, same, rtol=0, atol=0)


def test_mistakes_are_those_of_torch() -> None:
    with pytest.raises(TypeError, match="missing"):
        jit(of_a_mistake)(torch.ones(2))


def test_no_function_is_interpreted_but_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    run = interpreter._setup_frame_and_run_python_function
    seen: Counter[str] = Counter()

    def counted(context: Any, runtime: Any, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        seen[interpreter.unwrap(function).__qualname__] += 1
        return run(context, runtime, function, *args, **kwargs)

    monkeypatch.setattr(interpreter, "_setup_frame_and_run_python_function", counted)
    # Thunder's own frames, of which there are as many without a call.
    jit(lambda x: x)(torch.ones(2, 3))
    others = seen.total()
    seen.clear()
    jit(of_variants)(torch.ones(2, 3))
    assert seen.total() <= others + 2, seen


def test_dtensors_have_their_variants() -> None:
    torch.distributed.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("cpu", (2,))
        x = DTensor.from_local(torch.ones(2, 3), mesh, [Replicate()])
        compiled = jit(lambda x: x.mul(x).exp())
        found = compiled(x)
        assert isinstance(found, DTensor)
        torch.testing.assert_close(found.to_local(), torch.ones(2, 3).exp())
    finally:
        torch.distributed.destroy_process_group()
