"""What the steps of a random definition mean is what torch computes."""

from __future__ import annotations

import pytest
import torch

from tests.fuzz.definitions.program import Ref, Step
from tests.fuzz.definitions.truth import results
from thunder_fuser.frontends.definition import DataType, FusionDefinition


@pytest.mark.parametrize(
    ("op", "torchs"), [("sum", torch.sum), ("prod", torch.prod), ("cumsum", torch.cumsum)]
)
def test_folds_round_their_elements_to_the_chosen_dtype(op: str, torchs: object) -> None:
    """1.0004 is 1 in Half: the sum of three such elements is 3, not 3.002, and their product 1."""
    x = torch.full((3,), 1.0004)
    dims = 0 if op == "cumsum" else [0]
    with FusionDefinition() as fd:
        given = fd.define_tensor([3], [True], dtype=DataType.Float)
        made = getattr(fd.ops, op)(given, dims, dtype=DataType.Half)
        fd.add_output(made)
    step = Step(op, (Ref(0), dims), {"dtype": DataType.Half}, 1)
    (found,) = results(step, [made.val], lambda _: given.val, lambda _: x.double())
    assert callable(torchs)
    wanted = torchs(x, 0, dtype=torch.float16)
    assert torch.equal(found, wanted.double())
    (got,) = fd.execute([x])
    assert torch.equal(got, wanted)
