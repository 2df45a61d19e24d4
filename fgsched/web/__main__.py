"""The process of a user's page, which `fgsched web` starts: `python -m fgsched.web DESCRIPTOR OPTIONS`.

It writes one line to the descriptor when it is ready, or the reason why it is not.
"""

import asyncio
import logging
import os
import sys
import time
from contextlib import suppress

import msgspec

from fgsched import protocol
from fgsched.client import find_paths
from fgsched.domain.errors import Exit, FgschedError
from fgsched.system.webplace import WebOptions, WebPlace, WebStatus, find_webplace, kept_port, own_name
from fgsched.views.choices import me
from fgsched.web.app import WebApp
from fgsched.web.control import Control
from fgsched.web.guard import Guard
from fgsched.web.server import PageServer, loopback
from fgsched.web.visit import Viewer

ABANDONED = 1800.0  # seconds without an open page after which the process ends
_LOOK = 10.0  # seconds between two looks whether it is abandoned


def is_abandoned(used_at: float, streams: int, now: float, *, keep: bool) -> bool:
    """Tell whether the process may end: no page has been open for 30 minutes. Times: monotonic seconds."""
    return not keep and not streams and now - used_at > ABANDONED


async def _serve(options: WebOptions, place: WebPlace, ready: int, umask: int) -> None:
    paths = find_paths()
    socks = [place.listener(place.http)] if options.socket else loopback(kept_port(place))
    port = 0 if options.socket else int(socks[0].getsockname()[1])
    if port:
        with suppress(OSError):
            place.port.write_text(f"{port}\n")
    guard = Guard(own_name(place), port)
    app = WebApp(paths, guard, Viewer(uid=os.geteuid(), name=me()), umask=umask)
    live = app.live()
    server = PageServer(app.guarded, live.close)

    def stop() -> None:
        server.should_exit = True

    control = Control(app, guard, keep=options.keep, stop=stop)
    commands = await control.serve(place.listener(place.control))
    tasks = [asyncio.ensure_future(live.run()), asyncio.ensure_future(_watch(app, control, server))]
    _say(ready, control.status())
    try:
        await server.serve(socks)
    finally:
        commands.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _watch(app: WebApp, control: Control, server: PageServer) -> None:
    """End the process when no page has been open for long."""
    while not is_abandoned(app.used_at, app.live().streams, time.monotonic(), keep=control.keep):
        await asyncio.sleep(_LOOK)
    server.should_exit = True


def _say(ready: int, status: WebStatus) -> None:
    os.write(ready, msgspec.json.encode({"ready": status}) + b"\n")
    os.close(ready)


def main() -> None:
    """Run the process. The lock is held until its end."""
    ready, options = int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=WebOptions)
    for name in options.added:
        os.environ.pop(name, None)
    umask = os.umask(0o077)  # of the command that started the process; the jobs of the form have it
    logging.basicConfig(level=logging.ERROR, format="%(asctime)s %(levelname)s %(message)s")
    try:
        place = find_webplace(find_paths(), os.environ, os.geteuid())
        if place.locked() is None:
            os.write(ready, b'{"already":true}\n')
            return
        asyncio.run(_serve(options, place, ready, umask))
        for path in (place.control, place.http):
            path.unlink(missing_ok=True)
    except FgschedError as error:
        problem = protocol.Problem.of(error)
        os.write(ready, msgspec.json.encode(problem) + b"\n")
        sys.exit(error.exit_code)
    except OSError as error:
        with suppress(OSError):
            problem = protocol.Problem(
                exit=Exit.UNREACHABLE, cause=f"the page cannot be served: {error.strerror}"
            )
            os.write(ready, msgspec.json.encode(problem) + b"\n")
        raise


if __name__ == "__main__":
    main()
