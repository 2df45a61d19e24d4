"""Act as another user, from a child process: only root can."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def acting(uid: int, act: Callable[[], None]) -> Iterator[None]:
    """Run a function, which does not return, with this uid and gid until the block ends."""
    child = os.fork()
    if not child:
        try:
            os.setgid(uid)
            os.setuid(uid)
            act()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
