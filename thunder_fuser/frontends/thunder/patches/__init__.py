"""Patches of Thunder's tracer and autograd, for functions compiled with this executor."""

from thunder_fuser.frontends.thunder.patches import (
    autocast,
    autograd_functions,
    broadcasts,
    containers,
    dtype_comparisons,
    frames,
    grad_rules,
    iteration,
    module_copies,
    module_hooks,
    module_values,
    named_tuples,
    nested_arguments,
    nll_gradients,
    out_arguments,
    recurrent_modules,
    signed_zeros,
    subscripts,
    tensor_attributes,
    tensor_comparisons,
    torch_keywords,
    trees,
    unknown_calls,
    user_lines,
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
        iteration,
        module_copies,
        module_hooks,
        module_values,
        named_tuples,
        nested_arguments,
        nll_gradients,
        out_arguments,
        recurrent_modules,
        signed_zeros,
        subscripts,
        tensor_attributes,
        tensor_comparisons,
        torch_keywords,
        trees,
        unknown_calls,
        user_lines,
        # Last, so that it casts the operands of whatever the others call.
        autocast,
    ):
        patch.register()
