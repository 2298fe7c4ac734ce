"""Models of transformers as tasks: read as their tokenizer reads, whole or by adapters, never fetched."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

import feddisco
from feddisco.exporting import export_model, make_inputs
from feddisco.loaded import LoadedModel
from shared.config import RunConfig
from shared.model_files import ModelFacts
from shared.problems import InvalidConfiguration
from shared.tasks import base_of, load_task
from shared.training.accountant import Spending
from shared.training.private import KEY_BYTES, NoiseStream, PrivateGradients, PrivateRound
from shared.wire.tensors import load_into, manifest_of, state_of
from tests.helpers.tiny_transformers import TextKind, make_text_base, make_vit_base, write_texts

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("transformers")]  # imported once

OTHERS: tuple[TextKind, ...] = ("roberta", "distilbert", "gpt2")
LORA = {"rank": 4, "alpha": 16}


def text_task(**more: Any) -> Any:
    options = {"columns": ["said"], "target": "mood", "classes": ["up", "down"], "length": 16, "base": "tiny"}
    return load_task("hf-text", options | more)


TARGETS = {
    "tiny": ["query", "value"],
    "roberta": ["query", "value"],
    "distilbert": ["q_lin", "v_lin"],
    "gpt2": ["c_attn"],
}


class NoNetwork:
    """While it is on, whoever opens a connection gets a fault. An audit hook stays for good, so it is one."""

    on = False
    tried: ClassVar[list[object]] = []

    @classmethod
    def watch(cls, event: str, arguments: tuple[Any, ...]) -> None:
        if cls.on and event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname"):
            cls.tried.append(arguments)
            raise OSError("nothing is to be fetched")


sys.addaudithook(NoNetwork.watch)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    make_text_base(folder / "tiny")
    make_vit_base(folder / "tiny-vit")
    for kind in OTHERS:
        make_text_base(folder / kind, kind=kind)
    return folder


@pytest.fixture(autouse=True)
def models(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """HF_HUB_CACHE, which the library reads when it is imported."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(made))
    NoNetwork.on, NoNetwork.tried = True, []
    yield made
    NoNetwork.on = False
    assert NoNetwork.tried == []


def test_texts_are_numbered_by_the_bases_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("said,mood\nthe good day,up\nunheard poor film,down\n")
    examples = text_task(length=8).load("train", tmp_path, seed=0)
    assert examples.inputs.dtype is torch.int32
    # [CLS] 2, [SEP] 3, [UNK] 1, padding 0; the others count from 4 in the order of WORDS
    assert examples.inputs.tolist() == [[2, 10, 4, 12, 3, 0, 0, 0], [2, 1, 8, 13, 3, 0, 0, 0]]
    assert examples.targets.tolist() == [0, 1]


def test_with_adapters_neither_base_nor_its_buffers_are_among_the_tensors() -> None:
    whole, adapted = (text_task(lora=lora).build_model(None, seed=1) for lora in (None, LORA))
    names = [spec.name for spec in manifest_of(adapted)]
    assert names[0] == manifest_of(whole)[0].name
    assert names[0].startswith("base_sha256_")
    assert all("lora_" in name or name.startswith("classifier.") for name in names[1:])
    # per layer four matrices 32x32, one 32x64 and one 64x32, and the pooler's 32x32: rank 4 times both sides;
    # and a classifier of two classes, and the marker
    assert sum(p.numel() for p in adapted.parameters()) == 2 * (4 * 64 + 2 * 96) * 4 + 64 * 4 + 66 + 1
    # 18 words of 32, 64 places, 2 kinds and a norm; 2 layers of four 32x32, 32x64, 64x32, with biases and two
    # norms each; the pooler
    layer = 4 * (32 * 32 + 32) + (32 * 64 + 64) + (64 * 32 + 32) + 2 * 64
    assert sum(p.numel() for p in whole.parameters()) == (18 + 64 + 2 + 2) * 32 + 2 * layer + 32 * 33 + 66 + 1


