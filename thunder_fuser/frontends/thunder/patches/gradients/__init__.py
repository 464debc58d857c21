"""Gradients: which rule Thunder chooses, and the user's autograd functions."""

from thunder_fuser.frontends.thunder.patches.gradients import (
    autograd_functions,
    autograd_links,
    grad_modes,
    grad_rules,
    nll_gradients,
    rematerialization,
    second_derivatives,
    unreached_results,
)

PATCHES = (
    autograd_functions,
    autograd_links,
    grad_modes,
    grad_rules,
    nll_gradients,
    rematerialization,
    second_derivatives,
    unreached_results,
)
