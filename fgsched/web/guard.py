"""Who may ask the page for what: host, origin, session, method, size and rate, and the headers of answers.

The decisions are pure: a request and the time (seconds of a monotonic clock) are arguments. `GuardedApp`
applies them before the application sees a request.
"""

import hashlib
import re
import secrets
from collections import deque
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from typing import NamedTuple
from urllib.parse import parse_qsl

from msgspec import Struct
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fgsched.system.webplace import CODE_LIFE

IDLE = 12 * 3600.0  # seconds after which an unused session ends
MOST_SESSIONS = 64
MOST_CODES = 64  # that were made and not used
MOST_HEADERS = 64 << 10  # bytes, with the address
MOST_BODY = 2 << 20  # bytes
MOST_CHANGES = 20  # in `CHANGES_WITHIN` seconds
CHANGES_WITHIN = 60.0
OPEN_PATHS = ("/open", "/ended")  # that need no session, beside static files
STATIC = "/static/"
FORECAST = "/submit/forecast"  # a form that changes nothing, sent while the user types
FORM = "application/x-www-form-urlencoded"
TOKEN = "token"  # the field of each form
_CODE = re.compile(r"[\w-]{43}", re.ASCII)  # 256 bits
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
    "referrer-policy": "same-origin",  # with no-referrer, Chromium sends `Origin: null` for our own forms
}


def new_code() -> str:
    """Return 256 random bits as text for an address."""
    return secrets.token_urlsafe(32)


def digest(secret: str) -> str:
    """Return what is kept of a code or a session: SHA-256, in hexadecimal digits."""
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


class PageCode(Struct, frozen=True, kw_only=True):
    """A code that opens the page once."""

    made_at: float  # monotonic seconds
    shown_at: float  # epoch seconds, for a person
    read_only: bool = False


class WebSession(Struct, kw_only=True):
    """A browser that was opened with a code. Mutable."""

    token: str  # that its forms repeat
    read_only: bool
    used_at: float  # monotonic seconds
    changes: deque[float]  # times of the latest changes
    streams: int = 0  # open pages
    message: str = ""  # about the last change, shown once
    has_failed: bool = False  # the message is about a refusal


class HttpRefusal(NamedTuple):
    """Why a request is not served."""

    status: HTTPStatus
    text: str


