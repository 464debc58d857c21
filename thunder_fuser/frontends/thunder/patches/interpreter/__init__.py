"""How Thunder's interpreter runs Python: code it could not run, and work that it repeated."""

from thunder_fuser.frontends.thunder.patches.interpreter import (
    attribute_lookups,
    comparisons,
    containers_built,
    dictionary_keys,
    frames,
    generators,
    method_calls,
    module_hooks,
    nested_arguments,
    python_functions,
    stack_moves,
    subscripts,
    tensor_names,
    trees,
    unpacked_arguments,
    user_lines,
)

PATCHES = (
    attribute_lookups,
    comparisons,
    containers_built,
    dictionary_keys,
    frames,
    generators,
    method_calls,
    module_hooks,
    nested_arguments,
    python_functions,
    stack_moves,
    subscripts,
    tensor_names,
    trees,
    unpacked_arguments,
    user_lines,
)
