"""Changes of a module after it was compiled: its parameters, buffers, submodules and their hooks.

Thunder's module keeps the parameters, buffers and submodules that the module had when it was
compiled, and what the hooks of the first call did: `model.head = nn.Linear(..)`, weights that were
tied and hooks that were removed later had no effect. Here each call first looks for such changes,
for modules compiled with this executor and without transforms, which have parameters of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import is_not
from typing import Any
from weakref import WeakKeyDictionary

import thunder
from thunder.core.module import ThunderModule
from torch import nn

from thunder_fuser.frontends.thunder.patches.patched import has_patches

_original_init: Callable[..., None] = ThunderModule.__init__
_original_forward: Callable[..., Any] = ThunderModule.forward
Held = dict[Any, Any]
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MEMBERS = ("_parameters", "_buffers", "_modules")


class _Contents:
    """What several dictionaries hold; those that are empty are left out."""

    def __init__(self, several: Iterable[Held]) -> None:
        self._held = [held for held in several if held]
        self._before = [*self._now()]

    def have_changed(self) -> bool:
        # Without a loop in Python, of which there would be one for each module in each call.
        is_as_long = sum(map(len, self._held)) == len(self._before)
        return not is_as_long or any(map(is_not, self._now(), self._before))

    def _now(self) -> Iterator[Any]:
        return chain.from_iterable(map(dict.values, self._held))


class _Members:
    """What a module and all submodules hold at some time.

    named     parameters and buffers by name
    hooked    hooks of submodules by name, of those that have any
    held      the dictionaries that hold all of them
    no_hooks  those of the submodules' hooks that are empty
    """

    def __init__(self, model: nn.Module) -> None:
        inner = dict(model.named_modules())
        self.named = {
            **dict(model.named_parameters(remove_duplicate=False)),
            **dict(model.named_buffers(remove_duplicate=False)),
        }
        hooks = {(at, name): getattr(m, name) for at, m in inner.items() if at for name in _HOOKS}
        self.hooked = {place: [*held.values()] for place, held in hooks.items() if held}
        self.no_hooks = [held for held in hooks.values() if not held]
        members = [getattr(m, name) for m in inner.values() for name in _MEMBERS]
        self.held = _Contents((*members, *hooks.values()))

    def have_changed(self) -> bool:
        return any(self.no_hooks) or self.held.have_changed()


_members: WeakKeyDictionary[ThunderModule, _Members] = WeakKeyDictionary()


def _init(self: ThunderModule, model: nn.Module, compiled: Callable[..., Any]) -> None:
    _original_init(self, model, compiled)
    _members[self] = _Members(model)


def _forward(self: ThunderModule, *args: Any, **kwargs: Any) -> Any:
    members = _members.get(self)
    if members is not None and members.have_changed():
        _update(self, members)
    return _original_forward(self, *args, **kwargs)


def _update(module: ThunderModule, before: _Members) -> None:
    data = thunder.compile_data(module)
    if not has_patches(data) or module._lc_transforms or data.process_group_for_ddp is not None:
        del _members[module]
        return
    now = _members[module] = _Members(module._model)
    module._module_cache = dict(module._model.named_modules())
    if before.hooked != now.hooked:
        # No program guards them, as the types of submodules are guarded.
        thunder.compile_stats(module).interpreter_cache.clear()
    parameters = dict(module._model.named_parameters(remove_duplicate=False))
    for name, tensor in now.named.items():
        if before.named.get(name) is not tensor:
            others = module._overrides_parameters, module._overrides_buffers
            kept, other = others if name in parameters else others[::-1]
            kept[name] = tensor
            other.pop(name, None)
    for name in before.named.keys() - now.named.keys():
        module._overrides_parameters.pop(name, None)
        module._overrides_buffers.pop(name, None)


def register() -> None:
    """Patch compiled modules to use `_init` and `_forward`."""
    ThunderModule.__init__ = _init
    ThunderModule.forward = _forward
