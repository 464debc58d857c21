"""What a user can ask about a compiled function."""

from __future__ import annotations

import copy
import html.parser
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_fuser
from tests.frontends.thunder.programs import fake, jit, traced
from thunder_fuser.errors import FuserTypeError, FuserValueError
from thunder_fuser.frontends.thunder import FusionReport, fusions, refusals
from thunder_fuser.frontends.thunder.fuser import Fuser


def program(x: Any, y: Any, scale: Any) -> Any:
    z = torch.sin(x) * scale + y.t()
    return z, z.to(torch.bfloat16).logcumsumexp(0)


def report() -> FusionReport:
    compiled = jit(program)
    compiled(torch.randn(3, 4), torch.randn(4, 3), 0.5)
    return fusions(compiled)[0]


def test_a_report_names_proxies_plan_and_kernels() -> None:
    found = report()
    assert found.name == "fuser0"
    assert [p.name for p in found.inputs] == ["x", "y"]
    assert tuple(found.outputs[0].shape) == (3, 4)
    assert found.plan.kernels == len(found.kernels) == 1
    assert found.plan.bytes == 3 * 12 * 4 + 12 * 2
    assert [r.code for r in found.refusals] == ["unclaimed"]


def test_a_report_knows_the_users_lines() -> None:
    (origin, *_) = report().origins
    assert (origin.file, origin.line) == (__file__, program.__code__.co_firstlineno + 1)


def test_a_report_prints() -> None:
    text = str(report())
    assert text.startswith("fuser0(x, y) -> (")
    assert "segment 0 (pointwise): (x, y) -> (" in text
    assert "  refused 1 x [unclaimed] logcumsumexp" in text


def test_a_report_is_a_table_in_a_notebook() -> None:
    class Tags(html.parser.HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.open: list[str] = []
            self.cells: list[str] = []

        def handle_starttag(self, tag: str, attrs: Any) -> None:
            self.open.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert self.open.pop() == tag

        def handle_data(self, data: str) -> None:
            if self.open[-1] == "td":
                self.cells.append(data)

    parser = Tags()
    parser.feed(report()._repr_html_())
    assert parser.open == []
    assert parser.cells[:2] == ["0", "pointwise"]


def test_a_repro_script_runs_and_checks_itself() -> None:
    text = report().repro()
    assert text.startswith('"""fuser0')
    exec(compile(text, "repro", "exec"), {})


def test_a_repro_script_for_cuda_names_the_device() -> None:
    (found,) = traced(torch.sin, *fake((3, 4), dtype=torch.float32))
    assert "device='cuda:0'" in found.repro()
    compile(found.repro(), "repro", "exec")


def test_a_repro_script_has_scalars_too() -> None:
    compiled = jit(lambda x: x * x.sum().item())
    compiled(torch.ones(3))
    found = fusions(compiled)[-1]
    exec(compile(found.repro(), "repro", "exec"), {})


def test_functions_that_were_not_compiled_or_not_called() -> None:
    with pytest.raises(FuserTypeError, match="not made by"):
        thunder_fuser.fusions(program)
    with pytest.raises(FuserValueError, match="not been called"):
        thunder_fuser.fusions(jit(program))


def test_the_public_names() -> None:
    assert thunder_fuser.fusions is fusions
    assert thunder_fuser.FusionReport is FusionReport
    compiled = jit(lambda x: x.logcumsumexp(0))
    compiled(torch.ones(3))
    assert [r.code for r in thunder_fuser.refusals(compiled)] == ["unclaimed"]


def test_refusals_of_layers_name_the_users_lines() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
            self.norm = torch.nn.LayerNorm(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = torch.sin(self.first(x))
            x = torch.logcumsumexp(x, 0)
            return torch.sin(self.second(self.norm(x)))

    model = Model()
    compiled = jit(model)
    compiled(torch.randn(4, 4))
    first = Model.forward.__code__.co_firstlineno
    found = {
        r.origin.removeprefix(f"{__file__}:"): (r.subject, count, r.text)
        for r, count in refusals(compiled).items()
        if r.origin
    }
    assert {line: (name, count) for line, (name, count, _) in found.items()} == {
        str(first + 1): ("linear", 1),
        str(first + 2): ("logcumsumexp", 1),
        str(first + 3): ("linear", 1),
    }
    assert "a matrix product" in found[str(first + 1)][2]
    assert "a scan" in found[str(first + 2)][2]
    lines = {o.line for report in fusions(compiled) for o in report.origins}
    assert lines == {first + 1, first + 3}


def test_a_layer_alone_has_torchs_line() -> None:
    compiled = jit(torch.nn.Linear(4, 4))
    compiled(torch.randn(4, 4))
    (refusal,) = (r for r in refusals(compiled) if r.origin)
    assert "torch/nn/modules/linear.py" in refusal.origin


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.softmax(x, -1) * 2 + x.logcumsumexp(0),
        # Proxies of its parameters have tags.
        torch.nn.LayerNorm(8),
    ],
)
def test_reports_can_be_kept(
    copied: Callable[[Any], Any], program: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    function = jit(program)
    function(torch.randn(4, 8, requires_grad=True))
    reports = thunder_fuser.fusions(function)
    kept = copied(reports)
    assert len(kept) == len(reports) >= 2
    for one, other in zip(reports, kept, strict=True):
        assert one is not other
        assert str(one) == str(other)
        assert one.repro() == other.repro()
        assert one.kernels == other.kernels
        assert one.refusals == other.refusals
        assert one._repr_html_() == other._repr_html_()
    plans = [report.plan for report in reports]
    assert list(map(str, copied(plans))) == list(map(str, plans))
    assert copied(thunder_fuser.refusals(function)) == thunder_fuser.refusals(function)
    segments = thunder_fuser.segments(function)
    assert copied(segments) == segments
    assert kept == reports
    assert reports[0] != reports[1]
    assert len({*kept, *reports}) == len(reports)


def test_the_executor_is_one_in_each_process() -> None:
    executor = thunder_fuser.executor
    assert copy.deepcopy([executor]) == [executor]
    assert pickle.loads(pickle.dumps(executor)) is executor
    with pytest.raises(FuserValueError, match="register_executor"):
        copy.copy(Fuser("unregistered"))
