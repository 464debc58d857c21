"""Calls of torch's functions: their arguments and results, and operands that autocast casts."""

from thunder_fuser.frontends.thunder.patches.torch_calls import (
    aten_operators,
    autocast,
    broadcasts,
    caught_errors,
    checkpoints,
    creation_options,
    library_operators,
    lists_of_tensors,
    made_objects,
    named_tuples,
    numpy_arrays,
    numpy_numbers,
    out_arguments,
    random_like,
    recorded_arguments,
    script_functions,
    tensor_checks,
    torch_code,
    torch_keywords,
    unknown_calls,
    updating_functions,
    vmapped_functions,
)

PATCHES = (
    aten_operators,
    broadcasts,
    caught_errors,
    checkpoints,
    library_operators,
    lists_of_tensors,
    named_tuples,
    # After named tuples, which are objects, too.
    made_objects,
    numpy_arrays,
    numpy_numbers,
    random_like,
    recorded_arguments,
    script_functions,
    tensor_checks,
    torch_keywords,
    unknown_calls,
    updating_functions,
    vmapped_functions,
    # After unknown calls, whose `out` it writes.
    out_arguments,
    creation_options,
    # After unknown calls, some of which it leaves out.
    torch_code,
    # Last, so that it casts the operands of whatever the others call.
    autocast,
)
