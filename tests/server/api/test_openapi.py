"""The OpenAPI document is kept: random requests get answers in its terms, and never a 500."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from server.app import create_app, make_coordinator
from server.database.migrations import upgrade
from shared.problems import catalogue
from tests.helpers.live_coordinator import ADMIN, settings_for

ENDLESS = "/events"  # streams do not end by themselves: tests of their own
EXAMPLES = 10
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("openapi")
    url = f"sqlite:///{folder / 'test.sqlite'}"
    upgrade(url)
    coordinator = make_coordinator(settings_for(url, folder / "data"))
    coordinator.hub.close()  # long polls are answered at once
    yield schemathesis.openapi.from_asgi("/openapi.json", create_app(coordinator))
    coordinator.close()


@pytest.mark.long
def test_answers_are_as_documented(document: Any) -> None:
    operations = [found.ok() for found in document.get_all_operations()]
    checked = [operation for operation in operations if not operation.path.endswith(ENDLESS)]
    assert len(checked) >= 30
    for operation in checked:
        every_answer_of(operation)


def every_answer_of(operation: Any) -> None:
    @hypothesis.settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy())
    def check(case: Any) -> None:
        answer = case.call_and_validate(headers={"Authorization": f"Bearer {ADMIN}"}, checks=CHECKS)
        if answer.content and answer.status_code >= 400 and answer.status_code != 503:
            assert answer.json()["code"] in catalogue()

    check()
