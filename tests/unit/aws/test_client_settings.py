"""Settings are values: hashable, equal, and without secrets in their repr."""

from celery_sqs_visibility.aws.boto import BotoSQS
from celery_sqs_visibility.aws.client_settings import ClientSettings, frozen_config


def test_settings_with_nested_options_are_hashable_and_equal_by_value():
    options = [
        {"retries": {"mode": "standard", "max_attempts": 2}, "client_cert": ["cert", "key"]},
        {"client_cert": ("cert", "key"), "retries": {"max_attempts": 2, "mode": "standard"}},
    ]
    one, other = (ClientSettings(config=frozen_config(each)) for each in options)
    assert one == other
    assert hash(one) == hash(other)
    assert one.config_options() == options[1]


def test_secrets_stay_out_of_repr():
    config = frozen_config({"proxies": {"https": "http://user:pass@proxy"}})
    keys = {"access_key_id": "AKIAEXAMPLE", "secret_access_key": "hush", "session_token": "tok-en"}
    settings = ClientSettings("eu-west-1", **keys, config=config)
    shown = repr(settings) + repr(BotoSQS(settings))
    assert "eu-west-1" in shown
    for secret in ("AKIAEXAMPLE", "hush", "tok-en", "pass@"):
        assert secret not in shown
