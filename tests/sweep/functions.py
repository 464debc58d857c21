"""The functions of the sweep: what users call, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

Function = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class Entry:
    """One function.

    operands      how many tensors it takes
    is_reduction  whether these are rows that it reduces
    cancels       whether it subtracts what is as large as the operand, and may be left with less
    """

    function: Function
    operands: int = 1
    is_reduction: bool = False
    cancels: bool = False


def _torch(*names: str) -> dict[str, Function]:
    return {name: getattr(torch, name) for name in names}


def _nn(*names: str) -> dict[str, Function]:
    return {name: getattr(F, name) for name in names}


UNARY: Mapping[str, Function] = {
    **_torch(
        "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "bitwise_not", "ceil", "cos"
    ),
    **_torch(
        "cosh",
        "digamma",
        "erf",
        "erfc",
        "erfinv",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "frac",
        "isfinite",
    ),
    **_torch("isinf", "isnan", "isneginf", "isposinf", "isreal", "lgamma", "log", "log10", "log1p"),
    **_torch("log2", "logical_not", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign"),
    **_torch("sgn", "signbit", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh", "trunc"),
    **_torch("nan_to_num", "digamma", "real", "imag", "conj", "angle", "positive", "deg2rad"),
    **_nn("relu", "relu6", "leaky_relu", "elu", "selu", "celu", "gelu", "silu", "mish", "softplus"),
    **_nn("softsign", "hardtanh", "hardswish", "hardsigmoid", "hardshrink", "softshrink"),
    **_nn("logsigmoid", "tanhshrink"),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "threshold": lambda x: F.threshold(x, 0.5, 2.0),
    "leaky_relu 0.3": lambda x: F.leaky_relu(x, 0.3),
    "softplus beta": lambda x: F.softplus(x, 2.0, 5.0),
    "clamp both": lambda x: torch.clamp(x, -1, 2),
    "clamp min": lambda x: torch.clamp(x, min=-1),
    "clamp max": lambda x: torch.clamp(x, max=2),
    "clamp float": lambda x: torch.clamp(x, -0.5, 1.5),
    "pow 2": lambda x: x**2,
    "pow 3": lambda x: x**3,
    "pow 0": lambda x: x**0,
    "pow 1": lambda x: x**1,
    "pow False": lambda x: x**False,
    "pow True": lambda x: torch.pow(x, True),
    "pow 0.5": lambda x: x**0.5,
    "pow -0.5": lambda x: x**-0.5,
    "pow -1": lambda x: x**-1,
    "pow -2": lambda x: x**-2,
    "pow 1.5": lambda x: x**1.5,
    "2 ** x": lambda x: 2**x,
    "0.5 ** x": lambda x: 0.5**x,
    "1 / x": lambda x: 1 / x,
    "0.3 / x": lambda x: 0.3 / x,
    "7 / x": lambda x: 7 / x,
    "x < 300": lambda x: x < 300,
    "256 == x": lambda x: 256 == x,  # noqa: SIM300
    "x >= -256": lambda x: x.ge(-256),
    "x + 2 ** 63": lambda x: x + 2**63,
    "x // 2 ** 63": lambda x: x // 2**63,
    "x / 3": lambda x: x / 3,
    "x / 0": lambda x: x / 0.0,
    "x // 2": lambda x: x // 2,
    "x // -3": lambda x: x // -3,
    "x // 1e-46": lambda x: x // 1e-46,
    "x % 3": lambda x: x % 3,
    "x % -2": lambda x: x % -2,
    "fmod 3": lambda x: torch.fmod(x, 3),
    "remainder 2.5": lambda x: torch.remainder(x, 2.5),
    "x * 1": lambda x: x * 1,
    "x + 1": lambda x: x + 1,
    "1 - x": lambda x: 1 - x,
    "x * 0": lambda x: x * 0,
    "x * inf": lambda x: x * float("inf"),
    "masked_fill": lambda x: x.masked_fill(x == 1, 2),
    "where": lambda x: torch.where(x == x, x, x * 2),
    "nan_to_num values": lambda x: torch.nan_to_num(x, 1.0, 2.0, -2.0),
    "nan_to_num keyword": lambda x: torch.nan_to_num(x, posinf=2.0, nan=1),
    "full_like": lambda x: torch.full_like(x, 1.5),
    "new_full": lambda x: x.new_full((3,), 2.9),
    "clamp NaN": lambda x: torch.clamp(x, float("nan"), 1.0),
    "clamp crossed": lambda x: torch.clamp(x, 2, -1),
    "hardtanh 0 6": lambda x: F.hardtanh(x, 0, 6),
    "elu 0.5": lambda x: F.elu(x, 0.5),
    "celu 2": lambda x: F.celu(x, 2.0),
    "logit": lambda x: torch.logit(x),
    "logit eps": lambda x: torch.logit(x, 1e-3),
    "rsub": lambda x: torch.rsub(x, 2),
    "round 2": lambda x: torch.round(x, decimals=2),
    "to double": lambda x: x.double(),
    "to float": lambda x: x.float(),
    "to int": lambda x: torch.nan_to_num(x, 0, 9, -9).clamp(-1e4, 1e4).int(),
    "to bool": lambda x: x.bool(),
    "to bf16": lambda x: x.to(torch.bfloat16),
    "to fp16": lambda x: x.to(torch.float16),
}

BINARY: Mapping[str, Function] = {
    **_torch("add", "sub", "mul", "true_divide", "floor_divide", "fmod", "remainder", "pow"),
    **_torch("atan2", "copysign", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"),
    **_torch("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_left_shift", "nextafter"),
    **_torch("bitwise_right_shift", "logical_and", "logical_or", "logical_xor", "isclose"),
    **_torch("fmax", "fmin", "hypot", "heaviside", "logaddexp", "logaddexp2", "xlogy", "gcd"),
    "div floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "where": lambda a, b: torch.where(a < b, a, b),
    "clamp tensor": lambda a, b: torch.clamp(a, b, b + 1),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 1),
    "lerp 0.3": lambda a, b: torch.lerp(a, b, 0.3),
    "add alpha": lambda a, b: torch.add(a, b, alpha=2),
    "sub alpha": lambda a, b: torch.sub(a, b, alpha=3),
    "mse none": lambda a, b: F.mse_loss(a, b, reduction="none"),
    "l1 none": lambda a, b: F.l1_loss(a, b, reduction="none"),
    "smooth_l1 none": lambda a, b: F.smooth_l1_loss(a, b, reduction="none"),
    "huber none": lambda a, b: F.huber_loss(a, b, reduction="none", delta=0.7),
    "bce none": lambda a, b: F.binary_cross_entropy(
        a.clamp(0, 1).nan_to_num(0.5), b.clamp(0, 1).nan_to_num(0.5), reduction="none"
    ),
    "margin ranking": lambda a, b: F.margin_ranking_loss(a, b, b, margin=0.5, reduction="none"),
    "hinge": lambda a, b: F.hinge_embedding_loss(a, torch.sign(b), reduction="none"),
    "bce logits none": lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
    "kl_div none": lambda a, b: F.kl_div(a, b, reduction="none"),
    "soft margin": lambda a, b: F.soft_margin_loss(a, b, reduction="none"),
    "poisson": lambda a, b: F.poisson_nll_loss(a, b, reduction="none"),
    "bce weight": lambda a, b: F.binary_cross_entropy_with_logits(
        a, b, pos_weight=torch.ones_like(a) * 2, reduction="none"
    ),
    "kl_div log": lambda a, b: F.kl_div(a, b, reduction="none", log_target=True),
    "ldexp": lambda a, b: torch.ldexp(a, b.nan_to_num(0, 9, -9).clamp(-20, 20).int()),
    "silu * b": lambda a, b: F.silu(a) * b,
    "prelu": lambda a, b: torch.where(a > 0, a, a * b),
}

TERNARY: Mapping[str, Function] = {
    "lerp": torch.lerp,
    "addcmul": lambda a, b, c: torch.addcmul(a, b, c, value=0.5),
    "addcmul 1": torch.addcmul,
    "addcdiv": lambda a, b, c: torch.addcdiv(a, b, c, value=0.5),
    "where": lambda a, b, c: torch.where(a > 0, b, c),
    "clamp": torch.clamp,
}


def _classes(x: Tensor) -> Tensor:
    return torch.arange(x.shape[0]) % x.shape[1]


def _statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """A mean and a variance for each column, none of them special."""
    places = torch.arange(x.shape[1])
    return (places * 0.25).to(x.dtype), (places * 0.5 + 0.5).to(x.dtype)


REDUCTIONS: Mapping[str, Function] = {
    **{
        name: lambda x, name=name: getattr(torch, name)(x, -1)
        for name in ("sum", "mean", "prod", "amax", "amin", "argmax", "argmin", "all", "any")
    },
    "max": lambda x: torch.max(x, -1).values,
    "min": lambda x: torch.min(x, -1).values,
    "max value": lambda x: torch.max(x, -1)[0],
    "max place": lambda x: torch.max(x, -1)[1],
    "min place": lambda x: torch.min(x, -1)[1],
    "sum all": torch.sum,
    "max all": torch.max,
    "var": lambda x: torch.var(x, -1),
    "var 0": lambda x: torch.var(x, -1, correction=0),
    "std": lambda x: torch.std(x, -1),
    "var_mean": lambda x: torch.var_mean(x, -1)[0],
    "var_mean's mean": lambda x: torch.var_mean(x, -1)[1],
    "std_mean's mean": lambda x: torch.std_mean(x, -1)[1],
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "softmin": lambda x: F.softmin(x, -1),
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "norm": lambda x: torch.linalg.vector_norm(x, 2, -1),
    "norm 1": lambda x: torch.linalg.vector_norm(x, 1, -1),
    "norm inf": lambda x: torch.linalg.vector_norm(x, float("inf"), -1),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine_similarity": lambda x: F.cosine_similarity(x, x.flip(0), -1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x[:, :, None], 3),
    "instance_norm": lambda x: F.instance_norm(x[None]),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "batch_norm eval": lambda x: F.batch_norm(x, *_statistics(x)),
    "batch_norm affine": lambda x: F.batch_norm(
        x, None, None, *(t + 1 for t in _statistics(x)), training=True
    ),
    "batch_norm eval affine": lambda x: F.batch_norm(
        x, *_statistics(x), *(t + 1 for t in _statistics(x))
    ),
    "layer_norm affine": lambda x: F.layer_norm(
        x, x.shape[-1:], *(t[: x.shape[1]] + 1 for t in _statistics(x))
    ),
    "group_norm affine": lambda x: F.group_norm(
        x[:, :, None], 2, *(t[: x.shape[1]] + 1 for t in _statistics(x))
    ),
    "mse": lambda x: F.mse_loss(x, x + 1),
    "l1": lambda x: F.l1_loss(x, x * 2),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x * 2),
    "mse sum": lambda x: F.mse_loss(x, x * 0.5, reduction="sum"),
    "huber": lambda x: F.huber_loss(x, x * 2, delta=0.7),
    "kl_div": lambda x: F.kl_div(x, x * 2, reduction="batchmean"),
    "bce logits": lambda x: F.binary_cross_entropy_with_logits(x, x * 0.5),
    "mean all": torch.mean,
    "sum 0": lambda x: torch.sum(x, 0),
    "amax 0": lambda x: torch.amax(x, 0),
    "var all": torch.var,
    "prod 0": lambda x: torch.prod(x, 0),
    "norm 3": lambda x: torch.linalg.vector_norm(x, 3, -1),
    "torch.norm": lambda x: torch.norm(x, dim=-1),
    "nll_loss": lambda x: F.nll_loss(x, _classes(x), reduction="none"),
    "nll_loss mean": lambda x: F.nll_loss(x, _classes(x)),
    "cross_entropy mean": lambda x: F.cross_entropy(x, _classes(x)),
    "cross_entropy weight": lambda x: F.cross_entropy(x, _classes(x), x.new_ones(x.shape[1]) * 2),
    "cross_entropy smooth": lambda x: F.cross_entropy(x, _classes(x), label_smoothing=0.1),
    "cross_entropy ignore": lambda x: F.cross_entropy(x, _classes(x), ignore_index=1),
    "cumsum": lambda x: torch.cumsum(x, -1),
    "argmax all": torch.argmax,
    "all all": torch.all,
    "any all": torch.any,
    "tril": lambda x: torch.tril(x),
    "triu": lambda x: torch.triu(x),
    "glu": lambda x: F.glu(x, -1),
    "cross_entropy": lambda x: F.cross_entropy(x, _classes(x), reduction="none"),
}

_CANCELS = ("gelu", "gelu tanh", "tanhshrink", "mish")

ENTRIES: Mapping[str, Entry] = {
    **{name: Entry(f, 1, cancels=name in _CANCELS) for name, f in UNARY.items()},
    **{f"{name} (2)": Entry(f, 2) for name, f in BINARY.items()},
    **{f"{name} (3)": Entry(f, 3) for name, f in TERNARY.items()},
    **{f"{name} (row)": Entry(f, 1, is_reduction=True) for name, f in REDUCTIONS.items()},
}
