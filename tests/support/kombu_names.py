"""The names that the SQS transport of the installed kombu has for its users."""

import importlib.util
import inspect
import re
from pathlib import Path

import amqp
from kombu.transport import SQS, pyamqp, virtual

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


def options_of_redis():
    """The transport options that kombu's Redis transport reads, with Sentinel too."""
    code = Path(importlib.util.find_spec("kombu.transport.redis").origin).read_text()
    listed = "".join(re.findall(r"from_transport_options = .*?\(\s*('.*?)\)", code, re.DOTALL))
    asked = re.findall(r"(?:transport_options|connection_kwargs)\.get\(\s*'(\w+)'", code)
    return {*re.findall(r"'(\w+)'", listed), *asked}


def options_of_amqp():
    """Those of its AMQP transport: what it gives to py-amqp's connection, and all that this takes."""
    given = re.findall(r"'(\w+)': conninfo\.", inspect.getsource(pyamqp.Transport.establish_connection))
    taken = inspect.signature(amqp.Connection).parameters.values()
    return {*given, *(each.name for each in taken if each.kind is not each.VAR_KEYWORD)}
