"""Which processor trains, and with how many threads."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from shared.problems import InvalidConfiguration
from shared.texts import format_count

if TYPE_CHECKING:
    import torch

    from shared.training import Precision

__all__ = ["choose", "describe", "is_out_of_memory", "use_threads"]


def choose(name: str, precision: Precision = "float32") -> torch.device:
    """The device called ``name``; ``auto`` takes CUDA, then MPS, then the CPU.

    Raises :class:`InvalidConfiguration` that lists what this machine has.
    """
    import torch

    present = _present()
    wanted = present[0] if name == "auto" else ("cuda:0" if name == "cuda" else name)
    if wanted not in present:
        raise InvalidConfiguration(
            f"--device {name}: this machine has {', '.join(present)}.",
            hint="For an NVIDIA card PyTorch must be installed with CUDA, and the driver be loaded.",
        )
    if precision == "float16" and wanted == "cpu":
        raise InvalidConfiguration(
            "--precision float16 needs a GPU; the device is cpu.", hint="Use bfloat16 or float32 on a CPU."
        )
    return torch.device(wanted)


def _present() -> list[str]:
    """Best first."""
    import torch

    cards = (
        [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    )
    return [*cards, *(["mps"] if torch.backends.mps.is_available() else []), "cpu"]


def describe(device: torch.device) -> str:
    """At most 100 characters for the status page: ``cuda:0 (NVIDIA H100 80GB HBM3)``."""
    import torch

    if device.type == "cuda":
        return f"{device} ({torch.cuda.get_device_name(device)})"[:100]
    if device.type == "cpu":
        return f"cpu ({format_count(torch.get_num_threads(), 'thread')})"
    return str(device)


def use_threads(threads: int | None) -> None:
    """Limit PyTorch's threads inside one operation; None keeps its choice. Before anything is computed.

    Where they are several, numbers nearer to 0 than 2^-126 are 0 from now on, for this thread and for those
    that PyTorch will start in it: see :func:`shared.reproducible.flush_denormals`, which is for one thread.
    """
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    if torch.get_num_threads() > 1:
        torch.set_flush_denormal(True)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out, on the card or in the machine (PyTorch's CPU allocator raises RuntimeError)."""
    if isinstance(error, MemoryError):
        return True
    torch = sys.modules.get("torch")  # where nothing has imported it, it has raised nothing
    if torch is not None and isinstance(error, torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
