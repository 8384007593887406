"""LocalStack without Docker, on 127.0.0.1 alone: it listens on all interfaces whatever GATEWAY_LISTEN names.

Run by the interpreter of its own environment; needs nothing of ours.
"""

import functools
import runpy

from twisted.internet import endpoints

if __name__ == "__main__":
    endpoints.TCP4ServerEndpoint = functools.partial(endpoints.TCP4ServerEndpoint, interface="127.0.0.1")
    runpy.run_module("localstack.runtime.main", run_name="__main__")
