import os

# The one line that SQS needs. Credentials, region and endpoint come as for any boto3 program.
broker_transport = "celery_sqs_visibility"

broker_transport_options = {
    # How soon another worker gets the tasks of a machine that died. Not how long a task may take: the
    # heartbeat sees to that.
    "visibility_timeout": int(os.environ.get("PROJ_VISIBILITY_TIMEOUT", "120")),
}

task_default_queue = os.environ.get("PROJ_QUEUE", "proj")

# Most SQS fleets store no results. Any backend will do: file:///some/directory needs no server.
result_backend = os.environ.get("PROJ_RESULT_BACKEND")

# The project's own. A directory stands for S3, with a subdirectory for each bucket.
proj_buckets = os.environ.get("PROJ_BUCKETS", "buckets")
proj_database = os.environ.get("PROJ_DATABASE", "proj.sqlite3")
