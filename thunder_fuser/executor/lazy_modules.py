"""Dynamo's graphs, whose code torch writes when they are called for the first time.

Thunder's interpreter would go through that as through the user's program: with torch 2.12 it fails
on what it meets there, for every graph. As a lookaside of an executor in the list, the writing of
the code is run and not looked into.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.fx import _lazy_graph_module


def lookasides() -> dict[Callable[..., Any], Callable[..., Any]]:
    """By function, what Thunder's interpreter calls in its place."""
    module = getattr(_lazy_graph_module, "_LazyGraphModule", None)
    write = getattr(module, "real_recompile", None)
    return {} if write is None else {write: lambda graph: write(graph)}
