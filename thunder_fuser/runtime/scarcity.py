"""Scarcity: errors of the system that may pass, for lack of memory, disk, processes or descriptors.

What failed because of them is tried again at a later call (`frontends/thunder/call.py`); a bug or a
missing compiler is not.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess

from thunder_fuser.errors import ResourceError

_PASSING = frozenset(
    (errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ENOMEM, errno.EAGAIN)
)
_SAYINGS = (*map(os.strerror, _PASSING), "out of memory", "virtual memory exhausted")
"""Words of the system, compilers and the loader, in English, for lack of something."""
_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT)
"""Signals of a compiler with a bug, which would come again."""
_ENDED = re.compile(
    r"(?:unable to execute command|internal compiler error|fatal error|terminated with signal \d+)"
    r"\W+(\w[\w ]*?)(?: signal terminated program| \(program|\]|$)",
    re.MULTILINE,
)
"""Messages of gcc, collect2 and clang that a program which they started was ended by a signal."""


def is_passing(error: Exception) -> bool:
    """True if the same might succeed later."""
    return isinstance(error, ResourceError) or (
        isinstance(error, OSError) and (error.errno in _PASSING or bool(lack_in(str(error))))
    )


def lack_in(messages: str) -> str:
    """Return what the messages of a compiler or of the loader say is lacking; "" if nothing."""
    return next((words for words in _SAYINGS if words in messages), "")


def end_of(ran: subprocess.CompletedProcess[str]) -> str:
    """Return why the system did not let a failed process finish: the signal that ended it or its
    child, or what it lacked. "" if the process itself failed.
    """
    # A shell reports a signal as 128 and its number.
    number = -ran.returncode if ran.returncode < 0 else ran.returncode - 128
    if number in signal.valid_signals() and number not in _CRASHES:
        return f"was ended by {signal.Signals(number).name}"
    crashes = {signal.strsignal(number) for number in _CRASHES}
    others = {signal.strsignal(number) for number in signal.valid_signals()} - crashes
    for found in _ENDED.finditer(ran.stderr):
        if found[1] in others:
            return f"was ended ({found[1]})"
    lacking = lack_in(ran.stderr)
    return f"failed ({lacking})" if lacking else ""
