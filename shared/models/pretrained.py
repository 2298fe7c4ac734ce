"""A classifier from transformers, begun from a model that lies on this machine; nothing is fetched.

What everybody has need not travel: with adapters (LoRA, Hu and others, 2022) the base model stays out of the
run's tensors, and the name of one of them says which base it has to be.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn

from shared.config import Frozen
from shared.models.base import Model
from shared.problems import InvalidConfiguration

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

__all__ = [
    "BaseName",
    "Lora",
    "PretrainedModel",
    "build_pretrained",
    "digest_base",
    "find_base",
    "load_tokenizer",
]

BaseName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$",
        max_length=200,
        description="a model's name, as NAME or OWNER/NAME; where it lies is each machine's own affair",
    ),
]
Kind = Literal["texts", "images"]

READ = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")
"""Files of a base model that decide what it computes: configuration, weights, tokens, pictures."""


class Lora(Frozen):
    """Low-rank adapters: to a layer's matrix comes ``alpha / rank * B A``, and only A and B are trained.

    ``targets`` are ends of layers' names; None means every linear layer of the base.
    """

    rank: int = Field(8, ge=1, le=1024)
    alpha: float = Field(16.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    targets: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] | None = Field(
        None, min_length=1
    )


# ---------------------------------------------------------------- where it lies, and which it is


@contextmanager
def _needing_hf() -> Iterator[None]:
    """Say what to install where a package of the extra ``hf`` is missing."""
    try:
        yield
    except ModuleNotFoundError as missing:
        if missing.name not in ("transformers", "peft", "huggingface_hub"):
            raise
        raise InvalidConfiguration(
            f"the package {missing.name} is not installed, which this task needs.",
            hint="pip install 'feddisco[hf]'",
        ) from None


def find_base(name: str) -> Path:
    """The folder of the model ``name`` below HF_HUB_CACHE: one of that name, or as ``hf download`` puts it.

    Raises:
        InvalidConfiguration: it is not there, or without weights as safetensors.
    """
    with _needing_hf():
        from huggingface_hub import constants, snapshot_download

    cache = Path(constants.HF_HUB_CACHE)
    folder = cache / name
    if not (folder / "config.json").is_file():
        try:
            folder = Path(snapshot_download(name, cache_dir=cache, local_files_only=True))
        except OSError:  # LocalEntryNotFoundError is one
            raise InvalidConfiguration(
                f"base: there is no model {name!r} in {cache} on this machine, and none is fetched.",
                hint=f"Copy its folder to {cache / name}, or fetch it yourself with `hf download`; "
                "HF_HUB_CACHE names another folder.",
            ) from None
    if not any(folder.glob("*.safetensors")):
        raise InvalidConfiguration(
            f"base: {folder} has no weights as safetensors, and others are not read.",
            hint="Save the model again with save_pretrained, which writes safetensors.",
        )
    return folder


def digest_base(folder: Path) -> str:
    """SHA-256 in hex of the files that decide what the model computes, by name and content."""
    files = sorted({path for pattern in READ for path in folder.glob(pattern)}, key=lambda path: path.name)
    return _digest(tuple((path, path.stat().st_size, path.stat().st_mtime_ns) for path in files))


@functools.lru_cache(maxsize=16)
def _digest(files: tuple[tuple[Path, int, int], ...]) -> str:
    found = []
    for path, _, _ in files:
        with path.open("rb") as file:
            found.append([path.name, hashlib.file_digest(file, "sha256").hexdigest()])
    return hashlib.sha256(json.dumps(found).encode()).hexdigest()


# ---------------------------------------------------------------- the model


class PretrainedModel(Model):
    """A model of transformers whose last linear layer is taken out of it and called ``classifier``.

    With adapters they and the classifier are all that its ``state_dict`` has, beside one number under the
    name ``base_sha256_...``: by it models on other bases differ in their tensors' names. ``new`` are the
    parameters that the base's files lack: drawn at random, they are trained and kept as the classifier is.
    """

    takes = "texts"

    def __init__(
        self,
        whole: PreTrainedModel,
        kind: Kind,
        pad: int,
        digest: str,
        lora: Lora | None,
        new: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._head = _find_head(whole, whole.config.num_labels)
        head = whole.get_submodule(self._head)
        whole.set_submodule(self._head, nn.Identity())
        marker = nn.Parameter(torch.zeros(1), requires_grad=False)
        self.register_parameter(f"base_sha256_{digest}", marker)
        self._hidden = [] if lora is None else _adapt(whole, lora, new)
        self.gradients_at_once = kind == "images"  # transformers looks at the values of a text's mask
        self.features = Features(whole, kind, pad)
        self.classifier = head

    def merge(self) -> PreTrainedModel:
        """A copy as transformers knows it, whole: for ``save_pretrained``, with no trace of adapters."""
        whole: PreTrainedModel = copy.deepcopy(self.features.whole)
        for path, name in self._hidden:
            module = whole.get_submodule(path)
            values = getattr(module, name)
            delattr(module, name)
            module.register_parameter(name, nn.Parameter(values))
        if self._hidden:
            _merge_adapters(whole)
        whole.set_submodule(self._head, copy.deepcopy(self.classifier))
        return whole.requires_grad_(True)


class Features(nn.Module):
    """Token numbers (B, tokens) or images (B, 3, height, width) to what the classifier sees, (B, width)."""

    def __init__(self, whole: PreTrainedModel, kind: Kind, pad: int) -> None:
        super().__init__()
        self.whole = whole
        self._kind = kind
        self._pad = pad

    def forward(self, inputs: Tensor) -> Tensor:
        if self._kind == "images":
            return cast(Tensor, self.whole(pixel_values=inputs).logits)
        tokens = inputs.long()
        mask = (tokens != self._pad).long()
        return cast(Tensor, self.whole(input_ids=tokens, attention_mask=mask).logits)


def build_pretrained(
    folder: Path,
    kind: Kind,
    classes: Sequence[str],
    lora: Lora | None,
    *,
    pad: int = 0,
    length: int | None = None,
    size: tuple[int, int] | None = None,
) -> PretrainedModel:
    """The model in ``folder`` with one output a class; new values come from torch's global generator.

    ``pad`` is the number of the token that fills texts up, ``length`` the most tokens that it will be given,
    ``size`` the (height, width) of its images.

    Raises:
        InvalidConfiguration: it is not such a model, it is too small for its inputs, or cannot be adapted.
    """
    with _needing_hf():
        import transformers

    kinds = {
        "texts": transformers.AutoModelForSequenceClassification,
        "images": transformers.AutoModelForImageClassification,
    }
    with _quiet(), _said_of(folder):
        config = transformers.AutoConfig.from_pretrained(
            folder, num_labels=len(classes), trust_remote_code=False, local_files_only=True
        )
        config.id2label, config.label2id = (
            dict(enumerate(classes)),
            {name: i for i, name in enumerate(classes)},
        )
        if kind == "texts":
            config.pad_token_id = pad
        _check_inputs(config, length, size)
        whole, found = kinds[kind].from_pretrained(
            folder,
            config=config,
            output_loading_info=True,
            dtype=torch.float32,
            attn_implementation="eager",  # others need not give the same bits twice on a GPU
            ignore_mismatched_sizes=True,  # a head for another number of classes
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=True,
        )
    if length is not None:
        _check_places(whole, length)
    return PretrainedModel(whole, kind, pad, digest_base(folder), lora, found["missing_keys"])


def _check_inputs(config: PretrainedConfig, length: int | None, size: tuple[int, int] | None) -> None:
    most = getattr(config, "max_position_embeddings", None)
    if length is not None and isinstance(most, int):
        _check_length(length, most)
    side = getattr(config, "image_size", None)
    wanted = (side, side) if isinstance(side, int) else side and tuple(side)
    if size is not None and wanted and size != wanted:
        raise InvalidConfiguration(
            f"size: {list(size)}, the base model takes images of {list(wanted)}.",
            hint=f"Set size: {list(wanted)}.",
        )


def _check_places(whole: nn.Module, length: int) -> None:
    """Models of RoBERTa's kind count places from behind the number of the padding."""
    for path, layer in whole.named_modules():
        if (
            path.endswith("position_embeddings")
            and isinstance(layer, nn.Embedding)
            and layer.padding_idx is not None
        ):
            _check_length(length, layer.num_embeddings - layer.padding_idx - 1)


