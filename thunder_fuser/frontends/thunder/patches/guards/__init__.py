"""Guards: what a traced function reads. A program runs again only if the values are the same."""

from thunder_fuser.frontends.thunder.patches.guards import (
    container_guards,
    signed_zeros,
    value_guards,
)

PATCHES = (
    container_guards,
    signed_zeros,
    value_guards,
)
