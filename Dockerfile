# The server in a small image that runs as an unnamed user, on a root that may be read-only.
#   docker build --tag dirigent:0.1.0 .
#   docker build --tag dirigent:0.1.0-remote --build-arg EXTRAS=serve,postgres .   (no local models: smaller)
# Keys never go in at build time: the program reads them from its environment when it starts.

FROM python:3.11.13-slim-bookworm AS build
ARG EXTRAS=serve,postgres,local
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /source
# Only what the wheel is made of, so that a change of tests or docs does not build it again.
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip wheel --no-deps --wheel-dir /wheels . \
 && python -m venv /opt/dirigent \
 && /opt/dirigent/bin/pip install --constraint constraints.txt "$(ls /wheels/dirigent-*.whl)[${EXTRAS}]" \
 && /opt/dirigent/bin/pip uninstall --yes pip setuptools

FROM python:3.11.13-slim-bookworm
RUN groupadd --gid 10001 dirigent \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/dirigent --shell /usr/sbin/nologin dirigent \
 && install --directory --owner 10001 --group 10001 --mode 0700 /var/lib/dirigent \
 && install --directory /etc/dirigent
COPY --from=build /opt/dirigent /opt/dirigent
# Bytecode was compiled while installing; on a read-only root nothing more can be written.
ENV PATH=/opt/dirigent/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DIRIGENT_HOME=/var/lib/dirigent \
    DIRIGENT_CONFIG=/etc/dirigent/dirigent.toml
# A number, so that Kubernetes can tell that it is not root.
USER 10001:10001
WORKDIR /var/lib/dirigent
VOLUME /var/lib/dirigent
EXPOSE 8000
# The image has no curl. /healthz says that the process lives, and needs no key.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/healthz', timeout=2)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["dirigent"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8000", "--grace", "30"]
