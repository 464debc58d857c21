"""`python -m thunder_fuser explain FILE.py`: report on the functions that a script compiles.

The script runs as under `python`. For every function passed to `thunder.jit` and every
FusionDefinition, a summary is printed: kernels, torch calls, memory, the source lines that move
most bytes, and refusals counted by reason. `--full` prints every plan with its boundaries and
reasons, `--json` data; `--html FILE` also writes a page. With `--fake`, tensors are fake tensors: a
script for CUDA runs on any machine, up to where it depends on tensor values. `--mesh 2x4` also
plans for a device mesh, without needing its devices; `--shard` gives the sharded parameters and
arguments.
"""

from __future__ import annotations

import runpy
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple
from unittest import mock

import thunder
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves

from thunder_fuser.errors import FuserError, FuserValueError, counted_refusals
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.frontends.thunder import (
    FusionReport,
    executor,
    fusions,
    mesh_plans,
    refusals,
)
from thunder_fuser.frontends.thunder.compiled import last_traces
from thunder_fuser.frontends.thunder.fusion_record import records_of
from thunder_fuser.frontends.thunder.plans.report import saved_for_backward
from thunder_fuser.inspect import report
from thunder_fuser.ir.dag import backward_slice
from thunder_fuser.segment.plan import counted
from thunder_fuser.sharding.annotations import Placed, mesh_of, placed_of
from thunder_fuser.sharding.mesh import DeviceMesh
from thunder_fuser.sharding.plan import MeshPlan

_LOOKS = (DataDependentOutputException, DynamicOutputShapeException)
"""Exceptions that fake tensors raise if the program depends on their elements."""


Form = Literal["short", "full", "json"]


class OnMesh(NamedTuple):
    """Device mesh and shardings in the syntax of the command line (`--mesh`, `--shard`)."""

    mesh: str
    shards: tuple[str, ...]

    def read(self) -> tuple[DeviceMesh, Placed]:
        """Parse both; raises FuserValueError."""
        return mesh_of(self.mesh), placed_of(self.shards)

    def plans(self, source: Any, inputs: Sequence[Any] | None = None) -> tuple[MeshPlan, ...]:
        """Return the mesh plans of a compiled function or a definition; raises FuserError."""
        mesh, placed = self.read()
        if isinstance(source, FusionDefinition):
            return (source.mesh_plan(inputs or (), mesh, placed),)
        return mesh_plans(source, mesh, placed)


def main(
    file: str,
    fake: bool = False,
    arguments: Sequence[str] = (),
    form: Form = "short",
    html: str = "",
    onto: OnMesh | None = None,
) -> int:
    """Run the script `file`, print a report per function and return the script's exit status.
    Raises FuserValueError if there is no such file, or if a mesh or a sharding cannot be read.

    form  "short": one screen per function; "full": every plan and boundary; "json": data
    html  file for an HTML page, with a number appended if there are several functions; "": none
    onto  device mesh to plan for, too
    """
    path = Path(file)
    if not path.is_file():
        raise FuserValueError(f"explain: expected a Python file, got {file}; give its path")
    if onto is not None:
        onto.read()
    with _observed() as (functions, definitions), _as_program(path, arguments):
        status = _run(path, fake)
    sources: list[Any] = [*functions]
    for function in functions:
        print(_of_function(function, form))
        sources += _on_mesh(onto, function, None, form)
    for definition, inputs in definitions.items():
        print(_of_definition(definition, inputs, form))
        sources.append(definition.plan(inputs))
        sources += _on_mesh(onto, definition, inputs, form)
    if html:
        _save_pages(Path(html), sources)
    if not functions and not definitions:
        print("nothing was compiled: no thunder.jit function and no FusionDefinition was made")
    return status


def _run(path: Path, fake: bool) -> int:
    """Run the script and return its exit status; errors are printed and give 1."""
    try:
        with _fake_tensors() if fake else ExitStack():
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as exit:
        # As the interpreter does: an integer is the status, a text is printed with status 1.
        if isinstance(exit.code, str):
            print(exit.code, file=sys.stderr)
        return exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except (Exception, KeyboardInterrupt) as error:
        steps = _of_script(error, path)
        if fake and isinstance(error, _LOOKS):
            lines = [step.lineno for step in steps if step.filename == str(path)]
            print(
                f"the script stops at {path}:{lines[-1]}: it looks at a number, and fake tensors "
                "have none; what it had compiled by then:",
                file=sys.stderr,
            )
        else:
            print("Traceback (most recent call last):", file=sys.stderr)
            shown = [*traceback.format_list(steps), *traceback.format_exception_only(error)]
            print("".join(shown), end="", file=sys.stderr)
            print("the script failed; what it had compiled by then:", file=sys.stderr)
        return 1
    return 0


