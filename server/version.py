"""The version of this program."""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["VERSION"]

try:
    VERSION = version("feddisco")
except PackageNotFoundError:  # run from a checkout that was not installed
    VERSION = "0+unknown"
