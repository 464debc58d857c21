"""Random programs of several calls, between which everything a program can read changes.

`random_changing_program(seed)` draws a module of Python: a model, what it holds, globals, and
statements of its forward that read and set attributes, items, globals, flags, functions, submodules
and buffers; and changes between its calls. `faults(program)` runs it compiled and by eager torch,
each in a scope of its own, and compares results, gradients and all that is held after each call.
"""

from __future__ import annotations

import random
import textwrap
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PRELUDE = """
COUNT, KIND, TENSOR = 2, "a", torch.full((3,), 0.5)
NUMBERS, TABLE = [1, 2], {"a": 1, "b": 2}


class Scale(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor

    def other(self, x):
        return x + self.factor


class Computed:
    @property
    def level(self):
        return self.count + 1

    @level.setter
    def level(self, value):
        self.count = value - 1

    @property
    def halved(self):
        self.reads = self.reads + 1
        return self.tensor * 0.5 + self.reads * 0.125

    @halved.setter
    def halved(self, value):
        self.tensor = value + 0.25


class Options(Computed):
    count, flag, reads = 3, True, torch.zeros(())

    def __init__(self):
        self.kind, self.tensor, self.numbers, self.table = None, torch.ones(3), [3], {"b": 1}

    def scaled(self, x):
        return x * self.count


def helper(x):
    return x * COUNT


class Model(Computed, nn.Module):
    reads = torch.zeros(())

    def __init__(self):
        super().__init__()
        self.count, self.kind, self.flag, self.tensor = 1, "a", False, torch.full((3,), 2.0)
        self.numbers, self.table, self.options = [1, 3], {"a": 2}, Options()
        self.inner, self.blocks = Scale(2), nn.ModuleList([Scale(1), nn.Tanh()])
        self.weight = nn.Parameter(torch.full((3,), 0.75))
        self.register_buffer("mean", torch.full((3,), 0.25))
        self.act = torch.sin
"""

OWNERS = ("self", "options", "self.options")
COUNTS = (
    *(f"{owner}.{name}" for owner in OWNERS for name in ("count", "level")),
    "COUNT",
    "{list}[0]",
    "{table}['a']",
)
TENSORS = (
    *(f"{owner}.{name}" for owner in OWNERS for name in ("tensor", "halved")),
    "TENSOR",
    "self.mean",
)
KINDS = (*(f"{owner}.kind" for owner in OWNERS), "KIND")
LISTS = (*(f"{owner}.numbers" for owner in OWNERS), "NUMBERS")
TABLES = (*(f"{owner}.table" for owner in OWNERS), "TABLE")
FLAGS = ("self.flag", "options.flag", "self.training", "self.options.flag")
FUNCTIONS = (
    *("torch.sin", "torch.cos", "(lambda x: x * 3)", "self.inner.forward", "Scale(4).other"),
    "helper",
)
MODULES = ("Scale(3)", "Scale(2)", "nn.Tanh()", "nn.Identity()", "nn.Linear(3, 3)")

