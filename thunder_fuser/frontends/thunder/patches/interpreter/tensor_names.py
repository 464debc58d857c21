"""Names of arguments in a trace, which Thunder makes of the keys and attributes that lead to them.

A key that is no identifier (`d["layer.0"]`, a member of an enumeration) made a program that Python
cannot read, and `d["a"]["b"]` and `d["a_b"]` had one name, so that one was taken for the other.
Here all names are identifiers, and the second tensor of a name has a number. For functions compiled
with this executor.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from thunder.core import jit_ext
from thunder.core.interpreter import ProvenanceRecord

from thunder_fuser.frontends.thunder.patches.patched import is_patched

_original: Callable[[ProvenanceRecord], str] = jit_ext._infer_name_postfix_from_provenance
_NOT_IN_NAMES = re.compile(r"\W", re.ASCII)

_places: WeakKeyDictionary[Any, dict[str, ProvenanceRecord]] = WeakKeyDictionary()
"""The place that each name was made of, by trace."""


def _postfix(place: ProvenanceRecord) -> str:
    """Return what follows the letter of a name; an empty string for a number."""
    found = _original(place)
    if not is_patched():
        return found
    found = _NOT_IN_NAMES.sub("_", found)
    taken = _places.setdefault(jit_ext.get_jit_ctx(), {})
    return found if taken.setdefault(found, place) == place else ""


def register() -> None:
    """Patch how Thunder names arguments."""
    jit_ext._infer_name_postfix_from_provenance = _postfix
