"""The broker vendor for pytest-celery: what it offers, and that nobody gets it unasked."""

import subprocess
import sys

import pytest
from celery import Celery
from pytest_celery import CeleryTestContainer, LocalstackContainer

from celery_sqs_visibility.testing import pytest_celery as vendor

WITHOUT_PYTEST_CELERY = """
import sys
sys.modules["pytest_celery"] = sys.modules["pytest_docker_tools"] = None
import celery_sqs_visibility, celery_sqs_visibility.testing, celery_sqs_visibility.testing.plugin
for name in celery_sqs_visibility.testing.__all__:
    getattr(celery_sqs_visibility.testing, name)
assert "celery_sqs_visibility.testing.pytest_celery" not in sys.modules
"""


def test_the_test_kit_needs_no_pytest_celery():
    subprocess.run([sys.executable, "-c", WITHOUT_PYTEST_CELERY], check=True, timeout=60)


def test_the_plug_in_loads_no_vendor(request):
    loaded = {str(name) for name, plugin in request.config.pluginmanager.list_name_plugin() if plugin}
    assert "celery_sqs_visibility" in loaded
    assert vendor.__name__ not in loaded


def public(cls):
    return {name for name in vars(cls) if not name.startswith("_")}


def test_the_container_answers_all_that_pytest_celerys_own_does():
    assert public(LocalstackContainer) <= public(vendor.SQSContainer)
    assert issubclass(vendor.SQSContainer, CeleryTestContainer)


@pytest.mark.parametrize("suffix", ["", "_cls", "_env", "_image", "_ports", "_command"])
def test_the_fixtures_have_the_names_of_pytest_celerys_own(suffix):
    assert hasattr(vendor, f"default_sqs_broker{suffix}")
    assert hasattr(vendor, "celery_sqs_broker")


@pytest.mark.parametrize(
    ("image", "version"),
    [("motoserver/moto", "latest"), ("motoserver/moto:5.2.5", "5.2.5"), ("here:5000/moto:5", "5")],
)
def test_the_version_is_the_images_tag(monkeypatch, image, version):
    monkeypatch.setattr(vendor, "SQS_IMAGE", image)
    assert vendor.SQSContainer.version() == version


@pytest.mark.parametrize(
    ("url", "transport"), [("sqs://test:test@sqs:5000", vendor.TRANSPORT), ("redis://redis/0", None)]
)
def test_only_an_app_on_sqs_gets_the_transport(url, transport):
    app = Celery("shop", broker=url, set_as_current=False)
    vendor.SQSTestSetup.update_app_config(app)
    assert app.conf.broker_transport == transport
    app.close()