def _check_length(length: int, most: int) -> None:
    if length > most:
        raise InvalidConfiguration(
            f"length: {length} tokens, the base model takes {most} at most.", hint="Choose a smaller length."
        )


def _find_head(whole: nn.Module, outputs: int) -> str:
    found: list[str] = [
        path
        for path, layer in whole.named_modules()
        if isinstance(layer, nn.Linear) and layer.out_features == outputs
    ]
    if not found:
        raise InvalidConfiguration(f"base: {type(whole).__name__} does not end in a linear layer.")
    return found[-1]


# ---------------------------------------------------------------- adapters


def _adapt(whole: PreTrainedModel, lora: Lora, new: Collection[str]) -> list[tuple[str, str]]:
    """Add adapters, and take all else but ``new`` out of the model's state; returns where, as (module, name).

    What the base's files lack cannot stay where it is, as the rest of the base does: it is nowhere.
    """
    with _needing_hf():
        from peft import LoraConfig, inject_adapter_in_model

    for path, module in whole.named_modules():
        if getattr(module, "track_running_stats", False):
            raise InvalidConfiguration(
                f"lora: the base model has running statistics ({path}), which would go their own way at each "
                "site.",
                hint="Train the whole model (leave lora out), or take a base without batch normalisation.",
            )
    parameters = dict(whole.named_parameters())
    trained = {name: parameters[name] for name in new if name in parameters}  # the head is out already
    settings = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules="all-linear" if lora.targets is None else list(lora.targets),
        exclude_modules=sorted({name.rpartition(".")[0] for name in trained}) or None,
    )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "fan_in_fan_out")  # GPT-2's layers: it sets what they need
            inject_adapter_in_model(settings, whole)
    except ValueError as error:
        raise InvalidConfiguration(f"lora: {error}", hint="targets are ends of layers' names.") from None
    for parameter in trained.values():
        parameter.requires_grad_(True)
    return list(_hide(whole))


