"""A Llama of twelve layers, forward and backward, compiled once for all tests of reports."""

from __future__ import annotations

from typing import Any

import pytest
import thunder

from tests.frontends.thunder.programs import jit
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
