"""A model for other programs: TorchScript or ONNX with its preprocessing inside, and a file of its labels."""

from __future__ import annotations

import importlib.util
import io
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from feddisco.beside import place_beside
from feddisco.loaded import load
from feddisco.models import check_is_file, fetch_model
from shared.data.tokens import VOCABULARY
from shared.files import replace_file
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from feddisco.admin import AdminClient
    from feddisco.loaded import LoadedModel
    from shared.tasks.base import Task

__all__ = ["SUFFIXES", "Deployable", "Format", "export_model", "fetch_export", "make_inputs", "write_labels"]

Format = Literal["safetensors", "torchscript", "onnx"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


Exported = tuple[bytes, Callable[[Tensor], Tensor]]
"""What is written, and a way to run it."""

CLOSE = 1e-4
"""How far a probability may be from the model's own: other kernels round otherwise."""


def fetch_export(
    client: AdminClient,
    run: str,
    out: Path,
    format: Format,
    *,
    round: str | None = None,
    metric: str | None = None,
    allow: Sequence[str] = (),
) -> str:
    """Write the model for other programs, with its labels; returns the sentences to print.

    Raises:
        InvalidConfiguration: there is no such model, or it cannot be written like that.
    """
    check_is_file(out)
    with tempfile.TemporaryDirectory(prefix="feddisco-export-") as folder:
        file = out if format == "safetensors" else Path(folder) / "model.safetensors"
        said = fetch_model(client, run, file, round=round, metric=metric, allow=allow)
        loaded = load(file, allow=allow)
        written = write_labels(loaded, out) if format == "safetensors" else export_model(loaded, out, format)
    return "\n".join([said.replace(str(file), run, 1), *map(str, written)])


class Deployable(nn.Module):
    """Raw inputs, as the task reads them, to probabilities (B, classes), or a regression's numbers (B,)."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._task = task

    def forward(self, inputs: Tensor) -> Tensor:
        return self._task.predict(self.model(self._task.prepare(inputs, None)))


def export_model(loaded: LoadedModel, out: Path, format: Literal["torchscript", "onnx"]) -> list[Path]:
    """Write the model, its labels and what it is of; returns the files.

    What was written is run on other inputs than it was made with, and compared with the model.

    Raises:
        InvalidConfiguration: the model cannot be written like that, or says something else then.
    """
    module = Deployable(loaded.task, loaded.model).eval()
    write = _write_torchscript if format == "torchscript" else _write_onnx
    facts = loaded.facts.model_dump_json(exclude_defaults=True)
    try:
        content, run = write(module, make_inputs(loaded.task, 2), facts)
    except ImportError as missing:
        raise InvalidConfiguration(
            f"the package {missing.name} is not installed, which writes {format}.",
            hint="pip install 'feddisco[onnx]'",
        ) from None
    except Exception as error:  # whatever a tracer meets in somebody's model
        raise InvalidConfiguration(
            f"this model cannot be written as {format}: {type(error).__name__}: {str(error)[:500]}",
            hint="Take safetensors, which is the tensors alone.",
        ) from error
    _compare(module, run, make_inputs(loaded.task, 3), format)
    replace_file(out, content)
    return [out, *write_labels(loaded, out)]


def write_labels(loaded: LoadedModel, out: Path) -> list[Path]:
    """Beside ``out``: the classes, one a line, if it has such; and what the model is of, as JSON."""
    facts = place_beside(out, ".json", SUFFIXES.values())
    replace_file(facts, (loaded.facts.model_dump_json(indent=1, exclude_defaults=True) + "\n").encode())
    if loaded.task.outputs != len(loaded.classes):
        return [facts]
    labels = place_beside(out, ".labels.txt", SUFFIXES.values())
    replace_file(labels, "".join(" ".join(name.split()) + "\n" for name in loaded.classes).encode())
    return [labels, facts]


def make_inputs(task: Task, number: int) -> Tensor:
    """So many raw inputs at random, of the kind that the task reads; texts end with padding."""
    generator = torch.Generator().manual_seed(number)
    try:
        kind = task.read_inputs([]).inputs.dtype
    except InvalidConfiguration:
        kind = torch.float32
    shape = (number, *task.input_shape)
    if kind.is_floating_point:
        return torch.randn(shape, generator=generator).to(kind)
    stated = task.describe_inputs()
    lowest, highest = stated.get("range", (0, VOCABULARY - 1 if task.tokens else 255))
    found = torch.randint(0, int(highest) + 1, shape, generator=generator)
    if (padding := stated.get("padding")) is not None:
        found[found == padding] = lowest if lowest != padding else highest
        for row, tokens in enumerate(found):
            tokens[len(tokens) * (row + 1) // (number + 1) :] = padding
    return found.to(kind)


def _compare(module: nn.Module, run: Callable[[Tensor], Tensor], inputs: Tensor, format: str) -> None:
    with torch.inference_mode():
        wanted, found = module(inputs), run(inputs)
    if found.shape != wanted.shape or not torch.allclose(found, wanted, rtol=CLOSE, atol=CLOSE):
        raise InvalidConfiguration(
            f"written as {format}, this model says something else than before, so nothing was written.",
            hint="Its way may depend on its input. Take safetensors, which is the tensors alone.",
        )


# ---------------------------------------------------------------- TorchScript


def _write_torchscript(module: nn.Module, inputs: Tensor, facts: str) -> Exported:
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # it is deprecated, and asked for
        traced = torch.jit.trace(module, inputs, check_trace=False)  # type: ignore[no-untyped-call]
        torch.jit.save(traced, buffer, _extra_files={"feddisco.json": facts})
    return buffer.getvalue(), traced


# ---------------------------------------------------------------- ONNX


def _write_onnx(module: nn.Module, inputs: Tensor, facts: str) -> Exported:
    for needed in ("onnx", "onnxscript", "onnxruntime"):
        if importlib.util.find_spec(needed) is None:
            raise ImportError(name=needed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            module,
            (inputs,),
            dynamo=True,
            verbose=False,
            input_names=["inputs"],
            output_names=["outputs"],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
        )
    if program is None:
        raise RuntimeError("the exporter returned nothing")
    program.model.metadata_props["feddisco"] = facts
    content: bytes = program.model_proto.SerializeToString()
    return content, _open_onnx(content)


def _open_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])
