"""SQS as a broker for pytest-celery: container, node and fixtures, in the forms of its own brokers.

Nothing imports this module, and no plug-in loads it: a project asks for it in its `conftest.py`, by
`pytest_plugins = ["celery_sqs_visibility.testing.pytest_celery"]`. Then the broker of `celery_setup` is SQS.
Needs `pytest-celery`, and a Docker engine unless the fixtures that start containers are overridden.
"""

# mypy: disable-error-code="misc"

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from celery import Celery
from kombu import Connection
from pytest_celery import CeleryBrokerCluster, CeleryTestBroker, CeleryTestContainer, CeleryTestSetup
from pytest_docker_tools import container, fxtr

#: moto's own image. Any image with `moto_server` will do.
SQS_IMAGE: Final = "motoserver/moto"
SQS_PORT: Final = 5000
PORT_NAME: Final = f"{SQS_PORT}/tcp"


class SQSContainer(CeleryTestContainer):
    """A container with moto's server, which is SQS in memory."""

    @property
    def client(self) -> Connection:
        """A kombu connection over this package's transport."""
        return Connection(
            self.celeryconfig["host_url"], transport=TRANSPORT, transport_options=dict(TRANSPORT_OPTIONS)
        )

    @property
    def celeryconfig(self) -> dict[str, Any]:
        """The URLs for workers, which run in containers, and for the test, which does not."""
        return {
            "url": self.url,
            "host_url": self.host_url,
            "hostname": self.hostname,
            "port": self.port,
        }

    @property
    def url(self) -> str:
        """The broker's URL within its network."""
        return f"{self.prefix()}{self.hostname}:{SQS_PORT}"

    @property
    def host_url(self) -> str:
        """The broker's URL for the test, which may be in a container itself."""
        self._wait_port(PORT_NAME)
        host, port = self.get_addr(PORT_NAME)
        return f"{self.prefix()}{host}:{port}"

    @property
    def hostname(self) -> str:
        """The container's name within its network."""
        return str(self.attrs["Config"]["Hostname"])

    @property
    def port(self) -> int:
        """The container's port for the test."""
        return int(self._wait_port(PORT_NAME))

    @classmethod
    def command(cls, *args: str, **_: Any) -> list[str]:
        """The arguments of the entry point."""
        return ["--host", "0.0.0.0", "--port", str(SQS_PORT), *args]  # noqa: S104 - in a container

    @classmethod
    def entrypoint(cls) -> list[str]:
        """The program, even for images with another entry point."""
        return ["moto_server"]

    @classmethod
    def version(cls) -> str:
        """The image's tag."""
        return cls.image().rpartition("/")[2].partition(":")[2] or "latest"

    @classmethod
    def initial_env(cls) -> dict[str, str]:
        """The container's environment."""
        return {}

    @classmethod
    def image(cls) -> str:
        """The image's name."""
        return SQS_IMAGE

    @classmethod
    def ports(cls) -> dict[str, None]:
        """The container's ports, mapped to free ones of this machine."""
        return {PORT_NAME: None}

    @classmethod
    def prefix(cls) -> str:
        """The URL's scheme and credentials. moto accepts any, and in the URL they need no variable."""
        return "sqs://test:test@"

    @property
    def ready_prompt(self) -> str:
        """The line that moto logs when it listens."""
        return "Running on"


class SQSTestBroker(CeleryTestBroker):
    """An SQS as a broker node."""


TRANSPORT: Final = "celery_sqs_visibility"

#: moto speaks no TLS, and answers an empty poll after at most these seconds, so that workers end soon.
TRANSPORT_OPTIONS: Final = {"region": "us-east-1", "is_secure": False, "wait_time_seconds": 2}


class SQSTestSetup(CeleryTestSetup):
    """Gives apps with an SQS broker this package's transport."""

    @classmethod
    def update_app_config(cls, app: Celery[Any]) -> None:
        """Choose the transport. The settings reach workers as source text: JSON values only."""
        super().update_app_config(app)
        if urlsplit(app.conf.broker_url or "").scheme == "sqs":
            app.conf.update(
                broker_transport=TRANSPORT,
                broker_transport_options=dict(TRANSPORT_OPTIONS),
                broker_connection_retry_on_startup=True,
                task_acks_late=True,
            )


@pytest.fixture
def celery_setup_cls() -> type[CeleryTestSetup]:
    """The set-up's class: apps with an SQS broker get this package's transport."""
    return SQSTestSetup


@pytest.fixture
def celery_broker_cluster(celery_sqs_broker: SQSTestBroker) -> Iterator[CeleryBrokerCluster]:
    """One SQS, instead of every broker that pytest-celery knows."""
    cluster = CeleryBrokerCluster(celery_sqs_broker)
    yield cluster
    cluster.teardown()


@pytest.fixture
def celery_sqs_broker(default_sqs_broker: SQSContainer) -> Iterator[SQSTestBroker]:
    """Make a broker node of the container."""
    broker = SQSTestBroker(default_sqs_broker)
    yield broker
    broker.teardown()


@pytest.fixture
def default_sqs_broker_cls() -> type[SQSContainer]:
    """The container's class. Override it to change defaults for all tests."""
    return SQSContainer


default_sqs_broker = container(
    image="{default_sqs_broker_image}",
    ports=fxtr("default_sqs_broker_ports"),
    environment=fxtr("default_sqs_broker_env"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=SQSContainer,
    timeout=60,
    command=fxtr("default_sqs_broker_command"),
    entrypoint=fxtr("default_sqs_broker_entrypoint"),
)


@pytest.fixture
def default_sqs_broker_command(default_sqs_broker_cls: type[SQSContainer]) -> list[str]:
    """Arguments of the program."""
    return default_sqs_broker_cls.command()


@pytest.fixture
def default_sqs_broker_entrypoint(default_sqs_broker_cls: type[SQSContainer]) -> list[str]:
    """The program."""
    return default_sqs_broker_cls.entrypoint()


@pytest.fixture
def default_sqs_broker_env(default_sqs_broker_cls: type[SQSContainer]) -> dict[str, str]:
    """The container's environment."""
    return default_sqs_broker_cls.initial_env()


@pytest.fixture
def default_sqs_broker_image(default_sqs_broker_cls: type[SQSContainer]) -> str:
    """The image's name."""
    return default_sqs_broker_cls.image()


@pytest.fixture
def default_sqs_broker_ports(default_sqs_broker_cls: type[SQSContainer]) -> dict[str, None]:
    """The container's ports."""
    return default_sqs_broker_cls.ports()
