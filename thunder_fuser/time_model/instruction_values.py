"""Value numbering of kernel IR: instructions that remain after common subexpression elimination and
hoisting of loop invariants.

An index is a linear form over values that a compiler does not know: `const + coef * atom + ..`.
Constants are immediates of instructions and addresses; a thread computes the rest, once for all
accesses that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from thunder_fuser.device import WARP_SIZE
from thunder_fuser.kernel_ir import Loop
from thunder_fuser.time_model.pipes import Mix, Pipe

SAMPLED_WARPS = 8
_MANY_TERMS = 3
_LONG_SUM = Mix({Pipe.ALU: 2.0})
"""Extra instructions for addresses of `_MANY_TERMS` terms or more, which are summed in 64 bits."""
_SCATTER = 2654435761
"""Factor of Knuth's multiplicative hash: 2^32 divided by the golden ratio."""
Sample = tuple[int, ...]
"""Values of a register in each thread of `SAMPLED_WARPS` warps of the grid."""


@dataclass(frozen=True, slots=True)
class Access:
    """A load or store of global memory by one thread.

    bytes     bytes of the elements
    sectors   bytes of memory sectors that it moves, as its share of its warp's; sectors that
              neighbouring accesses have touched are in the L1 cache and do not count
    replays   passes through the L1 cache, one per touched line, beyond one per 128 bytes
    phase     barriers of its region before it
    is_ahead  it is a prefetch: the next iteration of its loop is the first to wait for it
    is_async  it goes to shared memory, not through registers (cp.async)
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
    """Statements that run equally often: of the kernel, of a loop, or of some warps only.

    times      executions per execution of the enclosing region
    phase      barriers of the kernel, outside of loops and predicates, before it
    loop       the loop whose iteration it is
    turns      executions by each block, of what is in no predicated part; None if threads or data
               decide them
    mix        instructions of one execution
    unroll     unroll factor of the loop
    apart      those of `barriers` at which only the threads of one of `groups` of a block wait
    exchanges  dependent shuffles
    fetches    it consists of predicated loads whose results are not used in it
    finishes   it is behind a grid barrier: the device waits for the blocks that execute it
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
    phase: int = 0
    loop: Loop | None = None
    turns: Sequence[int] | None = None

    @property
    def total(self) -> float:
        """Executions by one thread."""
        return prod((region.times for region in reversed(self.line)), start=1.0)

    @property
    def waiting(self) -> Region:
        """The region that waits for its loads: the enclosing one if it `fetches` only."""
        return next((r for r in self.line if not r.fetches), self.line[-1])

    @property
    def depth(self) -> int:
        return len(self.line) - 1

    @property
    def line(self) -> list[Region]:
        """The region and those that enclose it, innermost first."""
        found = [self]
        while (parent := found[-1].parent) is not None:
            found.append(parent)
        return found

    @property
    def instructions(self) -> float:
        return sum(self.mix.values())

    @property
    def bytes(self) -> int:
        return sum(a.bytes for a in self.accesses)


