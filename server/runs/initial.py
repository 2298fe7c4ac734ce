"""The initial model of a run: built from a built-in task and the seed, or uploaded beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from server.blobs import BlobStore
from server.runs.layout import largest_update
from shared.calibrated import check_calibration
from shared.config import RunConfig
from shared.features import check_features
from shared.metric_names import check_metrics
from shared.own_parts import is_own
from shared.problems import InvalidConfiguration, NotFound
from shared.schemas import InitialBlob, TensorSpec
from shared.travelling_checks import check_travelling
from shared.weightings import load_weighting
from shared.weightings.base import Need

__all__ = ["Initial", "make_initial"]


@dataclass(frozen=True)
class Initial:
    classes: tuple[str, ...]
    manifest: tuple[TensorSpec, ...]
    digest: str
    bytes: int


def make_initial(
    config: RunConfig, uploaded: InitialBlob | None, blobs: BlobStore, max_update_bytes: int
) -> Initial:
    """What a new run starts from, put into the blob store. Imports PyTorch: call it on a thread.

    Raises:
        InvalidConfiguration: the algorithm, task, model or classes do not fit, or updates would be too large.
        UpdateInvalid: the uploaded weights differ from their manifest.
        NotFound: no such weights were uploaded.
    """
    from shared.algorithms import check_optimizer, load_algorithm
    from shared.training.private_checks import check_private

    algorithm = load_algorithm(config.algorithm)  # before a model is built
    check_features(config, algorithm)
    check_travelling(config, algorithm)
    check_private(config, algorithm)
    check_optimizer(config, algorithm)
    config.local.in_round(1, config.rounds)  # a schedule of one's own runs here, too
    found = _build(config, blobs) if uploaded is None else _check_uploaded(config, uploaded, blobs)
    _check_needs(config)
    _check_shadows(config)
    _check_target(config, found.classes)
    check_calibration(config, found.manifest, found.classes)
    check_metrics(config.metrics, found.classes)
    size = largest_update(config, found.manifest)
    if size > max_update_bytes:
        raise InvalidConfiguration(
            f"an update of this run may have {size} bytes, more than the {max_update_bytes} allowed here",
            hint="Raise FEDDISCO_MAX_UPDATE_BYTES or choose a smaller model.",
        )
    return found


def _build(config: RunConfig, blobs: BlobStore) -> Initial:
    from shared import wire
    from shared.tasks import base_of, task_of
    from shared.training.optimizers import check_local
    from shared.training.private_checks import check_private_model
    from shared.wire.tensors import manifest_of, state_of

    if ":" in config.task:
        raise InvalidConfiguration(
            f"task {config.task!r} is not built in, so the coordinator cannot build its model",
            hint="Upload initial weights and name them in `initial`, as `feddisco run create` does.",
        )
    if (base := base_of(config)) is not None:
        raise InvalidConfiguration(
            f"{base} lies at the sites, so the coordinator cannot build a model that begins from it",
            hint="Create the run with `feddisco run create FILE`, on a machine where the model lies.",
        )
    if is_own(config.model):
        raise InvalidConfiguration(
            f"model {config.model!r} is not built in, so the coordinator cannot build it",
            hint="Upload initial weights and name them in `initial`, as `feddisco run create` does.",
        )
    task = task_of(config)
    check_metrics(config.metrics, task.classes, task.outputs)
    check_local(task, config.local)
    model = task.build_model(config.model, config.seed)
    check_private_model(config, model)
    with blobs.workspace() as folder:
        written = wire.write(folder / "model.safetensors", {wire.MODEL: state_of(model)})
        digest = blobs.adopt(written.path, written.digest)
    return Initial(task.classes, manifest_of(model), digest, written.bytes)


def _check_uploaded(config: RunConfig, uploaded: InitialBlob, blobs: BlobStore) -> Initial:
    from shared import wire
    from shared.wire.validation import validate

    if not blobs.renew(uploaded.digest):  # no run names it yet: it must not be collected meanwhile
        raise NotFound(
            f"the initial weights {uploaded.digest} are not here",
            hint="Upload them first: PUT /blobs/{sha256}.",
        )
    with blobs.local(uploaded.digest) as path:
        validate(path, wire.model_layout(uploaded.manifest))
    return Initial(_find_classes(config), uploaded.manifest, uploaded.digest, blobs.size(uploaded.digest))


def _find_classes(config: RunConfig) -> tuple[str, ...]:
    if config.classes is not None:
        return config.classes
    if ":" in config.task:
        raise InvalidConfiguration(
            f"classes: missing, and {config.task!r} is not built in", hint="Name the classes in their order."
        )
    from shared.tasks import task_of

    return task_of(config).classes


_EXAMPLES = (
    "examples where rounds are aggregated: a coordinator has none, and evaluators are sent no single updates"
)
_NAME_ONE = "Name an evaluator that is to be sent them (`assistant: NAME`); feddisco simulate does without."
_NOT_HERE = {
    Need.COUNTS: "the label counts of every client, of which a site tells a coordinator one number at most",
    Need.DATA: f"labelled {_EXAMPLES}",
}


def _check_shadows(config: RunConfig) -> None:
    """What the configuration does not tell of somebody's own weightings."""
    for shadow in config.shadow:
        loaded = load_weighting(shadow)
        if loaded.remembers or loaded.needs & set(_NOT_HERE):
            raise InvalidConfiguration(
                f"shadow: {shadow.kind} needs earlier rounds, label counts or data, which a shadow has not"
            )


def _check_needs(config: RunConfig) -> None:
    weighting = load_weighting(config.weighting)
    needs = weighting.needs
    if Need.DATA in needs and config.assistant is not None and weighting.learns:
        needs -= {Need.DATA}
    for need, what in _NOT_HERE.items():
        if need in needs:
            raise InvalidConfiguration(
                f"weighting.kind: {config.weighting.kind} needs {what}",
                hint=_NAME_ONE
                if need is Need.DATA and weighting.learns
                else "feddisco simulate runs it; disco and entropy need one number of each site.",
            )
    if config.distillation is not None and config.assistant is None:
        raise InvalidConfiguration(f"distillation needs {_EXAMPLES}", hint=_NAME_ONE)
    if config.distillation is not None and ":" not in config.task:
        _check_logits(config)
    asked = config.weighting.discrepancy
    if asked is not None and asked.target == "global" and config.secure is None:
        raise InvalidConfiguration(
            f"weighting.target: global needs {_NOT_HERE[Need.COUNTS]}",
            hint="Add `secure: {}`: then the sites' label counts are summed, and only the sum is known.",
        )


def _check_logits(config: RunConfig) -> None:
    """Of a built-in task, whoever made its first model; one of one's own is checked where its code is."""
    from shared.tasks import task_of
    from shared.training.distillation import check_task

    check_task(task_of(config))


def _check_target(config: RunConfig, classes: tuple[str, ...]) -> None:
    asked = config.weighting.discrepancy
    target = getattr(config.weighting, "target", "uniform") if asked is None else asked.target
    if not isinstance(target, str) and len(target) != len(classes):
        raise InvalidConfiguration(f"weighting.target: {len(target)} shares for {len(classes)} classes")
