# The whole chain in a container:  docker build -t bwm . && docker run -v "$PWD/out:/out" bwm
# A tag can be moved: give a digest with --build-arg BASE=python@sha256:... where that matters, and
# another build of torch (for CPUs alone, say) with --build-arg TORCH="torch==2.13.0 --index-url ...".
ARG BASE=python:3.11.9-slim-bookworm
FROM ${BASE}
ARG TORCH=torch==2.13.0
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /bwm
COPY . .
RUN pip install --no-cache-dir ${TORCH} \
    && pip install --no-cache-dir --require-hashes --no-deps -r requirements.lock \
    && pip install --no-cache-dir --no-deps --no-build-isolation .
ENTRYPOINT ["sh", "docker/entrypoint.sh"]
CMD ["--scale", "compact", "--out", "/out"]