def test_an_untrained_adapter_changes_nothing_and_padding_does_not_matter() -> None:
    whole, adapted = (text_task(lora=lora).build_model(None, seed=1).eval() for lora in (None, LORA))
    short = torch.tensor([[2, 10, 4, 3]])
    padded = torch.tensor([[2, 10, 4, 3, 0, 0, 0], [2, 5, 6, 7, 8, 9, 3]])
    assert torch.equal(whole.features(short), adapted.features(short))
    torch.testing.assert_close(adapted(padded)[:1], adapted(short))


@pytest.mark.parametrize("base", ["tiny", *OTHERS])
@pytest.mark.parametrize("lora", [LORA, LORA | {"targets": None}, None], ids=["some", "all", "whole"])
def test_what_travels_is_all_that_a_base_does_not_have(base: str, lora: dict[str, Any] | None) -> None:
    """Whoever builds the model on the same base, from whatever seed, has the run's model with its tensors."""
    lora = lora if lora is None or "targets" in lora else lora | {"targets": TARGETS[base]}
    task = text_task(lora=lora, base=base)
    trained, other = (task.build_model(None, seed=seed).eval() for seed in (3, 0))
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if parameter.requires_grad:
                drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
                parameter.add_(drawn, alpha=0.1)
    load_into(other, state_of(trained))
    tokens = torch.tensor([[2, 10, 4, 3, 0, 0], [2, 5, 6, 7, 8, 3]])
    assert torch.equal(trained(tokens), other(tokens))
    assert not torch.equal(trained(tokens)[0], trained(tokens)[1])


def check_export(base: str, format: Literal["torchscript", "onnx"], folder: Path) -> None:
    """:func:`export_model` compares what it has written with the model."""
    lora: dict[str, Any] = {"lora": LORA, "base": base}
    task = (
        load_task("hf-image", lora | {"classes": ["a", "b"], "size": 16})
        if base == "tiny-vit"
        else text_task(**lora)
    )
    facts = ModelFacts(
        run="x", round=1, rounds=1, task=task.name, classes=task.classes, algorithm="fedavg",
        task_options=task.options.model_dump(mode="json", exclude_defaults=True),
        weighting="disco", model_digest="0" * 64,
    )  # fmt: skip
    files = export_model(LoadedModel(task.build_model(None, 3).eval(), task, facts), folder / "m", format)
    assert files[0].stat().st_size > 10_000


