"""A camera for `celery events --camera`."""

from celery.events.snapshot import Polaroid


class Camera(Polaroid):
    """Says what it sees, once a second."""

    def on_shutter(self, state):
        tasks = sorted(f"{task.name} {task.state}" for task in state.tasks.values())
        print("snapshot:", tasks, "of", *state.workers, flush=True)  # noqa: T201 - the test reads it
