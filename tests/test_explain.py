"""What `explain` says about scripts as people write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
import torch

from thunder_fuser.config import options
from thunder_fuser.errors import Refusal, counted_refusals
from thunder_fuser.explain import Form, main

Explain = Callable[..., tuple[int, str, str]]

_BEGIN = """
    import sys
    import thunder
    import torch
    from torch import nn
    import thunder_fuser

    def jit(program):
        return thunder.jit(program, executors=[thunder_fuser.executor])
"""
_MLP = """
    class MLP(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.norm = nn.RMSNorm(width)
            self.up = nn.Linear(width, 4 * width)
            self.down = nn.Linear(4 * width, width)

        def forward(self, x):
            return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))
"""


@pytest.fixture
def explain(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Of a script that begins as they do: the status, what is printed, what goes to stderr."""

    def run(  # type: ignore[no-untyped-def]
        *parts: str, fake: bool = False, arguments: list[str] | None = None, form: Form = "full"
    ):
        script = tmp_path / "script.py"
        script.write_text("\n".join(map(dedent, (_BEGIN, *parts))))
        status = main(str(script), fake, arguments or [], form)
        printed = capsys.readouterr()
        return (
            status,
            printed.out.replace(str(script), "FILE"),
            printed.err.replace(str(script), "FILE"),
        )

    return run


def lines_of(text: str, beginning: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(beginning)]


def test_a_module_and_its_gradients(explain: Explain) -> None:
    status, text, _ = explain(
        _MLP, "jit(MLP(64))(torch.randn(8, 64, requires_grad=True)).sum().backward()"
    )
    assert status == 0
    assert text.startswith("MLP: ")
    (forward,), (backward,) = lines_of(text, "forward: "), lines_of(text, "backward: ")
    assert "3 fusions, 3 kernels" in forward
    assert "B saved for it, besides inputs and results" in backward
    # Names are those of the traces.
    assert "segment 0 (reduction): (x, t_norm_weight) -> (" in text
    assert "  2 x [unclaimed] linear: " in text
    assert text.count("x [unclaimed] matmul") == 1 + len(
        [line for line in lines_of(text, "    refused ") if "matmul" in line]
    )


def test_a_training_step_on_a_gpu_that_is_not_there(explain: Explain) -> None:
    status, text, errors = explain(
        _MLP,
        """
        with torch.device("cuda"):
            model = MLP(1024)
            optimizer = torch.optim.SGD(model.parameters())
            loss = jit(model)(torch.randn(4096, 1024)).sum()
            loss.backward()
            assert model.up.weight.grad.shape == (4096, 1024)
            optimizer.step()
            print("a loss is", loss.item())
        """,
        fake=True,
    )
    assert (status, "a loss is" in text) == (1, False)
    assert errors.startswith("the script stops at FILE:30: it looks at a number")
    assert lines_of(text, "backward: ")
    assert torch.autograd.backward.__module__ == "torch.autograd"


def test_a_script_that_fails_is_told_where(explain: Explain) -> None:
    status, text, errors = explain(
        """
        f = jit(lambda x: torch.sin(x) * x)
        f(torch.randn(3))
        raise ValueError("no more")
        """
    )
    assert status == 1
    assert errors.startswith('Traceback (most recent call last):\n  File "FILE", line ')
    assert "runpy" not in errors
    assert text.startswith("<lambda>: 1 fusion, 1 kernel, 24 B moved (ideal 24 B), ")


@pytest.mark.parametrize(
    ("end", "status"), [("sys.exit(3)", 3), ("sys.exit()", 0), ("exit('bad')", 1)]
)
def test_a_script_may_exit(explain: Explain, end: str, status: int) -> None:
    found, text, errors = explain("jit(torch.sin)(torch.randn(3))", end)
    assert found == status
    assert lines_of(text, "sin: 1 fusion")
    assert errors == ("bad\n" if "bad" in end else "")


def test_a_script_is_a_program(explain: Explain, tmp_path: Path) -> None:
    """It has its arguments, and finds the modules beside it."""
    (tmp_path / "beside_it.py").write_text("SIZE = 5\n")
    status, text, _ = explain(
        "import beside_it\nprint(sys.argv[1:], beside_it.SIZE)", arguments=["--steps", "2"]
    )
    assert (status, text.splitlines()[0]) == (0, "['--steps', '2'] 5")
    assert "nothing was compiled" in text


def test_what_is_not_a_plan_of_ours_is_said(explain: Explain) -> None:
    _, text, _ = explain(
        """
        for n in (3, 4):
            largest = largest if n > 3 else jit(lambda x: x.topk(2)[0].sin())
            largest(torch.randn(n))
        thunder.jit(torch.cos)(torch.randn(3))
        jit(torch.exp)
        """
    )
    assert "compiled for 2 kinds of inputs, of which this is the last" in text
    assert "[unclaimed] topk" in text
    assert "cos: compiled without thunder_fuser.executor among its executors" in text
    assert lines_of(text, "exp: ")[0].endswith("its traces are made by a call")


def test_boundaries_come_with_their_reasons(explain: Explain) -> None:
    _, text, _ = explain(
        """
        def normalised_twice(x):
            y = x / x.sum(0)
            return y / y.sum(1, keepdim=True)

        jit(normalised_twice)(torch.randn(64, 4096))
        """
    )
    (first, *_) = [line for line in text.splitlines() if "boundary" in line]
    assert " B): segment 0 -> 1: " in first
    assert "T" not in first.split("(")[0].replace("boundary", "")


