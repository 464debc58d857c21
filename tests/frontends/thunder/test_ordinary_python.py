"""Programs of ordinary Python around one product, and what their caller changes between the calls.

`ordinary_python/*.txt` has the programs. The body of `f(x)` comes after the name, and then, with
titles, lines of the module, what changes before call `k`, and an expression of what is kept. What
stands before the first name belongs to each program that has no such part of its own.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_fuser
from tests.frontends.thunder.programs import jit
from tests.fuzz.source import compiled

FILES = sorted(Path(__file__).with_name("ordinary_python").glob("*.txt"))
CALLS = 3
PRELUDE = """
import abc
import bisect
import copy
import datetime
import decimal
import fractions
import functools
import hashlib
import heapq
import inspect
import itertools
import json
import logging
import math
import numbers
import operator
import os
import pathlib
import re
import statistics
import struct
import sys
import threading
import types
import typing
import warnings
import weakref
from collections import *
from contextlib import *
from dataclasses import *
from enum import *
from functools import *
from types import SimpleNamespace as NS

import numpy as np
import torch

class Holder:
    def __init__(self, n=1.0):
        self.n = n
"""
ALWAYS = " !"
"""Ends the names of programs that were wrong; of the others a plain run takes a third."""


@dataclass(frozen=True)
class Program:
    body: str
    change: str = ""
    kept: str = ""
    setup: str = ""

    @contextlib.contextmanager
    def made(self) -> Iterator[dict[str, Any]]:
        """A module with `f`, `change` and `kept`."""
        body, change = (
            textwrap.indent(part or "pass", "    ") for part in (self.body, self.change)
        )
        source = (
            f"{self.setup}\ndef f(x):\n{body}\ndef change(k):\n    global c, d, l, n, o, p, s\n"
            f"{change}\ndef kept():\n    return {self.kept or None}\n"
        )
        module = types.ModuleType("ordinary_python")
        sys.modules[module.__name__] = module  # Dataclasses look for theirs.
        exec(compiled(source, f"<{module.__name__} {id(module)}>"), vars(module))
        yield vars(module)
        del sys.modules[module.__name__]


def programs() -> Iterator[Any]:
    for file in FILES:
        prelude, *texts = file.read_text().split("\n#### ")
        shared, defaults = parts(prelude)
        for k, text in enumerate(texts):
            name, _, rest = text.partition("\n")
            body, own = parts(rest)
            own = {**defaults, **own, "setup": f"{PRELUDE}{shared}\n{own.get('setup', '')}"}
            is_always = name.endswith(ALWAYS) or k % 3 == 0
            yield pytest.param(
                Program(body, **own),
                marks=() if is_always else pytest.mark.campaign,
                id=f"{file.stem}: {name.removesuffix(ALWAYS)}",
            )


def parts(text: str) -> tuple[str, dict[str, str]]:
    """The first part of a text, and those with titles."""
    first, *others = text.strip("\n").split("\n-- ")
    titled = (part.partition("\n") for part in others)
    return first, {title: lines for title, _, lines in titled}


def shown(value: Any) -> Any:
    """A value as plain data."""
    if isinstance(value, Tensor):
        is_exact = not value.is_floating_point()
        return value.dtype, (value if is_exact else value.round(decimals=5)).tolist()
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(shown, value)]
    if isinstance(value, dict):
        return {str(key): shown(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, int | float | complex | str | bytes | None):
        return repr(value)
    return type(value).__name__, shown(getattr(value, "__dict__", None))


def run(program: Program, compiler: Callable[[Any], Any]) -> list[Any]:
    """What each call returns, and what is kept; the type of an error."""
    torch.manual_seed(0)
    found = []
    with program.made() as space:
        function = compiler(space["f"])
        for k in range(CALLS):
            space["change"](k)
            try:
                found.append(shown(function(torch.arange(3.0) + k)))
            except Exception as error:
                found.append(type(error).__name__)
            found.append(shown(space["kept"]()))
    return found


@pytest.mark.parametrize("program", [*programs()])
def test_programs_are_those_of_each_call(program: Program) -> None:
    """Without fuel: what is read and guarded does not depend on what is fused."""
    with warnings.catch_warnings(), thunder_fuser.options(fuel=0):
        warnings.simplefilter("ignore")
        assert run(program, jit) == run(program, lambda f: f)
