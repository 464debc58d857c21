"""Random numbers that a torch function draws, found as it runs on fake tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_DROPOUT = "dropout_p"


class _Draws(TorchDispatchMode):  # type: ignore[misc]
    """Names of the operators that draw random numbers, of those that run."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if is_random(func, args, kwargs):
            self.found.append(str(func.overloadpacket.__name__))
        return func(*args, **(kwargs or {}))


def is_random(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """True for an operator that draws random numbers with these arguments."""
    is_seeded = torch.Tag.nondeterministic_seeded in func.tags
    return is_seeded and not _drops_nothing(func, args, kwargs)


def _drops_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> bool:
    """True for operators of attention with a dropout of 0."""
    names = [argument.name for argument in func._schema.arguments]
    if _DROPOUT not in names:
        return False
    default = func._schema.arguments[names.index(_DROPOUT)].default_value
    given = {**dict(zip(names, args, strict=False)), **(kwargs or {})}
    return bool(given.get(_DROPOUT, default) == 0)


def refuse_draws(name: str, meta: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return what a meta function does; raise NotImplementedError if its function draws random
    numbers, which its second run, for the gradient, would not draw again.
    """
    draws = _Draws()
    with draws:
        found = meta(*args, **kwargs)
    if draws.found:
        raise NotImplementedError(
            f"torch.{name} draws random numbers ({draws.found[0]}), which cannot be drawn again "
            "for its gradient: call it outside of the compiled function, or leave its dropout at "
            "0 and put an nn.Dropout before or behind it"
        )
    return found
