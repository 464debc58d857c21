"""Modules: state and copies of compiled modules, symbolic values, modules that run in torch,
recurrent layers, averages.
"""

from thunder_fuser.frontends.thunder.patches.modules import (
    cumulative_averages,
    functional_calls,
    listed_modules,
    members_read,
    module_copies,
    module_moves,
    module_state,
    module_values,
    opaque_modules,
    recurrent_modules,
)

PATCHES = (
    cumulative_averages,
    functional_calls,
    listed_modules,
    members_read,
    module_copies,
    module_moves,
    module_state,
    module_values,
    opaque_modules,
    recurrent_modules,
)
