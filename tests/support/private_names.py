"""Private names of others, and methods of theirs that are replaced, in the package's syntax trees."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import celery.app.utils
from celery.app.base import Celery
from celery.app.task import Context, Task
from celery.app.trace import TraceInfo
from celery.concurrency.asynpool import AsynPool
from celery.concurrency.prefork import TaskPool
from celery.worker.consumer.consumer import Consumer
from celery.worker.request import Request
from celery.worker.worker import WorkController
from kombu.asynchronous.hub import Hub
from kombu.connection import Connection
from kombu.pidbox import Mailbox, Node
from kombu.transport import virtual

import celery_sqs_visibility

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(celery_sqs_visibility.__file__).parent
CONTACTS = PACKAGE / "contacts"

#: What kombu documents for transports to define, and Python for everybody to use.
DOCUMENTED = {name for name in vars(virtual.AbstractChannel) if not name.startswith("__")}
DOCUMENTED |= {"_queue_bind", "_put_fanout", "_exit", "_getframe", "_replace"}
DOCUMENTED |= {"_wait_port"}  # pytest-celery's containers inherit it, its vendors call it

#: Whose methods an assignment may replace: these, and a module with functions.
REPLACEABLE = (Consumer, WorkController, TaskPool, AsynPool, Request, Task, Context, TraceInfo, Celery, Hub)
REPLACEABLE += (Connection, Mailbox, Node, virtual.Channel, virtual.Transport, celery.app.utils)

#: Attributes of objects of ours that are called like methods of theirs.
OURS_TOO = {"control", "handle", "on_lost"}


#: Text that looks like a private name: members of JSON, ends of the names of metrics, and attributes of ours.
NO_NAMES = {"_aws", "_tracer", "_instance", "_seconds", "_total"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier() and name[:1] == "_" != name[1:2] and name != "_"


@functools.cache
def replaceable() -> set[str]:
    """Names of methods and functions of theirs. To look them up would bind Celery's task class to an app."""
    return {
        name
        for each in REPLACEABLE
        for owner in getattr(each, "__mro__", [each])
        for name, value in vars(owner).items()
        if inspect.isroutine(value) and not name.startswith("__")
    } - OURS_TOO


def modules(*, contacts: bool) -> list[Path]:
    """The package's modules: its contacts, or all others."""
    return [path for path in sorted(PACKAGE.rglob("*.py")) if (CONTACTS in path.parents) is contacts]


def names_of_others(path: Path) -> set[str]:
    """Private names in a module that are none of ours."""
    tree = _tree(path)
    here, ours = set(_defined(tree)), defined_by_us()
    found = {name for name, on_self in _used(tree) if name not in (ours if on_self else here)}
    for node, inherited in _subclasses(path):
        found |= inherited & {name for name, on_self in _used(node) if on_self}
        found |= inherited & set(_defined(node))
    return {name for name in found if is_private(name)} - DOCUMENTED - NO_NAMES


def replaced_methods(path: Path) -> list[str]:
    """Methods of theirs that a module replaces on an object that is not its own, once for each place."""
    attributes = [node for node in ast.walk(_tree(path)) if isinstance(node, ast.Attribute)]
    stored = [node for node in attributes if isinstance(node.ctx, ast.Store) and not _is_self(node.value)]
    return [node.attr for node in stored if node.attr in replaceable()]


@functools.cache
def defined_by_us() -> set[str]:
    """Names that classes of ours define, but for those that they inherit from others."""
    names = set()
    for path in modules(contacts=False):
        inherited = {name for _, those in _subclasses(path) for name in those}
        names |= set(_defined(_tree(path))) - inherited
    return names


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _defined(tree: ast.AST) -> Iterator[str]:
    """Names that classes define: methods, variables, and attributes of `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            yield node.attr
        for each in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                yield each.name
            targets = each.targets if isinstance(each, ast.Assign) else [getattr(each, "target", None)]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _used(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Names of attributes, those written as text too, and imports; whether each is looked up on `self`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr, _is_self(node.value)
        elif isinstance(node, ast.Constant) and is_private(node.value):
            yield node.value, False
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None) or ""
            for alias in node.names:
                yield from ((part, False) for part in (*module.split("."), *alias.name.split(".")))


def _is_self(node: ast.AST) -> bool:
    """Whether it is `self`, `cls` or `super()`."""
    name = node.func if isinstance(node, ast.Call) else node
    return isinstance(name, ast.Name) and name.id in {"self", "cls", "super"}


@functools.cache
def _subclasses(path: Path) -> list[tuple[ast.ClassDef, set[str]]]:
    """A module's classes with bases of others, and the private names that they inherit."""
    classes = [node for node in _tree(path).body if isinstance(node, ast.ClassDef) and node.bases]
    if not classes:
        return []
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = importlib.import_module(".".join(part for part in parts if part != "__init__"))
    theirs = ("celery.", "kombu.", "billiard.")
    return [
        (node, {name for base in mro if base.__module__.startswith(theirs) for name in _private(base)})
        for node in classes
        for mro in [getattr(module, node.name).__mro__]
    ]


def _private(base: type) -> set[str]:
    """Private names that a class of others defines."""
    try:
        source = inspect.getsource(base)
    except (OSError, TypeError):
        return set()
    return set(filter(is_private, _defined(ast.parse(textwrap.dedent(source)))))
