"""The application: the table of pages, the forms, and the streams of open pages."""

import asyncio
import html
import logging
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from fgsched import codec
from fgsched.domain.errors import Exit, FgschedError
from fgsched.domain.times import format_time
from fgsched.system.paths import Paths
from fgsched.web import acting, live, reading, submitting
from fgsched.web.frame import STATIC, FormNotice, frame_of, plain_page, render, taken_note
from fgsched.web.guard import FORECAST, Guard, GuardedApp, HttpRefusal, WebSession
from fgsched.web.live import LivePages
from fgsched.web.output import FileId, Follower, path_of
from fgsched.web.pages import array, gpu, helping, icon, job, now, queue, reports, submit
from fgsched.web.reading import HostLook, HostReader
from fgsched.web.visit import Viewer, Visit

log = logging.getLogger("fgsched.web")
_STATUS = {  # exit status of a command -> status of an answer
    Exit.REFUSED: HTTPStatus.CONFLICT,
    Exit.USAGE: HTTPStatus.BAD_REQUEST,
    Exit.NO_SUCH_JOB: HTTPStatus.NOT_FOUND,
    Exit.NOT_PERMITTED: HTTPStatus.FORBIDDEN,
    Exit.UNREACHABLE: HTTPStatus.SERVICE_UNAVAILABLE,
    Exit.STORAGE: HTTPStatus.SERVICE_UNAVAILABLE,
}
_TYPES = {".css": "text/css", ".js": "text/javascript", ".txt": "text/plain", ".svg": "image/svg+xml"}
_Parts = asyncio.Queue[bytes | None]  # of a stream; None: its end
_PLACE = re.compile(r"[0-9]{1,19}\.[0-9]{1,19}\.[0-9]{1,19}", re.ASCII)
_FOLLOWED = re.compile(r'(<pre class="out"[^>]* hx-morph-skip [^>]*>).*?(</pre>)', re.DOTALL)
_AGAIN = "Run `fgsched web` on this host for a new link."


class PageRow(Struct, frozen=True, kw_only=True):
    """A page: what it reads in a thread, the pure context of that, and its template."""

    path: str  # as Starlette has it, such as /job/{job}
    template: str
    read: Callable[[HostReader, Visit], Any]
    context: Callable[[Any, Visit], Any]
    nav: str = ""  # the entry of the navigation that it belongs to
    live: bool = True  # it changes while it is open
    read_only: bool = True  # a read-only session may see it


PAGES = (
    PageRow(path="/", template="now.html.j2", read=reading.look, context=now.context, nav="/"),
    PageRow(path="/queue", template="queue.html.j2", read=reading.queue, context=queue.context, nav="/queue"),
    PageRow(path="/job/{job}", template="job.html.j2", read=reading.job, context=job.context, nav="/queue"),
    PageRow(path="/gpu/{gpu}", template="gpu.html.j2", read=reading.gpu, context=gpu.context, nav="/"),
    PageRow(path="/help", template="help.html.j2", read=reading.nothing, context=helping.context, live=False),
    PageRow(
        path="/submit",
        template="submit.html.j2",
        read=submitting.opened,
        context=submit.context,
        nav="/submit",
        live=False,
        read_only=False,
    ),
    PageRow(
        path="/array/{job}", template="array.html.j2", read=reading.array, context=array.context, nav="/queue"
    ),
    PageRow(
        path="/reports",
        template="reports.html.j2",
        read=reading.report,
        context=reports.context,
        nav="/reports",
        live=False,
    ),
    PageRow(
        path="/reports/{report}",
        template="reports.html.j2",
        read=reading.report,
        context=reports.context,
        nav="/reports",
        live=False,
        read_only=False,
    ),
)
_SUBMIT = next(row for row in PAGES if row.path == "/submit")


