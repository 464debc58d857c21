"""Comparisons of tensors by operators: `mask < 300`.

Thunder's interpreter compares operands itself and looks for no replacement of the comparison. Here
`x < number` does what `torch.lt` does with a number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partialmethod
from typing import Any

from thunder.core.proxies import TensorProxy

from thunder_fuser.frontends.thunder.numbers import COMPARISONS, compared
from thunder_fuser.frontends.thunder.patches.patched import is_patched


def _compare(x: Any, original: Callable[[Any, Any], Any], other: Any) -> Any:
    return compared(original, x, other) if is_patched() else original(x, other)


def register() -> None:
    """Patch the operators of tensors, for functions compiled with this executor."""
    for name in COMPARISONS:
        original = getattr(TensorProxy, f"__{name}__")
        setattr(TensorProxy, f"__{name}__", partialmethod(_compare, original))
