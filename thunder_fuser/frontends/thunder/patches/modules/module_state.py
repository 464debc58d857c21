"""State of a compiled module: that of the module which it was made from.

Thunder keeps the parameters, buffers and submodules that a module had when it was compiled. One
that was replaced later (`model.head = nn.Linear(8, 2)`, `load_state_dict(assign=True)`, a buffer in
`model.to(dtype)`) was not seen, and attributes that were set on the compiled module were not those
that its program reads. For modules compiled with this executor and without transforms, which
replace parameters, all of these are read from the module, and set there:

- parameters, buffers and submodules are looked up by name at each call
- buffers that the program assigns are the module's
- attributes, buffers and others that are set, registered or deleted on the compiled module, and
  its state dictionaries, are, too
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thunder.core.module import ThunderModule
from torch import nn

from thunder_fuser.frontends.thunder.patches.changes.module_buffers import as_assigned
from thunder_fuser.frontends.thunder.patches.guards.expected_values import HOOKS
from thunder_fuser.frontends.thunder.patches.patched import has_patches

_DATA = "_lc_cd"
_OF_THUNDER = "_lc_"


def member(module: nn.Module, home: str, name: str) -> Any:
    """Return a parameter, buffer or submodule by its qualified name, e.g. "0.linear.weight".

    home  the dictionary that holds it: `_parameters`, `_buffers` or `_modules`
    """
    *owners, last = name.split(".")
    for owner in owners:
        module = module._modules[owner]
    return getattr(module, home)[last]


class CompiledModule(ThunderModule):  # type: ignore[misc]
    """A module compiled with this executor: calls run the program, and all else is the module."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program, and hooks of the compiled module itself. Those of all modules are in the
        program, which calls the module.
        """
        if any(self.__dict__[name] for name in HOOKS):
            return super().__call__(*args, **kwargs)
        return self.forward(*args, **kwargs)

    def get_parameter(self, name: str) -> Any:
        """Return the parameter of a qualified name; raise KeyError if there is none."""
        return member(self._model, "_parameters", name)

    def get_buffer(self, name: str) -> Any:
        """Return the buffer of a qualified name; raise KeyError if there is none."""
        return member(self._model, "_buffers", name)

    def get_submodule(self, name: str) -> Any:
        """Return the submodule of a qualified name; raise KeyError if there is none."""
        return member(self._model, "_modules", name) if name else self._model

    def add_module(self, name: str, module: nn.Module | None) -> None:
        """Add or replace a submodule of the module, as `torch.nn.Module.add_module`."""
        if name in self._modules:  # the module itself, as conversions of all submodules replace it
            super().add_module(name, module)
        else:
            self._model.add_module(name, module)

    def register_module(self, name: str, module: nn.Module | None) -> None:
        """Add or replace a submodule of the module, as `torch.nn.Module.register_module`."""
        self.add_module(name, module)

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        """Add or replace a buffer of the module, as `torch.nn.Module.register_buffer`."""
        self._model.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        """Add or replace a parameter of the module, as `torch.nn.Module.register_parameter`."""
        self._model.register_parameter(*args, **kwargs)

    def set_buffer(self, name: str, value: Any) -> None:
        """Set the buffer of a name that begins with the module itself, "", or with a submodule."""
        name, value = as_assigned(self, name, value)
        owner, _, last = name.rpartition(".")
        self.get_submodule(owner)._buffers[last] = value

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's, as `torch.nn.Module.named_parameters`."""
        return self._model.named_parameters(*args, **kwargs)

    def named_buffers(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's, as `torch.nn.Module.named_buffers`."""
        return self._model.named_buffers(*args, **kwargs)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the module's, as `torch.nn.Module.state_dict`."""
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, state: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Load the module's, as `torch.nn.Module.load_state_dict`."""
        return self._model.load_state_dict(state, *args, **kwargs)

    def load_original_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a part of the module's state."""
        self._model.load_state_dict(state, strict=False)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module, unless it is one of Thunder's own."""
        if name in self.__dict__ or name.startswith(_OF_THUNDER):
            super().__setattr__(name, value)
        else:
            setattr(self._model, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute of the module."""
        delattr(self._model, name)


class _CompileData:
    """The attribute of Thunder's modules that tells with what they are compiled."""

    def __get__(self, module: Any, owner: Any) -> Any:
        """Return the compile data; None before a module has any."""
        return self if module is None else module.__dict__.get(_DATA)

    def __set__(self, module: Any, data: Any) -> None:
        """Set the compile data, and leave to the module what Thunder has copied of it."""
        module.__dict__[_DATA] = data
        if has_patches(data) and not data.transforms:
            module.__class__ = CompiledModule
            for copied in ("_overrides_parameters", "_overrides_buffers", "_module_cache"):
                module.__dict__[copied] = {}
            for home in ("_parameters", "_buffers"):
                module.__dict__[home] = module._model.__dict__[home]


def register() -> None:
    """Patch Thunder's modules to become a `CompiledModule` when they are compiled."""
    ThunderModule._lc_cd = _CompileData()
