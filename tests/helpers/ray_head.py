"""A cluster in a process of its own: it says its address and token, and ends with its standard input."""

from __future__ import annotations

import os
import sys

from simulation.cluster import connect

if __name__ == "__main__":
    with connect("local", lambda line: None) as ray:
        print(ray.get_runtime_context().gcs_address, os.environ["RAY_AUTH_TOKEN"], flush=True)
        sys.stdin.read()
