"""Pointwise schedules carried out by numpy, with no code generated: what each lane loads and
stores.

The scalar graph is evaluated at all points of the loop at once. Loads go through the windows and
gathers that were planned for them, and all that `lower/vectors/vectorize.py` promises of these is
asserted on the way: that every lane which needs an element gets that element, that nothing else is
touched, that wide accesses are aligned, and that conditions are the same for all lanes of a vector.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from thunder_fuser.device import DeviceInfo
from thunder_fuser.ir.domain import Layout
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import PointwiseOp, Scalar, TensorView, Val
from thunder_fuser.ir.integer.symint import Form, Variable
from thunder_fuser.ir.reference import Evaluator
from thunder_fuser.lower.body import Memory
from thunder_fuser.lower.scalar_graph import (
    Argument,
    BoundsChecked,
    Compute,
    IndexValue,
    IndirectIndex,
    Literal,
    Load,
    Select,
    Value,
)
from thunder_fuser.lower.vectors.lane_windows import ACCESS_BYTES, VectorAccess
from thunder_fuser.lower.vectors.lanes import wave_of
from thunder_fuser.lower.vectors.vectorize import Disjunction, RegisterArray
from thunder_fuser.segment.plan import Segment, SegmentedFusion
from thunder_fuser.templates.pointwise.schedule import (
    PointwisePart,
    PointwiseSchedule,
    schedule_pointwise,
)

_TORCH = Evaluator(False, torch.device("cpu"))
UNTOUCHED = -1


def schedule(segment: Segment, device: DeviceInfo) -> PointwiseSchedule:
    """How a segment of a plan runs on a device."""
    return schedule_pointwise(segment.body, device)


def simulate(
    plan: SegmentedFusion, inputs: Sequence[object], device: DeviceInfo
) -> dict[TensorView, torch.Tensor]:
    """Every tensor that the plan leaves in memory, in its logical sizes."""
    run = _Run(plan, dict(zip(plan.fusion.inputs, inputs, strict=True)))
    for segment in plan.segments:
        if segment.kind == "alias":
            for tensor, view in zip(segment.outputs, segment.views, strict=True):
                base = run.memory[plan.placement.behind_cuts(view.base)]
                run.memory[tensor] = base[view.offset :]
            continue
        for tensor in segment.outputs:
            run.allocate(tensor)
        run.values = segment.values
        for part in schedule(segment, device).parts if segment.kernels else ():
            run.part(part)
    for segment in plan.segments:
        for tensor in segment.outputs:
            run.check_written(tensor)
    return {t: run.logical(t) for t in plan.fusion.results}


class _Run:
    """The memory of a call: carriers (see ir/reference.py) in arrays from the data pointer on."""

    def __init__(self, plan: SegmentedFusion, inputs: Mapping[Val, object]) -> None:
        self.plan = plan
        self.values: Sequence[Val] = ()  # of the plan, behind the numbers of the segment that runs
        self.scalars = {v.id: x for v, x in inputs.items() if not _in_memory(v)}
        self.memory: dict[TensorView, torch.Tensor] = {}
        self.written: dict[TensorView, np.ndarray] = {}
        for value, x in inputs.items():
            if _in_memory(value):
                assert isinstance(value, TensorView)
                assert isinstance(x, torch.Tensor)
                layout = plan.placement.layouts[value]
                flat = x.as_strided((_span(x.shape, layout.strides),), (1,))
                self.memory[value] = _TORCH.to_carrier(flat)

    def allocate(self, tensor: TensorView) -> None:
        """Memory for a tensor that is written now: of its own, or a slice of another's."""
        if tensor in self.memory:
            return
        if tensor in self.plan.placement.slices:
            view = self.plan.placement.slices[tensor]
            self.allocate(view.base)
            self.memory[tensor] = self.memory[view.base][view.offset :]
            self.written[tensor] = self.written[view.base][view.offset :]
            return
        span = _span(tensor.sizes, self.plan.placement.layouts[tensor].strides)
        self.memory[tensor] = _TORCH.to_carrier(torch.zeros(span, dtype=tensor.dtype.torch))
        self.written[tensor] = np.zeros(span, dtype=np.int64)

    def check_written(self, tensor: TensorView) -> None:
        """Every element once, and nothing between the elements."""
        if tensor not in self.written:
            return
        times = torch.from_numpy(self.written[tensor])
        strides = self.plan.placement.layouts[tensor].strides
        assert torch.equal(times.as_strided(tensor.sizes, strides), torch.ones(tensor.sizes).long())
        if tensor not in self.plan.placement.slices:
            assert int(times.sum()) == tensor.numel

    def logical(self, tensor: TensorView) -> torch.Tensor:
        owner = self.plan.placement.behind_cuts(tensor)
        sizes, strides = tensor.sizes, self.plan.placement.layouts[tensor].strides
        assert not (tensor in self.plan.fusion.inputs and tensor.domain.transforms)
        return _TORCH.from_carrier(self.memory[owner].as_strided(sizes, strides), tensor.dtype)

    def tensor(self, own: TensorView) -> TensorView:
        """The tensor of the plan that one of the segment stands for."""
        found = self.values[own.id]
        assert isinstance(found, TensorView)
        return found

    # ---- one part

    def part(self, part: PointwisePart) -> None:
        vectors = np.arange(part.vectors)
        if part.in_rows is not None and part.rows is not None:
            inside = _at(part.rows.inside, {"u": vectors}) >= 0
            self.vectors(part.in_rows, vectors[inside])
            vectors = vectors[~inside]
        self.vectors(part, vectors)

    def vectors(self, part: PointwisePart, numbers: np.ndarray) -> None:
        """Some vectors of a part, as threads compute them that do as it says."""
        u, v = np.meshgrid(numbers, np.arange(part.lanes.vector), indexing="ij")
        point = {"i": _at(part.lanes(part.lanes.index), {"u": u, "v": v})}
        values: dict[Value, torch.Tensor] = {}
        waves = wave_of(part.graph)
        for wave in sorted(set(waves.values())):
            nodes = [node for node in part.graph if waves[node] == wave]
            for node in nodes:
                if isinstance(node, IndirectIndex):
                    values[node] = self._position(node, values, part, point)
                    point[node.name] = values[node].numpy()
            for access in part.accesses:
                if waves[access.loads[0]] == wave:
                    values.update(self._fetched(access, part, numbers, point))
            for node in nodes:
                if node not in values:
                    values[node] = self._value(node, values, point)
        for store in part.stores:
            address = _at(store.address, point)
            itemsize = store.tensor.dtype.itemsize
            tensor = self.tensor(store.tensor)
            if store.windows:
                # It may be a slice of another's memory; every element is checked below.
                memory = Memory(self.plan.placement.layouts[tensor].alignment, 1 << 62)
                planned = np.full_like(address, UNTOUCHED)
                for window in store.windows:
                    assert set(window.picks) == set(range(window.width)), "a store with gaps"
                    everything = np.ones(len(numbers), bool)
                    _read(window, everything, planned, itemsize, memory, {"u": numbers})
                assert (planned == address).all(), f"{store.tensor} is stored elsewhere"
            owner = self.plan.placement.behind_cuts(tensor)
            np.add.at(self.written[owner], address, 1)
            stored = _TORCH.from_carrier(values[store.value], store.tensor.dtype)
            self.memory[owner][torch.from_numpy(address)] = _TORCH.to_carrier(stored)

    def _position(
        self,
        node: IndirectIndex,
        values: Mapping[Value, torch.Tensor],
        part: PointwisePart,
        point: Mapping[str, np.ndarray],
    ) -> torch.Tensor:
        """An index, which exists wherever the graph says that it is needed; the same for all lanes
        unless it is known to differ.
        """
        index = values[node.value].long().expand(point["i"].shape)
        needed = torch.from_numpy(_any(part.graph.checks[node], point))
        exists = (index >= 0) & (index < node.extent)
        assert bool((exists | ~needed).all()), f"{node.error} is checked where it is not needed"
        found = torch.where(exists, index, 0)
        if not part.lanes.diverges([node.form]):
            assert bool((found == found[:, :1]).all()), f"{node.name} differs between lanes"
        return found

    def _fetched(
        self,
        access: RegisterArray,
        part: PointwisePart,
        numbers: np.ndarray,
        point: Mapping[str, np.ndarray],
    ) -> dict[Value, torch.Tensor]:
        tensor = self.tensor(access.loads[0].tensor)
        owner = self.plan.placement.behind_cuts(tensor)
        memory = self.memory[owner]
        address = planned_addresses(
            access, part, self.plan.placement.layouts[tensor], numbers, point
        )
        found: dict[Value, torch.Tensor] = {}
        needed_at_all = np.zeros(address.shape, bool)
        for load in access.loads:
            needed = needed_at(load, part, point)
            wanted = np.where(needed, _at(load.address, point), UNTOUCHED)
            assert (address[needed] == wanted[needed]).all(), f"{load} gets another element"
            assert (wanted[needed] >= 0).all(), f"{load} before the start of memory"
            assert (wanted < len(memory)).all(), f"{load} beyond the end of memory"
            assert not (needed_at_all & needed).any(), "two loads of one access happen together"
            needed_at_all |= needed
            numbers = memory[torch.from_numpy(np.where(needed, wanted, 0))]
            # What is not needed must not matter.
            garbage = torch.full_like(numbers, True if numbers.dtype == torch.bool else 77)
            found[load] = torch.where(torch.from_numpy(needed), numbers, garbage)
        asked = (address == UNTOUCHED) | needed_at_all | bool(access.edges)
        assert asked.all(), f"{tensor} is read where nobody asks"
        return found

    def _value(
        self,
        node: Value,
        values: Mapping[Value, torch.Tensor],
        point: Mapping[str, np.ndarray],
    ) -> torch.Tensor:
        match node:
            case Literal():
                return _TORCH.constant(node.value, node.dtype)
            case Argument():
                x = self.scalars[self.values[node.source.id].id]
                number = x.item() if isinstance(x, torch.Tensor) else x
                return _TORCH.constant(number, node.dtype)  # type: ignore[arg-type]
            case IndexValue():
                index = torch.from_numpy(_at(node.form, point))
                return _TORCH.convert(index, DataType.Int, node.dtype)
            case BoundsChecked():
                return values[node.value]
            case Select():
                chosen = torch.from_numpy(_all(node.conditions, point))
                return torch.where(chosen, values[node.inside], values[node.outside])
            case Compute():
                expr = PointwiseOp(
                    node.op,
                    tuple(Scalar(k, dtype) for k, dtype in enumerate(node.operand_dtypes)),
                    Scalar(-1, node.dtype),
                )
                operands = [
                    _TORCH.convert(values[x], x.dtype, dtype)
                    for x, dtype in zip(node.operands, node.operand_dtypes, strict=True)
                ]
                return _TORCH.pointwise(expr, operands)
            case _:
                raise AssertionError(f"{node} was not loaded")


