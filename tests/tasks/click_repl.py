"""In the place of what `celery amqp` needs, which no test calls: it takes a fifth of a worker's start."""


def register_repl(_group):
    """Add no prompt to these commands."""
