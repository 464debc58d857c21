"""Random well-formed fusions over the whole op table, with inputs: what property tests run on.

`random_case(seed)` is a function of its seed. A program grows from a pool of tensors: an operation
is drawn first, then operands; where it has a domain (log, division) other operations bring them
there. The oracle runs along, so that the pool holds only values that are worth building on, and
every case comes with its answer and the bound of the answer's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from tests.support import oracle
from tests.support.generator_calls import call_step
from tests.support.generator_draws import draw_step
from tests.support.generator_indexing import gather_step
from tests.support.generator_pointwise import pointwise_step, scalar_step
from tests.support.generator_program import SIZES, Program
from tests.support.generator_reductions import group_step, reduction_step
from tests.support.generator_scans import scan_step
from tests.support.generator_views import factory_step, view_step
from tests.support.generator_windows import windows_step
from tests.support.inputs import copy_of
from thunder_fuser.ir.dtypes import DataType, Number
from thunder_fuser.ir.fusion import Fusion, TensorView
from thunder_fuser.ir.tables.pointwise import TABLE

DTYPES = tuple(d for d in DataType if d is not DataType.Null)


@dataclass(frozen=True, slots=True)
class Case:
    """A fusion, inputs for it, and the oracle that has run on them."""

    seed: int
    fusion: Fusion
    inputs: tuple[torch.Tensor | Number, ...]
    oracle: oracle.Oracle

    def fresh_inputs(self, device: torch.device | None = None) -> list[torch.Tensor | Number]:
        """The inputs in memory of their own, with the same layouts: to be updated in place."""
        return [copy_of(x, device) if isinstance(x, torch.Tensor) else x for x in self.inputs]

    def updated(self, inputs: Sequence[torch.Tensor | Number]) -> list[torch.Tensor]:
        """Those of the inputs that the fusion writes into, in the order of its updates."""
        targets = [inputs[self.fusion.inputs.index(u.target)] for u in self.fusion.updates]
        return [t for t in targets if isinstance(t, torch.Tensor)]

    def check(self, outputs: Sequence[torch.Tensor], updates: Sequence[torch.Tensor] = ()) -> None:
        """AssertionError, with the seed and the program, where a result is outside its bound."""
        try:
            oracle.check(self.oracle, self.fusion, outputs, updates)
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}\n{self.fusion}") from None


def random_case(
    seed: int,
    *,
    steps: int = 10,
    max_numel: int = 20_000,
    dtypes: Sequence[DataType] = DTYPES,
    operations: Sequence[str] = tuple(TABLE),
    updates: bool = True,
    reductions: bool = False,
    groups: bool = False,
    gathers: bool = False,
    draws: bool = False,
    scans: bool = False,
    calls: bool = False,
    counters: bool = False,
    windows: bool = False,
    sizes: tuple[int, ...] = SIZES,
    special: bool = False,
) -> Case:
    """A fusion of about `steps` drawn operations on CPU tensors of up to `max_numel` elements.

    Most are much smaller; views make a few results up to four times as large.
    `dtypes` and `operations` are what is drawn from; others appear where those need them. With
    `reductions` a third of the steps folds dimensions, with `groups` rows and groups of them, with
    `gathers` as many read at indices that data decide, with `draws` as many draw random numbers,
    with `scans` as many scan one, with `calls` as many call torch.
    `counters`: with numbers in CPU tensors, which are updated. `windows`: with windows of inputs,
    which are updated. `special`: with extreme numbers.
    """
    p = Program(seed, max_numel, tuple(dtypes), tuple(operations), sizes=sizes, special=special)
    shape = [*p.shape()]
    while groups and len(shape) < 3:
        shape.append(p.rng.choice(sizes))
    for _ in range(p.rng.randint(1, 3)):
        p.tensor([1 if p.chance(0.15) else size for size in shape])
    if p.chance(0.5):
        p.number()
    counted = [p.counter() for _ in range(p.rng.randint(1, 2))] if counters else []
    weights = _WEIGHTS | ({reduction_step: 60} if reductions else {})
    weights |= {group_step: 60} if groups else {}
    weights |= {gather_step: 60} if gathers else {}
    weights |= {draw_step: 60} if draws else {}
    weights |= {scan_step: 60} if scans else {}
    weights |= {call_step: 60} if calls else {}
    for _ in range(steps):
        p.rng.choices(list(weights), list(weights.values()))[0](p)
    if groups:
        group_step(p)
    _results(p, updates)
    if windows:
        windows_step(p)
    for counter in counted:
        _count(p, counter)
    return Case(seed, p.builder.build(), tuple(p.inputs), p.oracle)


_WEIGHTS = {pointwise_step: 58, view_step: 35, factory_step: 5, scalar_step: 2}


def _results(p: Program, updates: bool) -> None:
    used = p.builder.build().uses()
    made = [v for v in p.pool if v not in p.input_views] or p.pool
    ends = [v for v in made if v not in used]
    chosen = p.rng.sample(ends, min(len(ends), p.rng.randint(1, 5))) or made[-1:]
    if p.chance(0.15):
        chosen.append(p.rng.choice(p.pool))
    if p.chance(0.08):
        chosen.append(chosen[0])
    for view in chosen:
        p.builder.output(view)
    if updates and p.chance(0.3):
        _update(p, made, chosen)


def _count(p: Program, counter: TensorView) -> None:
    """A counter is updated: by a number that the program has made, or by itself."""
    fitting = [
        v
        for v in p.pool
        if v.dtype is counter.dtype and not v.rank and v not in p.builder.build().inputs
    ]
    if fitting and p.chance(0.7):
        value = p.recent(fitting)
    else:
        value = p.builder.pointwise("add", counter, p.constant(counter.dtype))
        value = p.pooled(p.builder.cast(value, counter.dtype))
    p.builder.output(value, counter)


def _update(p: Program, made: Sequence[TensorView], outputs: Sequence[TensorView]) -> None:
    for target in p.input_views:
        # Repeated elements cannot be written; a returned input shows which of its values?
        if target in outputs or any(d.expanded is not None for d in target.domain.logical):
            continue
        fitting = [
            v for v in made if v.dtype is target.dtype and v.sizes == target.sizes and v != target
        ]
        if fitting:
            p.builder.output(p.rng.choice(fitting), target)
            return
