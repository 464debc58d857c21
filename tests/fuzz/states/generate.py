"""Random programs with state."""

from __future__ import annotations

import random
from string import Formatter

from tests.fuzz.states.program import Assigned, Call, Place, StatefulProgram, Statement
from tests.fuzz.states.rows import BLOCKS, KINDS, OF_TENSORS

_CALLS = 4
_OWNERS = ("object", "object", "namespace", "module", "dictionary")
_HOMES = ("global", "nonlocal", "owner", "owner", "class", "default", "item", "inner")
_XS = ("torch.tensor([1.0, 2.0, 3.0])", "torch.tensor([2.0, -1.0, 0.5])", "torch.ones(3)")
_OTHER_XS = ("torch.tensor([4.0])", "torch.tensor([[1.0, 2.0, 3.0]])")


def stateful_program(seed: int) -> StatefulProgram:
    """The program of a seed: what it keeps, what it does, and what happens between its calls."""
    return _Maker(seed).made()


class _Maker:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"state {seed}")
        self._seed = seed
        self._owner = self._rng.choice(_OWNERS)
        # Few kinds, so that what one place has is put into another one.
        self._kinds = self._rng.sample(list(KINDS), self._rng.randint(1, 3))
        self._places = tuple(self._place(k) for k in range(self._rng.randint(1, 4)))

    def made(self) -> StatefulProgram:
        # What a parameter keeps is not known to the other function.
        self._is_inside = False
        step = self._block(self._rng.randint(1, 3), depth=1)
        self._is_inside = True
        body = self._block(self._rng.randint(2, 6), depth=0)
        shown = self._rng.sample(self._places, self._rng.randint(0, min(2, len(self._places))))
        results = tuple(self._rng.choice(KINDS[p.kind].results).format(p=p.inside) for p in shown)
        calls = tuple(self._call(k) for k in range(_CALLS))
        takes_gradients = self._rng.random() < 0.3
        return StatefulProgram(
            *(self._seed, self._owner, self._places, step, body, results, calls),
            takes_gradients=takes_gradients,
        )

    def _place(self, k: int) -> Place:
        kind = self._rng.choice(self._kinds)
        value = self._rng.choice(KINDS[kind].values)
        where = self._rng.choice(_HOMES)
        match where:
            case "global" | "nonlocal":
                return Place(f"kept{k}", f"kept{k}", kind, value, where)
            case "default" if KINDS[kind].updates:
                return Place(f"kept{k}", f"program.kept{k}", kind, value, "", Assigned.BY_NOBODY)
            case "class":
                name = f"Owner.kept{k}"
                return Place(name, name, kind, value)
            case "item":
                name = f"held[{k}]"
                return Place(name, name, kind, value)
            case "inner":
                name = f"inner.inner.kept{k}"
                return Place(name, name, kind, value)
        name = f"owner['kept{k}']" if self._owner == "dictionary" else f"owner.kept{k}"
        return Place(name, name, kind, value)

    # ---- lines

    def _block(self, count: int, depth: int) -> tuple[Statement, ...]:
        return tuple(self._statement(depth) for _ in range(count))

    def _statement(self, depth: int) -> Statement:
        if self._is_inside and self._rng.random() < 0.12:
            text = "x = step(x)"
        elif self._rng.random() < 0.12 or not self._known(Assigned.BY_ALL):
            text = self._rng.choice(OF_TENSORS if depth > 1 else (*OF_TENSORS, *BLOCKS))
        else:
            text = self._of_place(Assigned.BY_ALL, reads=0.5, blocks=depth < 2)
        block = self._block(self._rng.randint(1, 2), depth + 1) if text.endswith(":") else ()
        return Statement(text, block)

    def _of_place(self, who: Assigned, reads: float, *, blocks: bool = False) -> str:
        place = self._rng.choice(self._known(who))
        kind = KINDS[place.kind]
        changes = (*kind.updates, *(kind.writes if _can_assign(who, place) else ()))
        rows = kind.reads if self._rng.random() < reads or not changes else changes
        rows = [row for row in rows if blocks or not row.endswith(":")]
        row = self._rng.choice(rows)
        fields = {field for _, field, _, _ in Formatter().parse(row) if field}
        filled = {field: self._filled(field, place, who) for field in sorted(fields)}
        return row.format(**filled)

    def _filled(self, field: str, place: Place, who: Assigned) -> str:
        def name(of: Place) -> str:
            return of.inside if who is Assigned.BY_ALL else of.outside

        if field == "p":
            return name(place)
        kind = field.removesuffix("_place")
        others = [p for p in self._known(who) if p.kind == kind]
        if field.endswith("_place"):
            others = [p for p in others if _can_assign(who, p)] or [place]
            return name(self._rng.choice(others))
        if others and self._rng.random() < 0.5:
            return name(self._rng.choice(others))
        return self._rng.choice(KINDS[kind].values)

    def _known(self, who: Assigned) -> list[Place]:
        is_inside = self._is_inside or who is Assigned.BY_CALLER
        return [p for p in self._places if is_inside or p.assigned_by is not Assigned.BY_NOBODY]

    # ---- the caller

    def _call(self, k: int) -> Call:
        x = self._rng.choice(_OTHER_XS if self._rng.random() < 0.1 else _XS)
        count = self._rng.choice((0, 0, 1, 1, 2)) if k else 0
        changes = (self._of_place(Assigned.BY_CALLER, reads=0.0) for _ in range(count))
        return Call(x, tuple(map(Statement, changes)))


def _can_assign(who: Assigned, place: Place) -> bool:
    return place.assigned_by.value >= who.value
