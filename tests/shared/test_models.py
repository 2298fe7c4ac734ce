"""Models: sizes as published, one representation under one name, honest refusals."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from shared.models import available, build_model, model_class
from shared.models.base import Model
from shared.problems import InvalidConfiguration


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "shape", "count"),
    [
        ("simple-cnn", 10, (3, 32, 32), 62_006),  # 456 + 2416 + 48120 + 10164 + 850 (reference 5)
        ("simple-cnn", 10, (1, 28, 28), 44_426),
        ("resnet18-gn", 7, (3, 56, 56), 11_172_423),
        ("resnet18-gn", 100, (3, 32, 32), 11_220_132),
        ("textcnn", 4, (200,), 1_063_904),
        ("mlp", 10, (1, 8, 8), 64 * 128 + 128 + 128 * 10 + 10),
    ],
)
def test_published_sizes(name: str, classes: int, shape: tuple[int, ...], count: int) -> None:
    assert parameters(build_model(name, classes, shape)) == count


def test_every_file_is_a_model_that_says_what_it_takes() -> None:
    assert set(available()) >= {"mlp", "resnet18-gn", "simple-cnn", "textcnn"}
    for name in available():
        kind = model_class(name)
        assert issubclass(kind, Model)
        assert kind.__module__ == f"shared.models.{name.replace('-', '_')}"
        assert vars(kind)["takes"] in ("images", "numbers", "texts"), "its own, not inherited"
        assert (kind.__doc__ or "").strip(), name


@pytest.mark.parametrize("name", [*available(), "torchvision:resnet18", "torchvision:mobilenet_v3_small"])
def test_forward_is_classifier_of_features(name: str) -> None:
    texts = name in available() and model_class(name).takes == "texts"
    shape = (20,) if texts else (3, 32, 32)
    model = build_model(name, 7, shape).eval()
    inputs = torch.randint(0, 32_000, (2, *shape)) if texts else torch.rand(2, *shape)
    outputs = model(inputs)
    assert outputs.shape == (2, 7)
    assert isinstance(model.classifier, nn.Linear)
    assert isinstance(model.features, nn.Module)
    assert torch.equal(outputs, model.classifier(model.features(inputs)))


def test_resnet18_gn_computes_what_torchvisions_does_with_the_published_changes() -> None:
    from torchvision.models import resnet18

    theirs = resnet18(num_classes=7, norm_layer=lambda channels: nn.GroupNorm(2, channels))
    theirs.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    theirs.maxpool = nn.Identity()
    ours = build_model("resnet18-gn", 7, (3, 24, 24))
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.copy_(other)
    inputs = torch.rand(2, 3, 24, 24)
    torch.testing.assert_close(ours(inputs), theirs(inputs))


def test_initial_values_of_resnet18_gn_are_torchvisions() -> None:
    convolutions = [
        m for m in build_model("resnet18-gn", 7, (3, 32, 32)).modules() if isinstance(m, nn.Conv2d)
    ]
    deepest = convolutions[
        -1
    ].weight  # 512 x 512 x 3 x 3: He's rule over the fan-out gives sqrt(2 / (512 * 9))
    assert deepest.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("simple-cn", (3, 32, 32), "no model 'simple-cn'. Did you mean simple-cnn"),
        ("torchvision:resnet81", (3, 32, 32), "no classification model 'resnet81'. Did you mean .*resnet18"),
        ("torchvision:fcn_resnet50", (3, 32, 32), "no classification model 'fcn_resnet50'"),
        (
            "torchvision:squeezenet1_0",
            (3, 32, 32),
            "ends in AdaptiveAvgPool2d 'classifier.3', not in a linear",
        ),
        ("torchvision:resnet18", (1, 28, 28), r"shape \(3, H, W\).* gives \(1, 28, 28\)"),
        ("simple-cnn", (1, 8, 8), r"H, W >= 16, the task gives \(1, 8, 8\)"),
        ("textcnn", (3, 32, 32), r"takes texts of at least 5 tokens.* gives \(3, 32, 32\)"),
        ("resnet18-gn", (64,), r"the task gives \(64,\)"),
    ],
)
def test_a_refusal_says_what_would_do(name: str, shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        build_model(name, 10, shape)
