"""The verifier of kernel IR finds names out of scope and names that one scope declares twice."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.zoo.template_programs import kernel_of, norm_backward, rms_norm, scanned, transposed
from thunder_fuser import kernel_ir as ir
from thunder_fuser.errors import InternalError
from thunder_fuser.frontends.definition import FusionDefinition
from thunder_fuser.ir.dtypes import DataType
from thunder_fuser.kernel_ir import Int, Let, Var
from thunder_fuser.kernel_ir.verify import verify

INT, ZERO = DataType.Int32, Int(0)


KERNEL = kernel_of(rms_norm(128, 16384))


def with_body(*body: ir.Stmt) -> ir.KernelIR:
    return replace(KERNEL, body=body)


def let(name: str, value: ir.Expr = ZERO) -> Let:
    return Let(name, INT, value)


@pytest.mark.parametrize(
    "definition",
    [norm_backward(4096, 1024), transposed(1000, 333), scanned(8192, 16384)],
    ids=["reduction", "transpose", "scan"],
)
def test_kernels_of_templates_pass(definition: FusionDefinition) -> None:
    verify(kernel_of(definition))


def test_scopes_enclose_and_end() -> None:
    inner = ir.Scope((let("b", Var("a")), let("a", Var("a"))))
    loop = ir.Loop("k", Int(4), (let("b", ir.Binary("+", Var("k"), Var("a"))),))
    branch = ir.If((Var("a"),), (let("c"),), (let("c"),))
    verify(with_body(let("a"), inner, loop, branch, let("b", Var("T0"))))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ((let("a", Var("b")), let("b")), "b is read by Let"),
        ((let("a"), let("a")), "a is declared twice"),
        ((ir.Scope((let("a"),)), let("b", Var("a"))), "a is read by Let"),
        ((ir.Loop("k", Int(4), ()), let("b", Var("k"))), "k is read by Let"),
        ((ir.Loop("k", Int(4), (let("k"),)),), "k is declared twice"),
        ((ir.If((ir.And((Var("a"),)),), ()),), "a is read by If"),
        ((ir.AwaitCopies("copies"),), "copies is read by AwaitCopies"),
        ((ir.GroupedReduce((let("a", Var("x")),)),), "x is read by GroupedReduce"),
        ((ir.GroupedReduce((let("a"),)), let("a")), "a is declared twice"),
    ],
)
def test_faults_are_named(body: tuple[ir.Stmt, ...], problem: str) -> None:
    with pytest.raises(InternalError, match=f"reduction .*: {problem}"):
        verify(with_body(*body))
