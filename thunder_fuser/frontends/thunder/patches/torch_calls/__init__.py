"""Calls of torch's functions: their arguments, their results, and how autocast casts operands."""

from thunder_fuser.frontends.thunder.patches.torch_calls import (
    autocast,
    broadcasts,
    named_tuples,
    out_arguments,
    torch_keywords,
    unknown_calls,
)

PATCHES = (
    broadcasts,
    named_tuples,
    out_arguments,
    torch_keywords,
    unknown_calls,
    # Last, so that it casts the operands of whatever the others call.
    autocast,
)
