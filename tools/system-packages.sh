#!/bin/sh
# What the tests use beside Python: PostgreSQL's server binaries and a Chromium.
# Installed where that is possible without asking (Debian or Ubuntu, as root); otherwise named,
# and the tests that need them are skipped with the reason.
set -eu
missing=
ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || missing="$missing postgresql"
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "Installing for the tests:$missing"
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
fi
echo "Not installed:$missing. The tests that need them are skipped. To run them: apt-get install$missing" >&2
