"""Counts the processor's instructions, where this process runs under valgrind's callgrind (x86-64).

A request to valgrind is a row of instructions that do nothing without it (valgrind.h, "client requests"), so
Python needs no extension to make one.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

#: mov rax, rdi; xor edx, edx; four rotations by 128 in all; xchg rbx, rbx; mov rax, rdx; ret
REQUEST = bytes.fromhex("4889f8 31d2 48c1c703 48c1c70d 48c1c73d 48c1c733 4887db 4889d0 c3")
#: callgrind.h: begin to look at instructions, and end that; begin or end to count them meanwhile.
START, STOP, TOGGLE = 0x43540004, 0x43540005, 0x43540002
CALLGRIND = ("valgrind", "--tool=callgrind", "--instr-atstart=no", "--quiet")


def why_not():
    """Why instructions cannot be counted on this machine; empty if they can."""
    return "" if shutil.which("valgrind") else "instructions are not counted: valgrind is not installed"


def build():
    """The build that instructions depend on: Python, and the processor, which libc looks at."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.*)", cpuinfo.read_text() if cpuinfo.exists() else "", re.MULTILINE)
    python = f"Python {platform.python_version()}, {platform.python_compiler()}, {platform.machine()}"
    return ", ".join([python, *names[:1]])


def counted(command, environment):
    """Run a command that counts with `Instructions`; how many there were."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        subprocess.run(
            [*CALLGRIND, f"--callgrind-out-file={out}", *command],
            env=environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return int(re.search(r"^totals: (\d+)", out.read_text(), re.MULTILINE)[1])


class Instructions:
    """A `Counter` of instructions: all, but for those of the fake SQS, during which it is paused."""

    def __init__(self):
        self.tallies = {}
        self._memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._memory.write(REQUEST)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._call = ctypes.CFUNCTYPE(ctypes.c_ulong, ctypes.c_void_p)(address)
        self._counts = False

    def start(self):
        gc.disable()
        self._counts = True
        self._ask(START)

    def stop(self):
        self._ask(STOP)
        self._counts = False

    def pause(self):
        if self._counts:
            self._ask(TOGGLE)

    resume = pause

    def _ask(self, request):
        self._call(ctypes.byref((ctypes.c_uint64 * 6)(request)))
