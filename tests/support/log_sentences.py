"""The sentences that the package logs at WARNING and above, as its source has them."""

import ast
import re
from pathlib import Path

import celery_sqs_visibility

METHODS = {"warning", "error", "critical", "exception"}
LEVELS = {"WARNING", "ERROR", "CRITICAL"}
FEWEST_WORDS = 2


def loud_sentences():
    """Each sentence, with its file and line: `(sentence, "worker/drain.py:187")`."""
    package = Path(celery_sqs_visibility.__file__).parent
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            values = _after_a_level(node)
            where = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
            sentences = next(filter(None, (_texts(tree, value) for value in values)), [])
            assert sentences or not values, f"{where} logs a sentence that is no constant"
            yield from ((sentence, where) for sentence in sentences)


def plain_words(sentence):
    """The first words of a sentence's longest part without a placeholder."""
    parts = re.split(r"%(?:\(\w+\))?[\d.]*[a-z]|[][()]", sentence)
    return " ".join(max(parts, key=len).strip(" :;,").split()[:5])


def _after_a_level(node):
    """What follows a level, or a logger's method, in a call or a tuple."""
    if isinstance(node, ast.Call):
        values = [node.func, *node.args]
    elif isinstance(node, ast.Tuple):
        values = node.elts
    else:
        return []
    return next((values[index + 1 :] for index, value in enumerate(values) if _is_loud(value)), [])


def _is_loud(value):
    if isinstance(value, ast.IfExp):
        return _is_loud(value.body) or _is_loud(value.orelse)
    if not isinstance(value, ast.Attribute):
        return False
    owner = ast.unparse(value.value)
    return (value.attr in METHODS and owner.endswith("logger")) or (
        value.attr in LEVELS and owner == "logging"
    )


def _texts(tree, value):
    """The sentences that an expression may be: a literal, a variable's, or those that callers pass."""
    if isinstance(value, ast.Constant) and isinstance(value.value, str):
        return [value.value] if len(re.findall(r"\b[a-z]{2,}", value.value)) >= FEWEST_WORDS else []
    if not isinstance(value, ast.Name):
        return []
    found = [node.value for node in ast.walk(tree) if _assigns(node, value.id)]
    for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)):
        names = [argument.arg for argument in function.args.args]
        if value.id in names:
            calls = [node for node in ast.walk(tree) if _calls(node, function.name)]
            found += [call.args[names.index(value.id)] for call in calls]
    return [text for each in found if isinstance(each, ast.Constant) for text in _texts(tree, each)]


def _assigns(node, name):
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return isinstance(node, ast.Assign | ast.AnnAssign) and any(
        isinstance(target, ast.Name) and target.id == name for target in targets
    )


def _calls(node, name):
    return isinstance(node, ast.Call) and ast.unparse(node.func) == name and node.args
