"""Secure runs by real processes: the simulation's bits, whatever is killed; nothing of a site is found."""

from __future__ import annotations

import re
import sqlite3
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from shared.aggregation.secure_sums import add_up_totals, score_of
from shared.algorithms import available, load_algorithm
from shared.config import AlgorithmChoice, RunConfig
from shared.discrepancy import discrepancy
from shared.weightings import Contribution
from simulation.run import simulate
from tests.helpers.benches import make_bench
from tests.helpers.processes import Deployment, run_config

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.long,
    pytest.mark.timeout(400),
    pytest.mark.xdist_group("secure-service"),
    pytest.mark.usefixtures("one_thread"),
]


def secure_config(name: str, **changes: object) -> RunConfig:
    return run_config(name, **{"secure": {}, "rounds": 2, **changes})


def simulated(config: RunConfig, folder: Path) -> str:
    return simulate(config, source=None, out=folder / "result.jsonl", say=lambda line: None)


@pytest.fixture(params=["on_sqlite", "on_postgres"])
def system(request: pytest.FixtureRequest) -> Deployment:
    made: Deployment = request.getfixturevalue(request.param)
    return made


def test_the_digest_is_that_of_the_unmasked_simulation(system: Deployment, tmp_path: Path) -> None:
    config = secure_config("masked")
    system.create(config)
    assert system.digest("masked") == simulated(config, tmp_path)


OTHERS = sorted(
    name
    for name in set(available()) - {"fedavg"}
    if load_algorithm(AlgorithmChoice(name=name)).tells == "nothing"
)


@pytest.mark.parametrize(
    "algorithm", [pytest.param(name, marks=() if name == "scaffold" else pytest.mark.slow) for name in OTHERS]
)
def test_every_algorithm(algorithm: str, on_sqlite: Deployment, tmp_path: Path) -> None:
    config = secure_config(f"masked-{algorithm}", algorithm=algorithm, secure={"bits": 32})
    on_sqlite.create(config)
    assert on_sqlite.digest(config.name) == simulated(config, tmp_path)


STEPS = ("advertise", "share", "upload", "agree", "unmask")
SLOW = {"local": {"steps": 200, "batch_size": 16, "learning_rate": 0.01}, "rounds": 2}


@pytest.mark.slow
def test_a_worker_and_the_coordinator_are_killed_at_each_step(on_sqlite: Deployment, tmp_path: Path) -> None:
    """One site is frozen, so that each step waits for it; then it or the coordinator is killed."""
    config = secure_config("killed", **SLOW)
    expected = simulated(config, tmp_path)
    on_sqlite.create(config)
    for step in STEPS:
        wait_for_step(on_sqlite, "killed", 1, step)
        with on_sqlite.frozen("site-1"):
            view = on_sqlite.open_round("killed")
            if view is not None and view.secure is not None and "site-1" in view.secure.awaited:
                on_sqlite.kill("coordinator")
                on_sqlite.kill("site-1")
                on_sqlite.start_coordinator()
        if on_sqlite.processes.running["site-1"].poll() is not None:
            on_sqlite.start_again("site-1")
    assert on_sqlite.digest("killed") == expected


def wait_for_step(system: Deployment, run: str, number: int, step: str) -> None:
    """Until the round is at this step, or past it."""

    def is_there() -> bool:
        view = system.admin.run(run)
        current = view.current_round
        if view.completed_rounds >= number or view.status.is_terminal:
            return True
        if current is None or current.round < number or current.secure is None:
            return False
        return STEPS.index(current.secure.step) >= STEPS.index(step)

    system.wait_for(is_there, f"round {number} of {run} is at {step}")


# ---------------------------------------------------------------- nothing of a site is there


@dataclass(frozen=True)
class SiteNumbers:
    """What a site alone knows in a secure run."""

    examples: int
    discrepancy: float
    score: float
    weight: float
    pieces: tuple[bytes, ...]


def site_numbers(config: RunConfig, system: Deployment) -> list[SiteNumbers]:
    """Of each site, from the data and from its own journal."""
    bench = make_bench(config)
    asked = config.weighting.discrepancy
    assert asked is not None
    known = [
        Contribution(
            index,
            len(bench.training_examples(index)),
            discrepancy(bench.class_counts(index), asked.resolve(None), asked.metric),
        )
        for index in range(bench.clients)
    ]
    totals = add_up_totals(config, known)
    scores = [score_of(config, own, totals) for own in known]
    return [
        SiteNumbers(
            own.examples,
            own.discrepancy or 0.0,
            score,
            score / sum(scores),
            read_pieces(system.folder / f"site-{own.index}" / "runs" / config.name),
        )
        for own, score in zip(known, scores, strict=True)
    ]


