"""The page about shadows through the service, from the saved run.

feddisco demo experiments/service/NAME.yaml --data ... --save docs/cifar10-service/NAME.json
python -m experiments.service.shadows_report
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from shared.files import replace_file

__all__ = ["main"]

FOLDER = Path(__file__).parents[2] / "docs" / "cifar10-service"
RECORD = FOLDER / "cifar10-shadows.json"
LINES = {"disco": ("-", 1.8), "sizes": ("--", 1.2), "uniform": (":", 1.2)}


def main() -> None:
    """Write shadows.md and shadows.svg beside the saved run."""
    run = json.loads(RECORD.read_text())
    scored = [row for row in run["rounds"] if row["evaluations"]]
    _draw(scored)
    parts = [_head(run, scored), _table(scored), _cost(run)]
    replace_file(FOLDER / "shadows.md", ("\n\n".join(parts) + "\n").encode())


def _scores(row: dict[str, Any]) -> dict[str, float]:
    """Accuracy in % of the run's own model and of each shadow."""
    (own,) = row["evaluations"]
    found = {"disco": own["accuracy"], **row["shadow_accuracy"][own["client"]]}
    return {name: 100 * accuracy for name, accuracy in found.items()}


def _spent(row: dict[str, Any]) -> float:
    return float(sum(shadow["seconds"] for shadow in row.get("shadows", ())))


def _draw(scored: list[dict[str, Any]]) -> None:
    matplotlib.rcParams["svg.hashsalt"] = "feddisco"
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    numbers = [row["round"] for row in scored]
    for name, (style, width) in LINES.items():
        label = "Disco, the run's own" if name == "disco" else f"{name}, one round away from it"
        values = [_scores(row)[name] for row in scored]
        axes.plot(numbers, values, style, linewidth=width, marker="o", markersize=3, label=label)
    axes.set(xlabel="round", ylabel="test accuracy, %")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(FOLDER / "shadows.svg", metadata={"Date": None})


def _head(run: dict[str, Any], scored: list[dict[str, Any]]) -> str:
    versions, rounds, steps = run["versions"], len(run["rounds"]), run["config"]["local"]["steps"]
    made = sum(bool(row.get("shadows")) for row in run["rounds"])
    late = "" if len(scored) == made else f"; of these {made} the evaluator had scored {len(scored)}"
    return f"""# Shadows on CIFAR-10, through the service

The federation of [the page beside](README.md) with shorter rounds: six worker processes, an evaluator
and a coordinator on one machine with 2 cores, NIID-2, {rounds} rounds of {steps} local steps of 64
images, FedAvg weighted by Disco with a = 0.5 and b = 0.1, seed 0, `shadow: [sizes, uniform]`. Every
second round is scored, and only these make shadows{late}. The last three scores came after the
demo's end: coordinator and evaluator (not clients) were started again on its folders, and went on.

In each of them sizes and uniform weigh the updates that the clients trained from *Disco's* model: their
curves are one round away from its curve and say nothing of runs of their own. One run: differences of a
point or two mean nothing. All six clients have 8,330 images, so by sizes and by equal weights the model
is the same, and their two curves lie on one another. The images are a JPEG copy. The machine was busy
with other work (load 10 to 15 on its 2 cores), so the seconds are those of a busy machine. PyTorch
{versions["torch"]}, Python {versions["python"]}. Made with

    feddisco demo experiments/service/cifar10-shadows.yaml --data cifar10-jpeg.zip \\
        --save docs/cifar10-service/cifar10-shadows.json
    python -m experiments.service.shadows_report

Final model sha256 `{run["model"]}`

![Accuracy by round](shadows.svg)"""


def _table(scored: list[dict[str, Any]]) -> str:
    lines = [
        "## By round",
        "",
        "Test accuracy in %, seconds of the round, and of these what the two shadows took to make.",
        "",
        "| round | " + " | ".join(LINES) + " | seconds | for shadows |",
        "|---|" + "---|" * (len(LINES) + 2),
    ]
    for row in scored:
        shown = " | ".join(f"{_scores(row)[name]:.2f}" for name in LINES)
        lines.append(f"| {row['round']} | {shown} | {row['seconds']:.1f} | {_spent(row):.3f} |")
    gaps = [_scores(row)["disco"] - _scores(row)["sizes"] for row in scored]
    ahead = sum(gap > 0 for gap in gaps)
    said = f"Disco's model is ahead of that by sizes in {ahead} of {len(gaps)} scored rounds"
    return "\n".join([*lines, "", f"{said}, by {fmean(gaps):.2f} points in the mean."])


def _cost(run: dict[str, Any]) -> str:
    with_shadows = [row for row in run["rounds"] if row.get("shadows")]
    without = [row["seconds"] for row in run["rounds"] if not row.get("shadows")]
    lines = [
        "## What the shadows cost",
        "",
        "| shadow | seconds at the coordinator, median (largest) | bytes that the evaluator fetches |",
        "|---|---|---|",
    ]
    for place, shadow in enumerate(with_shadows[0]["shadows"]):
        spent = [row["shadows"][place]["seconds"] for row in with_shadows]
        lines.append(f"| {shadow['name']} | {median(spent):.3f} ({max(spent):.3f}) | {shadow['bytes']:,} |")
    share = 100 * sum(map(_spent, with_shadows)) / sum(row["seconds"] for row in with_shadows)
    seconds = median(row["seconds"] for row in with_shadows)
    said = [
        f"Rounds with shadows took {seconds:.1f} seconds in the median, those without {median(without):.1f}.",
        f"Of the former the coordinator made shadows for {share:.1f} %.",
        "The evaluator scores three models on 10,000 images in place of one, while the clients train on.",
        "Where every round was scored (a first trial), it fell behind: half a minute after the run's end,",
        "12 of 20 rounds had their scores. Clients send and fetch nothing more.",
    ]
    return "\n".join([*lines, "", *said])


if __name__ == "__main__":
    main()