@pytest.mark.parametrize("base", ["tiny", *OTHERS, "tiny-vit"])
def test_a_model_with_adapters_is_written_as_torchscript(base: str, tmp_path: Path) -> None:
    check_export(base, "torchscript", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("base", ["tiny", *OTHERS, "tiny-vit"])
def test_a_model_with_adapters_is_written_as_onnx(base: str, tmp_path: Path) -> None:
    check_export(base, "onnx", tmp_path)


def test_texts_that_an_export_is_compared_by_end_with_padding() -> None:
    tokens = make_inputs(text_task(), 3)
    lengths = (tokens != 0).sum(dim=1)
    assert lengths.tolist() == [4, 8, 12]
    assert all((row[:length] != 0).all() for row, length in zip(tokens, lengths, strict=True))


@pytest.mark.parametrize("base", OTHERS)
def test_a_base_takes_as_many_tokens_as_it_has_places(base: str) -> None:
    most = 63 if base == "roberta" else 64  # it counts places from behind the padding's number
    model = text_task(base=base, length=most).build_model(None, seed=0)
    assert model(torch.full((1, most), 5)).shape == (1, 2)
    with pytest.raises(InvalidConfiguration, match=f"the base model takes {most} at most"):
        text_task(base=base, length=most + 1).build_model(None, seed=0)


def test_merged_it_is_the_same_function_and_transformers_loads_it(tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    model = text_task(lora=LORA).build_model(None, seed=1).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.1, generator=torch.Generator().manual_seed(2))
    model.merge().save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokens = torch.tensor([[2, 10, 4, 3], [2, 5, 6, 3]])
    with torch.no_grad():
        torch.testing.assert_close(loaded(input_ids=tokens).logits, model(tokens), rtol=1e-4, atol=1e-5)
    assert loaded.config.id2label == {0: "up", 1: "down"}
    assert not [name for name in loaded.state_dict() if "lora" in name]


def test_an_image_model_scales_as_its_base_says() -> None:
    options = {"classes": ["a", "b", "c"], "base": "tiny-vit", "size": 16, "lora": LORA}
    task = load_task("hf-image", options)
    pixels = torch.full((2, 3, 16, 16), 51, dtype=torch.uint8)
    prepared = task.prepare(pixels, None)
    expected = torch.tensor([(0.2 - 0.4) / 0.2, (0.2 - 0.5) / 0.25, (0.2 - 0.6) / 0.3])
    torch.testing.assert_close(prepared[0, :, 0, 0], expected)
    assert task.build_model(None, seed=1)(prepared).shape == (2, 3)
    with pytest.raises(InvalidConfiguration, match=r"takes images of \[16, 16\]"):
        load_task("hf-image", options | {"size": 32}).build_model(None, seed=1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"base": "theirs/absent"}, "no model 'theirs/absent'.*none is fetched"),
        ({"base": "pickled"}, "no weights as safetensors"),
        ({"base": "coded"}, "cannot be loaded"),
        ({"length": 65}, "65 tokens, the base model takes 64"),
        ({"lora": {"targets": ["no_such_layer"]}}, "lora: .*no_such_layer"),
    ],
)
def test_what_cannot_be_built_says_why(changes: dict[str, Any], said: str, models: Path) -> None:
    (models / "pickled").mkdir(exist_ok=True)
    (models / "pickled" / "config.json").write_text("{}")
    (models / "pickled" / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")
    (models / "coded").mkdir(exist_ok=True)
    own = {"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Config", "AutoModel": "theirs.Model"}}
    (models / "coded" / "config.json").write_text(json.dumps(own))
    (models / "coded" / "theirs.py").write_text("raise SystemExit('their code was run')\n")
    (models / "coded" / "model.safetensors").write_bytes((models / "tiny" / "model.safetensors").read_bytes())
    with pytest.raises(InvalidConfiguration, match=said):
        text_task(**changes).build_model(None, seed=1)


@pytest.mark.parametrize("base", ["../tiny", "/etc", "a/b/c", ".hidden", "tiny/..", ""])
def test_a_run_names_no_path(base: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"task_options\.base"):
        text_task(base=base)


def test_a_run_says_which_base_it_begins_from() -> None:
    config = RunConfig(name="r", task="hf-text", task_options={"base": "org/model"})
    assert base_of(config) == "hf:org/model"
    assert base_of(RunConfig(name="r", task="csv", task_options={"base": "org/model"})) is None


def run_of(task: Any, **more: Any) -> dict[str, Any]:
    return {
        "name": "begun",
        "task": task.name,
        "task_options": task.options.model_dump(mode="json", exclude_defaults=True),
        "rounds": 3,
        "partition": "niid1:3:5",
        "weighting": {"kind": "disco"},
        "local": {"epochs": 2, "batch_size": 8, "learning_rate": 0.005, "optimizer": "adam"},
    } | more


def test_three_clients_learn_by_adapters_alone_and_the_model_is_taken_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_texts(tmp_path, examples=120)
    file = tmp_path / "out" / "moods.jsonl"
    result = feddisco.simulate(run_of(text_task(lora=LORA)), data=tmp_path, out=file)
    assert result.rounds["accuracy"].iloc[-1] > 0.85
    (tmp_path / "new.csv").write_text("said\nit was a glad fine day\nthe sad bad film\n")
    found = feddisco.load(file.with_suffix(".safetensors")).predict(tmp_path / "new.csv")
    assert [each.label for each in found] == ["up", "down"]
    make_text_base(tmp_path / "others" / "tiny", seed=5)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "others"))
    with pytest.raises(InvalidConfiguration, match=r"no tensor base_sha256_.*Copy the run's base"):
        feddisco.load(file.with_suffix(".safetensors"))


