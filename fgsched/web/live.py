"""What changes on open pages: one subscription to the controller's events for all pages of the user.

An event makes one look at the host, and each open page is made again from it. Events of other users' jobs are
not sent to a user, and the use of GPUs has none: so there is a look every few seconds as well. A page that is
the same as before is not sent.
"""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from fgsched.client import Client
from fgsched.domain.errors import FgschedError
from fgsched.protocol import Events
from fgsched.system.paths import Paths
from fgsched.web.output import Follower

MOST_STREAMS = 16  # of one session
MOST_OPEN = 56  # of all sessions: the other connections are for forms and pages
BEAT = 5.0  # seconds between two looks without an event
_LEAST = 0.2  # seconds between two looks
_LOAD = 4  # a look may take a fifth of the time
_FOLLOW = 0.25  # seconds between two steps in a file that is followed
_ALIVE = 15.0  # seconds between two signs of life on a stream
_PATIENCE = 20.0  # seconds for an answer about events; an empty one comes after 10
_PAUSE = 1.0  # seconds between two tries to subscribe
RETRY = 2000  # milliseconds after which a browser opens a lost stream again


class Subscription:
    """A thread that waits for events of the controller while pages are open."""

    def __init__(self, paths: Paths, note: Callable[[], None]) -> None:
        """`note` is called from the thread after each event, and when the controller comes or goes."""
        self._paths, self._note = paths, note
        self._wanted = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def want(self, is_wanted: bool) -> None:
        """Begin or end to wait for events."""
        if is_wanted:
            self._wanted.set()
        else:
            self._wanted.clear()

    def _run(self) -> None:
        cursor = ""
        while True:
            self._wanted.wait()
            try:
                with self._client() as client:
                    cursor = self._follow(client, cursor)
            except FgschedError:
                self._note()
                time.sleep(_PAUSE)

    def _client(self) -> Client:
        return Client(self._paths, may_start=False, is_prompt=True, names_variables=False)

    def _follow(self, client: Client, cursor: str) -> str:
        while self._wanted.is_set():
            batch = client.call(Events(after=cursor), patience=_PATIENCE)
            if batch.events or batch.lost != 0:
                self._note()
            cursor = batch.cursor
        return cursor


class LivePages:
    """The version of what pages show. It rises with each look while pages are open."""

    def __init__(self, paths: Paths, look: Callable[[], Awaitable[object]]) -> None:
        """`look` reads the host again. To be made in the event loop."""
        self._look = look
        self._loop = asyncio.get_running_loop()
        self._subscription = Subscription(paths, self._note_from_thread)
        self._news, self._dirty = asyncio.Event(), asyncio.Event()
        self._made: dict[object, tuple[int, asyncio.Task[str]]] = {}  # pages by key, with their version
        self.version = 0
        self.streams = 0
        self.is_closing = False

    def _note_from_thread(self) -> None:
        self._loop.call_soon_threadsafe(self._dirty.set)

    def note(self) -> None:
        """HostLook again soon: a form has changed something."""
        self._dirty.set()

    async def run(self) -> None:
        """HostLook after each event and every few seconds, as long as pages are open."""
        while not self.is_closing:
            if not await _set_within(self._dirty, BEAT) and not self.streams:
                continue
            self._dirty.clear()
            begin = self._loop.time()
            if self.streams:
                with suppress(FgschedError):  # the pages say so when they are made
                    await self._look()
            self.version += 1
            self._tell()
            await asyncio.sleep(max(_LEAST, _LOAD * (self._loop.time() - begin)))

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """End all streams."""
        self.is_closing = True
        self._tell()
        self._dirty.set()

    async def page(self, key: object, make: Callable[[], Awaitable[str]]) -> str:
        """Return a page in the present version; open pages that are the same share it."""
        version, task = self._made.get(key, (-1, None))
        if task is None or version != self.version:
            task = asyncio.ensure_future(make())
            self._made = {other: entry for other, entry in self._made.items() if entry[0] == self.version} | {
                key: (self.version, task)
            }
        return await asyncio.shield(task)

    async def changes(self) -> AsyncGenerator[bool, None]:
        """Yield at once and after each look True, and False as a sign of life without one.

        The caller has a place among the open pages from the first step on.
        """
        self.streams += 1
        self._subscription.want(True)
        try:
            yield True
            while not self.is_closing:
                yield await _set_within(self._news, _ALIVE)
        finally:
            self.streams -= 1
            self._subscription.want(self.streams > 0)


async def _set_within(event: asyncio.Event, seconds: float) -> bool:
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return False
    return True


def event(name: str, **values: Any) -> bytes:
    """Return an event of a stream; its data is a JSON object in one line."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), msgspec.json.encode(values))


COMMENT = b":\n\n"


async def additions(follower: Follower) -> AsyncIterator[bytes]:
    """Yield an event for each part that is added to a file."""
    loop = asyncio.get_running_loop()
    while True:
        addition = await loop.run_in_executor(None, follower.step)
        if addition is None:
            await asyncio.sleep(_FOLLOW)
        else:
            place = {"device": addition.file.device, "inode": addition.file.inode, "end": addition.end}
            yield event("output", text=addition.text, new=addition.is_new, **place)
