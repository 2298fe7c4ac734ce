# One image for all roles: coordinator, worker, evaluator, migrations.
FROM python:3.11-slim

# Another wheel index for PyTorch, e.g. https://download.pytorch.org/whl/cpu for a small image without CUDA.
# Empty: the exact, hash-checked wheels of requirements.lock (with CUDA).
ARG TORCH_INDEX=""

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

WORKDIR /opt/feddisco
COPY requirements.lock tools/requirements-without-torch.py ./
RUN if [ -n "$TORCH_INDEX" ]; then \
        python requirements-without-torch.py requirements.lock rest.lock torch.txt \
        && pip install --index-url "$TORCH_INDEX" -r torch.txt \
        && pip install --require-hashes --no-deps -r rest.lock; \
    else \
        pip install --require-hashes -r requirements.lock; \
    fi

COPY pyproject.toml README.md LICENSE alembic.ini ./
COPY alembic alembic
COPY shared shared
COPY server server
COPY worker worker
COPY simulation simulation
COPY feddisco feddisco
RUN pip install --no-deps --no-build-isolation . \
    && python -m compileall -q "$(python -c 'import shared, os; print(os.path.dirname(os.path.dirname(shared.__file__)))')"/shared \
    && groupadd --system --gid 10001 feddisco \
    && useradd --system --uid 10001 --gid 10001 --home-dir /var/lib/feddisco --shell /usr/sbin/nologin feddisco \
    && install -d -o feddisco -g feddisco -m 0750 /var/lib/feddisco

USER feddisco
WORKDIR /var/lib/feddisco
VOLUME /var/lib/feddisco
EXPOSE 8000
ENTRYPOINT ["feddisco"]
CMD ["--help"]
