import os

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for this example only")
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django_celery_beat",
    "django_celery_results",
    "shop.orders",
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", "shop.sqlite3"),
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True

# The one line that SQS needs. Credentials, region and endpoint come as for any boto3 program.
CELERY_BROKER_TRANSPORT = "celery_sqs_visibility"
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "error_visibility_timeout": [10, 60, 300],
}
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("SHOP_QUEUE", "shop")

CELERY_RESULT_BACKEND = "django-db"
CELERY_RESULT_EXTENDED = True  # with the names and arguments of tasks
CELERY_BEAT_SCHEDULER = "django_celery_beat.schedulers:DatabaseScheduler"
