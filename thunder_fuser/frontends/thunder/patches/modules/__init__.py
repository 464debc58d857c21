"""Modules: state and copies of compiled modules, symbolic values, weights of recurrent layers."""

from thunder_fuser.frontends.thunder.patches.modules import (
    module_copies,
    module_state,
    module_values,
    recurrent_modules,
)

PATCHES = (
    module_copies,
    module_state,
    module_values,
    recurrent_modules,
)
