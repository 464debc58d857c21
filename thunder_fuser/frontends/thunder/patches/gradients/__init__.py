"""Gradients that Thunder has otherwise than torch: its choice of rules, and users' functions."""

from thunder_fuser.frontends.thunder.patches.gradients import (
    autograd_functions,
    grad_rules,
    nll_gradients,
)

PATCHES = (
    autograd_functions,
    grad_rules,
    nll_gradients,
)
