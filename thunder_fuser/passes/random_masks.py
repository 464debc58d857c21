"""random_masks: uniform numbers that are only compared with a constant become a Bernoulli mask.

Requires: nothing.
Result: no comparison of a constant with 32-bit uniform numbers that have no other reader, except
returned ones that all numbers pass, or none.

Dropout draws a number per element to test if it is below 1 - p. The number increases with its
random word, so the words that pass are a contiguous range (the last words, whose numbers round to
the upper bound and become the lower one, wrap around to the first). A "bernoulli" tests that with
two integer instructions, where the number takes a conversion, a product, a rounding and two
comparisons. The range is found with the reference evaluator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.ir.fusion import Expr, Fusion, PointwiseOp, RandomOp, Scalar, TensorView, Val
from thunder_fuser.ir.reference import Evaluator
from thunder_fuser.ir.tables.pointwise import COMPARISONS
from thunder_fuser.ir.tables.random import WORDS, lookup
from thunder_fuser.passes.rewrite import Precision, Rewrite, where

_DTYPES = (DataType.Float, DataType.Half, DataType.BFloat16)
_ORDERINGS = COMPARISONS - {"eq", "ne"}

Test = Callable[[torch.Tensor], torch.Tensor]
"""A predicate on random words, elementwise."""


@where(lambda expr: expr.op == "uniform")
def random_masks(fusion: Fusion, precision: Precision = "strict") -> Fusion:
    rewrite = Rewrite(fusion)
    uses, definitions = fusion.uses(), fusion.definitions()
    for expr in rewrite.walk():
        if expr.op not in _ORDERINGS or not _replaced(expr, uses, definitions, rewrite):
            rewrite.copy(expr)
    return rewrite.result()


def _replaced(
    expr: Expr,
    uses: Mapping[Val, list[Expr]],
    definitions: Mapping[Val, Expr],
    rewrite: Rewrite,
) -> bool:
    numbers = [v for v in expr.inputs if isinstance(v, TensorView)]
    drawn = definitions.get(numbers[0]) if len(numbers) == 1 else None
    constants = [v for v in expr.inputs if v not in numbers]
    out = expr.output
    if not (
        isinstance(expr, PointwiseOp)
        and isinstance(drawn, RandomOp)
        and isinstance(out, TensorView)
    ):
        return False
    is_private = len(uses[drawn.output]) == 1 and drawn.output not in rewrite.results
    if not is_private or not _is_known(drawn) or not all(map(_is_number, constants)):
        return False
    first, count = _accepted(drawn, expr)
    b = rewrite.builder
    if 0 < count < WORDS:
        state = (rewrite[drawn.seed], rewrite[drawn.offset])
        made = b.random("bernoulli", out.sizes, (first, count), state, DataType.Bool)
    elif out not in rewrite.results:
        made = b.full(out.sizes, count > 0, DataType.Bool)
    else:
        # A returned constant shares memory with nothing, and would be a kernel of its own.
        return False
    if not rewrite.may_become(out, made):
        return False
    rewrite.replace(out, made)
    return True


def _is_number(value: Val) -> bool:
    return isinstance(value, Scalar) and isinstance(value.value, (int, float))


def _is_known(drawn: RandomOp) -> bool:
    """True if its numbers, except the last words', increase with their words."""
    low, high = (v.value if isinstance(v, Scalar) else None for v in drawn.parameters)
    is_interval = isinstance(low, float) and isinstance(high, float) and low < high
    return drawn.op == "uniform" and drawn.output.dtype in _DTYPES and is_interval


def _accepted(drawn: RandomOp, comparison: PointwiseOp) -> tuple[int, int]:
    """(first, count) of the range of words whose numbers pass the comparison; it may wrap around
    from the last word to the first.
    """
    evaluator = Evaluator(False, torch.device("cpu"))
    low, high = (evaluator[v] for v in drawn.parameters)
    (tensor,) = (v for v in comparison.inputs if isinstance(v, TensorView))

    def numbers(words: torch.Tensor) -> torch.Tensor:
        made = lookup(drawn.op).reference(words[:, None, None], low, high, tensor.dtype)
        return evaluator.convert(made.flatten(), DataType.Float, tensor.dtype)

    def passes(words: torch.Tensor) -> torch.Tensor:
        evaluator.values[tensor] = numbers(words)
        return evaluator.pointwise(comparison, evaluator.operands(comparison))

    def passing(word: int) -> bool:
        return bool(passes(torch.tensor([word])))

    lowest = evaluator.convert(low, DataType.Float, tensor.dtype)
    # From this word on numbers round to the upper bound, and are replaced by the lower one.
    end = _first(lambda words: numbers(words) == lowest, WORDS // 2, WORDS)
    starts_with = passing(0)
    change = _first(lambda words: passes(words) != starts_with, 0, end)
    begin, stop = (0, change) if starts_with else (change, end)
    if end == WORDS or not passing(WORDS - 1):
        return begin, stop - begin
    if starts_with:
        return end, stop + WORDS - end
    return begin, WORDS - begin


def _first(test: Test, begin: int, end: int) -> int:
    """The first word from `begin` on from which a test holds for all words before `end`; `end` if
    there is none.
    """
    while begin < end:
        words = torch.arange(begin, end, max((end - begin) // 4096, 1))
        failed = int((~test(words)).sum())
        if failed < len(words):
            end = int(words[failed])
        if failed:
            begin = int(words[failed - 1]) + 1
    return end
