"""What PyTorch keeps for a whole process or thread, lent out and put back as it was."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["flush_denormals", "reproducible"]

_lent = threading.RLock()


@contextmanager
def reproducible(seed: int, device: torch.device) -> Iterator[None]:
    """Within it, what torch draws by itself on ``device`` (dropout, initial values) follows ``seed``.

    On CUDA, cuDNN may use only algorithms that give the same bits each time. On MPS the generator is seeded,
    but not put back. The generators belong to the process: another thread waits until they are back. Without
    that its draws would be mixed with these, and PyTorch can hang: it takes a generator's own lock without
    letting the interpreter's go.
    """
    cuda = [device] if device.type == "cuda" else []
    with ExitStack() as stack:
        stack.enter_context(_lent)
        stack.enter_context(torch.random.fork_rng(devices=cuda))
        torch.default_generator.manual_seed(seed)
        if cuda:
            stack.enter_context(torch.cuda.device(device))
            stack.enter_context(torch.backends.cudnn.flags(enabled=True, deterministic=True))
            torch.cuda.manual_seed(seed)
        elif device.type == "mps":
            torch.mps.manual_seed(seed)
        yield


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Within it, numbers nearer to 0 than 2^-126 are 0 for this thread, where PyTorch computes with one.

    x86 takes a hundred times as long for them, and momentum brings them forth: it fades by a factor a step
    where a ReLU stays off, and some 800 steps later it is that small. What is added to a parameter makes no
    difference there, unless the parameter is as small. With several threads this does nothing: those that
    PyTorch has already would not heed it, and which of them computes what may change from call to call. A
    worker with several flushes from its start (:func:`shared.device.use_threads`).
    """
    changed = torch.get_num_threads() == 1 and not _flushes() and torch.set_flush_denormal(True)
    try:
        yield
    finally:
        if changed:
            torch.set_flush_denormal(False)


def _flushes() -> bool:
    """Whether this thread does already; PyTorch cannot be asked."""
    return not bool(torch.tensor([2.0**-126]).mul(0.5).any())
