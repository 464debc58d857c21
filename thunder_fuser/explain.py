"""`python -m thunder_fuser explain FILE.py`: what became of the functions that a script compiles.

The script runs as it would by itself. Of every function that it gave to `thunder.jit`, and of every
FusionDefinition, the plan is printed: segments, boundaries with the reason for each, and what was
left to torch, counted by reason. With `--fake` tensors have no memory: a script for CUDA can be
asked on any machine, as far as it does not look at numbers.
"""

from __future__ import annotations

import runpy
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import thunder
from torch._subclasses.fake_tensor import FakeTensorMode

from thunder_fuser.definition import FusionDefinition
from thunder_fuser.errors import FuserError, FuserValueError
from thunder_fuser.executor import fusions, refusals


def main(file: str, fake: bool = False) -> int:
    """Run a script and print its plans; 0 if it ended well. FuserValueError if there is none."""
    path = Path(file)
    if not path.is_file():
        raise FuserValueError(f"explain: expected a Python file, got {file}; give its path")
    failed = False
    with _observed() as (functions, definitions):
        mode = FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext()
        try:
            with mode:
                runpy.run_path(str(path), run_name="__main__")
        except Exception:
            failed = True
            traceback.print_exc()
            print("the script failed; what it had compiled by then:", file=sys.stderr)
    for text in (*map(_of_function, functions), *map(_of_definition, definitions)):
        print(text)
    if not functions and not definitions:
        print("nothing was compiled: no thunder.jit function and no FusionDefinition was made")
    return int(failed)


@contextmanager
def _observed() -> Iterator[tuple[list[Any], list[FusionDefinition]]]:
    """Everything that is compiled from now on, in the order in which it is made."""
    functions: list[Any] = []
    definitions: list[FusionDefinition] = []
    jit, leave = thunder.jit, FusionDefinition.__exit__

    def recorded_jit(*arguments: Any, **options: Any) -> Any:
        compiled = jit(*arguments, **options)
        if thunder.compile_stats(compiled) is not None:
            functions.append(compiled)
        return compiled

    def recorded_exit(definition: FusionDefinition, *problem: Any) -> Any:
        definitions.append(definition)
        return leave(definition, *problem)

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(thunder, "jit", recorded_jit))
        patches.enter_context(mock.patch.object(FusionDefinition, "__exit__", recorded_exit))
        yield functions, definitions


def _of_function(compiled: Callable[..., Any]) -> str:
    name = getattr(compiled, "__qualname__", None) or type(compiled).__name__
    try:
        found, left = fusions(compiled), refusals(compiled)
    except FuserValueError as error:
        return f"{name}: {error}"
    kernels, moved = (sum(getattr(f.plan, what) for f in found) for what in ("kernels", "bytes"))
    ideal = sum(f.plan.bytes_ideal for f in found)
    lines = [
        f"{name}: {len(found)} fusions, {kernels} kernels, {moved:,} B moved (ideal {ideal:,} B)"
    ]
    for report in found:
        lines += [report.signature, textwrap.indent(str(report.plan), "  ")]
    if left:
        lines.append("left to torch:")
        lines += [f"  {count} x {refusal}" for refusal, count in left.items()]
    return "\n".join(lines)


def _of_definition(definition: FusionDefinition) -> str:
    try:
        return f"FusionDefinition: {definition.plan()}"
    except FuserError as error:
        return f"FusionDefinition: {error}"
