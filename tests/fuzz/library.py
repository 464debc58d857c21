"""The table of what torch has beside the others: its numerical library, named views, `out=`."""

from __future__ import annotations

import torch

from tests.fuzz.maker import Maker
from tests.fuzz.tables import Place, Row

_SPECIAL = (
    *("i0", "i0e", "i1", "i1e", "erfcx", "ndtr", "log_ndtr", "entr", "bessel_j0", "bessel_j1"),
    *("psi", "gammaln", "logit", "expit", "xlog1py", "sinc"),
)
_UNARY = (
    *("frac", "sgn", "sinc", "logit", "deg2rad", "rad2deg", "positive", "isposinf", "isneginf"),
    *(
        "angle",
        "isreal",
        "fliplr",
        "flipud",
        "ravel",
        "adjoint",
        "trace",
        "diagflat",
        "resolve_neg",
    ),
)
_BINARY = (
    *("fmax", "fmin", "logaddexp", "logaddexp2", "hypot", "xlogy", "float_power", "heaviside"),
    *("isclose", "true_divide", "floor_divide", "rsub", "greater", "less_equal", "not_equal"),
)
_INTEGRAL = ("gcd", "lcm", "bitwise_left_shift", "bitwise_right_shift")

_WRITES = ("scatter", "scatter_add", "index_add", "index_copy")

_POINTWISE = (
    *(Row(f"torch.{name}({{x}})", "ffib", 0.5) for name in _UNARY),
    *(Row(f"torch.special.{name}({{x}})", "ff", 0.2) for name in _SPECIAL),
    *(Row(f"torch.{name}({{x}}, {{t}})", "ffib", 0.5) for name in _BINARY),
    *(Row(f"torch.{name}({{x}}, {{t}})", "i", 0.4) for name in _INTEGRAL),
    Row("{t}.to({x}.dtype)", "ffib"),
    Row("torch.full_like({x}, 300)", "fib", 0.4),
    Row("torch.full({sizes}, {n}, dtype={x}.dtype)", "fib", 0.4),
    Row("torch.ldexp({x}, {k_of_x})", "f", 0.3),
    Row("torch.frexp({x})[0]", "f", 0.2),
    Row("torch.clip({x}, {n}, {n})", "fi", 0.5),
    Row("torch.clamp_min({x}, {n})", "fi", 0.4),
    Row("torch.clamp({x}, max={n})", "fi", 0.5),
    Row("torch.clamp({x}, {t}, None)", "fi", 0.4),
    Row("torch.round({x}, decimals={k})", "f", 0.4),
    Row("torch.nan_to_num({x}, {n}, {n}, {n})", "f", 0.5),
    Row("torch.pow({n}, {x})", "fi", 0.4),
    Row("torch.float_power({n}, {x})", "fi", 0.3),
    Row("torch.xlogy({n}, {x})", "fi", 0.3),
    Row("{x} ** {huge}", "fi", 0.2),
    Row("F.threshold({x}, {n}, {n})", "fi", 0.2),
    Row("torch.lerp({x}, {t}, 0.25)", "f", 0.4),
    Row("torch.complex({x}, {like})", "f", 0.4),
    Row("torch.polar({x}, {like})", "f", 0.3),
    Row("torch.view_as_real({x}){copied}", "c"),
    Row("{x}.conj()", "c"),
    Row("torch.conj_physical({x})", "c", 0.5),
    Row("torch.abs({x})", "c"),
    Row("{x}.real{copied}", "cf", 0.3),
    # Numbers of another dtype beside tensors, and in place of them.
    Row("torch.where({mask}, {n}, {x})", "ffib", 1.5),
    Row("torch.where({mask}, {x}, {n})", "ffib"),
    Row("torch.where({mask}, {n}, {n})", "b", 2),
    Row("torch.where({mask}, {scalar}, {x})", "ffib"),
    Row("torch.where({mask}, {x}, {scalar})", "ffib"),
    Row("torch.maximum({x}, {scalar})", "ffib"),
    Row("{x} + {scalar}", "ffib"),
    Row("{x} * {scalar}", "ffibc"),
    Row("{x} / {scalar}", "ffib"),
    Row("{scalar} - {x}", "ffi"),
    Row("{x}.masked_fill({mask}, {scalar})", "ffib"),
    Row("{x}.masked_scatter({mask}, {like})", "fi", 0.3),
    Row("torch.add({x}, {t}, alpha={k})", "fi", 0.4),
    Row("{x}.logical_and({t})", "fib", 0.3),
    Row("{x}.float()", "ib", 0.5),
    Row("{x}.long()", "b", 0.5),
    Row("{x}.bool()", "fi", 0.5),
    Row("{x}.half()", "f", 0.4),
    Row("{x}.double()", "ffi", 0.4),
    Row("~{x}", "ib", 0.4),
    Row("-{x}", "ffi", 0.4),
    Row("abs({x})", "ffi", 0.4),
    Row("{x} == {y}", "ffib", 0.4),
    Row("{x} & {t}", "ib", 0.4),
    Row("{n} // {x}", "fi", 0.3),
)

