"""Which grad transform a call has: ours where Thunder has none, or one that loses gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from thunder.core.prims import PrimIDs
from thunder.core.symbol import BoundSymbol
from thunder.transforms import autodiff

from thunder_fuser.frontends.thunder.autograd import (
    activations,
    complex_numbers,
    empty_products,
    indexing,
    pointwise,
    setitem,
    torch_calls,
    updates,
)
from thunder_fuser.frontends.thunder.autograd.rules import Rule
from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[..., tuple[Rule | None, Any]] = autodiff._get_gradfn_and_executor

_MISSING: Mapping[PrimIDs | str, Rule] = complex_numbers.RULES
"""Rules of operations that stay with torch, and that Thunder does not differentiate."""
_WRONG: Mapping[PrimIDs | str, Rule] = {
    **activations.RULES,
    **indexing.RULES,
    **pointwise.RULES,
    **setitem.RULES,
    **updates.RULES,
}
"""Rules in place of Thunder's that give other gradients than torch, also where no claim takes the
operation, as with symbolic shapes.
"""


def _rule(bsym: BoundSymbol, **options: Any) -> tuple[Rule | None, Any]:
    """Return the grad transform of a call, or None, and the executor that gave it, or None."""
    rule, executor = _original(bsym, **options)
    if not is_patched():
        return rule, executor
    rule = _WRONG.get(bsym.sym.id) or empty_products.rule_of(bsym) or rule
    rule = rule or _MISSING.get(bsym.sym.id) or torch_calls.rule_of(bsym)
    return complex_numbers.rule_of(bsym, rule), executor


def register() -> None:
    """Patch Thunder's choice of grad transforms."""
    autodiff._get_gradfn_and_executor = _rule
