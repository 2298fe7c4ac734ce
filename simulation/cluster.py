"""A Ray cluster: one of this machine's own, ended with the block, or one that others started."""

from __future__ import annotations

import os
import platform
import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from shared.problems import InvalidConfiguration
from simulation.results import versions

__all__ = ["LOCAL", "check_node", "connect", "locate_cache", "locate_data"]

LOCAL = "local"
SLOW_START = "timed out during startup"
"""In what Ray says of a node that was not there in time."""

QUIET = {
    "RAY_TQDM_PATCH_PRINT": "0",  # Ray would put a function of its own in the place of print
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray warns of: no GPU is hidden
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",  # under `uv run`, Ray would send every node the working folder
}


@contextmanager
def connect(address: str | None, say: Callable[[str], None]) -> Iterator[Any]:
    """The module ``ray``, connected: to ``local``, a cluster of this machine's cores for the block alone;
    to ``auto``, the one that `ray start` made on this machine; or to HOST:PORT or ray://HOST:PORT.

    None is what RAY_ADDRESS says, otherwise ``local``. A connection that is there already is used, and kept.

    Raises:
        InvalidConfiguration: Ray is not installed, or there is no cluster at the address.
    """
    wanted = address or os.environ.get("RAY_ADDRESS") or LOCAL
    ray = _import_ray(wanted == LOCAL)
    if ray.is_initialized():
        yield ray
        return
    # A folder of its own, removed afterwards; in /tmp since a socket's path must not exceed 104 bytes.
    with TemporaryDirectory(prefix="feddisco-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        own = {"include_dashboard": False, "_temp_dir": folder} if wanted == LOCAL else {}
        try:
            _check_listening(wanted)
            _start(ray, address=wanted, log_to_driver=False, logging_level="error", **own)
        except (OSError, ImportError, RuntimeError, ValueError) as fault:
            raise InvalidConfiguration(
                f"address: no Ray cluster can be reached at {wanted}: {str(fault).strip().splitlines()[0]}",
                hint="Start one by `ray start --head`, or give --address local.",
            ) from None
        try:
            nodes = sum(node["Alive"] for node in ray.nodes())
            say(f"Ray: {wanted}, {nodes} nodes, {ray.cluster_resources().get('CPU', 0):.0f} cores")
            yield ray
        finally:
            ray.shutdown()


def _start(ray: Any, **options: Any) -> None:
    """Connect; once more where a cluster of this machine's own was not there within Ray's 30 s.

    A busy machine needs longer the first time only. Raises what ``ray.init`` raises, and RuntimeError.
    """
    try:
        ray.init(**options)
    except Exception as fault:
        if SLOW_START not in str(fault):
            raise
        ray.shutdown()
        try:
            ray.init(**options)
        except Exception as again:  # Ray raises Exception itself
            raise RuntimeError(str(again)) from None


def _import_ray(local: bool) -> Any:
    """Ray reads its settings when it is imported."""
    for name, value in QUIET.items():
        os.environ[name] = value
    loaded = sys.modules.get("ray")
    if local and not (loaded and loaded.is_initialized()):
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # no cluster of many nodes: listens on loopback
        os.environ["RAY_AUTH_MODE"] = "token"
        if not os.environ.get("RAY_AUTH_TOKEN"):  # Ray would leave one in the home folder
            os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        import ray
    except ModuleNotFoundError:
        raise InvalidConfiguration(
            "engine: Ray is not installed.", hint="Install it by `pip install 'feddisco[sim]'`."
        ) from None
    return ray


def _check_listening(address: str) -> None:
    """Raise OSError if nobody listens there: Ray itself tries for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()


# ---------------------------------------------------------------- on a node


def locate_data(source: Path | None) -> Path | None:
    """The data on this node: at the same path, or by the same name in the node's FEDDISCO_DATA.

    Raises:
        InvalidConfiguration: in neither place; names the node.
    """
    if source is None or source.exists():
        return source
    folder = os.environ.get("FEDDISCO_DATA")
    if folder and (Path(folder) / source.name).exists():
        return Path(folder) / source.name
    places = f"neither {source} nor {source.name} in FEDDISCO_DATA, {folder}" if folder else f"no {source}"
    raise InvalidConfiguration(
        f"data: the node {platform.node()} has {places}.",
        hint="Copy the data there, and set FEDDISCO_DATA where the node calls `ray start`.",
    )


def locate_cache(cache: Path | None) -> Path | None:
    """The folder of decoded data where this node has it; otherwise the node decodes by itself."""
    return cache if cache and cache.is_dir() else None


def check_node(expected: dict[str, str]) -> None:
    """Refuse to compute on a node whose packages differ from the driver's: the bits might.

    Raises:
        InvalidConfiguration: names the node, the package and both versions.
    """
    for name, here in versions().items():
        if here != expected[name]:
            raise InvalidConfiguration(
                f"the node {platform.node()} has {name} {here}, this machine {expected[name]}.",
                hint="Install the same versions everywhere.",
            )
