"""`GenericTask[P, R]`: Celery's `Task` with a task's parameters and result in its type, on every Celery.

celery-types, the stubs of Celery, declare `Task` as generic. At run time `Task[...]` fails before Celery 5.7,
and makes an alias from 5.7 on (celery/app/task.py). `base=` takes a class (celery/app/base.py:
`_task_from_fun`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from celery import Task

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

if TYPE_CHECKING:

    class GenericTask(Task[P, R_co], Generic[P, R_co]):
        """Generic by itself, too: without celery-types, `Task` is `Any` to a type checker."""

else:

    class GenericTask(Task):
        """Subscripted, a class is itself: good for `class Mine(VisibilityTask[P, R])` and for `base=`."""

        abstract = True

        def __class_getitem__(cls, parameters: Any) -> type[GenericTask]:
            return cls