_FOLDS = (
    *(
        Row(f"torch.{name}({{x}}, {{dim}}, dtype={{dtype}})", "ffib", 0.7)
        for name in ("sum", "prod", "cumsum", "cumprod", "nansum")
    ),
    *(
        Row(f"torch.{name}({{x}}, {{dim}})", "ffib", 0.5)
        for name in ("nansum", "nanmean", "count_nonzero", "cumsum", "cumprod", "logcumsumexp")
    ),
    *(Row(f"torch.{name}({{x}}, {{dim}})[0]", "ffi", 0.4) for name in ("cummax", "cummin")),
    *(Row(f"torch.{name}({{x}}, {{dim}})[0]", "fi", 0.3) for name in ("median", "nanmedian")),
    Row("torch.kthvalue({x}, {count}, {dim})[0]", "fi", 0.3),
    Row("torch.aminmax({x}, dim={dim}, keepdim={bool})", "fib", 0.5),
    Row("torch.min({x}, {dim}, keepdim={bool})", "ffi", 0.5),
    Row("torch.max({x}, {t})", "fi", 0.4),
    Row("torch.diff({x}, dim={dim})", "ffib", 0.6),
    Row("torch.diff({x}, {count}, {dim})", "ff", 0.4),
    Row("torch.trapezoid({x}, dim={dim})", "f", 0.3),
    Row("torch.cumulative_trapezoid({x}, dim={dim})", "f", 0.3),
    Row("torch.quantile({x}, 0.25, {dim})", "f", 0.3),
    Row("torch.dist({x}, {t}, {positive})", "f", 0.3),
    Row("torch.renorm({x}, 2, {dim}, 1.5)", "f", 0.3),
    Row("torch.linalg.vector_norm({x}, {positive}, {dims}, keepdim={bool})", "f", 0.6),
    Row("torch.linalg.matrix_norm({x})", "f", 0.4),
    Row("torch.norm({x}, dim={dim}, dtype={dtype})", "f", 0.3),
    Row("torch.cov({x})", "f", 0.3),
    Row("torch.all({x})", "ffib", 0.4),
    Row("torch.any({x}, {dims})", "ffib", 0.4),
    Row("torch.argmax({x})", "ffi", 0.4),
    Row("torch.dot({x}, {like})", "fi", 0.5),
    Row("torch.inner({x}, {like})", "ffi", 0.4),
    Row("torch.mv({x}, {last})", "ff", 0.5),
    Row("{x} @ {last}", "ff", 0.5),
    Row("torch.tensordot({x}, {like}, {count})", "f", 0.4),
    Row("torch.tensordot({x}, {like}, ([{dim}], [{dim}]))", "f", 0.4),
    Row("torch.kron({x}, {t})", "f", 0.3),
    Row("torch.outer({x}, {like})", "ffi", 0.4),
    Row("torch.addr({t}, {x}, {like})", "f", 0.3),
    Row("torch.addmv({t}, {x}, {last})", "f", 0.3),
    Row("torch.addmm({t}, {x}, {columns}, beta={n}, alpha={n})", "f", 0.5),
    Row("torch.linalg.cross({x}[..., :3], {like}[..., :3])", "f", 0.3),
    Row("torch.vdot({x}, {like})", "f", 0.2),
    Row("torch.histc({x}, 4, 0, 4)", "f", 0.1),
    Row("torch.bucketize({x}, torch.arange(4, dtype={x}.dtype))", "ffi", 0.3),
    Row("torch.isin({x}, {t})", "i", 0.3),
    Row("F.multi_head_attention_forward({attended})", "f", 0.5),
)