def needed_at(load: Load, part: PointwisePart, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """Where the scalar graph asks for a load, by the conditions that it was pulled under."""
    contexts = part.graph.contexts[load]
    return np.logical_or.reduce([_all(conjunction, point) for conjunction in contexts])


def planned_addresses(
    access: RegisterArray,
    part: PointwisePart,
    layout: Layout,
    u: np.ndarray,
    places: Mapping[str, np.ndarray],
) -> np.ndarray:
    """The element that each lane of each vector gets, UNTOUCHED where nothing is read.

    u       the numbers of the vectors
    places  positions that its forms mention, by name, for each vector and lane
    """
    lanes = part.lanes
    vectors = {name: place[:, 0] for name, place in places.items()} | {"u": u}
    address = np.full((len(u), lanes.vector), UNTOUCHED, dtype=np.int64)
    if access.gather:
        grid = np.meshgrid(u, np.arange(lanes.vector), indexing="ij")
        both = {**places, "u": grid[0], "v": grid[1]}
        for alternative in access.gather:
            here = _any(alternative.conditions, both)
            assert (address[here] == UNTOUCHED).all(), "two alternatives hold at once"
            address[here] = _at(alternative.address, both)[here]
        return address
    itemsize = access.loads[0].dtype.itemsize
    taken = np.zeros(len(u), bool)
    for variant in access.variants or access.edges:
        for condition in (c for conjunction in variant.conditions for c in conjunction):
            assert not condition.depends_on(lanes.v), f"{condition} differs between lanes"
        here = _any(variant.conditions, vectors)
        assert access.edges or not (taken & here).any(), "two variants hold at once"
        taken |= here
        for window in variant.windows:
            assert not lanes.diverges([window.address]), "a window at several places"
            _read(
                window, here, address, itemsize, Memory.of(access.loads[0].tensor, layout), vectors
            )
    if access.is_uniform:
        assert (address == address[:, :1]).all()
    return address


def _read(
    window: VectorAccess,
    here: np.ndarray,
    address: np.ndarray,
    itemsize: int,
    memory: Memory,
    vectors: Mapping[str, np.ndarray],
) -> None:
    """Enters a window's elements for the vectors in `here`; each has a lane, or can be read."""
    start = _at(window.address, vectors)
    assert (start[here] >= 0).all(), "a window before the tensor"
    assert (start[here] + window.width <= memory.elements).all(), "a window behind the tensor"
    alignment = memory.alignment
    assert len(set(window.lanes)) == len(window.lanes)
    if window.width > 1 and window.is_aligned:
        step = min(window.width * itemsize, ACCESS_BYTES)
        assert alignment % step == 0, f"{step} bytes at once, memory is aligned to {alignment}"
        assert (start[here] * itemsize % step == 0).all(), "a misaligned window"
    for lane, pick in zip(window.lanes, window.picks, strict=True):
        assert (address[here, lane] == UNTOUCHED).all(), "a lane in two windows"
        address[here, lane] = start[here] + pick


def _at(form: Form, point: Mapping[str, np.ndarray]) -> np.ndarray:
    """The values of a form at many points."""
    total = np.full(next(iter(point.values())).shape, form.const, dtype=np.int64)
    for digit, coef in form.terms:
        base = digit.base
        assert isinstance(base, (Form, Variable)), "static sizes need no other digits"
        value = point[base.name] if isinstance(base, Variable) else _at(base, point)
        value = value // digit.s
        total += coef * (value if digit.e is None else value % digit.e)
    return total


def _all(conditions: Sequence[Form], point: Mapping[str, np.ndarray]) -> np.ndarray:
    shape = next(iter(point.values())).shape
    return np.logical_and.reduce([np.ones(shape, bool), *(_at(c, point) >= 0 for c in conditions)])


def _any(conditions: Disjunction, point: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.logical_or.reduce([_all(conjunction, point) for conjunction in conditions])


def _in_memory(value: Val) -> bool:
    return isinstance(value, TensorView) and not value.is_cpu


def _span(sizes: Sequence[int], strides: Sequence[int]) -> int:
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
