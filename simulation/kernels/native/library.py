"""The compiled kernels: built once on each machine by its own C++ compiler, then kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from shared.problems import InvalidConfiguration
from shared.versions import processor_flags, vector_flags

__all__ = ["Layer", "Linear", "Shape", "Texts", "digest_kernels", "load_library", "select_vectors"]

HERE = Path(__file__).parent
SOURCES = tuple(HERE / f"{name}.cpp" for name in ("images", "linear", "network", "texts"))
HEADERS = (HERE / "layers.hpp", HERE / "registers.hpp")
FLAGS = ("-O3", "-march=native", "-std=c++17", "-fno-trapping-math", "-shared", "-fPIC")
COMPILERS = ("c++", "g++", "clang++")


class Shape(ctypes.Structure):
    """Of one pass over the images: sizes of what comes in, of the kernels, and the number of lanes."""

    _fields_ = tuple(
        (name, ctypes.c_int)
        for name in ("inputs", "height", "width", "outputs", "kernel_height", "kernel_width", "lanes")
    )


class Linear(ctypes.Structure):
    """Of a linear layer: features that come in and go out, the number of lanes, and whether ReLU follows."""

    _fields_ = tuple((name, ctypes.c_int) for name in ("inputs", "outputs", "lanes", "rectified"))


class Layer(ctypes.Structure):
    """One layer of a whole network: its sizes, its parameters, and where results go."""

    _fields_ = (
        ("is_row", ctypes.c_int),
        ("row", Shape),
        ("linear", Linear),
        *(
            (name, ctypes.c_void_p)
            for name in ("weights", "bias", "out", "which", "of_weights", "of_bias", "of_given")
        ),
    )


class Texts(ctypes.Structure):
    """Of one pass over texts: tokens that come in, the padding's number, sizes of the convolution."""

    _fields_ = tuple(
        (name, ctypes.c_int) for name in ("batch", "length", "padding", "dimensions", "outputs", "width")
    )


@cache
def load_library() -> ctypes.CDLL:
    """What the sources export; the functions take addresses and check nothing.

    Raises:
        InvalidConfiguration: no compiler, or it refuses the source; says what it said.
    """
    kept = _make_folder() / f"native-{_fingerprint()}.so"
    if not kept.exists():
        _build(kept)
    loaded = ctypes.CDLL(str(kept))
    pointer = ctypes.c_void_p
    shape = ctypes.POINTER(Shape)
    loaded.row_forward.argtypes, loaded.row_forward.restype = [shape, *[pointer] * 5], None
    loaded.row_backward.argtypes, loaded.row_backward.restype = [shape, *[pointer] * 7], None
    numbers = [ctypes.c_int] * 2
    loaded.prepare.argtypes, loaded.prepare.restype = [shape, pointer, *numbers, *[pointer] * 6], None
    linear = ctypes.POINTER(Linear)
    loaded.linear_forward.argtypes, loaded.linear_forward.restype = [linear, *[pointer] * 4], None
    loaded.linear_backward.argtypes, loaded.linear_backward.restype = [linear, *[pointer] * 7], None
    layers, number = ctypes.POINTER(Layer), ctypes.c_int
    loaded.fill_gradients.argtypes = [layers, number, pointer, number, pointer]
    loaded.fill_gradients.restype = ctypes.c_double
    texts = ctypes.POINTER(Texts)
    loaded.maxima_forward.argtypes, loaded.maxima_forward.restype = [texts, *[pointer] * 6], None
    loaded.maxima_backward.argtypes, loaded.maxima_backward.restype = [texts, *[pointer] * 8], None
    return loaded


def digest_kernels() -> str:
    """Of what decides the last bits that come out: sources, flags and the width of vectors."""
    told = _hash_sources()
    told.update("\0".join((*FLAGS, platform.machine(), *select_vectors(vector_flags()))).encode())
    return told.hexdigest()[:16]


def select_vectors(flags: str) -> list[str]:
    """Of a processor's instructions on vectors, those by which the kernels sum in one order or another."""
    return [flag for flag in ("avx", "avx2", "avx512f", "fma") if flag in flags.split()]


def _make_folder() -> Path:
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "feddisco"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _find_compiler() -> str:
    for name in filter(None, (os.environ.get("CXX"), *COMPILERS)):
        if found := shutil.which(name):
            return found
    raise InvalidConfiguration(
        f"kernels: native needs a C++ compiler; none of {', '.join(COMPILERS)} was found.",
        hint="Install one (Debian and Ubuntu: apt install g++), set CXX, or choose the kernels torch.",
    )


def _fingerprint() -> str:
    """Of the source and the processor: a home directory may be shared by unlike machines."""
    told = _hash_sources()
    told.update("\0".join((*FLAGS, platform.machine(), *processor_flags())).encode())
    return told.hexdigest()[:16]


def _hash_sources() -> hashlib._Hash:
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in (*SOURCES, *HEADERS)))


def _build(target: Path) -> None:
    """Compile beside the target, then rename: several processes may do it at once."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        command = [_find_compiler(), *FLAGS, "-o", str(made), *map(str, SOURCES)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - a compiler, no shell
        if done.returncode:
            raise InvalidConfiguration(
                f"kernels: native could not be compiled by {command[0]}: {done.stderr.strip()[-600:]}",
                hint="Choose the kernels torch, or set CXX to another compiler.",
            )
        made.replace(target)
