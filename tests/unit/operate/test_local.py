import json

from celery_sqs_visibility.operate.local import ENVIRONMENT, _show


def test_programs_get_the_endpoint_and_the_environment(capsys):
    _show("http://127.0.0.1:1", as_json=True)
    assert json.loads(capsys.readouterr().out) == {
        "endpoint": "http://127.0.0.1:1",
        "environment": {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", **ENVIRONMENT},
    }
