"""Many workers as threads of one process, where a process each would not fit into the machine.

    python -m benchmarks.crew URL FOLDER MANY [FLAG VALUE]...

Each is the worker's own program with a state folder of its own; only the interpreter and PyTorch are shared.
They take turns at the interpreter, so that the clock tells less than the CPU time does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from worker.main import run
from worker.settings import WorkerSettings

__all__ = ["main"]


def main(arguments: Sequence[str]) -> None:
    """Ends when every worker's run has ended; the exit code is that of the first that failed."""
    url, folder, many, *flags = arguments
    chosen = {flag.removeprefix("--"): value for flag, value in zip(flags[::2], flags[1::2], strict=True)}
    codes: list[int] = []

    def work(name: str) -> None:
        settings = WorkerSettings.model_validate(
            {"url": url, "name": name, "state": Path(folder) / name, "threads": 1} | chosen
        )
        codes.append(run(settings))

    threads = [threading.Thread(target=work, args=(f"worker-{number:02}",)) for number in range(int(many))]
    for thread in threads:
        thread.daemon = True  # the process ends at a signal, whatever they do
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(next((code for code in codes if code), 0))


if __name__ == "__main__":
    main(sys.argv[1:])
