"""Composites: cells of recurrent networks. The two products stay torch's, the gates are fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import thunder.torch as ltorch
from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.composites.arguments import Unusual, floats, rounded, wide


def _projected(
    x: TensorProxy, weight: TensorProxy, bias: TensorProxy | None, gates: int
) -> list[TensorProxy]:
    """A product with the weights of all gates, `[.., gates * size]`, and what is each one's."""
    floats(x, weight, *([] if bias is None else [bias]))
    if x.dtype != weight.dtype or x.ndim != 2 or weight.shape[0] % gates:
        raise Unusual
    size = weight.shape[0] // gates
    product = wide(ltorch.linear(x, weight, bias))
    return [product[:, k * size : (k + 1) * size] for k in range(gates)]


def _sums(
    input: TensorProxy,
    hx: TensorProxy,
    w_ih: TensorProxy,
    w_hh: TensorProxy,
    b_ih: TensorProxy | None,
    b_hh: TensorProxy | None,
    gates: int,
) -> list[TensorProxy]:
    inward = _projected(input, w_ih, b_ih, gates)
    return [x + h for x, h in zip(inward, _projected(hx, w_hh, b_hh, gates), strict=True)]


def _lstm_cell(
    input: TensorProxy,
    hx: Sequence[TensorProxy],
    w_ih: TensorProxy,
    w_hh: TensorProxy,
    b_ih: TensorProxy | None = None,
    b_hh: TensorProxy | None = None,
) -> tuple[TensorProxy, TensorProxy]:
    hidden, cell = hx
    floats(cell)
    entered, forgotten, new, left = _sums(input, hidden, w_ih, w_hh, b_ih, b_hh, 4)
    kept = ltorch.sigmoid(forgotten) * wide(cell)
    cell = kept + ltorch.sigmoid(entered) * ltorch.tanh(new)
    return (
        rounded(ltorch.sigmoid(left) * ltorch.tanh(cell), hidden),
        rounded(cell, hidden),
    )


def _gru_cell(
    input: TensorProxy,
    hx: TensorProxy,
    w_ih: TensorProxy,
    w_hh: TensorProxy,
    b_ih: TensorProxy | None = None,
    b_hh: TensorProxy | None = None,
) -> TensorProxy:
    inward, across = _projected(input, w_ih, b_ih, 3), _projected(hx, w_hh, b_hh, 3)
    reset, update = (ltorch.sigmoid(inward[k] + across[k]) for k in range(2))
    new = ltorch.tanh(inward[2] + reset * across[2])
    return rounded((wide(hx) - new) * update + new, hx)


def _rnn_cell(activation: Callable[[TensorProxy], TensorProxy]) -> Callable[..., TensorProxy]:
    def function(
        input: TensorProxy,
        hx: TensorProxy,
        w_ih: TensorProxy,
        w_hh: TensorProxy,
        b_ih: TensorProxy | None = None,
        b_hh: TensorProxy | None = None,
    ) -> TensorProxy:
        (total,) = _sums(input, hx, w_ih, w_hh, b_ih, b_hh, 1)
        return rounded(activation(total), hx)

    return function


PARTS: Mapping[str, Callable[..., Any]] = {
    "lstm_cell": _lstm_cell,
    "gru_cell": _gru_cell,
    "rnn_tanh_cell": _rnn_cell(ltorch.tanh),
    "rnn_relu_cell": _rnn_cell(ltorch.relu),
}
