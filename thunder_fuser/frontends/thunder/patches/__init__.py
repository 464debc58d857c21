"""Patches of Thunder's tracer and autograd.

Each file says what Thunder 0.2.6 does and what happens instead. Unless it says otherwise, a patch
acts on functions compiled with this executor only (`patched.py`); all others run as before.
"""

from thunder_fuser.frontends.thunder.patches import (
    changes,
    gradients,
    guards,
    interpreter,
    modules,
    refusals,
    tensors,
    torch_calls,
)


def register() -> None:
    """Apply all patches, once, when the frontend is imported. One that wraps what another has
    replaced comes after it, in a folder as well as in this list.
    """
    for folder in (
        guards,
        changes,
        interpreter,
        gradients,
        modules,
        tensors,
        torch_calls,
        refusals,
    ):
        for patch in folder.PATCHES:
            patch.register()
