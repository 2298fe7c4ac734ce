"""What a run may have as shadows; refusals are one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.config import RunConfig


def test_a_shadow_is_a_weighting_or_its_kind() -> None:
    config = RunConfig.model_validate(
        {"name": "a", "shadow": ["sizes", {"kind": "disco", "a": 0.2, "normalise": "all_clients"}]}
    )
    assert [each.label for each in config.shadow] == ["sizes", "disco a=0.2 normalise=all_clients"]
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"secure": {}, "min_clients": 3, "shadow": ["sizes"]}, "of which nobody sees one with secure sums"),
        ({"evaluate_every": 0, "shadow": ["sizes"]}, "evaluate_every: 0 never asks for"),
        ({"shadow": ["sizes", "sizes"]}, "sizes, sizes are not distinct"),
        ({"weighting": {"kind": "sizes"}, "shadow": ["sizes"]}, "or one is the run's own weighting"),
        ({"shadow": ["fedadp"]}, "fedadp goes by its own earlier rounds"),
        (
            {"weighting": {"kind": "sizes"}, "shadow": ["disco"]},
            "disco asks sites for more than sizes, the run's weighting",
        ),
        ({"shadow": [{"kind": "disco", "metric": "l1"}]}, "disco metric=l1 asks sites for more than disco"),
        ({"shadow": ["qfedavg"]}, "qfedavg asks sites for more than disco"),
        ({"shadow": ["nothing"]}, "kind is none of disco"),
    ],
)
def test_what_cannot_be_a_shadow_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RunConfig.model_validate({"name": "a", **fields})
