"""Calls that a traced function cannot make, which raise before they begin, with the reason."""

from thunder_fuser.frontends.thunder.patches.refusals import (
    opaque_state,
    refused_calls,
    unknown_sizes,
)

PATCHES = (
    opaque_state,
    refused_calls,
    unknown_sizes,
)
