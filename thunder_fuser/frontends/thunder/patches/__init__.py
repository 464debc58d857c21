"""Patches of Thunder's tracer and autograd, for functions compiled with this executor."""

from thunder_fuser.frontends.thunder.patches import (
    changes,
    gradients,
    guards,
    interpreter,
    modules,
    tensors,
    torch_calls,
)


def register() -> None:
    """Apply all patches, once, when the frontend is imported. One that wraps what another has
    replaced comes after it, in a folder as well as in this list.
    """
    for folder in (guards, changes, interpreter, gradients, modules, tensors, torch_calls):
        for patch in folder.PATCHES:
            patch.register()
