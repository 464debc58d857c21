"""Updates of tensors with random numbers, such as `x.normal_()`, which Thunder does not know.

The numbers are a new random tensor, which is fused, and a copy of it to `x`, through which no
gradient goes. The methods are added to Thunder's torch language.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from thunder_fuser.frontends.thunder.patches.tensors.tensor_attributes import METHODS, known

Function = Callable[..., Any]

_LEAST = torch.finfo(torch.float32).eps / 2
"""As in torch no number of the exponential distribution is 0."""


def _drawn(name: str, draw: Function) -> Function:
    """Make an update with random numbers, `draw(x, ..)`, of which `x` has the shape."""

    def function(self: Any, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
        known(name)
        if generator is not None:
            raise NotImplementedError(
                f"x.{name}(.., generator=..): a compiled function draws from the default "
                "generator; leave out generator"
            )
        return self.copy_(draw(self, *args, **kwargs))

    return function


def _expected(name: str, is_right: bool, what: str) -> None:
    if not is_right:
        raise RuntimeError(f"{name} expects {what}")


def _uniform(x: Any, from_: float = 0.0, to: float = 1.0) -> Any:
    _expected("uniform_", from_ <= to, f"a range from low to high, not from {from_} to {to}")
    return torch.rand_like(x) * (to - from_) + from_


def _bernoulli(x: Any, p: Any = 0.5) -> Any:
    return torch.rand(x.shape, device=x.device) < p


def _normal(x: Any, mean: float = 0.0, std: float = 1.0) -> Any:
    _expected("normal_", std >= 0, f"std >= 0, not {std}")
    return torch.randn_like(x) * std + mean


def _log_normal(x: Any, mean: float = 1.0, std: float = 2.0) -> Any:
    _expected("log_normal_", std > 0, f"std > 0, not {std}")
    return torch.exp(torch.randn_like(x) * std + mean)


def _exponential(x: Any, lambd: float = 1.0) -> Any:
    _expected("exponential_", lambd > 0, f"lambda > 0, not {lambd}")
    return (-torch.log1p(-torch.rand_like(x))).clamp(min=_LEAST) / lambd


def _cauchy(x: Any, median: float = 0.0, sigma: float = 1.0) -> Any:
    _expected("cauchy_", sigma > 0, f"sigma > 0, not {sigma}")
    return torch.tan(math.pi * (torch.rand_like(x) - 0.5)) * sigma + median


def _geometric(x: Any, p: float) -> Any:
    _expected("geometric_", 0 < p < 1, f"p between 0 and 1, not {p}")
    return torch.ceil(torch.log1p(-torch.rand_like(x)) / math.log1p(-p)).clamp(min=1)


_DRAWN: Mapping[str, Function] = {
    "uniform_": _uniform,
    "normal_": _normal,
    "bernoulli_": _bernoulli,
    "cauchy_": _cauchy,
    "exponential_": _exponential,
    "geometric_": _geometric,
    "log_normal_": _log_normal,
}


def register() -> None:
    """Add the methods to those of Thunder's tensors."""
    METHODS.update({name: _drawn(name, draw) for name, draw in _DRAWN.items()})