def test_definitions_with_open_sizes(explain: Explain) -> None:
    _, text, _ = explain(
        """
        from thunder_fuser import DataType, FusionDefinition

        with FusionDefinition() as fd:
            x = fd.define_tensor([-1, -1], True, DataType.Float)
            fd.add_output(fd.ops.exp(x))
        try:
            with FusionDefinition() as bad:
                raise ValueError(bad)
        except ValueError:
            pass
        """
    )
    assert "FusionDefinition: plan: 1 kernel, 8*i0*i1 B moved (ideal 8*i0*i1 B)" in text
    assert text.count("FusionDefinition") == 1


@pytest.mark.filterwarnings("ignore:definition. torch runs 1 of 1 segment")
def test_segments_that_ran_in_torch_are_told(explain: Explain) -> None:
    with options(strict=False):
        _, text, _ = explain(
            """
            from unittest import mock
            from thunder_fuser import DataType, FusionDefinition, compile

            with FusionDefinition() as fd:
                x = fd.define_tensor([5], True, DataType.Float)
                fd.add_output(fd.ops.exp(x))
            with mock.patch.object(compile, "lower", side_effect=KeyError("planted")):
                fd.execute([torch.zeros(5)])
            """
        )
    head = "segment 0 (pointwise): (T0) -> (T1)"
    assert f"in torch [fallback] {head}: KeyError: 'planted'" in text


def test_equal_refusals_are_counted() -> None:
    refusals = [Refusal("a", "no.", "op", f"f.py:{k}") for k in (1, 2, 1, 3, 4)]
    refusals += [Refusal("a", "no.", "other"), Refusal("b", "never.", "op")]
    assert counted_refusals(refusals) == [
        "5 x [a] op: no. (at f.py:1, f.py:2, f.py:3, and 1 more lines)",
        "1 x [a] other: no.",
        "1 x [b] op: never.",
    ]


@pytest.mark.parametrize(
    "moved",
    ["cuda().bfloat16()", "half().to('cuda:0', torch.bfloat16)", "to('cuda').half().bfloat16()"],
)
def test_modules_that_were_moved_and_cast(explain: Explain, moved: str) -> None:
    status, text, errors = explain(
        _MLP,
        f"""
        model = MLP(64)
        weight = model.up.weight
        model.norm.tied = model.norm.weight
        model = model.{moved}
        assert model.up.weight is weight and model.norm.tied is model.norm.weight
        assert weight.dtype is torch.bfloat16 and weight.is_cuda and weight.requires_grad
        x = torch.randn(8, 64, device="cuda", dtype=torch.bfloat16)
        jit(model)(x).sum().backward()
        """,
        fake=True,
    )
    assert (status, errors) == (0, "")
    assert "3 fusions, 3 kernels" in lines_of(text, "forward: ")[0]


def test_definitions_that_are_executed_on_fake_tensors(explain: Explain) -> None:
    status, text, errors = explain(
        """
        from thunder_fuser import DataType, FusionDefinition
        x = torch.randn(8, 64, device="cuda:0")
        with FusionDefinition() as fd:
            t = fd.define_tensor([-1, -1], True, DataType.Float)
            fd.add_output(fd.ops.sum(fd.ops.sin(t), [1]))
        (y,) = fd.execute([x])
        assert y.shape == (8,) and y.is_cuda

        class Negative(FusionDefinition):
            def definition(self):
                self.add_output(self.ops.neg(self.from_pytorch(x)))

        Negative().validate([x])
        """,
        fake=True,
    )
    assert (status, errors) == (0, "")
    first, second = lines_of(text, "FusionDefinition: ")
    assert "1 kernel, 2,080 B moved" in first
    assert "1 kernel, 4,096 B moved" in second


def test_a_screen_for_each_function(explain: Explain) -> None:
    status, text, _ = explain(
        _MLP,
        """
        jit(MLP(64))(torch.randn(8, 64, requires_grad=True)).sum().backward()
        jit(torch.sin)(torch.randn(3))
        """,
        form="short",
    )
    assert status == 0
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    heads = [line.partition(":")[0] for line in lines if line[0] != " "]
    parts = ["memory besides arguments", "most bytes"]
    assert [h for h in heads if h not in ("kernels", "left to torch")] == [
        *("MLP", *parts, "forward", "backward"),
        *("sin", *parts, "program"),
    ]


def test_the_same_as_data(explain: Explain) -> None:
    _, text, _ = explain("jit(lambda x: torch.sin(x) * x)(torch.randn(8))", form="json")
    found = json.loads(text)
    assert (found["kernels"], found["bytes"]) == (1, 64)
    assert [step["name"] for step in found["steps"]] == ["fuser0"]


def test_pages_of_two_functions(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"{dedent(_BEGIN)}\nfor f in torch.sin, torch.exp: jit(f)(torch.ones(4))")
    assert main(str(script), html=str(tmp_path / "page.html")) == 0
    pages = sorted(path.name for path in tmp_path.glob("*.html"))
    assert pages == ["page-0.html", "page-1.html"]