class WebApp:
    """The pages of one user."""

    def __init__(self, paths: Paths, guard: Guard, viewer: Viewer, *, umask: int) -> None:
        """`umask`: of the jobs that are submitted here."""
        self.reader = HostReader(paths, umask=umask)
        self.guard, self._paths, self._viewer = guard, paths, viewer
        self._live: LivePages | None = None
        self.used_at = time.monotonic()  # of the last request with a session
        routes = [
            *(Route(row.path, self._page_of(row)) for row in PAGES),
            Route("/jobs/{verb}", self._change, methods=["POST"]),
            Route("/gpus/{verb}", self._change_gpu, methods=["POST"]),
            Route("/submit", self._submit, methods=["POST"]),
            Route(FORECAST, self._forecast, methods=["GET", "POST"]),
            Route("/live", self._stream),
            Route("/icon.svg", self._icon),
            Route("/open", self._open, methods=["GET", "POST"]),
            Route("/ended", self._ended, methods=["GET", "POST"]),
            Route("/static/{name}", _static),
        ]
        handlers: dict[Any, Any] = {
            FgschedError: self._refused,
            HTTPException: self._http_error,
            Exception: self._failed,
        }
        app = Starlette(routes=routes, exception_handlers=handlers)
        self.guarded = GuardedApp(app, guard, time.monotonic, refusal_page)
        self._routes = {row.path: route for row, route in zip(PAGES, routes, strict=False)}

    def live(self) -> LivePages:
        """Return what changes open pages; it is made by the first caller in the event loop."""
        if self._live is None:
            self._live = LivePages(self._paths, self._look_again)
        return self._live

    async def _look_again(self) -> HostLook:
        return await run_in_threadpool(self.reader.look, 0.0)

    # -- pages -----------------------------------------------------------------------------------

    def _page_of(self, row: PageRow) -> Callable[[Request], Any]:
        async def page(request: Request) -> Response:
            session: WebSession = request.scope["fgsched.session"]
            self.used_at = time.monotonic()
            if session.read_only and not row.read_only:
                raise HTTPException(HTTPStatus.FORBIDDEN, "This page is read-only.")
            visit = self._visit(request, session)
            made = await run_in_threadpool(self._made, row, visit, taken_note(session))
            return HTMLResponse(made)

        return page

    def _visit(self, request: Request, session: WebSession) -> Visit:
        return Visit(
            path=request.url.path,
            query=dict(request.query_params),
            params={name: str(value) for name, value in request.path_params.items()},
            viewer=Viewer(uid=self._viewer.uid, name=self._viewer.name, read_only=session.read_only),
            token=session.token,
            now=time.time(),
        )

    def _made(self, row: PageRow, visit: Visit, note: FormNotice = FormNotice()) -> str:  # noqa: B008
        """Make a whole page. Raises FgschedError."""
        return self._rendered(row, row.read(self.reader, visit), visit, note)

    @staticmethod
    def _rendered(row: PageRow, data: Any, visit: Visit, note: FormNotice) -> str:
        page = row.context(data, visit)
        look: HostLook | None = data if isinstance(data, HostLook) else getattr(data, "look", None)
        trouble, since = (look.trouble, look.since) if look is not None else ("", 0.0)
        frame = frame_of(visit, nav=row.nav, live=row.live, note=note, trouble=trouble, since=since)
        return render(row.template, {"page": page, "frame": frame})

    # -- open pages ------------------------------------------------------------------------------

    async def _stream(self, request: Request) -> Response:
        """Send a page again whenever it has changed, and what is added to the output that it shows."""
        session: WebSession = request.scope["fgsched.session"]
        if session.streams >= live.MOST_STREAMS or self.live().streams >= live.MOST_OPEN:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, f"{session.streams} pages are open already.")
        row, visit = self._shown(request, session)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        events = self._events(row, visit, session, request.query_params.get("at", ""))
        return StreamingResponse(events, headers=headers, media_type="text/event-stream")

    def _shown(self, request: Request, session: WebSession) -> tuple[PageRow, Visit]:
        """Return the page that a stream is about. Raises HTTPException."""
        parts = urlsplit(request.query_params.get("page", "/"))
        scope = {"type": "http", "method": "GET", "path": parts.path}
        for row in PAGES:
            match, child = self._routes[row.path].matches(scope)
            if match.name == "FULL" and row.live and (row.read_only or not session.read_only):
                return row, replace(
                    self._visit(request, session),
                    path=parts.path,
                    query=dict(parse_qsl(parts.query, keep_blank_values=True, max_num_fields=20)),
                    params={name: str(value) for name, value in child["path_params"].items()},
                )
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such page.")

    async def _events(self, row: PageRow, visit: Visit, session: WebSession, at: str) -> AsyncIterator[bytes]:
        """Yield the events of a stream; `at`: device, inode and end of the output that the page shows."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(8)
        follows = bool(_PLACE.fullmatch(at)) and row.template == "job.html.j2" and not session.read_only
        tasks = [asyncio.ensure_future(self._changes(row, visit, session, queue, follows=follows))]
        if follows:
            tasks.append(asyncio.ensure_future(self._follow(visit, at, queue)))
        yield b"retry: %d\n\n" % live.RETRY
        try:
            while (part := await queue.get()) is not None:
                yield part
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _changes(
        self, row: PageRow, visit: Visit, session: WebSession, queue: _Parts, *, follows: bool
    ) -> None:
        """Put the page into the queue whenever it is another one than before.

        `follows`: the stream follows the output of the page, which is left out of it.
        """
        last = ""
        changes = self.live().changes()
        session.streams += 1
        try:
            async for is_new in changes:
                if not self.guard.is_open(session):
                    await queue.put(live.event("ended"))
                    break
                session.used_at = self.used_at = time.monotonic()
                made = await self._fragment(row, visit) if is_new else ""
                made = _FOLLOWED.sub(r"\1\2", made) if follows else made
                await queue.put(_page_event(made) if made and made != last else live.COMMENT)
                last = made or last
        except Exception:  # a stream that ends is opened again; one that says nothing would look alive
            log.exception("the page %s cannot be made", visit.path)
        finally:
            session.streams -= 1
            await changes.aclose()
        await queue.put(None)

    async def _fragment(self, row: PageRow, visit: Visit) -> str:
        """Return the page as it is now, without the time at which it was made; "" if it cannot be read."""

        async def make() -> str:
            return await run_in_threadpool(self._made, row, replace(visit, now=time.time()))

        try:
            whole = await self.live().page((visit.url, visit.token), make)
        except FgschedError:
            return ""
        return whole[: whole.rfind("<footer")]

    async def _follow(self, visit: Visit, at: str, queue: _Parts) -> None:
        """Put what is added to the output of the user's job into the queue."""
        device, inode, end = map(int, at.split("."))
        follower = await run_in_threadpool(self._follower, visit, FileId(device, inode), end)
        if follower is not None:
            async for addition in live.additions(follower):
                await queue.put(addition)

    def _follower(self, visit: Visit, file: FileId, end: int) -> Follower | None:
        data = reading.job(self.reader, visit)
        if data.tail is None:
            return None
        return Follower(path_of(data.job, visit.file), file, end)

    # -- forms -----------------------------------------------------------------------------------

    async def _change(self, request: Request) -> Response:
        """Carry out a form, and return to its page with what came of it."""
        session, fields = request.scope["fgsched.session"], request.scope["fgsched.form"]
        verb, form = request.path_params["verb"], dict(request.scope["fgsched.form"])
        self.used_at = time.monotonic()
        if verb not in acting.VERBS:
            raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such change.")
        back = acting.back_of(form)
        if verb in acting.ASKS and not form.get("sure"):
            return HTMLResponse(_question(verb, fields, back))
        return self._returned(session, await self._done(acting.change, verb, fields), back)

    async def _change_gpu(self, request: Request) -> Response:
        """Drain or resume a GPU, and return to its page with what came of it."""
        session, form = request.scope["fgsched.session"], dict(request.scope["fgsched.form"])
        verb = request.path_params["verb"]
        self.used_at = time.monotonic()
        if verb not in ("drain", "resume"):
            raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such change.")
        note = await self._done(acting.change_gpu, verb, form)
        return self._returned(session, note, acting.back_of(form))

    async def _done(self, change: Callable[..., FormNotice], *arguments: Any) -> FormNotice:
        """Return what came of a change. Raises FgschedError if the controller does not answer."""
        try:
            return await run_in_threadpool(change, self.reader, *arguments)
        except FgschedError as error:
            if error.exit_code in (Exit.UNREACHABLE, Exit.STORAGE):
                raise
            return FormNotice(f"{error.cause}. {error.remedy}".strip(), has_failed=True)

    def _returned(self, session: WebSession, note: FormNotice, path: str) -> Response:
        """Lead to a page, which shows the note; open pages are made again."""
        session.message, session.has_failed = note.text, note.has_failed
        self.live().note()
        return RedirectResponse(path, HTTPStatus.SEE_OTHER)

    async def _forecast(self, request: Request) -> Response:
        """Show the form with when its job would start."""
        if request.method != "POST":
            return RedirectResponse("/submit", HTTPStatus.SEE_OTHER)  # a page of this address is loaded again
        self.used_at = time.monotonic()
        form = dict(request.scope["fgsched.form"])
        wish = submitting.wish_of(form)
        trial = await run_in_threadpool(submitting.tested, self.reader, wish, form.get("key", ""))
        return self._form(request, trial)

    async def _submit(self, request: Request) -> Response:
        """Submit the job of a form, or show the form with the refusal."""
        session, form = request.scope["fgsched.session"], dict(request.scope["fgsched.form"])
        self.used_at = time.monotonic()
        wish, key = submitting.wish_of(form), form.get("key", "")
        hold = form.get("do") == "hold"
        try:
            path, note = await run_in_threadpool(submitting.submit, self.reader, wish, key, hold=hold)
        except FgschedError as error:
            if error.exit_code in (Exit.UNREACHABLE, Exit.STORAGE):
                raise
            status = _STATUS.get(Exit(error.exit_code), HTTPStatus.CONFLICT)
            return self._form(request, submit.FormAnswer(wish=wish, key=key, refusal=error), status)
        return self._returned(session, note, path)

    def _form(
        self, request: Request, submission: submit.FormAnswer, status: HTTPStatus = HTTPStatus.OK
    ) -> Response:
        visit = self._visit(request, request.scope["fgsched.session"])
        return HTMLResponse(self._rendered(_SUBMIT, submission, visit, FormNotice()), status)

    # -- sessions --------------------------------------------------------------------------------

    async def _open(self, request: Request) -> Response:
        """Show the button that uses a code, or use it. A link that is only looked at uses nothing."""
        now, form = time.monotonic(), dict(request.scope["fgsched.form"])
        if request.method != "POST":
            return HTMLResponse(self._opening(request.query_params.get("c", ""), now))
        secret = self.guard.redeem(form.get("c", ""), now)
        if secret is None:
            text = plain_page("The link was used or is too old", _AGAIN)
            return HTMLResponse(text, HTTPStatus.FORBIDDEN)
        self.used_at = now
        answer = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        name = self.guard.cookie_of(request.headers["host"])
        answer.set_cookie(name, secret, httponly=True, samesite="strict", path="/")
        return answer

    def _opening(self, code: str, now: float) -> str:
        page_code = self.guard.code(code, now)
        if page_code is None:
            return plain_page("The link was used or is too old", _AGAIN)
        made = format_time(page_code.shown_at, "%H:%M")
        sentence = f"This link was made by {self._viewer.name} at {made} and opens the page once."
        form = {
            "action": "/open",
            "label": "Open the page",
            "style": "go",
            "fields": [("c", code)],
            "back": "",
        }
        remarks = ("If you did not run `fgsched web`, close this window.",)
        return plain_page("fgsched", sentence, form=form, remarks=remarks)

    async def _ended(self, request: Request) -> Response:
        """End the session that asks for it, and say that it has ended."""
        session: WebSession | None = request.scope["fgsched.session"]
        if session is not None and request.method == "POST":
            self.guard.end(session)
            self.live().note()
        if session is not None and request.method != "POST":
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        answer = HTMLResponse(_session_ended())
        answer.delete_cookie(self.guard.cookie_of(request.headers["host"]), path="/")
        return answer

    async def _icon(self, request: Request) -> Response:
        """Draw the use of the host, for the tab of the browser."""
        look = await run_in_threadpool(self.reader.look, live.BEAT)
        return Response(icon.drawn(look), media_type=_TYPES[".svg"])

    # -- errors ----------------------------------------------------------------------------------

    async def _refused(self, request: Request, error: Exception) -> Response:
        """Say what a command would print."""
        assert isinstance(error, FgschedError)
        status = _STATUS.get(Exit(error.exit_code), HTTPStatus.INTERNAL_SERVER_ERROR)
        remedy = error.remedy
        if isinstance(error, codec.OtherProtocol):
            remedy = "Run `fgsched web` again after the upgrade."
        text = plain_page(_sentence(error.cause), remedy or "Go back to the page before.", remarks=())
        return HTMLResponse(text, status)

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return HTMLResponse(plain_page(HTTPStatus(error.status_code).phrase, error.detail), error.status_code)

    async def _failed(self, request: Request, error: Exception) -> Response:
        """Say that the page has a bug; its log has the traceback."""
        text = plain_page(
            "This page failed", "The log of the page tells more: `fgsched web --status` names it."
        )
        return HTMLResponse(text, HTTPStatus.INTERNAL_SERVER_ERROR)


