"""Gradients: which rule Thunder chooses, the user's autograd functions, calls that are refused."""

from thunder_fuser.frontends.thunder.patches.gradients import (
    autograd_functions,
    grad_rules,
    nll_gradients,
    refused_calls,
)

PATCHES = (
    autograd_functions,
    grad_rules,
    nll_gradients,
    refused_calls,
)
