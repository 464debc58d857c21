"""In-place updates under autograd: which arguments are updated, what autograd is told of them, and
the gradients through them.
"""

from thunder_fuser.frontends.thunder.updates import (
    layouts,
    order,
    owned_results,
    repeated_arguments,
    update_gradients,
    updated_arguments,
)


def register() -> None:
    """Patch how Thunder differentiates updates, once, when the frontend is imported."""
    for patch in (
        layouts,
        order,
        owned_results,
        repeated_arguments,
        update_gradients,
        updated_arguments,
    ):
        patch.register()