def _hide(whole: nn.Module) -> Iterator[tuple[str, str]]:
    """Frozen parameters become buffers that are not kept: they move with the model, but are none of it."""
    for path, module in whole.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.data, persistent=False)
                yield path, name
        for name, buffer in list(module.named_buffers(recurse=False)):
            module.register_buffer(name, buffer, persistent=False)


def _merge_adapters(whole: nn.Module) -> None:
    from peft.tuners.lora import LoraLayer

    for path, layer in list(whole.named_modules()):
        if isinstance(layer, LoraLayer):
            layer.merge(safe_merge=True)
            whole.set_submodule(path, layer.get_base_layer())


# ---------------------------------------------------------------- the library's ways


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a bar, and without the report of a head that is new: it is meant to be."""
    from transformers.utils import logging

    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


@contextmanager
def _said_of(folder: Path) -> Iterator[None]:
    """What the library raises of a folder, as a sentence."""
    try:
        yield
    except InvalidConfiguration:
        raise
    except (OSError, ValueError, KeyError, RuntimeError, ImportError) as error:
        said = " ".join(str(error).split())[:500]
        raise InvalidConfiguration(
            f"base: the model in {folder} cannot be loaded: {type(error).__name__}: {said}",
            hint="It has to be a model of transformers with weights as safetensors; code that comes with a "
            "model is never run.",
        ) from error


def load_tokenizer(folder: Path) -> Any:
    """The base model's own way from texts to token numbers."""
    with _needing_hf():
        from transformers import AutoTokenizer

    with _quiet(), _said_of(folder):
        found = AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
    if found.pad_token is None:
        found.pad_token = found.eos_token
    if found.pad_token_id is None:
        raise InvalidConfiguration(f"base: the tokenizer in {folder} has neither padding nor an end of text.")
    found.padding_side = "right"
    return found
