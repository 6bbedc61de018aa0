"""No request makes the server fail, whether it follows the OpenAPI description or violates it."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from running import Running
from schemathesis.generation import GenerationMode

from monolane.serve.app import create_app
from monolane.serve.service import Service
from synthetic_engine import synthetic_engine

DESCRIPTION = create_app(Service({"fake": synthetic_engine()})).openapi()
OPERATIONS: list[Any] = [found.ok() for found in schemathesis.openapi.from_dict(DESCRIPTION).get_all_operations()]
CASES = [
    pytest.param(operation, mode, id=f"{operation.label} {mode.value}")
    for operation in OPERATIONS
    for mode in GenerationMode
    if mode == GenerationMode.POSITIVE or operation.body  # what has no body cannot be asked for wrongly
]


@pytest.mark.parametrize(("operation", "mode"), CASES)
def test_no_request_makes_the_server_fail(server: Running, operation: Any, mode: GenerationMode) -> None:
    @settings(
        max_examples=6,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(operation.as_strategy(generation_mode=mode))
    def send(case: Any) -> None:
        response = case.call(base_url=server.url, timeout=30)
        assert response.status_code < 500, response.text

    send()
