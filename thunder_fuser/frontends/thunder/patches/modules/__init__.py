"""Modules: state and copies of compiled modules, symbolic values, recurrent layers, averages."""

from thunder_fuser.frontends.thunder.patches.modules import (
    cumulative_averages,
    functional_calls,
    module_copies,
    module_state,
    module_values,
    recurrent_modules,
)

PATCHES = (
    cumulative_averages,
    functional_calls,
    module_copies,
    module_state,
    module_values,
    recurrent_modules,
)
