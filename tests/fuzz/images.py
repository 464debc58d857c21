"""What calls of torch.nn.functional may ask for: images, windows, borders, targets of losses.

An image of k dimensions has a batch and channels in front of them: `{as_2d}` behind a tensor makes
one of any tensor, and the places of k dimensions are for such an image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch

from tests.fuzz.maker import Maker
from tests.fuzz.tables import Place

_SPATIAL = (1, 2, 3)
_FACTORS = ("2", "2.0", "3", "4", "0.5", "1.5", "1.0", "2.3", "0.4", "1.19")
_LINEAR = {1: "linear", 2: "bilinear", 3: "trilinear"}
_MORE_MODES = {1: (), 2: ("bicubic", "bicubic"), 3: ()}


def _as_image(spatial: int) -> Place:
    def place(p: Maker, x: torch.Tensor) -> str:
        missing = spatial + 2 - x.dim()
        if missing > 0:
            return f"[{'None, ' * missing}...]"
        return f".flatten(0, {-missing})" if missing else ""

    return place


def image_sizes(x: torch.Tensor, spatial: int) -> list[int]:
    """Batches, channels and the sizes of the image that is made of `x`."""
    sizes = [*[1] * (spatial + 2), *x.shape]
    return [math.prod(sizes[: -spatial - 1]), *sizes[-spatial - 1 :]]


def _each(spatial: int, drawn: Callable[[], str]) -> str:
    return f"({', '.join(drawn() for _ in range(spatial))},)"


def _one_or_each(p: Maker, spatial: int, drawn: Callable[[], str]) -> str:
    return drawn() if p.chance(0.4) else _each(spatial, drawn)


def _interpolated(spatial: int) -> Place:
    """Sizes or factors, a mode, and the options that it has."""

    def place(p: Maker, x: torch.Tensor) -> str:
        linear = _LINEAR[spatial]
        near = ("nearest", "nearest-exact")
        mode = p.rng.choice((*near, "area", linear, linear, *_MORE_MODES[spatial]))
        options = [f"mode={mode!r}"]
        if p.chance(0.5):
            sizes = ("1", "2", "3", "4", "5", "7", "8", "9", "12")
            options.insert(0, f"size={_one_or_each(p, spatial, lambda: p.rng.choice(sizes))}")
        else:
            factors = _one_or_each(p, spatial, lambda: p.rng.choice(_FACTORS))
            options.insert(0, f"scale_factor={factors}")
            if p.chance(0.25):
                options.append(f"recompute_scale_factor={p.rng.choice(('True', 'False'))}")
        if mode in (linear, "bicubic") and p.chance(0.6):
            options.append(f"align_corners={p.rng.choice(('True', 'False'))}")
        if mode in ("bilinear", "bicubic") and p.chance(0.2):
            options.append("antialias=True")
        return ", ".join(options)

    return place


def _pooled(spatial: int) -> Place:
    """Window, stride and padding of a pool, some of them of their own along each dimension."""

    def place(p: Maker, x: torch.Tensor) -> str:
        taps = [p.rng.randint(1, 4) for _ in range(spatial)]
        strides = [p.rng.randint(1, 3) for _ in range(spatial)]
        pads = [p.rng.randint(0, n // 2) for n in taps]
        if p.chance(0.3):
            return f"{tuple(taps)}"
        return f"{tuple(taps)}, {tuple(strides)}, {tuple(pads)}, ceil_mode={_bool(p)}"

    return place


def _bool(p: Maker) -> str:
    return p.rng.choice(("True", "False"))


def _adapted(spatial: int) -> Place:
    def place(p: Maker, x: torch.Tensor) -> str:
        sizes = ("1", "2", "3", "4", "5", "7")
        return _one_or_each(p, spatial, lambda: p.rng.choice(sizes))

    return place


def _unfolded(p: Maker, x: torch.Tensor) -> str:
    """Window, dilation, padding and stride of an unfolding."""
    window, stride = p.rng.randint(1, 3), p.rng.randint(1, 3)
    return f"{window}, {p.rng.randint(1, 2)}, {p.rng.randint(0, 2)}, {stride}"


def _borders(spatial: int) -> Place:
    """Widths that are less than the sizes, and a mode."""

    def place(p: Maker, x: torch.Tensor) -> str:
        mode = p.rng.choice(("reflect", "replicate", "circular"))
        widths = []
        for n in reversed(image_sizes(x, spatial)[2:]):
            most = max(n - (mode == "reflect"), 0)
            widths += [p.rng.randint(-1 if p.chance(0.1) else 0, min(most, 3)) for _ in range(2)]
        return f"{widths}, mode={mode!r}"

    return place


def _sampled(spatial: int) -> Place:
    """Positions in an image, most of them inside, and how it is read there."""

    def place(p: Maker, x: torch.Tensor) -> str:
        batch, *_ = image_sizes(x, spatial)
        sizes = [batch, *(p.rng.randint(1, 4) for _ in range(spatial)), spatial]
        grid = torch.tensor([p.rng.uniform(-1.3, 1.3) for _ in range(math.prod(sizes))])
        name = p.argument(sizes, x.dtype, grid.to(x.dtype).reshape(sizes))
        modes = ("bilinear", "nearest", *(("bicubic",) if spatial == 2 else ()))
        padding = p.rng.choice(("zeros", "border", "reflection"))
        mode = p.rng.choice(modes)
        return f"{name}, {mode!r}, {padding!r}, align_corners={_bool(p)}"

    return place


def _affine(p: Maker, x: torch.Tensor) -> str:
    """Matrices, and the size of the image whose positions they turn."""
    spatial = p.rng.choice((2, 3))
    sizes = [
        p.rng.randint(1, 3),
        p.rng.randint(1, 3),
        *(p.rng.randint(1, 4) for _ in range(spatial)),
    ]
    theta = p.argument([sizes[0], spatial, spatial + 1], x.dtype)
    return f"{theta}, {sizes}, align_corners={_bool(p)}"


def _convolved(spatial: int, transposed: bool) -> Place:
    """A kernel, sometimes a bias, and the options."""

    def place(p: Maker, x: torch.Tensor) -> str:
        channels = image_sizes(x, spatial)[1]
        groups = p.rng.choice([n for n in range(1, channels + 1) if channels % n == 0] or [1])
        made = p.rng.randint(1, 2)
        taps = [p.rng.randint(1, 3) for _ in range(spatial)]
        head = [channels, made] if transposed else [made * groups, channels // groups]
        kernel = p.argument([*head, *taps], x.dtype)
        bias = p.argument([made * groups], x.dtype) if p.chance(0.5) else "None"
        stride, dilation = p.rng.randint(1, 2), p.rng.randint(1, 2)
        padding = str(p.rng.randint(0, 2))
        if not transposed and stride == 1 and p.chance(0.3):
            padding = p.rng.choice(("'same'", "'valid'"))
        options = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
        return f"{kernel}, {bias}, {options}"

    return place


def _fractions(spatial: int) -> Place:
    """Window and result of a fractional pool, and what its places are drawn from."""

    def place(p: Maker, x: torch.Tensor) -> str:
        batch, channels, *_ = image_sizes(x, spatial)
        sizes = [batch, channels, spatial]
        drawn = torch.tensor([p.rng.uniform(0, 0.99) for _ in range(math.prod(sizes))])
        samples = p.argument(sizes, x.dtype, drawn.to(x.dtype).reshape(sizes))
        made = p.rng.randint(1, 3)
        return f"{p.rng.randint(1, 2)}, output_size={made}, _random_samples={samples}.detach()"

    return place


# ---- losses and lookups


def _transcripts(p: Maker, x: torch.Tensor) -> str:
    """Targets of lines [length, batch, classes] and both lengths, for some of which there is no
    alignment.
    """
    length, batch, classes = image_sizes(x, 1)
    longest = p.rng.randint(1, 3)
    targets = p.indices(max(classes - 1, 1), [batch, longest])
    read = torch.full((batch,), length)
    given = torch.tensor([p.rng.randint(0, longest) for _ in range(batch)], dtype=torch.int64)
    names = [p.argument([batch], torch.int64, data) for data in (read, given)]
    options = _options(p, _REDUCED, ("zero_infinity", _SWITCH))
    return f"{targets} + 1, {', '.join(names)}{options}"


def _classes_of_all(p: Maker, x: torch.Tensor) -> str:
    return _several_classes(p, x.flatten())


def _drawn(p: Maker, x: torch.Tensor, sizes: Sequence[int], values: Iterable[float]) -> str:
    """An argument of the dtype of `x` of some values."""
    choices = tuple(values)
    numbers = [p.rng.choice(choices) for _ in range(math.prod(sizes))]
    return p.argument(sizes, x.dtype, torch.tensor(numbers, dtype=x.dtype).reshape(tuple(sizes)))


def _weights(p: Maker, x: torch.Tensor) -> str:
    """A weight for each class."""
    return _drawn(p, x, [x.shape[1] if x.dim() > 1 else 1], (0.0, 0.5, 1.0, 2.0))


def _several_classes(p: Maker, x: torch.Tensor) -> str:
    """For each row its classes, and -1 behind the last one."""
    count = x.shape[-1] if x.dim() else 1
    rows = []
    for _ in range(math.prod(x.shape[:-1])):
        chosen = p.rng.sample(range(count), p.rng.randint(0, count))
        rows.append([*chosen, *[-1] * (count - len(chosen))])
    return p.argument(x.shape, torch.int64, torch.tensor(rows, dtype=torch.int64).reshape(x.shape))


def _bags(p: Maker, x: torch.Tensor) -> str:
    """Indices of rows, and where the bags begin, or how many each has."""
    rows, mode = (x.shape[0] if x.dim() else 1), p.rng.choice(("sum", "mean", "max"))
    if p.chance(0.4):
        sizes = [p.rng.randint(1, 3), p.rng.randint(1, 4)]
        return f"input={p.indices(rows, sizes)}, mode={mode!r}"
    count = p.rng.randint(1, 6)
    starts = sorted([0, *(p.rng.randint(0, count) for _ in range(p.rng.randint(0, 3)))])
    indices = p.indices(rows, [count])
    offsets = p.argument([len(starts)], torch.int64, torch.tensor(starts))
    weighted = ""
    if mode == "sum" and p.chance(0.4):
        weighted = f", per_sample_weights={p.argument([count], x.dtype)}"
    padded = f", padding_idx={p.rng.randrange(max(rows, 1))}" if p.chance(0.3) else ""
    return f"input={indices}, offsets={offsets}, mode={mode!r}{weighted}{padded}"


def _options(p: Maker, *each: tuple[str, Sequence[str]]) -> str:
    """Some of the options, each with one of its values."""
    chosen = [f", {name}={p.rng.choice(values)}" for name, values in each if p.chance(0.6)]
    return "".join(chosen)


_REDUCED = ("reduction", ("'mean'", "'sum'", "'none'"))
_SWITCH = ("True", "False")
_MARGIN = ("margin", ("0.0", "0.5", "1.0", "-0.5"))

OPTIONS: dict[str, tuple[tuple[str, Sequence[str]], ...]] = {
    "reduced": (_REDUCED,),
    "of_bilinear_loss": (_REDUCED, ("beta", ("0.0", "0.5", "1.0", "2"))),
    "of_huber": (_REDUCED, ("delta", ("0.5", "1.0", "2"))),
    "of_kl": (("reduction", (*_REDUCED[1], "'batchmean'")), ("log_target", _SWITCH)),
    "of_poisson": (_REDUCED, ("log_input", _SWITCH), ("full", _SWITCH), ("eps", ("1e-8", "0.5"))),
    "of_gaussian": (_REDUCED, ("full", _SWITCH), ("eps", ("1e-6", "0.5"))),
    "margin": (_REDUCED, _MARGIN),
    "of_multi_margin": (_REDUCED, ("p", ("1", "2")), ("margin", ("0.5", "1.0"))),
    "of_triplet": (
        *(_REDUCED, ("margin", ("0.5", "1.0")), ("p", ("1", "2", "2.0"))),
        *(("swap", _SWITCH), ("eps", ("1e-6", "0.5"))),
    ),
    "of_nll": (_REDUCED, ("ignore_index", ("0", "1", "-100"))),
    "of_distance": (("p", ("1.0", "2.0", "2", "0.5", "inf")), ("keepdim", _SWITCH)),
    "of_embedding": (
        ("padding_idx", ("0", "-1")),
        ("max_norm", ("None",)),
        ("scale_grad_by_freq", _SWITCH),
    ),
    "of_response": (("alpha", ("1e-4", "0.5")), ("beta", ("0.75", "1", "0.5")), ("k", ("1", "2"))),
    "of_instances": (("eps", ("1e-5", "0.5")),),
}

IMAGE_PLACES: dict[str, Place] = {
    **{f"as_{k}d": _as_image(k) for k in _SPATIAL},
    **{f"interpolated_{k}d": _interpolated(k) for k in _SPATIAL},
    **{f"pooled_{k}d": _pooled(k) for k in _SPATIAL},
    **{f"adapted_{k}d": _adapted(k) for k in _SPATIAL},
    **{f"borders_{k}d": _borders(k) for k in _SPATIAL},
    **{f"sampled_{k}d": _sampled(k) for k in (2, 3)},
    **{f"convolved_{k}d": _convolved(k, False) for k in _SPATIAL},
    **{f"spread_{k}d": _convolved(k, True) for k in _SPATIAL},
    **{f"fractions_{k}d": _fractions(k) for k in (2, 3)},
    "transcripts": _transcripts,
    "classes_of_all": _classes_of_all,
    "unfolded": _unfolded,
    "affine": _affine,
    "weights": _weights,
    "labels": lambda p, x: _drawn(p, x, x.shape, (0.0, 1.0, 0.25)),
    "signs": lambda p, x: _drawn(p, x, x.shape, (-1.0, 1.0)),
    "sign_of_rows": lambda p, x: _drawn(p, x, x.shape[:-1], (-1.0, 1.0)),
    "several_classes": _several_classes,
    "bags": _bags,
    "bilinear": lambda p, x: p.argument([2, *2 * [x.shape[-1] if x.dim() else 1]], x.dtype),
    **{
        name: (lambda p, x, each=each: _options(p, *each))  # type: ignore[misc]
        for name, each in OPTIONS.items()
    },
}