_VIEWS = (
    Row("torch.swapaxes({x}, {dim}, {dim})", "ffib"),
    Row("torch.moveaxis({x}, {dim}, {dim})", "ffib", 0.5),
    Row("torch.rot90({x}, {k}, (0, 1))", "ffib", 0.5),
    *(Row(f"torch.atleast_{k}d({{x}})", "ffib", 0.4) for k in (1, 2, 3)),
    *(
        Row(f"torch.{name}([{{x}}, {{like}}])", "ffib", 0.4)
        for name in ("hstack", "vstack", "dstack", "column_stack")
    ),
    Row("torch.cat([{x}, {t}], {dim})", "ffib"),
    Row("torch.broadcast_tensors({x}, {t})", "ffib", 0.5),
    Row("torch.broadcast_to({x}, {expanded})", "ffib", 0.5),
    Row("torch.meshgrid({last}, {last}, indexing='ij')", "f", 0.3),
    Row("torch.cartesian_prod({last}, {last})", "f", 0.2),
    Row("torch.block_diag({x}, {like})", "f", 0.3),
    Row("torch.diag({x}, {k})", "ffib", 0.5),
    Row("torch.diag_embed({x}, {k})", "ffib", 0.5),
    Row("torch.diagonal({x}, {k}, {dim}, {dim})", "ffib", 0.7),
    Row("torch.tile({x}, ({repeats},))", "ffib", 0.5),
    Row("torch.select_scatter({x}, {x}.select({dim}, 0) * 2, {dim}, 0)", "ffi", 0.3),
    Row("torch.slice_scatter({x}, {x}[1:] * 2, 0, 1)", "ffi", 0.4),
    Row("torch.diagonal_scatter({x}, {x}.diagonal() * 2)", "ffi", 0.4),
    Row("torch.index_fill({x}, {dim_and_indices}, {n})", "ffi", 0.4),
    Row("torch.take({x}, {indices})", "ffi", 0.4),
    Row("torch.vander({last}, 3)", "f", 0.2),
    Row("torch.hsplit({x}, 2)", "ffib", 0.4),
    Row("torch.tensor_split({x}, ({count}, {count}), {dim})", "ffib", 0.4),
    Row("torch.split({x}, [1, {x}.shape[0] - 1])", "ffib", 0.5),
    Row("torch.flip({x}, {dims_listed})", "ffibc", 2),
    Row("torch.roll({x}, {k})", "ffib", 0.5),
    Row("{x}.roll(({k}, {k}), ({dim}, {dim}))", "ffi", 0.5),
    Row("{x}.expand({expanded}).flip(0)", "ffib"),
    Row("{x}.reshape({sizes}).flip(-1)", "ffib"),
    Row("{x}.flip(-1)[{index}]", "ffib"),
    Row("{x}[..., ::2]", "ffibc"),
    Row("{x}[None, ..., None]", "ffib", 0.5),
    Row("{x}[..., 0]", "ffibc", 0.6),
    Row("{x}[{mask}.any()]", "ffib", 0.1),
    Row("{x}[..., {indices}]", "ffib"),
    Row("{x}[:, {indices}, None]", "ffib"),
    Row("{x}[{indices}, {index}]", "ffib"),
    Row("{x}[{indices}, ..., {indices}]", "ffib", 0.6),
    Row("{x}[0:0]", "ffib", 0.5),
    Row("{x}.narrow({dim}, 0, 0)", "ffib", 0.3),
    Row("{x}.new_zeros({sizes})", "ffib", 0.3),
    Row("{x}.new_full({sizes}, {n})", "ffib", 0.3),
    Row("{x}.new_ones({sizes}, dtype={dtype})", "ffib", 0.3),
    Row("torch.full_like({x}, {n}, dtype={dtype})", "ffib", 0.4),
    Row("torch.empty_like({x}).copy_({t_into})", "ffi", 0.5),
    Row("torch.tensor({n})", "ffi", 0.5),
    Row("torch.tensor({n}, dtype={dtype}) * {x}", "ffi", 0.3),
    Row("torch.tensor([{n}, {n}], dtype={dtype})", "ffi", 0.3),
    Row("torch.asarray([{n}], dtype={dtype}) + {x}", "ffi", 0.2),
    Row("torch.full_like({x}, {n}, dtype={dtype})", "ffi", 0.3),
    *(Row(f"torch.{name}({{x}}, {{dim_place_source}})", "ffi", 0.4) for name in _WRITES),
    Row("torch.scalar_tensor({n}, dtype={dtype})", "ffi", 0.4),
    Row("torch.linspace({n}, 3, {count})", "f", 0.3),
    Row("torch.eye({count}, {count}, dtype={dtype})", "fi", 0.3),
    Row("torch.as_strided({x}, (2,), (1,))", "fi", 0.2),
    Row("{x}.sum_to_size({x}.shape[-1:])", "ff", 0.4),
)