READS = (
    "y = y * {count}",
    "y = y + {tensor}",
    "y = y * 2 if {flag} else y - 1",
    "y = y * 2 if {kind} == 'a' else y + 1 if {kind} is None else y * 3",
    "y = self.act(y)",
    "y = helper(y)",
    "y = self.inner(y)",
    "for block in self.blocks:\n    y = block(y)",
    "for number in {list}:\n    y = y + number",
    "y = y * len({list})",
    "y = y * (2 if {table}.get('b') else 3)",
    "y = y + sum({table}.values())",
    "y = y * (2 if 'c' in {table} else 3)",
    "y = y + getattr({owner}, 'extra', 3)",
    "y = y * (2 if hasattr({owner}, 'extra') else 3)",
    "for parameter in self.parameters():\n    y = y * parameter.mean() + parameter.sum()",
    "y = y * self.weight + self.mean",
)
MERGES = (
    "y = y + (lambda *a, **k: sum(a) + sum(k.values()))(*{list}, **{table})",
    "y = y + sum([2, *{list}])",
    "y = y * len([2.0] + {list})",
    "y = y + sum({{'z': 1, **{table}}}.values())",
    "y = y + sum(({table} | {{'z': 2}}).values())",
    "y = y + sum({{key: value + 1 for key, value in {table}.items()}}.values())",
    "merged = {{'z': 2}}\nmerged.update({table})\ny = y + len(merged)",
    "joined = [2]\njoined.extend({list})\ny = y + sum(joined)",
)
"""Reads of containers as a whole, which may be empty."""
LOOKS = (
    "y = y * (2 if 'extra' in {owner}.__dict__ else 3)",
    "y = y * (2 if 'extra' not in vars({owner}) else 3)",
    "y = y + {owner}.__dict__.get('extra', 3)",
    "y = y + vars({owner}).get('extra', 3)",
    "y = y * len(vars({owner}))",
    "for name, value in vars(self.options).items():\n    y = y + len(name)",
    "y = y * (2 if 'extra_parameter' in self._parameters else 3)",
    "y = y + sum(len(name) for name in self._buffers)",
    "y = self.inner.other(y)",
    "y = options.scaled(y)",
    "y = self.options.scaled(y)",
    "y = self.inner(y)",
    "for block in self.blocks:\n    y = block(y)",
)
"""Reads of names, and calls of methods, which an object may have attributes in place of."""
WRITES = (
    "{count} = ({count} + 1) % 4",
    "{count} = {number}",
    "{tensor} = {values}",
    "{kind} = {text}",
    "{flag} = not {flag}",
    "{list}.append({number})",
    "{list}[-1] = {number}",
    "{table}['c'] = {number}",
    "{table}.pop('c', None)",
    "{owner}.extra = {number}",
    "if hasattr({owner}, 'extra'):\n    del {owner}.extra",
)
IN_FORWARD = (
    "self.last = y.detach()",
    "self.options.last = (y.detach(), COUNT)",
    "{tensor} = y.detach() * 0.5",
    "{tensor} = {tensor} * 0.5 + 1",
    "y = y * 2 if {count} > 2 else y",
)
BETWEEN = (
    "self.inner = {module}",
    "self.blocks.append({module})",
    "self.blocks[0] = {module}",
    "del self.blocks[0]",
    "self.act = {function}",
    "helper = {function}",
    "self.weight = nn.Parameter({values})",
    "self.weight.requires_grad_(not self.weight.requires_grad)",
    "self.weight.data = {values}",
    "self.load_state_dict({{k: v + 1 for k, v in self.state_dict().items()}}, assign=True)",
    "self.{mode}()",
    "self.options = Options()",
    "self.numbers, self.table = options.numbers, options.table",
    "Options.count = {number}",
    "handle = self.inner.register_forward_hook(lambda module, inputs, y: y * {number})",
    "handle and handle.remove()",
    "self.extra_parameter = nn.Parameter({values})",
)
REPLACES = (
    "{owner}.extra = {number}",
    "vars({owner}).pop('extra', None)",
    "self.options = Options()",
    "self.inner.other = (lambda y: y * {number})",
    "vars(self.inner).pop('other', None)",
    "self.inner.other = self.inner.forward",
    "{owner}.scaled = (lambda y: y - {number})",
    "vars({owner}).pop('scaled', None)",
    "self.extra_parameter = nn.Parameter({values})",
    "self._parameters.pop('extra_parameter', None)",
    "self.register_buffer('extra_buffer', {values})",
    "handle = self.inner.register_forward_hook("
    "lambda module, inputs, keywords, y: y * {number}, with_kwargs=True)",
    "handle = self.blocks[0].register_forward_pre_hook("
    "lambda module, inputs, keywords: ((inputs[0] * {number},), keywords), with_kwargs=True)",
    "handle and handle.remove()",
    "handle and handle.remove()",
)
EMPTIES = ("{list}.clear()", "{table}.clear()", "{list}.extend([{number}, 2])", "{table}['d'] = 3")


@dataclass(frozen=True, slots=True)
class Program:
    """`source` defines `Model` and `Options`; `changes` are made before each call but the first."""

    source: str
    changes: tuple[str, ...]

    def __str__(self) -> str:
        return "\n# a call\n".join([self.source, *self.changes])


def random_changing_program(seed: int, statements: int = 5, calls: int = 4) -> Program:
    """Return the program of a seed, always the same."""
    draw = random.Random(seed)
    return _program(draw, [READS, READS, READS, (*WRITES, *IN_FORWARD)], BETWEEN, statements, calls)


def random_merging_program(seed: int, statements: int = 3, calls: int = 4) -> Program:
    """Return a program that merges containers, which are empty in some of its calls."""
    return _program(random.Random(seed), [MERGES], EMPTIES, statements, calls)


