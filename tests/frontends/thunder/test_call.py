"""What happens when a trace calls a fusion: new strides, odd inputs, and our own bugs."""

from __future__ import annotations

import errno
import gc
import runpy
import sys
import warnings
import weakref
from pathlib import Path
from typing import Any

import pytest
import thunder
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.frontends.thunder.programs import jit
from thunder_fuser.compiled_fusion import CompiledFusion
from thunder_fuser.config import options
from thunder_fuser.errors import FuserValueError, InternalError, ResourceError, TargetError
from thunder_fuser.frontends.thunder import call, fusions, segments
from thunder_fuser.frontends.thunder.symbol import call_of


def scaled(x: Any) -> Any:
    return torch.sin(x) * 2


def only_call(compiled: Any) -> call.FusionCall:
    (found,) = filter(None, map(call_of, thunder.last_traces(compiled)[-1].bound_symbols))
    return found


def test_strides_change_without_a_new_trace() -> None:
    compiled = jit(lambda x: scaled(x).t() + x.t())
    block = torch.randn(6, 12, dtype=torch.float64)
    layouts = [
        block[:, :6].contiguous(),
        block[:, :6].t(),
        block[:, ::2],
        block[:1, :6].expand(6, 6),
        block.flatten()[1:37].view(6, 6),
    ]
    for x in layouts:
        torch.testing.assert_close(compiled(x), scaled(x).t() + x.t())
    assert thunder.cache_misses(compiled) == 1
    assert len(only_call(compiled).compiled.executables) == len(layouts)


def test_shapes_and_dtypes_change_with_a_new_trace() -> None:
    compiled = jit(scaled)
    for x in (torch.randn(3), torch.randn(4), torch.randn(4).double(), torch.randn(4)):
        torch.testing.assert_close(compiled(x), scaled(x))
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (3, 1)