@dataclass(slots=True, eq=False)
class Number:
    """Value in a register.

    is_sum      a floating-point sum, which can be fused with a product (FMA)
    is_product  a floating-point product
    is_sign     a negation, which is a modifier of the operand in the instructions that use it
    sample      computes the values in the sampled threads, on demand
    known       values in the sampled threads, if computed or given
    constant    an immediate of the instructions that use it
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
        """Return the values in the sampled threads, or None if unknown."""
        if self.sample is not None:
            self.known, self.sample = self.sample(), None
        return self.known

    @property
    def is_uniform(self) -> bool:
        """True if the value is known to be equal in all threads of a warp."""
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
        """Return the values in the sampled threads, or None if unknown."""
        found = [self.const] * (SAMPLED_WARPS * WARP_SIZE)
        for atom, coef in self.terms:
            sample = atom.values()
            if sample is None:
                return None
            found = [v + coef * s for v, s in zip(found, sample, strict=True)]
        return tuple(found)


class ValueNumbering:
    """Value table and regions of a kernel. `is_wide`: indices have 64 bits."""

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
        """Open a nested region and make it current."""
        phase, turns = self.root.barriers, self.here.turns
        self.here = Region(self.here, is_loop, times, phase=phase, turns=turns)
        self.regions.append(self.here)
        return self.here

    def leave(self) -> None:
        assert self.here.parent is not None
        self.here = self.here.parent

    def _home(self, operands: Sequence[Number]) -> Region:
        """Return the outermost region to which a value of `operands` can be hoisted, out of loops
        only.
        """
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
        """Return the value of an expression: an equal one that is available here, else a new one.

        If it `widens` its operand, it is not hoisted, since that would take more registers.
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
        """Return a value of which nothing is known, except perhaps samples."""
        return Number(self.here, Mix(), known=sample)

    def constant(self) -> Number:
        return Number(self.root, Mix(), constant=True)

    def literal(self, text: str) -> Number:
        """Return the constant of a literal; equal literals are one value."""
        return self._known.setdefault(("literal", text), self.constant())

    def register(self, form: Form) -> Number | None:
        """Return the non-constant part of an index, or None if the index is constant."""
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
        """Return base + itemsize * index, a register pair; the constant part is an immediate."""
        base = self._known.get(("parameter", pointer))
        if not form.terms:
            return base
        # A common factor of all terms is folded into the multiplication by the item size.
        shared = min(abs(c) for _, c in form.terms)
        if all(c % shared == 0 for _, c in form.terms):
            form = Form(0, tuple((a, c // shared) for a, c in form.terms))
        index = self.register(form)
        assert index is not None
        operands = (index,) if base is None else (index, base)
        mix = self._index if len(form.terms) < _MANY_TERMS else self._index + _LONG_SUM
        return self.number(("address", pointer, form.terms, shared), mix, operands)

    def effect(self, mix: Mix, operands: Sequence[Number | None] = ()) -> None:
        """Add instructions with side effects to the current region, and mark operands as used."""
        self.here.mix.update(mix)
        self._effects += [o for o in operands if o is not None]

    def use(self, operands: Sequence[Number]) -> None:
        """Mark values as used."""
        self._effects += operands

    # ---- the end

    def finish(self) -> list[Region]:
        """Return all regions, with the instructions of the values that are used (no dead code)."""
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
        """Return the users of each used value; None stands for a statement."""
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
        """True if a product is fused into all of its users: sums that no other product is in."""
        return number.is_product and all(
            user is not None and user.is_sum and user not in taken for user in users
        )


def scattered_warps(extent: int) -> Sample:
    """Return an index below `extent` for each sampled warp, scattered by a hash."""
    places = [w * _SCATTER % max(extent, 1) for w in range(SAMPLED_WARPS)]
    return tuple(place for place in places for _ in range(WARP_SIZE))


def sectors_touched(
    sample: Sample, size: int, sector: int, active: Sample | None = None
) -> dict[int, set[int]]:
    """Return the sector numbers that each sampled warp touches; only active threads count, and
    warps without any are left out. Addresses and sizes are in bytes.
    """
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
    """Yield (block, thread) of each sampled thread: warps from all over the grid, whose block
    indices differ modulo powers of two, too.
    """
    warps = max(1, threads // WARP_SIZE)
    for k in range(SAMPLED_WARPS):
        near = blocks * k // SAMPLED_WARPS
        block = min(near - near % SAMPLED_WARPS + k, blocks - 1)
        # The eighths of a block in an order without constant stride, and another offset in each: a
        # row may be any two, four or more of the warps.
        eighth = k * (k + 1) // 2 % SAMPLED_WARPS
        place = SAMPLED_WARPS * eighth + eighth // 2 * 2
        warp = warps * place // SAMPLED_WARPS**2
        for lane in range(WARP_SIZE):
            yield block, min(warp * WARP_SIZE + lane, threads - 1)
