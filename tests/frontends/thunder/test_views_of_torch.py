"""Calls of torch that give views, and calls that copy: an update of the one memory shows in the
other or not, as in eager code, fused or not, with gradients or without.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import thunder
import torch
import torch.nn.functional as F

import thunder_fuser
from tests.frontends.thunder.aliasing import differences, gradients, interpreted, ran
from tests.frontends.thunder.programs import check, jit

Call = Callable[[Any], Any]

VIEWS: dict[str, Call] = {
    "atleast_1d": torch.atleast_1d,
    "atleast_1d of a number": lambda x: torch.atleast_1d(x[0, 0]),
    "atleast_2d": lambda x: torch.atleast_2d(x[0]),
    "atleast_2d of two": lambda x: torch.atleast_2d((x[0], x[1]))[1],
    "atleast_3d": torch.atleast_3d,
    "atleast_3d of a vector": lambda x: torch.atleast_3d(x[0]),
    "broadcast_tensors": lambda x: torch.broadcast_tensors(x[0], x)[1],
    "dropout in evaluation": lambda x: F.dropout(x, 0.5, training=False),
    "dropout of none": lambda x: F.dropout(x, 0.0),
    "torch.dropout": lambda x: torch.dropout(x, 0.5, False),
    "dropout of channels": lambda x: F.dropout1d(x, 0.5, False),
    "einsum ij->ji": lambda x: torch.einsum("ij->ji", x),
    "einsum ba": lambda x: torch.einsum("ba", x),
    "einsum ...j->j...": lambda x: torch.einsum("...j->j...", x),
    "hsplit": lambda x: x.hsplit(2)[1],
    "vsplit": lambda x: torch.vsplit(x, [1, 3])[1],
    "dsplit": lambda x: x[None].dsplit(2)[1],
    "adjoint": lambda x: x.adjoint(),
    "reshape_as": lambda x: x.reshape_as(torch.ones(6, 4)),
    "positive": torch.positive,
    "resolve_conj": lambda x: x.resolve_conj(),
    "resolve_neg": lambda x: x.resolve_neg(),
    "conj": lambda x: x.conj(),
    "cartesian_prod": lambda x: torch.cartesian_prod(x[0]),
    "to": lambda x: x.to("cpu"),
    "cpu": lambda x: x.cpu(),
    "type_as": lambda x: x.type_as(x[0]),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "movedim": lambda x: x.movedim(0, 1),
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "view_as": lambda x: x.view_as(torch.ones(6, 4)),
    "expand_as": lambda x: x[:1].expand_as(x[1:2]),
    "T": lambda x: x.T,
    "mT": lambda x: x.mT,
    "tensor_split": lambda x: torch.tensor_split(x, 3)[1],
    "unbind": lambda x: x.unbind(1)[1],
    "[...]": lambda x: x[..., 1],
    "[None]": lambda x: x[None, 1],
}
COPIES: dict[str, Call] = {
    "repeat": lambda x: x.repeat(1, 1),
    "repeat of two": lambda x: x.repeat(2, 1),
    "repeat_interleave": lambda x: x.repeat_interleave(1, 0),
    "tile": lambda x: x.tile((1, 1)),
    "flip": lambda x: x.flip(()),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=1),
    "pad": lambda x: F.pad(x, (0, 0)),
    "cat": lambda x: torch.cat((x,)),
    "to": lambda x: x.to(x.dtype, copy=True),
    "rot90": lambda x: torch.rot90(x, 0),
}
CALLS = [
    *(pytest.param(call, True, id=f"view: {name}") for name, call in VIEWS.items()),
    *(pytest.param(call, False, id=f"copy: {name}") for name, call in COPIES.items()),
]
FUEL = pytest.mark.parametrize("fuel", [None, 0], ids=["fused", "not fused"])


def fused_and_some_not(calls: Sequence[Any]) -> Any:
    """Not fused, torch makes the views: a plain run has every third."""
    return pytest.mark.parametrize(
        ("call", "is_view", "fuel"),
        [
            pytest.param(
                *call.values,
                fuel,
                id=f"{call.id}, {'fused' if fuel is None else 'not fused'}",
                marks=[pytest.mark.campaign] * (fuel == 0 and k % 3 > 0),
            )
            for k, call in enumerate(calls)
            for fuel in (None, 0)
        ],
    )


def updated(call: Call) -> Call:
    """The result is updated; what does its operand hold?"""

    def program(a: Any) -> Any:
        c = a * 1
        v = call(c)
        v.mul_(3)
        return c, v

    return program


def shown(call: Call) -> Call:
    """The operand is updated; what does the result hold?"""

    def program(a: Any) -> Any:
        c = a * 1
        v = call(c)
        c.mul_(3)
        return v * 2, c, v

    return program


@fused_and_some_not(CALLS)
def test_memory(call: Call, is_view: bool, fuel: int | None) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    storages = [t.untyped_storage().data_ptr() for t in (x, call(x))]
    assert (storages[0] == storages[1]) is is_view
    for program in (make(call) for make in (updated, shown)):
        with interpreted(), thunder_fuser.options(fuel=fuel):
            compiled = thunder.jit(program, executors=[thunder_fuser.executor])
            found = list(differences(ran(compiled, [x]), ran(program, [x])))
        assert not found


# Torch refuses updates of one of several views where gradients are enabled.
@fused_and_some_not([c for c in CALLS if c.id != "view: unbind"])
def test_gradients(call: Call, is_view: bool, fuel: int | None) -> None:
    x = torch.arange(24.0).reshape(4, 6)
    for program in (make(call) for make in (updated, shown)):
        with interpreted(), thunder_fuser.options(fuel=fuel):
            compiled = thunder.jit(program, executors=[thunder_fuser.executor])
            ours = gradients(compiled, x)
        for found, wanted in zip(ours, gradients(program, x), strict=True):
            torch.testing.assert_close(found, wanted)


GATHERED: dict[str, Call] = {
    "einsum ii->i": lambda x: torch.einsum("ii->i", x[:, :4]),
    "linalg.diagonal": torch.linalg.diagonal,
    "diagonal": torch.diagonal,
    "as_strided": lambda x: x.as_strided((2, 2), (1, 2)),
}


@FUEL
@pytest.mark.parametrize("name", GATHERED)
def test_views_that_gradients_take_for_copies(name: str, fuel: int | None) -> None:
    """Without gradients they are views; with them such an update is refused."""
    x = torch.arange(24.0).reshape(4, 6)
    for program in (make(GATHERED[name]) for make in (updated, shown)):
        with interpreted(), thunder_fuser.options(fuel=fuel):
            compiled = thunder.jit(program, executors=[thunder_fuser.executor])
            assert not list(differences(ran(compiled, [x]), ran(program, [x])))
            with pytest.raises(NotImplementedError, match="gradients take for a copy"):
                gradients(compiled, x)


EMPTY: dict[str, Call] = {
    "split": lambda x: torch.split(x[:0], 3)[0],
    "split by 0": lambda x: x[:, 6:].split(0, 1)[0],
    "diagonal below": lambda x: x.diagonal(-9),
    "diagonal above": lambda x: torch.diagonal(x[None], 6, 0, 2),
    "diagonal of nothing": lambda x: torch.diagonal(x[:0], 0),
    "diag": lambda x: torch.diag(x, 20),
    "trace": lambda x: torch.trace(x[:0]).reshape(1),
}
NO_DIMENSIONS: dict[str, Call] = {
    "transpose": lambda x: x.transpose(0, -1),
    "swapaxes": lambda x: x.swapaxes(0, 0),
    "logsumexp": lambda x: torch.logsumexp(x * 1000, 0),
    "logsumexp of a dimension kept": lambda x: x.logsumexp(-1, keepdim=True),
}


@pytest.mark.parametrize("name", [*EMPTY, *NO_DIMENSIONS])
def test_empty_results_and_numbers(name: str) -> None:
    x = torch.rand(4, 6) if name in EMPTY else torch.tensor(1.5)
    call = {**EMPTY, **NO_DIMENSIONS}[name]

    def program(x: Any) -> Any:
        y = call(x * 2)
        return y, y.sum() + x.sum()

    found = check(program, x.clone().requires_grad_())
    for ours, theirs in zip(found(x), program(x), strict=True):
        assert ours.shape == theirs.shape


@FUEL
@pytest.mark.parametrize(("width", "mode"), [(0, "reflect"), (-1, "replicate"), (0, "circular")])
def test_pads_that_add_nothing_are_copies(width: int, mode: str, fuel: int | None) -> None:
    def program(x: Any) -> Any:
        y = x * 2
        padded = F.pad(y, (width, 0), mode=mode)
        y.add_(1)
        return padded

    x = torch.rand(2, 3, 4)
    with thunder_fuser.options(fuel=fuel):
        torch.testing.assert_close(jit(program)(x), program(x))


def test_splits_of_nothing_are_one_piece() -> None:
    x = torch.ones(3, 0)
    pieces = jit(lambda x: x.split(2, 1))(x)
    assert [p.shape for p in pieces] == [(3, 0)]


@pytest.mark.parametrize("places", [(3, 1), (-3, -6, 20), (2, 2), (1, 3)], ids=str)
def test_splits_at_places_in_any_order(places: tuple[int, ...]) -> None:
    """A piece that ends before it starts raised; the pieces are views."""

    def program(x: Any) -> Any:
        y = x * 2
        last = y.tensor_split(places, 1)[-1]
        last.add_(1)
        return y, *torch.tensor_split(x, places, dim=-1)

    x = torch.rand(2, 8)
    torch.testing.assert_close(list(jit(program)(x)), list(program(x)))


@pytest.mark.parametrize("sizes", [(-1, 2), (2, -1), (3, -1, 4)], ids=str)
def test_an_unflattened_dimension_of_no_elements(sizes: tuple[int, ...]) -> None:
    """The size -1 was a quotient of 0 by 0."""

    def program(x: Any) -> Any:
        return x[:0].unflatten(0, sizes), x[:0, :0].unflatten(1, sizes)

    x = torch.rand(2, 3)
    assert [t.shape for t in jit(program)(x)] == [t.shape for t in program(x)]


def test_gradients_of_an_update_of_an_empty_slice() -> None:
    def program(x: Any) -> Any:
        y = x * 1
        y[0, 1::3].add_(1)
        y[:, 4:].mul_(2)
        return y * x

    check(program, torch.rand(2, 1, 4, requires_grad=True))
