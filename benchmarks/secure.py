"""What secure sums cost beside updates in clear: real coordinator, real worker processes, no local steps.

    python -m benchmarks.secure                 62,006 parameters, ten workers, sums of 32 bits
    python -m benchmarks.secure --large         11.2 M parameters
    python -m benchmarks.secure --workers 50 --crew    as threads of one process
    python -m benchmarks.secure --bits 64

Prints one JSON line: a plain and a secure round as :mod:`benchmarks.overhead` measures each, the ratios, and
how many gigabytes of masks one core adds in a second.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks import overhead
from benchmarks.command import parse, print_result
from shared.secure.masks import Mask, apply_masks
from shared.secure.ring import Bits, Ring, RingVector

FLOAT16_BYTES: Final = 2
COST: Final = ("seconds_a_round", "coordinator_cpu_seconds_a_round", "one_workers_cpu_seconds_a_round")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--large", action="store_true", help="11.2 M parameters instead of 62,006")
    parser.add_argument("--rounds", type=int, help="default: 12, or 4 with --large")
    parser.add_argument("--workers", type=int, default=10)
    parser.add_argument("--crew", action="store_true", help="workers are threads of one process")
    parser.add_argument("--bits", type=int, choices=(32, 64), default=32, help="of a summed number")
    parser.add_argument("--mask-mib", type=int, default=256, help="length of the vector that is masked alone")
    chosen = parse(parser, {"rounds": 4, "workers": 3, "mask_mib": 4})
    print_result(
        lambda folder: measure(
            folder,
            large=chosen.large,
            rounds=chosen.rounds or (4 if chosen.large else 12),
            workers=chosen.workers,
            crew=chosen.crew,
            bits=chosen.bits,
            mask_mib=chosen.mask_mib,
        )
    )


def measure(
    folder: Path, *, large: bool, rounds: int, workers: int, crew: bool, bits: Bits, mask_mib: int
) -> dict[str, Any]:
    plain, secure = (
        overhead.measure(
            folder / name,
            large=large,
            rounds=rounds,
            workers=workers,
            database_url=None,
            secure=secure,
            crew=crew,
        )
        for name, secure in (("plain", None), ("secure", {"bits": bits}))
    )
    return {
        **{name: value for name, value in secure.items() if name not in (*COST, "bytes_a_round")},
        "benchmark": f"secure sums{', large' if large else ''}",
        "bits": bits,
        "crew": crew,
        **{f"plain_{name}": plain[name] for name in (*COST, "bytes_a_round", "bytes_of_an_update")},
        **{f"secure_{name}": secure[name] for name in (*COST, "bytes_a_round", "bytes_of_an_update")},
        "coordinator_cpu_to_plain": round(secure[COST[1]] / max(plain[COST[1]], 1e-9), 2),
        "bytes_to_float16": round(secure["bytes_of_an_update"] / (FLOAT16_BYTES * secure["parameters"]), 2),
        "masks_gb_per_core_second": round(mask_speed(bits, mask_mib), 2),
    }


def mask_speed(bits: Bits, mib: int) -> float:
    """Gigabytes of masks that are made and added in a CPU second: the best of three."""
    vector = Ring(bits, 10, 8.0).zeros(mib * (1 << 20) // (bits // 8))
    vector.fill(1)
    masks = [Mask(bytes(32), 1), Mask(bytes(31) + b"\1", -1)]
    return max(_time_masks(vector, masks) for _ in range(3))


def _time_masks(vector: RingVector, masks: Sequence[Mask]) -> float:
    began = time.process_time()
    apply_masks(vector, masks)
    return len(masks) * vector.nbytes / 1e9 / max(time.process_time() - began, 1e-9)


if __name__ == "__main__":
    main()
