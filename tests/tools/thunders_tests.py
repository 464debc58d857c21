"""Thunder's own tests with this executor as the first of the default ones, as a pytest plugin.

They come with Thunder's wheel, and need `pytest-benchmark`, `einops`, `fdm`,
`litgpt` and `transformers`:

    python -m pytest -c /dev/null -p tests.tools.thunders_tests --pyargs thunder.tests.test_core

Without `-p` they run with Thunder's executors: the difference of the two is ours. Some tests ask
for what this executor changes on purpose: the symbols of a trace that it fuses, the number of
Thunder's executors, errors of programs that it runs.
"""

from __future__ import annotations

from typing import Any

import pytest
import thunder

import thunder_fuser


def pytest_configure(config: pytest.Config) -> None:
    """Put the executor first, before the tests are imported: they make lists of executors."""
    from thunder.tests import framework

    def executors(self: Any) -> list[Any]:
        return [thunder_fuser.executor, thunder.pytorch_executor]

    thunder.extend.add_default_executor(thunder_fuser.executor)
    framework.TorchTestExecutor.executors_list = executors
