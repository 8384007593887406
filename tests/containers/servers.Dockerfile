# SQS (moto's server), the relay before it, and Redis.
ARG BASE
FROM ${BASE}
ARG PIP_NO_INDEX
ARG PIP_FIND_LINKS=/build
WORKDIR /build
COPY requirements.txt wheels* ./
RUN python3 -m venv /venv && /venv/bin/pip install --no-cache-dir --requirement requirements.txt
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1
COPY moto_server.py relay.py /app/
WORKDIR /app
USER 10001:10001
