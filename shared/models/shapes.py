"""What an image model demands of its inputs, said before torch says it less clearly."""

from __future__ import annotations

from shared.problems import InvalidConfiguration

__all__ = ["require_images"]


def require_images(model: str, shape: tuple[int, ...], smallest: int, channels: int | None = None) -> None:
    """Refuse shapes other than (channels, height, width) with at least ``smallest`` pixels a side.

    Raises:
        InvalidConfiguration: names the model, what it takes, and the shape received.
    """
    if len(shape) != 3 or min(shape[1:]) < smallest or (channels is not None and shape[0] != channels):
        wanted = "C" if channels is None else str(channels)
        raise InvalidConfiguration(
            f"model: {model} takes images of shape ({wanted}, H, W) with H, W >= {smallest}, "
            f"the task gives {shape}.",
            hint="Choose another model, or another size or number of channels in task_options.",
        )
