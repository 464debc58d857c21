"""Programs of the tables at random: a program is a function of its seed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from tests.fuzz.functional import FUNCTIONAL
from tests.fuzz.images import IMAGE_PLACES
from tests.fuzz.library import LIBRARY, LIBRARY_PLACES, LIBRARY_THEMES
from tests.fuzz.maker import Maker
from tests.fuzz.program import Program
from tests.fuzz.rows import CALLS, POINTWISE, REDUCTIONS, UPDATES, VIEWS
from tests.fuzz.tables import PLACES, Row

_PLACE = re.compile(r"\{(\w+)\}")
_WITH_CALLS = (CALLS, POINTWISE, REDUCTIONS, VIEWS)
_GROUPS = (POINTWISE, REDUCTIONS, VIEWS, UPDATES, FUNCTIONAL)
_PLACES = {**PLACES, **IMAGE_PLACES, **LIBRARY_PLACES}
_MODULATED = "{x}, {x}.shape[-1:], {last}, {last}) * (1 + {modulation}) + {modulation}"
_NORMS = (
    *(row for row in REDUCTIONS if re.search("norm|softmax|loss", row.text)),
    Row(f"F.layer_norm({_MODULATED}", "f"),
)
_OF_ROWS = (2, 3, 4, 6, 8, 16, 17, 32, 33, 36, 64, 96, 100, 128, 250, 256, 512, 1000)
# How often each group is drawn from: mixed; arithmetic; views of views; updates in place; folds;
# torch.nn.functional.
_THEMES = (
    *((4, 2, 3, 1, 1), (6, 0.5, 1, 0.3, 0.3), (1, 0.3, 5, 0.5, 0.3)),
    *((1, 0.3, 3, 4, 0.3), (2, 4, 2, 0.2, 0.5), (2, 0.5, 2, 0.3, 5)),
)


def program_with_calls(seed: int) -> Program:
    """Kernels between torch calls, with gradients more often than not and any budget."""
    p = Maker(seed, gradients=seed % 5 < 3, ranks=(2, 2, 3, 3, 4))
    made = _grown(p, seed, _WITH_CALLS, p.rng.choice(((4, 4, 2, 2), (4, 6, 1, 1), (6, 3, 1, 2))))
    if not made.takes_gradients:
        return made
    return replace(made, changed=(), budget=p.rng.choice((None, 0, 0.1, 0.3, 0.5, 0.7, 0.9)))


def random_program(seed: int, only: Sequence[Row] = ()) -> Program:
    """The program of a seed; `only`: of these rows."""
    p = Maker(seed, gradients=seed % 10 < 3)
    if only:
        return _grown(p, seed, [only], (1,))
    return _grown(p, seed, _GROUPS, p.rng.choice(_THEMES))


def program_of_functions(seed: int) -> Program:
    """Calls of torch.nn.functional and little beside them; with gradients as a rule."""
    p = Maker(seed, gradients=seed % 5 < 4, ranks=(2, 2, 3, 3, 4, 4, 5))
    return _grown(p, seed, _GROUPS, _THEMES[-1])


def program_of_library(seed: int) -> Program:
    """Calls of the rest of torch, and the usual ones beside them."""
    p = Maker(seed, gradients=seed % 10 < 4)
    return _grown(p, seed, (*LIBRARY, *_GROUPS[:-1]), p.rng.choice(LIBRARY_THEMES))


def program_of_norms(seed: int) -> Program:
    """A norm, a softmax or a loss of some rows, and little beside it; with gradients as a rule."""
    p = Maker(seed, gradients=seed % 5 < 4, ranks=(2, 2, 3, 4), sizes=_OF_ROWS)
    return _grown(p, seed, (_NORMS, POINTWISE, REDUCTIONS, VIEWS), (6, 3, 1, 0.5))


def _grown(p: Maker, seed: int, groups: Sequence[Sequence[Row]], theme: Sequence[float]) -> Program:
    count, wanted = 0, p.rng.choice((1, 2, 3, 3, 4, 5, 6, 8, 10, 12))
    for _ in range(4 * wanted):
        group = p.rng.choices(groups, theme)[0]
        count += grow(p, p.rng.choices(group, [row.weight for row in group])[0])
        if count == wanted or p.ended:
            break
    return _finished(p, seed)


def grow(p: Maker, row: Row) -> bool:
    """One more line, of this row; False if it does not fit what is there."""
    name = p.of_kind(row.kinds)
    if name is None:
        return False
    x, known = p.tensor(name), len(p.arguments)

    def filled(place: re.Match[str]) -> str:
        return name if place[1] == "x" else _PLACES[place[1]](p, x)

    text = _PLACE.sub(filled, row.text)
    added = p.add(text.removeprefix("! "), row.text, not text.startswith("! "))
    if not added:
        # Arguments that were made for it.
        for argument in p.arguments[known:]:
            p.pool.remove(argument.name)
        del p.arguments[known:]
    return added


def _finished(p: Maker, seed: int) -> Program:
    """The last tensor is returned, what was updated often, and others now and then."""
    lines = tuple(p.lines)
    last = [line.makes for line in lines if line.makes in p.pool or p.ended][-1:]
    results = [name for name in last if name]
    updated = [line.reads[0] for line in lines if not line.makes and line.reads]
    for name in p.pool:
        if name not in results and p.chance(0.4 if name in updated else 0.15):
            results.append(name)
    results = results or p.pool[-1:]
    p.rng.shuffle(results)
    program = without_dead_lines(Program(seed, tuple(p.arguments), lines, tuple(results)))
    if not program.takes_gradients:
        return program
    if p.chance(0.3):
        program = _changed(p, program)
    return replace(program, budget=p.rng.choice((None, None, 0, 0.5)))


def _changed(p: Maker, program: Program) -> Program:
    """With tensors that the user changes between forward and backward.

    No views: autograd writes their histories anew when what they look at has changed.
    """
    made = [name for name in program.results if name in p.space]
    owned = [name for name in made if p.tensor(name)._base is None]
    names = [*(a.name for a in program.arguments), *owned]
    count = p.rng.randint(1, min(2, len(names)))
    return replace(program, changed=tuple(p.rng.sample(names, count)))


def without_dead_lines(program: Program) -> Program:
    """Lines that only make what nobody reads go; updates stay."""
    read = set(program.results)
    kept = []
    for line in reversed(program.lines):
        if line.makes is None or line.makes in read or "_(" in line.text:
            read.update(line.reads)
            kept.append(line)
    made = program.trimmed(kept[::-1], program.results)
    return made if made.arguments else program