def refusal_page(refusal: HttpRefusal) -> ASGIApp:
    """Return the page about a request that is not served."""
    if refusal.status is HTTPStatus.UNAUTHORIZED:
        return HTMLResponse(_session_ended(), refusal.status)
    return HTMLResponse(plain_page(refusal.status.phrase, refusal.text), refusal.status)


def _session_ended() -> str:
    sentence = "You ended it, or it was not used for 12 hours. Jobs are not affected."
    return plain_page("The session has ended", sentence, remarks=(_AGAIN,))


def _sentence(cause: str) -> str:
    return f"{cause[:1].upper()}{cause[1:]}"


def _question(verb: str, fields: Sequence[tuple[str, str]], back: str) -> str:
    """Return the page that asks before a change; without script, as the script asks in a window."""
    jobs = acting.jobs_of(fields)
    label, sentence = acting.ASKS[verb]
    named = f"job {jobs[0]}" if len(jobs) == 1 else f"{len(jobs)} jobs"
    form = {
        "action": f"/jobs/{quote(verb)}",
        "label": f"{label} {named}",
        "style": "stop",
        "fields": [*fields, ("sure", "1")],
        "back": back,
    }
    return plain_page(f"{label} {named}?", sentence, form=form)


def _page_event(made: str) -> bytes:
    """Return the event that replaces the part of a page that changes."""
    begin = made.index('id="main">') + len('id="main">')
    title = made[made.index("<title>") + len("<title>") : made.index("</title>")]
    clock, minute = (format_time(time.time(), form) for form in ("%H:%M:%S", "%H%M"))
    main = made[begin : made.rindex("</main>")]
    return live.event("page", main=main, title=html.unescape(title), clock=clock, icon=f"/icon.svg?{minute}")


async def _static(request: Request) -> Response:
    """Send a static file; there are few, and none is named by more than its name."""
    path = STATIC / request.path_params["name"]
    if path.name not in {file.name for file in STATIC.iterdir()} or path.suffix not in _TYPES:
        raise HTTPException(HTTPStatus.NOT_FOUND, "There is no such file.")
    return Response(path.read_bytes(), media_type=_TYPES[path.suffix])
