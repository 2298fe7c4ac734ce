"""Faults at this site that no setting explains: an error in a user's task, or too little memory.

Importing this doesn't import PyTorch: the loop needs the class before it knows whether there is work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from shared.device import is_out_of_memory
from shared.problems import InvalidConfiguration, Problem
from worker.diagnose import diagnose

__all__ = ["LocalFault", "clip_text", "describe_fault", "local_faults"]


class LocalFault(Exception):
    """The message is the sentence for people, ``code`` the word for the kind (see :func:`describe_fault`)."""

    def __init__(self, code: str, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


@contextmanager
def local_faults(doing: str) -> Iterator[None]:
    """Around code of a task or model: what it raises becomes a :class:`LocalFault` about ``doing``.

    Problems (wrong settings among them) and OSError pass: the loop knows what to do about those.
    """
    try:
        yield
    except (Problem, OSError, LocalFault):
        raise
    except Exception as error:
        code, sentence = describe_fault(error)
        raise LocalFault(code, f"{doing} failed: {sentence.removesuffix('.')}.") from error


def describe_fault(error: Exception) -> tuple[str, str]:
    """A code and a sentence for the coordinator's page; never a traceback, never a crash loop."""
    from shared.training import Diverged

    if isinstance(error, Diverged | LocalFault | InvalidConfiguration):
        return error.code, str(error)
    if is_out_of_memory(error):
        _free_memory()
        hint = "Lower local.batch_size, or use another device."
        return "out_of_memory", f"Memory ran out ({clip_text(str(error), 200)}). {hint}"
    if isinstance(error, OSError) or (isinstance(error, Problem) and isinstance(error.__cause__, OSError)):
        return "storage_error", diagnose(error, "").sentence
    return "training_error", f"{type(error).__name__}: {error}"


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def clip_text(sentence: str, longest: int = 1000) -> str:
    """Cut a sentence to what the API accepts."""
    return sentence.replace("\x00", "")[:longest]