_OUT = (
    *(
        Row(f"torch.{name}({{x}}, {{y}}, out={{like}})", "ffi", 0.7)
        for name in ("add", "mul", "sub")
    ),
    *(Row(f"! torch.{name}({{x}}, out={{like}})", "f", 0.7) for name in ("exp", "neg", "tanh")),
    Row("! torch.sum({x}, {dim}, out={x}.new_empty(0))", "f", 0.2),
    Row("torch.where({mask}, {x}, {like}, out={like})", "fi", 0.4),
    Row("torch.cat([{x}, {x}], out={x}.new_empty(0))", "f", 0.2),
    Row("! {x}.masked_fill_({mask}, {scalar})", "ffi"),
    Row("! {x}.index_fill_({dim_and_indices}, {n})", "ffi", 0.5),
    Row("! {x}.index_add_({dim_order_source})", "ffi", 0.5),
    Row("! {x}.index_copy_({dim_order_source})", "ffi", 0.5),
    Row("! {x}.scatter_({dim_places_source})", "ffi", 0.5),
    Row("! {x}.scatter_add_({dim_places_source})", "ffi", 0.5),
    Row("! {x}[{mask}] = {n}", "ffib", 0.7),
    Row("! {x}[{indices}] = {n}", "ffi", 0.7),
    Row("! {x}[..., {indices}] = {n}", "ffi", 0.5),
    Row("! {x}.flip(0).add_({n})", "ff", 0.3),
    Row("! {x}.transpose({dim}, {dim}).mul_({t_into})", "ff", 0.7),
    Row("! {x}.select({dim}, 0).copy_({n_tensor})", "ffi", 0.5),
    Row("! {x}.squeeze_({dim})", "ff", 0.3),
    Row("! {x}.unsqueeze_({dim})", "ff", 0.3),
    Row("! {x}.transpose_({dim}, {dim})", "ff", 0.3),
    Row("! {x}.t_()", "ff", 0.2),
    Row("! {x}.tril_({k})", "ff", 0.4),
    Row("! {x}.cumsum_({dim})", "ff", 0.4),
    Row("! {x}.pow_({count})", "ff", 0.4),
    Row("! {x} **= {count}", "ff", 0.3),
    Row("! {x} /= {positive}", "ff", 0.5),
    Row("! {x}.clamp_(min={n})", "ffi", 0.4),
    Row("! {x}.addcdiv_({t_into}, {positive_like})", "ff", 0.3),
    Row("! {x}.add_({t_into}, alpha={k})", "ffi", 0.5),
    Row("! {x}.fill_diagonal_({n})", "ff", 0.3),
    Row("! {x}.bernoulli_(0.0)", "ff", 0.2),
    Row("! {x}.logical_not_()", "ib", 0.3),
    Row("! {x}.eq_({y})", "ffib", 0.3),
    Row("! {x}.data.add_({n})", "ff", 0.2),
)

