#!/bin/sh
# Writes .env with fresh secrets, readable by its owner only; an existing .env is left alone.
set -eu
[ ! -e .env ] || { echo ".env is there already, left alone."; exit 0; }
secret() { od -An -N24 -tx1 /dev/urandom | tr -d ' \n'; }
umask 077
sed -e "s/^POSTGRES_PASSWORD=.*/POSTGRES_PASSWORD=$(secret)/" \
    -e "s/^FEDDISCO_ADMIN_TOKEN=.*/FEDDISCO_ADMIN_TOKEN=$(secret)/" \
    -e "s/^FEDDISCO_JOIN_TOKEN=.*/FEDDISCO_JOIN_TOKEN=$(secret)/" \
    -e '/^# Copy to/d' .env.example >.env
echo "Wrote .env with fresh secrets."
