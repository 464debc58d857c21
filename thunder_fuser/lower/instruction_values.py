"""Value numbering of kernel IR: what is left when equal expressions are one, and what loops do not
change is before them.

An index is a form of what a compiler does not know: `const + coef * atom + ..`. Constants go into
instructions and addresses; what a thread computes is the rest, once for all accesses that have it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.lower.pipes import Mix, Pipe

SAMPLED_WARPS = 8
_MANY_TERMS = 3
_LONG_SUM = Mix({Pipe.ALU: 2.0})
"""Addresses of so many terms are added up in 64 bits."""
_SCATTER = 2654435761
"""Knuth's multiplicative hash: 2^32 by the golden ratio."""
Sample = tuple[int, ...]
"""A number of each thread of some warps of a grid."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of global memory by one thread.

    bytes     of the elements
    sectors   bytes of memory sectors that it moves, its share of those of a warp: of those that
              nothing beside it has touched, since the nearest cache has the others
    replays   passes through that cache beyond one for each 128 bytes: one a line that is touched
    phase     barriers of its region before it
    is_ahead  nothing waits for it before the next iteration of its loop
    is_async  it goes to shared memory, through no registers
    """

    tensor: str
    is_store: bool
    bytes: int
    sectors: float
    replays: float = 0.0
    phase: int = 0
    is_ahead: bool = False
    is_async: bool = False


@dataclass(slots=True, eq=False)
class Region:
    """Statements that are done equally often: a kernel's, a loop's, those of some warps alone.

    times      for each time that the region around it is done
    mix        instructions, once through
    unroll     iterations of the loop that a compiler writes out together
    apart      barriers among them at which the threads of a group wait, one of `groups` of a block
    exchanges  shuffles that wait for each other
    fetches    it does nothing but fetch words, which a test guards: nothing waits for them there
    finishes   it is behind a grid barrier: the device waits for the blocks that do it
    """

    parent: Region | None
    is_loop: bool
    times: float
    unroll: int = 1
    mix: Mix = field(default_factory=Mix)
    accesses: list[Access] = field(default_factory=list)
    barriers: int = 0
    apart: int = 0
    groups: int = 1
    grid_barriers: int = 0
    exchanges: int = 0
    fetches: bool = False
    finishes: bool = False

    @property
    def total(self) -> float:
        """How often a thread does it."""
        return self.times * (1.0 if self.parent is None else self.parent.total)

    @property
    def waiting(self) -> Region:
        """Where its loads are waited for: the region around what only fetches."""
        return self.parent.waiting if self.fetches and self.parent is not None else self

    @property
    def depth(self) -> int:
        return 0 if self.parent is None else 1 + self.parent.depth

    @property
    def line(self) -> list[Region]:
        """The regions that it is in, itself first."""
        return [self, *([] if self.parent is None else self.parent.line)]

    @property
    def instructions(self) -> float:
        return sum(self.mix.values())

    @property
    def bytes(self) -> int:
        return sum(a.bytes for a in self.accesses)


@dataclass(slots=True, eq=False)
class Number:
    """What instructions leave in a register.

    is_sum      it is one, which takes a product along: one instruction for both
    is_product  it is one
    is_sign     it is the operand with the other sign, which whoever uses it takes along
    sample      says what the sampled threads have, once it is asked
    known       and what that was
    constant    it is part of the instructions that use it
    """

    region: Region
    mix: Mix
    operands: tuple[Number, ...] = ()
    is_sum: bool = False
    is_product: bool = False
    is_sign: bool = False
    sample: Callable[[], Sample | None] | None = None
    known: Sample | None = None
    constant: bool = False

    def values(self) -> Sample | None:
        """In the sampled threads, where that is known."""
        if self.sample is not None:
            self.known, self.sample = self.sample(), None
        return self.known

    @property
    def is_uniform(self) -> bool:
        """Whether all threads of a warp are known to have the same, whatever it is."""
        seen, stack = {self}, [self]
        while stack:
            number = stack.pop()
            sample = number.values()
            if sample is None and not (number.operands or number.constant):
                return False
            if sample is not None and any(len(set(warp)) > 1 for warp in _warps(sample)):
                return False
            if sample is None:
                stack += [o for o in number.operands if o not in seen]
                seen.update(number.operands)
        return True