def test_three_clients_learn_images_also_with_noise(tmp_path: Path) -> None:
    draws = np.random.default_rng(0)
    for split, label in itertools.product(("train", "test"), ("dark", "light")):
        folder = tmp_path / split / label
        folder.mkdir(parents=True)
        for number in range(30):
            pixels = draws.integers(0, 100, (16, 16, 3)) + (120 if label == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    task = load_task("hf-image", {"classes": ["dark", "light"], "base": "tiny-vit", "size": 16, "lora": LORA})
    config = run_of(task, rounds=2, local={"epochs": 1, "batch_size": 8, "learning_rate": 0.05})
    assert feddisco.simulate(config, data=tmp_path).rounds["accuracy"].iloc[-1] > 0.9
    private = {"epsilon": 50, "delta": 1e-3, "clip": 1}
    noised = run_of(task, rounds=1, dp=private, local={"steps": 1, "batch_size": 2, "learning_rate": 0.05})
    assert math.isfinite(feddisco.simulate(noised, data=tmp_path).rounds["loss"].iloc[-1])


@pytest.mark.parametrize("lora", [LORA, None])
def test_the_gradients_of_single_texts_are_clipped_as_autograd_has_them(lora: dict[str, int] | None) -> None:
    model = text_task(lora=lora).build_model(None, seed=1).eval()
    parameters = [each for each in model.parameters() if each.requires_grad]
    texts = torch.tensor([[2, 10, 4, 3, 0, 0, 0], [2, 5, 6, 7, 8, 9, 3], [2, 9, 3, 0, 0, 0, 0]])
    moods, clip, expected = torch.tensor([0, 1, 1]), 0.5, [torch.zeros_like(each) for each in parameters]
    for text, mood in zip(texts, moods, strict=True):
        lost = functional.cross_entropy(model(text[text != 0][None]), mood[None])  # without its padding
        own = torch.autograd.grad(lost, parameters)
        length = float(torch.cat([each.flatten() for each in own]).norm())
        for total, each in zip(expected, own, strict=True):
            total += each * min(1.0, clip / length)
    round = PrivateRound(Spending(1e-30, 1.0, 1), clip, bytes(KEY_BYTES))
    stream = NoiseStream(round.key)
    gradients = PrivateGradients(model, parameters, functional.cross_entropy, round, stream, len(texts))
    gradients.fill(texts, moods)
    for parameter, total in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, total / len(texts), atol=1e-5, rtol=1e-3)


def test_adapters_are_trained_with_noise_and_learn_by_secure_sums(tmp_path: Path) -> None:
    write_texts(tmp_path, examples=120)
    task, local = text_task(lora=LORA), {"steps": 1, "batch_size": 2, "learning_rate": 0.05}
    noised = run_of(task, rounds=1, local=local, dp={"epsilon": 50, "delta": 1e-3, "clip": 1})
    assert math.isfinite(feddisco.simulate(noised, data=tmp_path).rounds["loss"].iloc[-1])
    summed = feddisco.simulate(run_of(task, rounds=2, secure={}), data=tmp_path)
    assert summed.rounds["accuracy"].iloc[-1] > 0.7


def test_a_model_on_another_base_is_refused(tmp_path: Path, models: Path) -> None:
    here = text_task(lora=LORA).build_model(None, seed=1)
    make_text_base(models / "other", seed=5)
    there = text_task(lora=LORA, base="other").build_model(None, seed=1)
    assert manifest_of(here)[0] != manifest_of(there)[0]
    assert manifest_of(here)[1:] == manifest_of(there)[1:]
