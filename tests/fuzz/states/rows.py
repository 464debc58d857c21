"""The table of what a program does with what it keeps, for each kind of it.

`{p}` is the place itself, `{number}` another place or a literal of that kind; `x` is the tensor
that the program works on; a row that ends with a colon has a block below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """What can be kept.

    values   Python that makes one
    reads    lines that only look at it
    writes   lines that change it, by a new value or in place
    updates  those that change it in place, so that the place needs no assignment
    results  what a program may return of it
    """

    values: Sequence[str]
    reads: Sequence[str]
    updates: Sequence[str] = ()
    writes: Sequence[str] = ()
    results: Sequence[str] = ("{p}",)


_NUMBER = Kind(
    values=("2.0", "1.5", "3", "1", "-1", "0.5"),
    reads=(
        "x = x * {p}",
        "x = x + {p}",
        "x = {p} - x",
        "x = torch.add(x, x, alpha={p})",
        "x = x + max({p}, {number})",
        "x = x + round({p})",
        "x = x + (1.0 if {p} == {number} else 0.5)",
        "x = x.roll(int({p}), -1)",
        "x = x + len(str({p}))",
        "x = x + torch.full_like(x, {p})",
        "x = x + torch.tensor({p})",
        "if {p} > {number}:",
        "if {p}:",
        "for _ in range(abs(int({p})) % 3):",
        "while x.dim() < int({p}) % 3: x = x[None]",
    ),
    writes=(
        "{p} = {p} + 1",
        "{p} += 0.5",
        "{p} = {number}",
        "{p} = -{p}",
        "{p} = x.shape[-1]",
        "{p} = float(x.dim())",
        "{p} = {p} % 3 + 1",
        "{p}, {number_place} = {number_place}, {p}",
    ),
)

_FLAG = Kind(
    values=("True", "False"),
    reads=("if {p}:", "if not {p}:", "x = x + {p}", "x = x * (2.0 if {p} else 3.0)"),
    writes=("{p} = not {p}", "{p} = {flag}", "{p} = {number} > 1", "{p} ^= True"),
)

_WORD = Kind(
    values=("'a'", "'b'", "'mean'"),
    reads=(
        "if {p} == {word}:",
        "if {p} in ('a', 'c'):",
        "if {p}.startswith('m'):",
        "x = x * len({p})",
        "x = getattr(torch, 'sin' if {p} == 'a' else 'cos')(x)",
        "x = {{'a': torch.sin, 'b': torch.exp}}.get({p}, torch.cos)(x.clamp(-1, 1))",
    ),
    writes=("{p} = {word}", "{p} += 'c'", "{p} = {p}.upper()", "{p} = str(x.dtype)"),
)

_NONE_OR_TENSOR = Kind(
    values=("None", "None", "torch.tensor([1.0, 2.0, 4.0])"),
    reads=(
        "x = x + (1.0 if {p} is None else {p})",
        "if {p} is not None:",
        "if isinstance({p}, torch.Tensor):",
    ),
    writes=(
        "if {p} is None: {p} = x * 2",
        "{p} = None",
        "{p} = x",
        "{p} = x.detach() + 1 if {p} is None else {p} * 2",
    ),
)

_TENSOR = Kind(
    values=("torch.tensor([1.0, 2.0, 3.0])", "torch.tensor([2.0])", "torch.zeros(3)"),
    reads=(
        "x = x + {p}",
        "x = torch.maximum(x, {p})",
        "x = x * {p}.shape[0]",
        "x = x + {p}.sum()",
        "if {p}.dim() == x.dim():",
        "if {p}.shape[-1] == 3:",
        "if {p} is {tensor}:",
        "x = x + ({p} is x)",
    ),
    updates=(
        "{p}.mul_(0.5)",
        "{p}.add_(1)",
        "{p}[0] = {number}",
        "{p}[-1:] += x[..., -1:].sum()",
        "{p}.copy_({p} * 2)",
        "{p}.fill_({number})",
        "torch.add({p}, 1, out={p})",
    ),
    writes=(
        "{p} = x",
        "{p} = x.detach() * 2",
        "{p} = {p} + x",
        "{p} = {p} * 0.5",
        "{p} += 1",
        "{p} = {tensor}",
        "{p} = x.clone()",
        "{p}, {tensor_place} = {tensor_place}, {p}",
    ),
)

_NUMBERS = Kind(
    values=("[1.0, 2.0]", "[]", "[3, 1, 2]"),
    reads=(
        "for n in {p}: x = x + n",
        "for k, n in enumerate({p}): x = x + k * n",
        "x = x * sum({p})",
        "x = x + len({p})",
        "x = x + ({p}[-1] if {p} else 0.5)",
        "x = x + sum([n * 2 for n in {p} if n > 1])",
        "x = x + max({p}, default=1.0)",
        "x = x + {p}.count(2.0)",
        "x = x + sum(sorted({p})[:2])",
        "x = x + sum({p}[::-1][1:])",
        "x = x + sum(a * b for a, b in zip({p}, {numbers}))",
        "x = x + sum(map(float, {p}))",
        "x = x + tuple({p}).count(1.0)",
        "x = x + torch.tensor([*{p}, 1.0]).sum()",
        "x = x + sum(reversed({p}))",
        "x = x + math.prod({p})",
        "x = x + sum(heapq.nlargest(2, {p}))",
        "x = x + len(deque({p}, maxlen=2))",
        "x = x + len(set({p}))",
        "x = x + Counter({p})[1.0]",
        "x = x + functools.reduce(lambda a, b: 2 * a + b, {p}, 1)",
        "x = x + sum(itertools.accumulate({p}))",
        "if 2.0 in {p}:",
        "if {p}:",
        "if {p} == {numbers}:",
        "if {p} is {numbers}:",
        "if all(n > 0 for n in {p}):",
        "if len({p}) > 2:",
    ),
    updates=(
        "{p}.append(1.5)",
        "{p}.append({number})",
        "if {p}: {p}.pop()",
        "if {p}: {p}[0] = {number}",
        "if {p}: {p}[-1] += 1",
        "{p}.insert(0, 2.0)",
        "{p}.sort()",
        "{p}.reverse()",
        "{p}.extend({numbers})",
        "del {p}[2:]",
        "{p}[:] = {p}[-2:]",
        "{p}.clear()",
        "if 2.0 in {p}: {p}.remove(2.0)",
        "{p}.append(x.shape[-1])",
        "heapq.heappush({p}, {number})",
        "if {p}: heapq.heappop({p})",
        "bisect.insort({p}, {number})",
        "if {p}: operator.setitem({p}, 0, 2.0)",
    ),
    writes=(
        "{p} = {p} + [1.0]",
        "{p} += [2.0]",
        "{p} = {numbers}",
        "{p} = [n + 1 for n in {p}]",
        "{p} = sorted({p})",
        "{p} = {p}.copy()",
    ),
    results=("{p}", "list({p})", "len({p})", "tuple({p})", "[*{p}, 1]"),
)

_TENSORS = Kind(
    values=("[]", "[torch.tensor([1.0, 2.0, 3.0])]", "[torch.ones(3), torch.zeros(3)]"),
    reads=(
        "for t in {p}: x = x + t",
        "x = x + sum({p})",
        "x = x + len({p})",
        "x = x + ({p}[-1] if {p} else 1.0)",
        "x = x + sum(t.sum() for t in {p})",
        "x = x + sum(t * k for k, t in enumerate({p}))",
        "x = x + sum({p}[-2:])",
        "x = torch.stack([x, x, *(t.expand_as(x) for t in {p} if t.dim() == x.dim())]).sum(0)",
        "if {p}:",
        "if len({p}) > 1:",
        "if any(t is x for t in {p}):",
    ),
    updates=(
        "{p}.append(x)",
        "{p}.append(x.detach() * 2)",
        "{p}.append({tensor})",
        "if len({p}) > 2: {p}.pop(0)",
        "if {p}: {p}[-1].add_(1)",
        "if {p}: {p}[0] = x",
        "if {p}: {p}[-1] = {p}[-1] + x",
        "if {p}: {p}[-1] *= 2",
        "{p}.reverse()",
        "{p}.clear()",
        "{p}[:] = {p}[-1:]",
        "for t in {p}: t.mul_(0.5)",
        "for k in range(len({p})): {p}[k] = {p}[k] * 2",
        "{p}.extend([x, x * 2])",
    ),
    writes=("{p} = [*{p}[-1:], x]", "{p} = [t * 2 for t in {p}]", "{p} += [x]", "{p} = []"),
    results=("{p}", "list({p})", "len({p})", "{p}[-1:]"),
)

_TABLE = Kind(
    values=("{'a': 1.0, 'b': 2.0}", "{}", "{'c': 3}"),
    reads=(
        "for k, n in {p}.items(): x = x * n + len(k)",
        "for k in {p}: x = x + {p}[k]",
        "x = x + {p}.get('a', 2.5)",
        "x = x + sum({p}.values())",
        "x = x + len({p})",
        "x = x + len(''.join({p}))",
        "x = x + sum({p}[k] for k in sorted({p}))",
        "x = x + {p}.get(max({p}.keys(), default='a'), 1.5)",
        "x = x + len(set({p}.keys()) & {{'a', 'b'}})",
        "x = x + max(iter({p}.values()), default=1)",
        "x = x + sum({{**{p}, 'z': 1.0}}.values())",
        "if 'a' in {p}:",
        "if 'b' not in {p}:",
        "if {p}:",
        "if {p} == {table}:",
        "if {p}.get('c') is None:",
        "if list({p})[:1] == ['a']:",
    ),
    updates=(
        "{p}['b'] = {number}",
        "{p}['a'] = {p}.get('a', 0.0) + 1",
        "{p}.pop('a', None)",
        "{p}.setdefault('c', 2.0)",
        "{p}.update(b=2.0, d=1)",
        "{p}.update({table})",
        "if 'a' in {p}: del {p}['a']",
        "if {p}: {p}.popitem()",
        "{p}.clear()",
        "for k in list({p}): {p}[k] += 1",
        "{p}[str(x.dim())] = x.shape[-1]",
        "{p}.update(zip('ab', {numbers}))",
        "operator.setitem({p}, 'a', {number})",
    ),
    writes=(
        "{p} |= {{'e': 1.0}}",
        "{p} = {{**{p}, 'a': 2.0}}",
        "{p} = {{k: n * 2 for k, n in {p}.items()}}",
        "{p} = {table}",
        "{p} = dict(sorted({p}.items()))",
    ),
    results=("{p}", "dict({p})", "len({p})", "list({p})", "list({p}.items())"),
)

_TENSOR_TABLE = Kind(
    values=("{}", "{'a': torch.tensor([1.0, 2.0, 3.0])}"),
    reads=(
        "for t in {p}.values(): x = x + t",
        "x = x + {p}.get('a', 1.0)",
        "x = x + sum({p}.values())",
        "for k, t in {p}.items(): x = x + t * len(k)",
        "if 'a' in {p}:",
        "if {p}.get('b') is not None:",
    ),
    updates=(
        "{p}['a'] = x",
        "{p}['b'] = x.detach() * 2",
        "if 'a' not in {p}: {p}['a'] = x * 2",
        "{p}['a'] = {p}['a'] + x if 'a' in {p} else x",
        "{p}.setdefault('c', x * 3)",
        "{p}.pop('a', None)",
        "if 'a' in {p}: {p}['a'].add_(1)",
        "{p}.update(b=x + 1)",
        "{p}.clear()",
        "{p}[x.shape] = x",
    ),
    writes=("{p} = {{}}", "{p} = {{k: t * 2 for k, t in {p}.items()}}"),
    results=("{p}", "dict({p})", "len({p})", "list({p}.values())"),
)

_WORDS = Kind(
    values=("{'a', 'b'}", "set()"),
    reads=(
        "x = x + len({p})",
        "for w in sorted({p}): x = x * 2 + len(w)",
        "if 'a' in {p}:",
        "if {p}:",
        "if {p} == {words}:",
        "if {p} & {{'a', 'z'}}:",
        "if {p} <= {{'a', 'b', 'c'}}:",
    ),
    updates=(
        "{p}.add('c')",
        "{p}.add({word})",
        "{p}.discard('a')",
        "{p}.update({{'q', 'a'}})",
        "{p}.update({table})",
        "{p}.intersection_update({table})",
        "{p}.clear()",
        "if 'a' in {p}: {p}.remove('a')",
    ),
    writes=("{p} |= {{'e'}}", "{p} -= {{'a'}}", "{p} = {p} | {{'f'}}", "{p} = {words}"),
    results=("{p}", "sorted({p})", "len({p})", "'a' in {p}"),
)

_QUEUE = Kind(
    values=("deque([1.0, 2.0], maxlen=3)", "deque()", "deque([3], maxlen=1)"),
    reads=(
        "for n in {p}: x = x + n",
        "x = x + sum({p})",
        "x = x + len({p})",
        "x = x + ({p}[0] if {p} else 0.5)",
        "x = x + sum(list({p})[-2:])",
        "if {p}:",
        "if len({p}) == {p}.maxlen:",
        "if 2.0 in {p}:",
    ),
    updates=(
        "{p}.append({number})",
        "{p}.appendleft(x.shape[-1])",
        "if {p}: {p}.popleft()",
        "if {p}: {p}.pop()",
        "{p}.rotate(1)",
        "{p}.extend([1.0, 4.0])",
        "{p}.extend({numbers})",
        "{p}.extendleft({numbers})",
        "if {p}: {p}[0] += 1",
        "{p}.clear()",
    ),
    writes=("{p} = deque({p}, maxlen=2)", "{p} += [1.0]"),
    results=("{p}", "list({p})", "len({p})"),
)

_COUNTER = Kind(
    values=("Counter('aab')", "Counter()"),
    reads=(
        "x = x + {p}['a']",
        "x = x + sum({p}.values())",
        "x = x + len({p})",
        "for k, n in {p}.most_common(1): x = x * n + len(k)",
        "x = x + len(list({p}.elements()))",
        "if {p}['b'] > 1:",
        "if 'c' in {p}:",
    ),
    updates=(
        "{p}['a'] += 1",
        "{p}[{word}] += 1",
        "{p}.update('bc')",
        "{p}.update({table})",
        "{p}.subtract({words})",
        "{p}.pop('a', None)",
        "{p}.clear()",
    ),
    writes=("{p} = Counter('ab')",),
    results=("{p}", "dict({p})", "len({p})"),
)

_LISTS = Kind(
    values=("defaultdict(list)", "defaultdict(list, a=[1.0])"),
    reads=(
        "for ns in {p}.values(): x = x + sum(ns)",
        "x = x + len({p})",
        "x = x + sum({p}.get('a', ()))",
        "if 'b' in {p}:",
    ),
    updates=(
        "{p}['a'].append({number})",
        "{p}[{word}].append(1.0)",
        "x = x + len({p}['c'])",
        "{p}.pop('a', None)",
        "{p}['b'] = [2.0]",
    ),
    results=("{p}", "len({p})"),
)

_PAIR = Kind(
    values=("(1.0, 2.0)", "(3, torch.tensor([1.0, 2.0, 3.0]))", "('a', 2.0, (1, 2))"),
    reads=(
        "x = x + {p}[1]",
        "x = x + len({p})",
        "first, *rest = {p}; x = x * len(rest)",
        "if {p}[0] == 1.0:",
        "if len({p}) == 2:",
    ),
    writes=("{p} = ({p}[1], {p}[1])", "{p} = (1.0, x)", "{p} = {p}[:2]", "{p} = (*{p}, 1.0)"),
    results=("{p}", "{p}[0]", "len({p})"),
)

_KEYED = Kind(
    values=("{1: 1.0, (2, 'a'): 2.0}", "{1.5: 3.0, None: 4.0, True: 2.0}", "{torch.float32: 2.0}"),
    reads=(
        "for k, n in {p}.items(): x = x * n + len(str(k))",
        "x = x + {p}.get((2, 'a'), 2.5)",
        "x = x + {p}.get(None, 1.0) * {p}.get(1, 2.0)",
        "x = x * {p}.get(x.dtype, 3.0)",
        "x = x * {p}.get((x.dim(), *x.shape), 0.5)",
        "if 1.5 in {p}:",
        "if max({p}.values(), default=0) > 2:",
    ),
    updates=(
        "{p}[None] = {number}",
        "{p}[x.dtype] = {p}.get(x.dtype, 0.0) + 1",
        "{p}[x.dim(), *x.shape] = 1.5",
        "{p}.pop(1, None)",
        "{p}.setdefault(1.5, 2.0)",
        "if {p}: {p}.popitem()",
    ),
    results=("{p}", "len({p})", "list({p}.values())"),
)

_ORDERED = Kind(
    values=("OrderedDict(a=1.0, b=2.0)", "OrderedDict()"),
    reads=(
        "for k, n in reversed({p}.items()): x = x * n + len(k)",
        "x = x + next(iter({p}.values()), 0.5)",
        "if list({p})[:1] == ['a']:",
        "if {p} == OrderedDict(b=2.0, a=1.0):",
    ),
    updates=(
        "if 'a' in {p}: {p}.move_to_end('a')",
        "if {p}: {p}.popitem(last=False)",
        "{p}['c'] = {number}",
        "{p}.update(b=3.0)",
        "{p}.pop('b', None)",
    ),
    writes=("{p} = OrderedDict(sorted({p}.items(), reverse=True))",),
    results=("{p}", "list({p})"),
)

_NESTED = Kind(
    values=("{'a': [1.0, 2.0], 'b': {'c': 2.0}}", "{'a': [], 'b': {}}"),
    reads=(
        "for n in {p}['a']: x = x + n",
        "x = x + sum({p}['b'].values())",
        "if 'c' in {p}['b']:",
        "if {p}['a']:",
        "x = x + len({p}['a']) * len({p}['b'])",
    ),
    updates=(
        "{p}['a'].append({number})",
        "{p}['a'] = {p}['a'][-2:]",
        "{p}['b']['c'] = {p}['b'].get('c', 0.0) + 1",
        "{p}['b'] = {table}",
        "{p}['b'].clear()",
        "if {p}['a']: {p}['a'][0] = {number}",
    ),
    results=("{p}", "{p}['a']", "len({p}['b'])"),
)

_FUNCTION = Kind(
    values=("torch.sin", "(lambda x: x * 2)", "functools.partial(torch.add, other=1.0)"),
    reads=("x = {p}(x)", "if {p} is torch.sin:", "x = sum(map({p}, [x, x * 0.5]))"),
    writes=("{p} = torch.cos", "{p} = torch.sin", "{p} = torch.abs"),
    results=("{p}(x)",),
)

_DTYPE = Kind(
    values=("torch.float64", "torch.float32", "torch.float16"),
    reads=("x = x.to({p}).float() + 1", "x = x + {p}.itemsize", "if {p} == x.dtype:"),
    writes=("{p} = torch.bfloat16", "{p} = x.dtype", "{p} = torch.float64"),
)

_METER = Kind(
    values=("Meter()",),
    reads=(
        "x = x + {p}.mean",
        "x = x * (1 + {p}.count)",
        "if {p}.count > 1:",
        "if {p}.last is not None:",
        "x = x + (0.5 if {p}.last is None else {p}.last)",
    ),
    updates=(
        "{p}.add({number})",
        "{p}.count += 1",
        "{p}.total = {number}",
        "{p}.keep(x)",
        "{p}.reset()",
        "x = x + {p}.add(2.0)",
        "{p}.mean = {number}",
    ),
    writes=("{p} = Meter()",),
    results=("{p}.count", "{p}.mean", "{p}.last"),
)

_POINT = Kind(
    values=("Point(1.0, 2.0)", "Point(3, torch.tensor([1.0, 2.0, 3.0]))"),
    reads=("x = x * {p}.a + {p}.b", "a, b = {p}; x = x + a + b", "if {p}.a == 1.0:"),
    writes=("{p} = {p}._replace(a={number})", "{p} = Point({number}, x)", "{p} = Point(b=1, a=2)"),
    results=("{p}", "{p}.a", "{p}[1]"),
)

_SLOTTED = Kind(
    values=("Slotted(1.0)", "Slotted(torch.tensor([1.0, 2.0, 3.0]))"),
    reads=(
        "x = x * {p}.n",
        "x = x + {p}.n",
        "x = x + getattr({p}, 'm', 0.5)",
        "if {p} is {slotted}:",
        "if hasattr({p}, 'm'):",
    ),
    updates=(
        "{p}.n = {number}",
        "{p}.n = {p}.n + 1",
        "{p}.n = x",
        "{p}.m = {number}",
        "with suppress(AttributeError): del {p}.m",
        "setattr({p}, 'm', x)",
    ),
    writes=(
        "{p} = Slotted({number})",
        "{p} = {slotted}",
        "{p} = copy.copy({slotted})",
        "{p}, {slotted_place} = {slotted_place}, {p}",
    ),
    results=("{p}", "{p}.n"),
)

_RECORD = Kind(
    values=("Record(1.0)", "Record(2, last=torch.tensor([1.0, 2.0, 3.0]))"),
    reads=(
        "x = x * {p}.n + {p}.rate",
        "x = x + {p}.doubled",
        "x = x + (0.5 if {p}.last is None else {p}.last)",
        "for key, value in vars({p}).items(): x = x + (0.0 if value is None else value)",
        "x = x * asdict({p})['n']",
        "if hasattr({p}, 'extra'):",
        "x = x + getattr({p}, 'extra', 0.5)",
        "if {p} is {record}:",
    ),
    updates=(
        "{p}.n = {number}",
        "{p}.extra = {number}",
        "with suppress(AttributeError): del {p}.extra",
        "{p}.rate += 0.25",
        "{p}.last = x",
        "{p}.__dict__['rate'] = {number}",
        "{p}.__dict__.update(n=x, rate=2.0)",
        "{p}.__post_init__()",
    ),
    writes=(
        "{p} = Record({number})",
        "{p} = Record(x, last=x * 2)",
        "{p} = replace({p}, n={number})",
        "{p} = replace({record}, last=x)",
        "{p} = copy.copy({record})",
        "{p} = copy.deepcopy({record})",
        "{p} = {record}",
        "{p}, {record_place} = {record_place}, {p}",
    ),
    results=("{p}", "{p}.doubled", "asdict({p})"),
)

KINDS: Mapping[str, Kind] = {
    "number": _NUMBER,
    "flag": _FLAG,
    "word": _WORD,
    "none_or_tensor": _NONE_OR_TENSOR,
    "tensor": _TENSOR,
    "numbers": _NUMBERS,
    "tensors": _TENSORS,
    "table": _TABLE,
    "tensor_table": _TENSOR_TABLE,
    "words": _WORDS,
    "queue": _QUEUE,
    "counter": _COUNTER,
    "lists": _LISTS,
    "pair": _PAIR,
    "keyed": _KEYED,
    "ordered": _ORDERED,
    "nested": _NESTED,
    "function": _FUNCTION,
    "dtype": _DTYPE,
    "meter": _METER,
    "point": _POINT,
    "slotted": _SLOTTED,
    "record": _RECORD,
}

OF_TENSORS = (
    "x = x * 2",
    "x = torch.sin(x)",
    "x = x + 1",
    "x = x.abs()",
    "x = x / 2",
    "x = -x",
    "x = x - x.sum()",
    "y = x * 2; x = x + y",
)
"""Lines that keep nothing."""

BLOCKS = (
    "if x.shape[-1] > 1:",
    "for _ in range(2):",
    "with torch.no_grad():",
    "with suppress(KeyError):",
    "try:",
)
"""Lines with a block below them that look at nothing that is kept."""
