"""What a client's training made, packed: the client's half of a run's compression, with error feedback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from shared import wire
from shared.training.local_round import Diverged, LocalResult
from shared.wire.packing import RESIDUAL, PackedForm, pack

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["pack_result"]


def pack_result(
    result: LocalResult,
    start: Mapping[str, Tensor],
    kept: Mapping[str, Mapping[str, Tensor]],
    form: PackedForm,
) -> LocalResult:
    """``result`` with the model's parameters packed, and what they leave out kept in the group ``RESIDUAL``.

    ``start`` is the model received, ``kept`` what the client kept of its newest update that was aggregated:
    one that was lost does not count as sent. A client that made no step says that nothing moved and goes on
    keeping what it has, since there are algorithms that pass over the model of such a client.

    Raises Diverged if a parameter moved by more than the format can say.
    """
    model, before = dict(result.tensors[wire.MODEL]), kept.get(RESIDUAL, {})
    names = [spec.name for spec in form.parameters]
    trained = {name: model.pop(name) for name in names}
    try:
        if result.steps:
            moved = {name: trained[name] - start[name].to("cpu") for name in names}
            packed = pack(moved, before, form.compression)
            residual = packed.residual
        else:
            packed = pack({name: torch.zeros_like(trained[name]) for name in names}, {}, form.compression)
            residual = {name: before[name].clone() for name in names if name in before}
    except ArithmeticError as error:
        raise Diverged(str(error)) from error
    tensors = {group: members for group, members in result.tensors.items() if group != wire.MODEL}
    return replace(
        result,
        tensors={wire.MODEL: model, **tensors, **packed.groups},
        kept={**result.kept, **({RESIDUAL: residual} if residual else {})},
    )
