"""Llamas of twelve layers, forward and backward, compiled once for all tests of reports: on a GPU
that is not there, and one that has run on the CPU.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import thunder
import torch

from tests.frontends.thunder.programs import jit
from tests.zoo.models import MODELS
from tests.zoo.plan_programs import llama_inputs, llama_layers
from thunder_fuser.inspect import Report, report

LAYERS = 12


@pytest.fixture(scope="package")
def compiled_llama() -> Any:
    compiled = jit(llama_layers)
    thunder.compile_data(compiled).get_computation_and_inputs(*llama_inputs(LAYERS))
    return compiled


@pytest.fixture(scope="package")
def llama(compiled_llama: Any) -> Report:
    return report(compiled_llama)


@pytest.fixture(scope="package")
def trained_llama() -> Report:
    (model,) = (m for m in MODELS if m.name == "Llama")
    sizes = replace(model.small, layers=LAYERS)
    torch.manual_seed(0)
    compiled = jit(model.make(sizes))
    compiled(*model.batch(sizes, torch.float32, "cpu")).backward()
    return report(compiled)


@pytest.fixture(params=["llama", pytest.param("trained_llama", marks=pytest.mark.campaign)])
def any_llama(request: pytest.FixtureRequest) -> Report:
    found: Report = request.getfixturevalue(request.param)
    return found