def random_looking_program(seed: int, statements: int = 3, calls: int = 4) -> Program:
    """Return a program that looks for names and calls methods, of objects that change between."""
    return _program(random.Random(seed), [LOOKS], REPLACES, statements, calls)


def _program(
    draw: random.Random,
    kinds: Sequence[tuple[str, ...]],
    between: tuple[str, ...],
    statements: int,
    calls: int,
) -> Program:
    lines = [_statement(draw, draw.choice(kinds)) for _ in range(statements)]
    begin = ["global COUNT, KIND, TENSOR", "y = torch.tanh(x)"]
    body = _indented([*begin, *lines, "return y / (1 + y.abs()) + x"])
    forward = textwrap.indent("\n".join(["def forward(self, x, options):", *body]), "    ")
    changes = [
        "\n".join(
            _statement(draw, draw.choice([WRITES, between])) for _ in range(draw.randint(0, 3))
        )
        for _ in range(calls)
    ]
    return Program(f"{PRELUDE}\n{forward}\n", tuple(changes))


def _indented(lines: list[str]) -> list[str]:
    return [textwrap.indent(line, "    ") for line in lines]


def _statement(draw: random.Random, kinds: tuple[str, ...]) -> str:
    template = draw.choice(kinds).replace("{count}", draw.choice(COUNTS))
    return template.format(
        owner=draw.choice(OWNERS),
        tensor=draw.choice(TENSORS),
        flag=draw.choice(FLAGS),
        kind=draw.choice(KINDS),
        list=draw.choice(LISTS),
        table=draw.choice(TABLES),
        number=draw.randint(1, 4),
        values=f"torch.full((3,), {draw.randint(1, 4)} / 4)",
        text=draw.choice(("'a'", "'b'", "None")),
        function=draw.choice(FUNCTIONS),
        module=draw.choice(MODULES),
        mode=draw.choice(("eval", "train")),
    )


def faults(program: Program, compile: Callable[[nn.Module], Any]) -> list[str]:
    """Return how calls of the compiled program differ from those of eager torch."""
    ours, theirs = _run(program, compile), _run(program, lambda model: model)
    for k, (found, expected) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(expected, Exception):
            return []
        if isinstance(found, Exception):
            return [f"call {k}: {type(found).__name__}: {found}"]
        try:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        except (AssertionError, TypeError) as error:
            return [f"call {k}: {error}"]
    return []


def _run(program: Program, compile: Callable[[nn.Module], Any]) -> Iterator[Any]:
    """Yield what each call returns, computes and leaves; an exception is the last."""
    scope = vars(types.ModuleType("changing"))
    scope.update(torch=torch, nn=nn, handle=None)
    exec(program.source, scope)
    model, options = scope["self"], scope["options"] = scope["Model"](), scope["Options"]()
    call = compile(model)
    for k, change in enumerate(("", *program.changes)):
        torch.manual_seed(k)
        try:
            exec(change, scope)
            yield [*_called(call, model, options, k), _held(scope)]
        except Exception as error:
            yield error
            return


def _called(call: Any, model: nn.Module, options: Any, k: int) -> list[Any]:
    x = torch.tensor([0.25, -0.5, 1.0]).add(k / 4).requires_grad_()
    y = call(x, options)
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(y.sum(), [x, *trained], allow_unused=True)
    return [y, *(0 if g is None else g for g in gradients)]


def _held(scope: dict[str, Any]) -> dict[str, Any]:
    """Return all numbers and tensors that a scope holds, with names."""
    found: dict[str, Any] = {}
    for name in ("COUNT", "KIND", "TENSOR", "NUMBERS", "TABLE", "self", "options"):
        _collect(name, scope[name], found)
    return found


def _collect(name: str, value: Any, found: dict[str, Any]) -> None:
    if isinstance(value, Tensor):
        found[name] = value.detach()
    elif isinstance(value, bool | int | float | str) or value is None:
        found[name] = float(value) if isinstance(value, bool | int | float) else len(value or "")
    elif isinstance(value, dict):
        for key, item in value.items():
            _collect(f"{name}.{key}", item, found)
    elif isinstance(value, list | tuple):
        _collect(name, dict(enumerate(value)), found)
    elif hasattr(value, "__dict__") and not callable(value):
        _collect(name, vars(value), found)
    elif isinstance(value, nn.Module):
        own = {k: v for k, v in vars(value).items() if "hooks" not in k}
        _collect(name, own, found)
