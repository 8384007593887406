"""The names that the SQS transport of the installed kombu has for its users."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

from kombu.transport import SQS, virtual

CLASSES = (SQS.Channel, SQS.Transport, SQS.QoS)


def source():
    """The code of the transport, its part for SNS included."""
    spec = importlib.util.find_spec("kombu.transport.SQS")  # a module until 5.6, a package in 5.7
    folder = Path(spec.origin).parent
    files = [Path(spec.origin), *(folder / name for name in ("SNS.py", "exceptions.py"))]
    return "".join(file.read_text() for file in files if file.exists())


def kombus_options():
    """The transport options that the SQS transport of the installed kombu reads."""
    mapping = r"\b(?:transport_options|queue_config|q|e)"
    code = source() + inspect.getsource(virtual.Transport.__init__)
    names = re.findall(mapping + r"(?:\.get\(|\[)\s*['\"]([\w-]+)", code)
    return {*names, *virtual.Channel.from_transport_options}


def kombus_properties():
    """The properties of a publication that it reads."""
    names = r"['\"](Message\w+Id|message_attributes|delay_seconds|DelaySeconds)['\"]"
    return set(re.findall(names, source()))


def kombus_attributes():
    """The public attributes of its classes, and its exceptions."""
    own = {name for cls in CLASSES for name in vars(cls) if not name.startswith("_")}
    return own | set(re.findall(r"^class (\w+)\(KombuError\)", source(), re.MULTILINE))
