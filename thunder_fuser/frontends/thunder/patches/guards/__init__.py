"""Guards: what a traced function reads. A program runs again only if the values are the same."""

from thunder_fuser.frontends.thunder.patches.guards import (
    absent_attributes,
    attribute_dictionaries,
    code_names,
    combined_checks,
    container_guards,
    context_variables,
    pruned_checks,
    signed_zeros,
    value_guards,
)

PATCHES = (
    absent_attributes,
    attribute_dictionaries,
    code_names,
    combined_checks,
    container_guards,
    context_variables,
    pruned_checks,
    signed_zeros,
    value_guards,
)