def _of_script(error: BaseException, path: Path) -> list[traceback.FrameSummary]:
    """Return the stack frames of an error, from the first one in the script on."""
    steps = traceback.extract_tb(error.__traceback__)
    first = next((k for k, step in enumerate(steps) if step.filename == str(path)), 0)
    return steps[first:]


@contextmanager
def _as_program(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Set `sys.argv` and `sys.path` as Python does for a script."""
    folder = str(path.resolve().parent)
    with (
        mock.patch.object(sys, "argv", [str(path), *arguments]),
        mock.patch.object(sys, "path", [folder, *sys.path]),
    ):
        yield


@contextmanager
def _fake_tensors() -> Iterator[None]:
    """Run under FakeTensorMode. The autograd engine would need the fake tensors' device, so that
    backward only makes gradients of the right shapes; backward plans are made with the forward's.
    """

    def backward(tensors: Any, *_: Any, **__: Any) -> None:
        for leaf in _leaves([tensors] if isinstance(tensors, torch.Tensor) else tensors):
            leaf.grad = torch.empty_like(leaf)

    def grad(_: Any, inputs: Any, *__: Any, **___: Any) -> tuple[torch.Tensor, ...]:
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else inputs
        return tuple(torch.empty_like(t) for t in wanted)

    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        mock.patch.object(torch.autograd, "backward", backward),
        mock.patch.object(torch.autograd, "grad", grad),
        mock.patch.object(torch.nn.Module, "_apply", _applied),
        # There are no values to compare.
        mock.patch.object(FusionDefinition, "validate", _executed),
    ):
        yield


def _executed(
    definition: FusionDefinition, inputs: Sequence[Any], *_: Any, device: Any = None, **__: Any
) -> list[torch.Tensor]:
    return definition.execute(inputs, device=device)


def _applied(
    module: torch.nn.Module, change: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True
) -> torch.nn.Module:
    """Replacement of `Module._apply` for moves and casts. torch would swap fake parameters for new
    ones, which fails while they are referenced; here they keep their identity, as optimizers and
    tied weights need.
    """
    for child in module.children() if recurse else ():
        child._apply(change)
    for parameter in module.parameters(recurse=False):
        _become(parameter, change)
        if parameter.grad is not None:
            _become(parameter.grad, change)
    for name, buffer in module._buffers.items():
        module._buffers[name] = None if buffer is None else change(buffer)
    return module


def _become(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with torch.no_grad():
        changed = change(tensor)
        if changed is not tensor:
            tensor.data = changed
            if isinstance(tensor, FakeTensor) and isinstance(changed, FakeTensor):
                tensor.fake_device = changed.fake_device


def _leaves(tensors: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
    """Yield the autograd leaves that `tensors` depend on."""
    roots = [t.grad_fn for t in tensors]
    nodes: dict[Any, None] = backward_slice(
        filter(None, roots), lambda node: [n for n, _ in node.next_functions if n is not None]
    )
    for node in nodes:
        if hasattr(node, "variable"):
            yield node.variable


@contextmanager
def _observed() -> Iterator[tuple[list[Any], dict[FusionDefinition, Sequence[Any] | None]]]:
    """Record functions and definitions compiled inside the block, in order; definitions with the
    fake inputs of their last call.
    """
    functions: list[Any] = []
    definitions: dict[FusionDefinition, Sequence[Any] | None] = {}
    jit, leave, execute = thunder.jit, FusionDefinition.__exit__, FusionDefinition.execute

    def recorded_jit(*arguments: Any, **options: Any) -> Any:
        compiled = jit(*arguments, **options)
        if thunder.compile_stats(compiled) is not None:
            functions.append(compiled)
        return compiled

    def recorded_exit(definition: FusionDefinition, kind: Any, *problem: Any) -> Any:
        if kind is None:
            definitions[definition] = None
        return leave(definition, kind, *problem)

    def recorded_execute(definition: FusionDefinition, inputs: Any, **options: Any) -> Any:
        results = execute(definition, inputs, **options)
        # For real inputs, the plan that ran is known.
        is_fake = any(isinstance(x, FakeTensor) for x in tree_leaves(list(inputs)))
        definitions[definition] = inputs if is_fake else None
        return results

    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(thunder, "jit", recorded_jit))
        patches.enter_context(mock.patch.object(FusionDefinition, "__exit__", recorded_exit))
        patches.enter_context(mock.patch.object(FusionDefinition, "execute", recorded_execute))
        yield functions, definitions


# ---- printed reports


def _on_mesh(
    onto: OnMesh | None, source: Any, inputs: Sequence[Any] | None, form: Form
) -> tuple[MeshPlan, ...]:
    """Print and return the plans for the mesh `onto`, if given."""
    try:
        plans = () if onto is None else onto.plans(source, inputs)
    except FuserError as error:
        print(f"no plan for the mesh: {error}")
        return ()
    for plan in plans:
        print(report(plan).json() if form == "json" else plan)
        if form == "full":
            print(textwrap.indent(plan.plan.listing(times=True), "  "))
    return plans


def _save_pages(path: Path, sources: Sequence[Any]) -> None:
    found = []
    for source in sources:
        try:
            found.append(report(source))
        except FuserError as error:
            print(f"no page: {error}", file=sys.stderr)
    for k, made in enumerate(found):
        name = f"{path.stem}-{k}{path.suffix}" if len(found) > 1 else path.name
        print(f"written: {made.save(path.with_name(name))}", file=sys.stderr)


def _of_function(compiled: Callable[..., Any], form: Form) -> str:
    data = thunder.compile_data(compiled)
    name = getattr(data.fn, "__name__", None) or type(data.fn).__name__
    if executor not in data.executors_list:
        return f"{name}: compiled without thunder_fuser.executor among its executors"
    try:
        if form != "full":
            made = report(compiled, details=form == "json")
            if form == "json":
                return made.json()
            return "\n".join([f"{made}{_of_several(compiled)}", *_traded(compiled)])
        return "\n".join(_lines(name, compiled))
    except FuserError as error:
        return f"{name}: {error}"


def _traded(compiled: Callable[..., Any]) -> Iterator[str]:
    """Yield what was recomputed for a memory budget, as text."""
    records = records_of(last_traces(compiled)[0])
    yield from (str(r.traded) for r in records if r.traded is not None)


def _of_several(compiled: Callable[..., Any]) -> str:
    several = len(thunder.compile_stats(compiled).interpreter_cache)
    last = f"; compiled for {several} kinds of inputs, of which this is the last"
    return last if several > 1 else ""


def _lines(name: str, compiled: Callable[..., Any]) -> Iterator[str]:
    found, left = fusions(compiled), refusals(compiled)
    forward, backward = last_traces(compiled)
    yield f"{name}: {_costs(found)}{_of_several(compiled)}"
    yield from _traded(compiled)
    names = {bsym.sym.name for bsym in forward.bound_symbols}
    halves = [r for r in found if r.name in names], [r for r in found if r.name not in names]
    for half, reports in zip(("forward", "backward"), halves, strict=True):
        if backward is not None:
            kept = f", {saved_for_backward(compiled):,} B saved for it, besides inputs and results"
            yield f"{half}: {_costs(reports)}{kept if half == 'backward' else ''}"
        for fusion in reports:
            yield textwrap.indent(str(fusion), "  ").removeprefix("  ")
    if left:
        yield "left to torch:"
        every = [refusal for refusal, count in left.items() for _ in range(count)]
        yield from (f"  {text}" for text in counted_refusals(every))


def _costs(reports: Sequence[FusionReport]) -> str:
    plans = [report.plan for report in reports]
    kernels, moved = sum(p.kernels for p in plans), sum(p.bytes for p in plans)
    ideal = sum(p.bytes_ideal for p in plans)
    text = (
        f"{counted(len(plans), 'fusion')}, {counted(kernels, 'kernel')}, {moved:,} B moved "
        f"(ideal {ideal:,} B)"
    )
    seconds, devices = sum(p.seconds for p in plans), {p.device.name for p in plans if p.device}
    if seconds and len(devices) == 1:
        copies = sum(p.copy_fraction * p.seconds for p in plans)
        speed = f"{copies / seconds:.0%} of a copy's speed"
        text += f", estimated {1e6 * seconds:.1f} us on {devices.pop()}, {speed}"
    return text


def _of_definition(definition: FusionDefinition, inputs: Sequence[Any] | None, form: Form) -> str:
    try:
        if form == "json":
            return report(definition.plan(inputs), "FusionDefinition").json()
        rows = [f"FusionDefinition: {definition.plan(inputs).listing(times=True)}"]
    except (FuserError, NotImplementedError) as error:
        return f"FusionDefinition: {error}"
    ran = definition.compiled.latest if inputs is None else None
    rows += [f"  in torch {refusal}" for refusal in (ran.in_torch if ran else ())]
    return "\n".join(rows)
