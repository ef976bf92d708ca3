"""How Baton's own processes live and die together."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

# The supervisor writes its process id here for its children.
PARENT_VARIABLE = "BATON_PARENT_PID"
# A wrong option, a missing file: trying again without a change helps nobody.
EXIT_CONFIGURATION = 2
# Another node has this one's name: it may be on its way out, so a supervisor tries again.
EXIT_NAME_TAKEN = 3

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the supervisor dies, even if it is killed outright.

    Call it first thing and from the main thread. Without a supervisor, or on a system that is not
    Linux, it does nothing.
    """
    parent = os.environ.get(PARENT_VARIABLE)
    if parent is None or sys.platform != "linux":
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != int(parent):
        # it died before the kernel was asked
        sys.exit(0)


def exit_within(seconds: float, code: int) -> None:
    """End this process at the latest after `seconds`, whatever then still runs or hangs."""
    timer = threading.Timer(seconds, os._exit, args=(code,))
    timer.daemon = True
    timer.start()