def read_pieces(journal: Path) -> tuple[bytes, ...]:
    """Eight places of what the site trained, 32 bytes each: a coordinator may hold a part of it only."""
    (path,) = journal.glob("update-*.safetensors")
    content = path.read_bytes()
    return tuple(content[len(content) * at // 10 :][:32] for at in range(2, 10))


Hay = list[bytes]


def haystack(system: Deployment, run: str) -> Hay:
    """All that the coordinator has or shows: database, files, log, pages, answers of its API."""
    files = [path.read_bytes() for path in system.data_folder.rglob("*") if path.is_file()]
    token = system.processes.environment["FEDDISCO_ADMIN_TOKEN"]
    url = system.urls["coordinator"]
    numbers = sorted({view.round for view in system.rounds(run)})
    paths = [f"/runs/{run}", f"/api/v1/runs/{run}/rounds", *(f"/runs/{run}/rounds/{n}" for n in numbers)]
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30) as http:
        pages = [http.get(path) for path in [*paths, f"/api/v1/runs/{run}", "/metrics"]]
    assert all(page.status_code == 200 for page in pages), pages
    shown = [page.content for page in pages]
    return [*files, *shown, system.log("coordinator").encode()]


def memory_of(system: Deployment) -> Hay:
    """All that the coordinator's process can write to, while it is stopped; what it freed is there, too."""
    pid, regions = system.processes.running["coordinator"].pid, []
    with system.frozen("coordinator"), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            place, rights, *_ = line.split()
            if rights.startswith("rw"):
                first, last = (int(end, 16) for end in place.split("-"))
                memory.seek(first)
                with suppress(OSError):  # set aside, and not readable
                    regions.append(memory.read(last - first))
    return regions


def find_numbers(site: SiteNumbers, hay: Hay) -> set[str]:
    """Which of the site's numbers are there: as text, or as a double in either order of bytes."""
    needles = {"update": site.pieces}
    for name in ("discrepancy", "score", "weight"):
        value = getattr(site, name)
        text = f"{value:.12g}"[:12].encode()
        needles[name] = (text, struct.pack("<d", value), struct.pack(">d", value))
    named = rb"examples\W{1,5}%d\b" % site.examples  # a small number alone is in every process
    found = {"examples"} if any(re.search(named, part, re.IGNORECASE) for part in hay) else set()
    return found | {
        name for name, known in needles.items() if any(needle in part for needle in known for part in hay)
    }


def find_singles(site: SiteNumbers, hay: Hay) -> set[str]:
    """The same as floats of 32 bits, where there is too little else for them to be there by chance."""
    names = ("discrepancy", "score", "weight")
    return {name for name in names if any(struct.pack("<f", getattr(site, name)) in part for part in hay)}


def stored_integers(system: Deployment, run: str) -> set[int]:
    """Every whole number of the run's rows, also inside JSON; but for sizes of files and events' numbers."""
    (path,) = (path for path in system.data_folder.iterdir() if path.suffix in (".sqlite", ".db"))
    found: set[int] = set()
    with sqlite3.connect(path) as connection:
        tables = [
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        for table in tables:
            cursor = connection.execute(f'SELECT * FROM "{table}"')
            names = [column[0] for column in cursor.description]
            for row in cursor:
                cells = dict(zip(names, row, strict=True))
                if cells.get("run") == run:
                    found |= {
                        n for name, cell in cells.items() if name not in SIZES for n in integers_in(cell)
                    }
    return found


SIZES = ("id", "bytes")


def integers_in(value: object) -> set[int]:
    if isinstance(value, int):
        return {value}
    if isinstance(value, str) and value[:1] in "[{":
        bare = re.sub(r'"bytes": \d+', "", value)
        return {int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", bare)}
    return set()


def play_one_round(system: Deployment, config: RunConfig) -> None:
    """Or a few more; the run is paused then, and no round is open."""
    run = config.name
    system.create(config)
    system.wait_for(lambda: system.admin.run(run).completed_rounds >= 1, "round 1 is over")
    system.admin.control(run, "pause")
    system.wait_for(lambda: not is_open(system, run), "the open round is over")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory through /proc")
def test_nothing_of_a_site_is_in_the_coordinator(on_sqlite: Deployment) -> None:
    config = secure_config("searched", rounds=20)
    play_one_round(on_sqlite, config)
    sites = site_numbers(config, on_sqlite)
    hay, integers = haystack(on_sqlite, "searched"), stored_integers(on_sqlite, "searched")
    memory = memory_of(on_sqlite)
    assert sum(site.examples for site in sites) in integers, "N is known"
    assert sum(map(len, memory)) > 10**7
    for site in sites:
        assert find_numbers(site, hay) == find_singles(site, hay) == find_numbers(site, memory) == set()
        assert site.examples not in integers
    assert "own weight" in on_sqlite.log("site-1")
    told = on_sqlite.console("worker", "told", "--state", str(on_sqlite.folder / "site-1"))
    assert f"weight {sites[1].weight:.6f}"[:13] in told
    shown = on_sqlite.console("run", "show", "searched", "--url", on_sqlite.urls["coordinator"])
    assert "N, their examples" in shown, "what is known, and no ledger of zeros"
    assert "Ledger" not in shown
    on_sqlite.admin.control("searched", "stop")

    # the same search finds all of it where updates arrive in clear
    weighting = {"kind": "disco", "normalise": "all_clients", "on_all_zero": "raise"}
    clear = run_config("clear", rounds=20, weighting=weighting)
    play_one_round(on_sqlite, clear)
    open_sites = site_numbers(clear, on_sqlite)
    hay, integers = haystack(on_sqlite, "clear"), stored_integers(on_sqlite, "clear")
    memory = memory_of(on_sqlite)
    for site in open_sites:
        assert {"update", "discrepancy", "weight", "examples"} <= find_numbers(site, hay)
        assert {"discrepancy", "weight", "examples"} <= find_numbers(site, memory)
        assert site.examples in integers
    assert any("update" in find_numbers(site, memory) for site in open_sites), (
        "as it was received, or added up"
    )
    on_sqlite.admin.control("clear", "stop")


def is_open(system: Deployment, run: str) -> bool:
    current = system.open_round(run)
    return current is not None and current.status.is_open
