"""Patches of Thunder's tracer and autograd, for functions compiled with this executor."""

from thunder_fuser.frontends.thunder.patches import (
    autograd_functions,
    broadcasts,
    containers,
    dtype_comparisons,
    frames,
    grad_rules,
    module_copies,
    module_hooks,
    named_tuples,
    nested_arguments,
    out_arguments,
    python_functions,
    recurrent_modules,
    signed_zeros,
    subscripts,
    tensor_attributes,
    tensor_comparisons,
    torch_keywords,
    trees,
    unknown_calls,
    unpacked_arguments,
    user_lines,
    values,
)


def register() -> None:
    """Apply all patches, once, when the frontend is imported."""
    for patch in (
        autograd_functions,
        broadcasts,
        containers,
        dtype_comparisons,
        frames,
        grad_rules,
        module_copies,
        module_hooks,
        named_tuples,
        nested_arguments,
        out_arguments,
        python_functions,
        recurrent_modules,
        signed_zeros,
        subscripts,
        tensor_attributes,
        tensor_comparisons,
        torch_keywords,
        trees,
        unknown_calls,
        unpacked_arguments,
        user_lines,
        values,
    ):
        patch.register()