@dataclass(frozen=True, slots=True)
class Form:
    """An index: `const + sum(coef * atom)`, atoms in the order of their regions."""

    const: int
    terms: tuple[tuple[Number, int], ...] = ()

    def plus(self, other: Form) -> Form:
        coefs = dict(self.terms)
        for atom, coef in other.terms:
            coefs[atom] = coefs.get(atom, 0) + coef
        terms = sorted(((a, c) for a, c in coefs.items() if c), key=lambda t: t[0].region.depth)
        return Form(self.const + other.const, tuple(terms))

    def times(self, factor: int) -> Form:
        terms = tuple((a, c * factor) for a, c in self.terms) if factor else ()
        return Form(self.const * factor, terms)

    def values(self) -> Sample | None:
        """In the sampled threads."""
        found = [self.const] * (SAMPLED_WARPS * WARP_SIZE)
        for atom, coef in self.terms:
            sample = atom.values()
            if sample is None:
                return None
            found = [v + coef * s for v, s in zip(found, sample, strict=True)]
        return tuple(found)


class ValueNumbering:
    """The values of a kernel. `is_wide`: indices have 64 bits."""

    def __init__(self, is_wide: bool) -> None:
        self.root = Region(None, False, 1.0)
        self.here = self.root
        self.regions = [self.root]
        self._index = Mix({Pipe.FMA: 2.0 if is_wide else 1.0})
        self._known: dict[Hashable, Number] = {}
        self._numbers: list[Number] = []
        self._effects: list[Number] = []

    # ---- regions

    def enter(self, is_loop: bool, times: float) -> Region:
        """Go into a region of its own."""
        self.here = Region(self.here, is_loop, times)
        self.regions.append(self.here)
        return self.here

    def leave(self) -> None:
        assert self.here.parent is not None
        self.here = self.here.parent

    def _home(self, operands: Sequence[Number]) -> Region:
        """The outermost region where something can be computed, out of loops alone."""
        needed = {operand.region for operand in operands}
        for region in self.here.line:
            if region in needed or not region.is_loop:
                return region
        return self.root

    # ---- numbers

    def number(
        self,
        key: Hashable,
        mix: Mix,
        operands: Sequence[Number] = (),
        *,
        is_sum: bool = False,
        is_product: bool = False,
        is_sign: bool = False,
        widens: bool = False,
        sample: Callable[[], Sample | None] | None = None,
    ) -> Number:
        """What an expression leaves, once for all equal ones that are computed before.

        What widens its operand stays in its loop: registers before it would hold less.
        """
        found = self._known.get(key)
        if found is not None and found.region in self.here.line:
            return found
        region = self.here if widens else self._home(operands)
        found = Number(region, mix, tuple(operands), is_sum, is_product, is_sign, sample)
        self._numbers.append(found)
        self._known[key] = found
        return found

    def opaque(self, sample: Sample | None = None) -> Number:
        """What is there, and nobody knows."""
        return Number(self.here, Mix(), known=sample)

    def constant(self) -> Number:
        return Number(self.root, Mix(), constant=True)

    def literal(self, text: str) -> Number:
        """A constant: what is computed of equal ones is equal."""
        return self._known.setdefault(("literal", text), self.constant())

    def register(self, form: Form) -> Number | None:
        """The part of an index that is no constant, in a register; None where all of it is."""
        found: Number | None = None
        for k, (atom, coef) in enumerate(form.terms):
            terms = form.terms[: k + 1]
            if found is None and coef == 1:
                found = atom
                continue
            operands = (atom,) if found is None else (found, atom)
            found = self.number(("form", terms), self._index, operands)
        return found

    def address(self, pointer: str, form: Form) -> Number | None:
        """base + itemsize * index, in two registers."""
        base = self._known.get(("parameter", pointer))
        if not form.terms:
            return base
        # A factor that all terms have is one of the multiplication with the size.
        shared = min(abs(c) for _, c in form.terms)
        if all(c % shared == 0 for _, c in form.terms):
            form = Form(0, tuple((a, c // shared) for a, c in form.terms))
        index = self.register(form)
        assert index is not None
        operands = (index,) if base is None else (index, base)
        mix = self._index if len(form.terms) < _MANY_TERMS else self._index + _LONG_SUM
        return self.number(("address", pointer, form.terms, shared), mix, operands)

    def effect(self, mix: Mix, operands: Sequence[Number | None] = ()) -> None:
        """What is done for more than its result, here."""
        self.here.mix.update(mix)
        self._effects += [o for o in operands if o is not None]

    def use(self, operands: Sequence[Number]) -> None:
        """What is wanted afterwards."""
        self._effects += operands

    # ---- the end

    def finish(self) -> list[Region]:
        """All regions, with the instructions of what is used."""
        users = self._users()
        taken: set[Number] = set()
        for number in self._numbers:
            if number not in users:
                continue
            if self._merges(number, users[number], taken):
                taken.update(n for n in users[number] if n is not None)
            else:
                number.region.mix.update(number.mix)
        return self.regions

    def _users(self) -> dict[Number, list[Number | None]]:
        """What is used, and by what; None: by a statement."""
        found: dict[Number, list[Number | None]] = {}
        stack: list[tuple[Number, Number | None]] = [(n, None) for n in self._effects]
        while stack:
            number, user = stack.pop()
            if number.is_sign:
                stack += [(operand, user) for operand in number.operands]
            elif number not in found:
                found[number] = []
                stack += [(operand, number) for operand in number.operands]
            found.setdefault(number, []).append(user)
        return found

    def _merges(self, number: Number, users: list[Number | None], taken: Container[Number]) -> bool:
        """Whether a product is part of the sums that use it: none of them took another one."""
        return number.is_product and all(
            user is not None and user.is_sum and user not in taken for user in users
        )


def scattered_warps(extent: int) -> Sample:
    """A place below `extent` for each warp, far from those of the others."""
    places = [w * _SCATTER % max(extent, 1) for w in range(SAMPLED_WARPS)]
    return tuple(place for place in places for _ in range(WARP_SIZE))


def sectors_touched(
    sample: Sample, size: int, sector: int, active: Sample | None = None
) -> dict[int, set[int]]:
    """Numbers of the sectors that each sampled warp touches, of those where threads are active."""
    warps = list(_warps(sample))
    if active is not None and any(active):
        marks = zip(warps, _warps(active), strict=True)
        warps = [[a for a, is_on in zip(*pair, strict=True) if is_on] for pair in marks]
    return {
        k: {s for a in warp for s in range(a // sector, (a + size - 1) // sector + 1)}
        for k, warp in enumerate(warps)
        if warp
    }


def _warps(sample: Sample) -> Iterator[Sequence[int]]:
    for k in range(0, len(sample), WARP_SIZE):
        yield sample[k : k + WARP_SIZE]


def sampled_threads(blocks: int, threads: int) -> Iterator[tuple[int, int]]:
    """The block and the number of each sampled thread: warps from all over the grid, with numbers
    of blocks that differ modulo powers of two, too.
    """
    warps = max(1, threads // WARP_SIZE)
    for k in range(SAMPLED_WARPS):
        near = blocks * k // SAMPLED_WARPS
        block = min(near - near % SAMPLED_WARPS + k, blocks - 1)
        # An order of all eighths of a block that no step goes through, and another place in each:
        # a row may have any two, four or more of the warps.
        eighth = k * (k + 1) // 2 % SAMPLED_WARPS
        place = SAMPLED_WARPS * eighth + eighth // 2 * 2
        warp = warps * place // SAMPLED_WARPS**2
        for lane in range(WARP_SIZE):
            yield block, min(warp * WARP_SIZE + lane, threads - 1)