LIBRARY = (_POINTWISE, _FOLDS, _VIEWS, _OUT)
_USUAL = (0.6, 0.3, 0.6, 0.2)
LIBRARY_THEMES = tuple(
    (*theme, *_USUAL)
    for theme in ((2, 2, 2, 1), (4, 1, 1, 0.5), (1, 4, 1, 0.5), (1, 0.5, 4, 1), (1, 0.3, 1, 3))
)
"""How often each group is drawn from, and each of those of random programs."""


def _scalar(p: Maker, x: torch.Tensor) -> str:
    """A tensor without dimensions, of any dtype: its kind decides on the dtype of the result."""
    dtype = str(p.rng.choice((*p.dtypes, torch.float64, torch.int64)))
    if p.chance(0.4):
        return f"torch.tensor({p.number(x.dtype)})"
    if p.chance(0.3):
        return f"torch.tensor({p.number(x.dtype)}, dtype={dtype})"
    return p.argument([], p.rng.choice(p.dtypes))


def _attended(p: Maker, x: torch.Tensor) -> str:
    """Sequences [length, batch, width] that attend to themselves, with all weights."""
    width = x.shape[-1] if x.dim() else 1
    heads = p.rng.choice([k for k in (1, 2, 4) if width % k == 0])
    sizes = ([3 * width, width], [3 * width], [width, width], [width])
    weights = [p.argument(each, x.dtype) for each in sizes]
    name = next(n for n in p.pool if p.tensor(n) is x)
    return (
        f"{name}, {name}, {name}, {width}, {heads}, {weights[0]}, {weights[1]}, None, None, "
        f"False, 0.0, {weights[2]}, {weights[3]}"
    )


def _dim_place_source(p: Maker, x: torch.Tensor) -> str:
    """One place or none, and one element or none, with dimensions or without."""
    dim = p.rng.randrange(x.dim()) if x.dim() else 0
    count = x.shape[dim] if x.dim() else 1
    sizes: list[int] = p.rng.choice(([], [1], [0], [1] * x.dim()))
    source = p.rng.choice((sizes, [], [*x.shape[:dim], 1, *x.shape[dim + 1 :]]))
    place = torch.full(sizes, p.rng.randrange(max(count, 1)))
    return f"{dim}, {p.argument(sizes, torch.int64, place)}, {p.argument(source, x.dtype)}"


LIBRARY_PLACES: dict[str, Place] = {
    "dim_place_source": _dim_place_source,
    "huge": lambda p, x: p.rng.choice(("1e30", "300", "70000.0", "-1e30")),
    "scalar": _scalar,
    "attended": _attended,
    "k_of_x": lambda p, x: p.argument(x.shape, torch.int32),
    "dims_listed": lambda p, x: str(p.rng.sample(range(x.dim()), p.rng.randint(0, x.dim()))),
    "n_tensor": lambda p, x: f"torch.tensor({p.number(x.dtype)})",
    "positive_like": lambda p, x: (
        f"torch.full(({', '.join('1' for _ in x.shape)},), 2.0)" if x.dim() else "torch.tensor(2.0)"
    ),
}
