"""Modules that a module holds in a list or a dictionary, beside its submodules.

Thunder names a tensor of a module by the path of its submodules, and took each item of an attribute
of a module for one of `_modules`: it raised where a forward loops over a list, `self.layers`, as
MaskFormer's in the transformers library. Such an item is the root of a path. For functions compiled
with this executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from thunder.core import jit_ext
from thunder.core.interpreter import ProvenanceRecord, PseudoInst

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_Path = tuple[str, list[Any], ProvenanceRecord]


def _path(original: Callable[..., _Path], member: ProvenanceRecord) -> _Path:
    """Return the dictionary that holds a member of a module, its path, and where that begins.

    member  the item of `_parameters`, `_buffers` or `_modules`
    """
    if not is_patched():
        return original(member)
    held, key = member.inputs
    path, root = [key.value], held.inputs[0]
    while _is_submodule(root):
        held, key = root.inputs
        path.insert(0, key.value)
        root = held.inputs[0]
    return member.inputs[0].inputs[1].value, path, root


def _is_submodule(record: ProvenanceRecord) -> bool:
    """True for an item of the `_modules` of a module."""
    if record.inst is not PseudoInst.BINARY_SUBSCR:
        return False
    held, key = record.inputs
    if key.inst is not PseudoInst.CONSTANT or held.inst is not PseudoInst.LOAD_ATTR:
        return False
    owner, name = held.inputs
    is_module = bool(owner.ext_flag & jit_ext.EXT_FLAG_IS_MODULE)
    return is_module and name.inst is PseudoInst.CONSTANT and name.value == "_modules"


def register() -> None:
    """Patch how Thunder's prologues name the tensors of modules."""
    name = "get_parameter_or_buffer_or_submodule_name_and_root"
    setattr(jit_ext, name, partial(_path, getattr(jit_ext, name)))