def test_views_of_one_result_have_one_owner_as_in_torch() -> None:
    def shown(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.softmax(x, -1)
        return y.reshape(12, 32), y.permute(2, 0, 1)

    compiled, x = jit(shown), torch.randn(3, 4, 32, dtype=torch.float64)
    found, expected = compiled(x), shown(x)
    torch.testing.assert_close(found, expected)
    for results in (found, expected):
        assert len({t.untyped_storage().data_ptr() for t in results}) == 1
    assert [t.stride() for t in found] == [t.stride() for t in expected]
    # The fusion returns that memory, and torch makes the views of it. The argument is value 0.
    assert only_call(compiled).owners() == [1]


@pytest.mark.parametrize("layers", [2, 6])
def test_equal_layers_are_planned_and_compiled_once(layers: int) -> None:
    def model(x: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
        for weight in weights:
            x = x + torch.nn.functional.silu(torch.nn.functional.rms_norm(x, (16,)) @ weight)
        return x

    compiled = jit(model)
    x, weights = torch.randn(8, 16), [torch.randn(16, 16) for _ in range(layers)]
    torch.testing.assert_close(compiled(x, weights), model(x, weights), rtol=1e-4, atol=1e-4)
    trace = thunder.last_traces(compiled)[-1]
    calls = [found for found in map(call_of, trace.bound_symbols) if found is not None]
    # One before the first product, one between two, one after the last.
    assert len(calls) == layers + 1
    made = {id(c.compiled): c.compiled for c in calls}.values()
    assert len(made) == 3
    assert all(len(c.executables) == 1 for c in made)
    assert len({k.name for c in calls for k in c.kernels()}) == 3
    # Each is told in its own trace's words.
    for region, bsym in zip(
        segments(compiled)[0].regions, filter(call_of, trace.bound_symbols), strict=True
    ):
        names = {p.name for p in (*bsym.flat_proxy_args, *bsym.flat_proxy_outs)}
        names |= {p.name for b in bsym.subsymbols for p in b.flat_proxy_outs}
        assert {p.name for s in region.segments for p in (*s.inputs, *s.outputs)} <= names


def test_reports_follow_the_trace_that_ran_last() -> None:
    compiled = jit(scaled)
    first, second = torch.randn(3), torch.randn(5, requires_grad=True)
    compiled(first)
    compiled(second).sum().backward()
    assert len(fusions(compiled)) == 2
    compiled(first)
    (report,) = fusions(compiled)
    assert report.inputs[0].shape == (3,)


def test_conjugated_and_negated_inputs() -> None:
    z = torch.randn(5, dtype=torch.complex64)
    compiled = jit(lambda z: z * 2)
    torch.testing.assert_close(compiled(z.conj()), z.conj() * 2)
    negated = z.conj().imag
    assert negated.is_neg()
    torch.testing.assert_close(jit(scaled)(negated), scaled(negated))


def test_a_subclass_of_tensor() -> None:
    class Tagged(torch.Tensor):
        pass

    x = torch.randn(4)
    torch.testing.assert_close(jit(scaled)(x.as_subclass(Tagged)), scaled(x))


def test_fake_tensors_go_through_a_compiled_function() -> None:
    compiled = jit(scaled)
    compiled(torch.randn(3, 4))
    with FakeTensorMode() as mode:
        result = only_call(compiled)(mode.from_tensor(torch.randn(3, 4)))[0]
    assert result.shape == (3, 4)


def test_no_tensor_outlives_its_call() -> None:
    compiled = jit(scaled)
    x = torch.randn(64)
    result = compiled(x)
    references = [weakref.ref(x), weakref.ref(result)]
    del x, result
    gc.collect()
    assert [r() for r in references] == [None, None]


def test_results_are_fresh_memory() -> None:
    def program(x: Any) -> Any:
        return x * 1, x.clone(), x + 0, torch.where(torch.ones_like(x) > 0, x, x), x.clone().t()

    x = torch.randn(3, 4)
    for result in jit(program)(x):
        assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_views_of_results_are_views() -> None:
    def program(x: Any) -> Any:
        y = x * 2
        return y, y[1], y.t()

    y, row, turned = jit(program)(torch.randn(3, 4))
    y.zero_()
    assert not row.any()
    assert not turned.any()


# ---- our own bugs


class Broken:
    """In the place of a compiled fusion."""

    latest = None

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def __call__(self, inputs: Any, device: Any) -> Any:
        self.calls += 1
        raise self.error


def broken(error: Exception) -> tuple[Any, Broken]:
    compiled = jit(scaled)
    compiled(torch.randn(7))
    stub = Broken(error)
    only_call(compiled).compiled = stub  # type: ignore[assignment]
    return compiled, stub


def ours(caught: pytest.WarningsRecorder) -> list[str]:
    """Thunder's own warnings left out."""
    return [str(w.message) for w in caught if w.category is RuntimeWarning]


BUGS = [InternalError("planted"), KeyError("planted"), AssertionError("planted")]


@pytest.mark.parametrize("error", [*BUGS, TargetError("planted")], ids=lambda e: type(e).__name__)
def test_a_bug_falls_back_to_torch_with_one_warning(error: Exception) -> None:
    compiled, stub = broken(error)
    x = torch.randn(7)
    with options(strict=False):
        with pytest.warns(RuntimeWarning, match="planted") as caught:
            first = compiled(x)
        with warnings.catch_warnings():
            warnings.simplefilter("error", RuntimeWarning)
            second = compiled(x)
    torch.testing.assert_close([first, second], [scaled(x)] * 2)
    (message,) = ours(caught)
    assert stub.calls == 1
    assert ("This is a bug" in message) is not isinstance(error, TargetError)


@pytest.mark.parametrize(
    "error", [ResourceError("planted"), OSError(errno.EMFILE, "planted")], ids=["ours", "system"]
)
def test_what_the_system_lacks_now_is_tried_again(error: Exception) -> None:
    """After one call in torch, then after three, seven, ...; then kernels run."""
    compiled, stub = broken(error)
    x = torch.randn(7)
    with options(strict=False), pytest.warns(RuntimeWarning) as caught:
        calls = [(compiled(x), stub.calls) for _ in range(8)]
    assert [attempts for _, attempts in calls] == [1, 1, 2, 2, 2, 2, 3, 3]
    torch.testing.assert_close([y for y, _ in calls], [scaled(x)] * 8)
    messages = ours(caught)
    assert len(messages) == 3
    assert all("in torch for now, and a later call tries again" in text for text in messages)
    assert not any("bug" in text or "reproduces" in text for text in messages)
    only_call(compiled).compiled = CompiledFusion(only_call(compiled).fusion)
    for _ in range(8):
        torch.testing.assert_close(compiled(x), scaled(x))
    assert only_call(compiled).compiled.executables


@pytest.mark.parametrize("error", BUGS, ids=lambda e: type(e).__name__)
def test_a_bug_raises_when_strict(error: Exception) -> None:
    compiled, _ = broken(error)
    with options(strict=True), pytest.raises(type(error), match="planted"):
        compiled(torch.randn(7))


def test_what_the_user_can_mend_raises() -> None:
    compiled, _ = broken(FuserValueError("planted"))
    with options(strict=False), pytest.raises(FuserValueError, match="planted"):
        compiled(torch.randn(7))


def test_the_warning_names_a_script_that_runs() -> None:
    compiled, _ = broken(InternalError("planted"))
    with options(strict=False), pytest.warns(RuntimeWarning) as caught:
        compiled(torch.randn(7))
    (path,) = [word for word in ours(caught)[0].split() if word.endswith(".py")]
    try:
        runpy.run_path(path)
    finally:
        Path(path).unlink()


def test_a_bug_in_the_fusion_pass_leaves_the_region_to_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: Any) -> Any:
        raise InternalError("planted")

    building = sys.modules["thunder_fuser.frontends.thunder.regions.to_fusion"]
    monkeypatch.setattr(building, "build", fail)
    x = torch.randn(7)
    compiled = jit(scaled)
    with options(strict=False), pytest.warns(RuntimeWarning, match="planted"):
        result = compiled(x)
    torch.testing.assert_close(result, scaled(x))
    assert fusions(compiled) == ()
    with options(strict=True), pytest.raises(InternalError):
        jit(scaled)(x)


def test_a_bug_after_which_memory_was_not_touched_still_updates() -> None:
    def program(x: Any) -> Any:
        x.add_(1)
        return x * 2

    compiled = jit(program)
    x = torch.zeros(3)
    compiled(x)
    only_call(compiled).compiled = Broken(InternalError("planted"))  # type: ignore[assignment]
    with options(strict=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(compiled(x), torch.full((3,), 4.0))
    torch.testing.assert_close(x, torch.full((3,), 2.0))
