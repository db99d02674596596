# The whole chain in a container:  docker build -t bwm . && docker run -v "$PWD/out:/out" bwm
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends libegl1 libgl1 libgl1-mesa-dri \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /bwm
COPY . .
RUN pip install --no-cache-dir --constraint constraints.txt '.[envs,report,fast]'
ENTRYPOINT ["sh", "docker/entrypoint.sh"]
CMD ["--scale", "compact", "--out", "/out"]
