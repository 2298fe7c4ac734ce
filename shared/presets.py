"""Short names in a run's configuration, written out before it is checked; nothing of them is stored.

``algorithm: feddisco`` is FedDyn with Disco weights, as in the paper's main table. ``preset:
feddisco-release`` chooses the variants of the released FedDisco code, which explain its published figures;
what a configuration says itself goes first.
"""

from __future__ import annotations

from typing import Any

__all__ = ["ALIAS", "RELEASE", "expanded"]

ALIAS = "feddisco"
RELEASE = "feddisco-release"

_PARAMETERS: dict[str, dict[str, Any]] = {
    "fedavgm": {"beta": 0.5, "damped": True},
    "scaffold": {"random_controls": 0},
    "feddyn": {"alpha": 0.01, "alpha_scaling": "size", "scaled_terms": "linear"},
    "fednova": {"normaliser": "steps"},
    "feddc": {"alpha": 0.01, "alpha_scaling": "size", "gradient_term": False},
    "moon": {"mu": 0.1, "temperature": 0.5},
}
_LOCAL: dict[str, dict[str, Any]] = {"feddyn": {"clip_norm": 10.0}, "feddc": {"clip_norm": 10.0}}


def expanded(document: dict[str, Any]) -> dict[str, Any]:
    """The configuration with alias and preset written out; the same one if it has neither.

    Raises ValueError: the alias with other weights than Disco's, or an unknown preset.

    >>> expanded({"name": "a", "algorithm": "feddisco"})
    {'name': 'a', 'algorithm': {'name': 'feddyn'}, 'weighting': {'kind': 'disco'}}
    """
    written = dict(document)
    preset = written.pop("preset", None)
    if preset not in (None, RELEASE):
        raise ValueError(f"preset {preset!r} is not known; there is {RELEASE}")
    choice = _choice(written.get("algorithm"))
    if choice.get("name") == ALIAS:
        choice = {**choice, "name": "feddyn"}
        written |= {"algorithm": choice, "weighting": _disco(written.get("weighting"))}
    return _released(written, choice) if preset else written


def _choice(algorithm: Any) -> dict[str, Any]:
    """The algorithm's fields; none if it was given as something else (which the check will refuse)."""
    if algorithm is None:
        return {"name": "fedavg"}
    if isinstance(algorithm, str):
        return {"name": algorithm}
    return algorithm if isinstance(algorithm, dict) else {}


def _disco(weighting: Any) -> Any:
    if weighting is None:
        return {"kind": "disco"}
    kind = weighting.get("kind") if isinstance(weighting, dict) else getattr(weighting, "kind", None)
    if kind != "disco":
        raise ValueError(f"{ALIAS} is FedDyn with Disco weights, received weighting {kind!r}; or name feddyn")
    return weighting


def _released(written: dict[str, Any], choice: dict[str, Any]) -> dict[str, Any]:
    name = str(choice.get("name"))
    if name in _PARAMETERS:
        parameters = {**_PARAMETERS[name], **(choice.get("parameters") or {})}
        written["algorithm"] = {**choice, "parameters": parameters}
    local = written.get("local") or {}
    if name in _LOCAL and isinstance(local, dict):
        written["local"] = {**_LOCAL[name], **local}
    return written
