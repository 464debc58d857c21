"""What autograd sees of a compiled function: its results, which arguments it updates in place, and
the gradients through updates; which tensors are one; and changes of shapes in place.
"""

from thunder_fuser.frontends.thunder.updates import (
    detached_results,
    layouts,
    layouts_asked,
    made_leaves,
    order,
    owned_results,
    reached_arguments,
    repeated_arguments,
    shapes_in_place,
    tensor_identity,
    update_gradients,
    updated_arguments,
)


def register() -> None:
    """Patch how Thunder differentiates updates, once, when the frontend is imported."""
    for patch in (
        layouts,
        layouts_asked,
        order,
        owned_results,
        repeated_arguments,
        shapes_in_place,
        tensor_identity,
        update_gradients,
        updated_arguments,
        # Over the patches of updated arguments, to which it gives the other results.
        detached_results,
        made_leaves,
        # Over those of detached results, whose gradients it takes to be none.
        reached_arguments,
    ):
        patch.register()
