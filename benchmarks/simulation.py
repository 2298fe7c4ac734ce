"""The simulation's engines and kernels against a plain PyTorch loop doing the same training: one JSON line.

Sixty clients (NIID-2, 50 + 10), ten a round, SGD with momentum 0.9. ``--task images``: simple CNN on noise
of 3x32x32 with CIFAR-10's crop, flip and normalisation; ``cifar10``: the same on the data set (``--data``);
``texts``: TextCNN on random tokens, as many a text as AG News has. A round is counted whole: the plain loop
averages the clients' models in memory; the others also read and write the files that a service would send,
and aggregate those.

* ``samples_per_second``: by wall clock, medians of the rounds, which they do in turns.
* ``samples_per_cpu_second``: by CPU time of the process and its children, for crowded machines.
* ``speed``: CPU time of the plain loop in one process over theirs, the median of the turns;
  ``speed_by_wall``: the same of wall clock times, where two processes gain by a second core.
* ``difference``: largest distance of a parameter from the plain loop's, after all rounds.

Run: ``python -m benchmarks.simulation``
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any, get_args

import psutil
import torch
from torch import Tensor, nn

from benchmarks.command import Failed, machine, parse, print_result
from shared import wire
from shared.config import Frozen, RunConfig
from shared.data import Examples
from shared.data.tokens import VOCABULARY
from shared.seeds import derive, torch_generator
from shared.tasks.ag_news import AGNews
from shared.tasks.base import Split
from shared.tasks.cifar10 import CIFAR10
from shared.tasks.texts import TextOptions
from shared.training.batches import batches
from shared.training.workbench import Workbench
from shared.wire.tensors import load_into, state_of
from simulation.engines import Engine
from simulation.engines.in_process import InProcess
from simulation.engines.processes import Processes, use_one_thread
from simulation.federation import Federation
from simulation.jobs import WorkbenchSpec, workbench_of
from simulation.kernels import KernelsName

State = Mapping[str, Tensor]

PLAIN = "plain, 1 process"


class NoiseOptions(Frozen):
    examples: int = 30_000


class Noise(CIFAR10):
    """Random images in CIFAR-10's shape, as many of each class."""

    Options = NoiseOptions

    def __init__(self, options: NoiseOptions) -> None:
        super().__init__(options)
        self.examples = options.examples

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        number = self.examples if split == "train" else 100
        generator = torch.Generator().manual_seed(seed)
        images = torch.randint(0, 256, (number, *self.input_shape), generator=generator, dtype=torch.uint8)
        return Examples(images, torch.arange(number) % 10)


class RandomTextsOptions(TextOptions):
    examples: int = 30_000


class RandomTexts(AGNews):
    """Texts of random tokens, as many of each class; 10 to 200 tokens long, 40 in the middle."""

    Options = RandomTextsOptions

    def __init__(self, options: RandomTextsOptions) -> None:
        super().__init__(options)
        self.examples = options.examples

    def load(self, split: Split, source: Path | None, seed: int) -> Examples:
        number = self.examples if split == "train" else 100
        generator = torch.Generator().manual_seed(seed)
        lengths = torch.randn(number, generator=generator).mul(0.3).exp().mul(40).clamp(10, 200)
        tokens = torch.randint(1, VOCABULARY, (number, *self.input_shape), generator=generator)
        tokens[torch.arange(self.input_shape[0]) >= lengths[:, None]] = 0
        return Examples(tokens.to(torch.int16), torch.arange(number) % 4)


TASKS: dict[str, tuple[str, Sequence[str], str]] = {
    "images": ("benchmarks.simulation:Noise", CIFAR10.classes, "niid2:50+10"),
    "texts": ("benchmarks.simulation:RandomTexts", AGNews.classes, "niid2:50+10:2"),
    "cifar10": ("cifar10", CIFAR10.classes, "niid2:50+10"),
}


def config(kind: str, rounds: int, epochs: int, examples: int) -> RunConfig:
    task, classes, partition = TASKS[kind]
    return RunConfig.model_validate(
        {
            "name": "simulation",
            "task": task,
            "task_options": {} if kind == "cifar10" else {"examples": examples},
            "classes": classes,
            "rounds": rounds,
            "weighting": {"kind": "sizes"},
            "partition": partition,
            "clients_per_round": 10,
            "local": {"epochs": epochs, "batch_size": 64, "learning_rate": 0.01, "momentum": 0.9},
        }
    )


