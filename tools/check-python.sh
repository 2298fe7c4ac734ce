#!/bin/sh
# Says in one sentence why this Python will not do, before pip says it in a hundred lines.
set -eu
python=${1:-}
if [ -z "$python" ] || ! command -v "$python" >/dev/null 2>&1; then
    echo "No Python found. Install Python 3.11, 3.12 or 3.13, or name it: make PYTHON=/path/to/python3.11 ..." >&2
    exit 1
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
case $version in
    3.11 | 3.12 | 3.13) ;;
    *)
        echo "$python is Python $version; FedDisco needs 3.11, 3.12 or 3.13." >&2
        echo "Install one of them, or name it: make PYTHON=/path/to/python3.11 ..." >&2
        exit 1
        ;;
esac
if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
    echo "$python cannot make virtual environments: install its venv package (Debian: apt-get install python$version-venv)." >&2
    exit 1
fi
