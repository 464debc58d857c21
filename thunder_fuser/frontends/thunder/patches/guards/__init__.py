"""Guards of what a traced function reads: its program runs again only where these hold."""

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
