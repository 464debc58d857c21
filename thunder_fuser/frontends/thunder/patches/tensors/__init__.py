"""Attributes, methods and operators of tensors while a function is traced."""

from thunder_fuser.frontends.thunder.patches.tensors import (
    common_dtypes,
    decided_branches,
    dtype_comparisons,
    foreign_functions,
    gradient_flags,
    known_tensors,
    random_updates,
    strong_dtypes,
    tensor_attributes,
    tensor_comparisons,
    tensors_changed,
    unbound_methods,
    unknown_dtypes,
    unknown_numbers,
)

PATCHES = (
    common_dtypes,
    decided_branches,
    dtype_comparisons,
    foreign_functions,
    gradient_flags,
    known_tensors,
    random_updates,
    strong_dtypes,
    tensor_attributes,
    tensor_comparisons,
    tensors_changed,
    unbound_methods,
    unknown_dtypes,
    unknown_numbers,
)