# ---------------------------------------------------------------- the plain loop


class PlainClients:
    """What a researcher's script does: one client after the other, everything in memory."""

    def __init__(self, workbench: Workbench) -> None:
        self.workbench = workbench
        self.model: nn.Module = workbench.task.build_model(None, workbench.config.seed)

    def train(self, state: State, number: int, client: int) -> State:
        """The client's model after its round."""
        local, seed = self.workbench.config.local, self.workbench.config.seed
        task, examples = self.workbench.task, self.workbench.training_examples(client)
        load_into(self.model, state)
        optimizer = torch.optim.SGD(
            self.model.parameters(), local.learning_rate, local.momentum, weight_decay=local.weight_decay
        )
        augmentation = torch_generator(seed, "augmentation", number, client)
        self.model.train()
        torch.manual_seed(derive(seed, "dropout", number, client))
        for _, positions in batches(local, len(examples), seed, number, client):
            inputs = task.prepare(examples.inputs[positions], augmentation)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(inputs), examples.targets[positions])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}


@cache
def plain_clients(spec: WorkbenchSpec) -> PlainClients:
    """This process's."""
    return PlainClients(workbench_of(spec))


def train_plain(spec: WorkbenchSpec, number: int, state: State, client: int) -> State:
    """What a pool's process runs."""
    return plain_clients(spec).train(state, number, client)


class PlainLoop:
    """Averages the clients' models by their sizes; ``pool`` trains them side by side."""

    def __init__(self, spec: WorkbenchSpec, pool: ProcessPoolExecutor | None) -> None:
        self._spec = spec
        self._pool = pool
        self._clients = plain_clients(spec)
        self.state: State = state_of(self._clients.model)

    def round(self, number: int, clients: Sequence[int]) -> None:
        sizes = [len(self._clients.workbench.training_examples(client)) for client in clients]
        train = partial(train_plain, self._spec, number, self.state)
        trained = map(train, clients) if self._pool is None else self._pool.map(train, clients)
        mean = {name: torch.zeros_like(tensor) for name, tensor in self.state.items()}
        for state, size in zip(trained, sizes, strict=True):
            for name, tensor in state.items():
                mean[name].add_(tensor, alpha=size / sum(sizes))
        self.state = mean


def samples_of(workbench: Workbench, number: int, client: int) -> int:
    """What one round trains the client on, repetitions counted."""
    config, size = workbench.config, len(workbench.training_examples(client))
    return sum(len(part) for _, part in batches(config.local, size, config.seed, number, client))


# ---------------------------------------------------------------- measuring


@dataclass
class Times:
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def measure(self, work: Callable[[], object]) -> None:
        began, before = time.perf_counter(), cpu_seconds()
        work()
        self.cpu.append(cpu_seconds() - before)
        self.wall.append(time.perf_counter() - began)


def cpu_seconds() -> float:
    """Of this process and its living children."""
    process = psutil.Process()
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return float(sum(one.user + one.system for one in times))


class EngineLoop:
    """Rounds of the simulation, without the evaluation."""

    def __init__(self, engine: Engine, workbench: Workbench, folder: Path) -> None:
        folder.mkdir()
        self.federation = Federation(workbench.config, workbench, folder)
        self.names = [spec.name for spec in workbench.manifest]
        self._rounds = self.federation.train_rounds(engine)

    @property
    def clients(self) -> list[int]:
        """Who takes part in the next round."""
        current = self.federation.run.round
        return [] if current is None else [participant.index for participant in current.participants]

    def round(self) -> None:
        self._model = next(self._rounds).scored

    @property
    def state(self) -> dict[str, Tensor]:
        return wire.read_group(self._model, wire.MODEL, self.names)


