"""Patches of Thunder's tracer and autograd, for functions compiled with this executor."""

from thunder_fuser.frontends.thunder.patches import (
    broadcasts,
    dtype_comparisons,
    grad_rules,
    module_hooks,
    nested_arguments,
    subscripts,
    tensor_comparisons,
    torch_keywords,
    user_lines,
)


def register() -> None:
    """Apply all patches, once, when the frontend is imported."""
    for patch in (
        broadcasts,
        dtype_comparisons,
        grad_rules,
        module_hooks,
        nested_arguments,
        subscripts,
        tensor_comparisons,
        torch_keywords,
        user_lines,
    ):
        patch.register()
