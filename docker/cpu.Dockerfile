# Armillary on a CPU. Built by nobody here; `make dist` lints it.
#   docker build -f docker/cpu.Dockerfile -t armillary .
#   docker run --rm -v "$PWD/out:/out" armillary demo --out /out/demo
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface

WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
# torch from its own index: there its wheel has no CUDA in it, which saves several gigabytes
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt ".[gguf,hf,images,parquet]" \
    && useradd --create-home --uid 1000 armillary \
    && mkdir -p /cache /out \
    && chown armillary /cache /out

USER 1000
WORKDIR /out
ENTRYPOINT ["armillary"]
CMD ["--help"]
