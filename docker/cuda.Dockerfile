# Armillary on an NVIDIA GPU. Built by nobody here; `make dist` lints it.
#   docker build -f docker/cuda.Dockerfile -t armillary:cuda .
#   docker run --rm --gpus all -v "$PWD/out:/out" -v "$HOME/.cache/huggingface:/cache/huggingface" armillary:cuda scan ...
# torch's wheel on PyPI brings the CUDA libraries; of the machine it needs the driver alone, so the image is a plain one.
FROM python:3.11-slim

ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/cache/huggingface \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

WORKDIR /build
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src ./src
RUN pip install -c constraints.txt ".[gguf,hf,images,parquet]" \
    && useradd --create-home --uid 1000 armillary \
    && mkdir -p /cache /out \
    && chown armillary /cache /out

USER 1000
WORKDIR /out
ENTRYPOINT ["armillary"]
CMD ["--help"]