def measure(folder: Path, given: RunConfig, source: Path | None, processes: int) -> dict[str, Any]:
    """The rounds of the configuration, of which the first warms up; with several processes as well as one."""
    cache = folder / "cache"  # what one process has decoded, the others read
    specs = {kernels: WorkbenchSpec.of(given, source, cache, kernels) for kernels in get_args(KernelsName)}
    workbenches = {kernels: spec.build() for kernels, spec in specs.items()}
    with ExitStack() as opened:
        plain = {PLAIN: PlainLoop(specs["torch"], None)}
        engines: dict[str, tuple[Engine, Workbench]] = {}
        for kernels, workbench in workbenches.items():
            engines[f"{kernels}, 1 process"] = opened.enter_context(InProcess(workbench)), workbench
        if processes > 1:
            context = multiprocessing.get_context("spawn")
            pool = opened.enter_context(ProcessPoolExecutor(processes, context, use_one_thread))
            plain[f"plain, {processes} processes"] = PlainLoop(specs["torch"], pool)
            for kernels, workbench in workbenches.items():
                engine = opened.enter_context(Processes(specs[kernels], processes))
                engines[f"{kernels}, {processes} processes"] = engine, workbench
        loops = {name: EngineLoop(*engine, folder / name) for name, engine in engines.items()}
        times = {name: Times() for name in (*plain, *loops)}
        samples = [
            turn(number, workbenches["torch"], plain, loops, times) for number in range(1, given.rounds + 1)
        ]
    states = {name: loop.state for name, loop in plain.items()}
    states |= {name: loop.state for name, loop in loops.items()}
    return figures(times, samples) | {
        "difference": {name: largest(states[PLAIN], state) for name, state in states.items()}
    }


def turn(
    number: int,
    workbench: Workbench,
    plain: dict[str, PlainLoop],
    loops: dict[str, EngineLoop],
    times: dict[str, Times],
) -> int:
    """One round of each, another one first each time; the samples that each trained on."""
    clients = next(iter(loops.values())).clients
    works: list[tuple[str, Callable[[], None]]] = [(name, loop.round) for name, loop in loops.items()]
    works += [(name, partial(loop.round, number, clients)) for name, loop in plain.items()]
    for place in range(len(works)):
        name, work = works[(number + place) % len(works)]
        times[name].measure(work)
    return sum(samples_of(workbench, number, client) for client in clients)


def figures(times: dict[str, Times], samples: list[int]) -> dict[str, Any]:
    def rates(seconds: list[float]) -> float:
        return round(median(n / s for n, s in list(zip(samples, seconds, strict=True))[1:]))

    def speed(of: Callable[[Times], list[float]], name: str) -> float:
        pairs = list(zip(of(times[PLAIN]), of(times[name]), strict=True))[1:]
        return round(median(reference / ours for reference, ours in pairs), 3)

    engines = [name for name in times if name != PLAIN]
    return {
        "samples_per_second": {name: rates(taken.wall) for name, taken in times.items()},
        "samples_per_cpu_second": {name: rates(taken.cpu) for name, taken in times.items()},
        "speed": {name: speed(lambda taken: taken.cpu, name) for name in engines},
        "speed_by_wall": {name: speed(lambda taken: taken.wall, name) for name in engines},
    }


def largest(one: State, other: State) -> float:
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Simulation engines and kernels against a plain loop; prints one JSON line."
    )
    parser.add_argument("--task", choices=sorted(TASKS), default="images")
    parser.add_argument("--rounds", type=int, default=9, help="turns that count, after one that does not")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2, help="side by side; 1: only one after the other")
    parser.add_argument("--data", type=Path, help="the data set of --task cifar10: a folder or an archive")
    parser.add_argument("--examples", type=int, default=30_000, help="of all clients together")
    chosen = parse(parser, {"rounds": 1, "epochs": 1, "examples": 1200, "processes": 1})
    torch.set_num_threads(1)
    about = {
        "benchmark": "simulation",
        "task": chosen.task,
        "rounds": chosen.rounds,
        "epochs": chosen.epochs,
        "examples": chosen.examples,
        **machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    given = config(chosen.task, chosen.rounds + 1, chosen.epochs, chosen.examples)

    def result(folder: Path) -> dict[str, Any]:
        try:
            return about | measure(folder, given, chosen.data, chosen.processes)
        except BrokenProcessPool as error:
            raise Failed("A process of a pool ended early.") from error

    print_result(result)


if __name__ == "__main__":
    main()
