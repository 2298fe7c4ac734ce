"""The global random generators, lent out seeded and put back as they were."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

__all__ = ["reproducible"]

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