class Guard:
    """The codes and the sessions of one process. Only their digests are kept."""

    def __init__(self, name: str, port: int) -> None:
        """`name`: the host name of the page, which other users do not know.

        `port`: that the process listens at; 0: a Unix socket, which any port of a client may lead to.
        """
        self.name, self.port = name, port
        self._codes: dict[str, PageCode] = {}
        self._sessions: dict[str, WebSession] = {}

    # -- codes and sessions --------------------------------------------------------------------

    def invite(self, code: str, now: float, *, shown_at: float, read_only: bool) -> None:
        """Accept a code, of which `code` is the digest, for two minutes."""
        self._forget(now)
        while len(self._codes) >= MOST_CODES:
            del self._codes[next(iter(self._codes))]
        self._codes[code] = PageCode(made_at=now, shown_at=shown_at, read_only=read_only)

    def code(self, text: str, now: float) -> PageCode | None:
        """Return a code that can still be used; it is not used by that."""
        self._forget(now)
        return self._codes.get(digest(text)) if _CODE.fullmatch(text) else None

    def redeem(self, text: str, now: float) -> str | None:
        """Use a code: return the secret of a new session; None: the code was used, is too old or wrong."""
        code = self.code(text, now)
        if code is None:
            return None
        del self._codes[digest(text)]
        while len(self._sessions) >= MOST_SESSIONS:
            del self._sessions[min(self._sessions, key=lambda key: self._sessions[key].used_at)]
        secret = new_code()
        self._sessions[digest(secret)] = WebSession(
            token=new_code(), read_only=code.read_only, used_at=now, changes=deque(maxlen=MOST_CHANGES)
        )
        return secret

    def session(self, secret: str, now: float) -> WebSession | None:
        """Return the session with this secret, which is in use from now on."""
        self._forget(now)
        session = self._sessions.get(digest(secret)) if secret else None
        if session is not None:
            session.used_at = now
        return session

    def is_open(self, session: WebSession) -> bool:
        """Tell whether a session has not ended."""
        return any(session is other for other in self._sessions.values())

    def end(self, session: WebSession) -> None:
        """End a session."""
        self._sessions = {key: other for key, other in self._sessions.items() if other is not session}

    @property
    def sessions(self) -> int:
        """The number of sessions that have not ended."""
        return len(self._sessions)

    def _forget(self, now: float) -> None:
        self._codes = {key: code for key, code in self._codes.items() if now - code.made_at <= CODE_LIFE}
        self._sessions = {
            key: session for key, session in self._sessions.items() if now - session.used_at <= IDLE
        }

    # -- requests ------------------------------------------------------------------------------

    def cookie_of(self, host: str) -> str:
        """Return the name of the cookie: pages at several ports of one name, by `ssh -L`, have one each."""
        return f"fgsched-{host.rpartition(':')[2]}"

    def refused_host(self, host: str) -> HttpRefusal | None:
        """Refuse every name but that of the page: another site or user could have it."""
        name, _, port = host.rpartition(":")
        is_port = port == str(self.port) if self.port else re.fullmatch(r"[0-9]{1,5}", port, re.ASCII)
        if name == self.name and is_port:
            return None
        return HttpRefusal(
            HTTPStatus.MISDIRECTED_REQUEST, "This is not the address that `fgsched web` prints."
        )

    def refused_origin(self, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Refuse a form of another page."""
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin not in (None, f"http://{headers.get('host', '')}") or site not in (None, "same-origin"):
            return HttpRefusal(HTTPStatus.FORBIDDEN, "The form is not of this page.")
        return None

    def refused_change(
        self, session: WebSession, form: Mapping[str, str], now: float, *, path: str = ""
    ) -> HttpRefusal | None:
        """Refuse a change that the page of this session did not ask for, or too many of them.

        `path`: of the form; every page may end its session, and a forecast changes nothing.
        """
        if not secrets.compare_digest(form.get(TOKEN, "").encode(errors="replace"), session.token.encode()):
            return HttpRefusal(HTTPStatus.FORBIDDEN, "The form is not of this session. Load the page again.")
        if path == "/ended":
            return None
        if session.read_only:
            return HttpRefusal(HTTPStatus.FORBIDDEN, "This page is read-only.")
        if path == FORECAST:
            return None
        recent = session.changes
        if len(recent) == MOST_CHANGES and now - recent[0] < CHANGES_WITHIN:
            text = f"More than {MOST_CHANGES} changes in a minute. Wait a moment."
            return HttpRefusal(HTTPStatus.TOO_MANY_REQUESTS, text)
        recent.append(now)
        return None


def fields_of(body: bytes) -> list[tuple[str, str]]:
    """Return the fields of a form, in order. Raises ValueError for too many."""
    text = body.decode("ascii", "replace")
    return parse_qsl(text, keep_blank_values=True, max_num_fields=20_000, errors="replace")


def secret_in(cookies: str, name: str) -> str:
    """Return the value of a cookie; "": there is none."""
    try:
        morsel = SimpleCookie(cookies).get(name)
    except CookieError:
        return ""
    return morsel.value if morsel else ""


class GuardedApp:
    """The application behind the guard: what reaches it has a session, or needs none."""

    def __init__(
        self,
        app: ASGIApp,
        guard: Guard,
        clock: Callable[[], float],
        answer: Callable[[HttpRefusal], ASGIApp],
    ) -> None:
        """`clock`: monotonic seconds; `answer`: the page about a refusal."""
        self._app, self._guard, self._clock, self._answer = app, guard, clock, answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            return
        headers = _headers(scope)
        send = _with_headers(send, is_static=scope["path"].startswith(STATIC))
        refusal = self._refused(scope, headers)
        if refusal is None and scope["method"] == "POST":
            refusal = await self._checked(scope, headers, receive)
        app = self._app if refusal is None else self._answer(refusal)
        await app(scope, receive, send)

    def _refused(self, scope: Scope, headers: Mapping[str, str]) -> HttpRefusal | None:
        """Decide what needs no body, and add the session to the scope."""
        host, path = headers.get("host", ""), scope["path"]
        if _size(scope) > MOST_HEADERS:
            return HttpRefusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "The request is too long.")
        if refusal := self._guard.refused_host(host):
            return refusal
        name = self._guard.cookie_of(host)
        session = self._guard.session(secret_in(headers.get("cookie", ""), name), self._clock())
        scope["fgsched.session"], scope["fgsched.form"] = session, []
        is_open = path in OPEN_PATHS or path.startswith(STATIC)
        if session is None and not is_open:
            return HttpRefusal(HTTPStatus.UNAUTHORIZED, "No page is open here.")
        if scope["method"] not in ("GET", "HEAD", "POST"):
            return HttpRefusal(HTTPStatus.METHOD_NOT_ALLOWED, "Pages are read by GET and changed by POST.")
        return self._guard.refused_origin(headers) if scope["method"] == "POST" else None

    async def _checked(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive
    ) -> HttpRefusal | None:
        """Read the form of a change, and decide whether it is that of the session."""
        if headers.get("content-type", "").partition(";")[0].strip().lower() != FORM:
            return HttpRefusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "A form is expected.")
        body = await _body(headers, receive)
        if body is None:
            text = f"The form is larger than {MOST_BODY >> 20} MiB."
            return HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text)
        try:
            scope["fgsched.form"] = fields_of(body)
        except ValueError:
            return HttpRefusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "The form has too many fields.")
        session = scope["fgsched.session"]
        if scope["path"] == "/open" or session is None:
            return None
        form = dict(scope["fgsched.form"])
        return self._guard.refused_change(session, form, self._clock(), path=scope["path"])


async def _body(headers: Mapping[str, str], receive: Receive) -> bytes | None:
    """Return the body of a request; None: it is too large, or the client has gone."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length[:12]) > MOST_BODY:
        return None
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += message.get("body", b"")
        if len(body) > MOST_BODY:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _size(scope: Scope) -> int:
    """Return the bytes of headers and address: a server limits only what arrives in several parts."""
    address = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
    return address + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def _headers(scope: Scope) -> dict[str, str]:
    """Return the headers of a request; one that is repeated has all values, so that none is overlooked."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        joint = "; " if key == "cookie" else ", "
        headers[key] = f"{headers[key]}{joint}{text}" if key in headers else text
    return headers


def _with_headers(send: Send, *, is_static: bool) -> Send:
    """Add the headers of the guard to an answer. Only static files may be kept by a browser."""
    added = {**HEADERS, "cache-control": "private, max-age=3600"} if is_static else HEADERS
    raw = [(name.encode(), value.encode()) for name, value in added.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = [pair for pair in message["headers"] if pair[0].decode("latin-1").lower() not in added]
            message = {**message, "headers": [*own, *raw]}
        await send(message)

    return sending
