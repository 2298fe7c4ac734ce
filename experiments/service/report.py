"""The page about CIFAR-10 through the service, from the saved runs: table, ledger and curves.

feddisco demo experiments/service/NAME.yaml --data cifar10-jpeg.zip --save docs/cifar10-service/NAME.json
python -m experiments.service.report
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from shared.files import replace_file

FOLDER = Path(__file__).parents[2] / "docs" / "cifar10-service"
RUNS = {"cifar10-fedprox-disco": "FedProx + Disco", "cifar10-fedavg": "FedAvg"}


def main() -> None:
    """Write README.md and curves.svg beside the saved runs."""
    runs = {title: json.loads((FOLDER / f"{name}.json").read_text()) for name, title in RUNS.items()}
    _figure(runs)
    parts = [_head(runs), _curves_table(runs), _ledger(runs["FedProx + Disco"]), _categories(runs)]
    replace_file(FOLDER / "README.md", ("\n\n".join(parts) + "\n").encode())


def _accuracies(run: dict[str, Any]) -> list[float]:
    return [100 * row["evaluations"][0]["accuracy"] for row in run["rounds"]]


def _figure(runs: dict[str, dict[str, Any]]) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "feddisco"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    for title, run in runs.items():
        values = _accuracies(run)
        axes.plot(range(1, len(values) + 1), values, marker="o", markersize=3, label=title)
    axes.set(xlabel="round", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(FOLDER / "curves.svg", metadata={"Date": None})


def _head(runs: dict[str, dict[str, Any]]) -> str:
    versions = next(iter(runs.values()))["versions"]
    digests = "\n".join(f"* {title}: final model sha256 `{run['model']}`" for title, run in runs.items())
    return f"""# CIFAR-10 through the service

Six worker processes, an evaluator and a coordinator on one machine with 2 cores; simple CNN (62,006
parameters), NIID-2 (five clients with two classes each, one with all ten; 8,330 images each), 20 rounds of
one local epoch, SGD with learning rate 0.01 and momentum 0.9, seed 0. One run each: differences of a point or
two mean nothing. The images are a JPEG copy of CIFAR-10 (about 30 dB), so figures are not those of the
original files. PyTorch {versions["torch"]}, Python {versions["python"]}. Made with

    feddisco demo experiments/service/NAME.yaml --data cifar10-jpeg.zip --save docs/cifar10-service/NAME.json
    python -m experiments.service.report

{digests}

![Accuracy by round](curves.svg)"""


def _curves_table(runs: dict[str, dict[str, Any]]) -> str:
    lines = [
        "## Test accuracy by round, %",
        "",
        "| round | " + " | ".join(runs) + " |",
        "|---|" + "---|" * len(runs),
    ]
    for number, values in enumerate(zip(*(_accuracies(run) for run in runs.values()), strict=True), 1):
        lines.append(f"| {number} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
    return "\n".join(lines)


def _ledger(run: dict[str, Any]) -> str:
    last = run["rounds"][-1]
    lines = [
        f"## Ledger of round {last['round']}, FedProx + Disco (a = 0.5, b = 0.1)",
        "",
        "| client | examples | n_k | d_k | d_k normalised | score | p_k | by size |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in last["ledger"]:
        numbers = ("size_share", "discrepancy", "discrepancy_share", "score", "weight", "size_weight")
        shown = " | ".join(f"{row[name]:.4f}" for name in numbers)
        lines.append(f"| {row['client']} | {row['examples']} | {shown} |")
    return "\n".join(lines)


def _categories(runs: dict[str, dict[str, Any]]) -> str:
    last = {title: run["rounds"][-1]["evaluations"][0]["per_category"] for title, run in runs.items()}
    lines = ["## Accuracy by category after the last round, %", ""]
    lines += ["| category | " + " | ".join(runs) + " |", "|---|" + "---|" * len(runs)]
    for category in next(iter(last.values())):
        lines.append(
            f"| {category} | " + " | ".join(f"{100 * one[category]:.1f}" for one in last.values()) + " |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
