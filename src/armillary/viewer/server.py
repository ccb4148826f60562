"""The viewer's server: fixed routes over one atlas (or two) and its model; requests share no state."""

import contextlib
import errno
import json
import re
import socket
import threading
import webbrowser
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import plotly
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from armillary.errors import ArmillaryError
from armillary.streams.constituents import TERMS
from armillary.terminal.options import as_options
from armillary.viewer import texts
from armillary.viewer.arrays import plain
from armillary.viewer.changes import requested_change
from armillary.viewer.fields import Fields
from armillary.viewer.guard import MOST_SECONDS, Application, Gate, Guarded, Refused, is_loopback, read_json, tab_of
from armillary.viewer.invitation import Invitation
from armillary.viewer.live import LiveModel
from armillary.viewer.pages import Pages
from armillary.viewer.turns import Asker
from armillary.viewer.worker import Abandoned, Work, Worker

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
LEVELS = ("token", "word")
Handler = Callable[[Request, Fields], Awaitable[str]]


class Viewer:
    """The application: `viewer.application` behind `viewer.gate`, with `viewer.worker` for the model."""

    def __init__(self, pages: Pages, gate: Gate) -> None:
        self.pages, self.gate = pages, gate
        self.worker = Worker()
        self._invitations: list[Invitation] = []
        handlers: dict[str, Handler] = {
            "enter": self._enter,
            "start": self._start,
            "head": self._head,
            "spiral": self._spiral,
            "look": self._look,
            "row": self._row,
            "change": self._change,
        }
        routes = [Route(f"/api/{name}", _answering(handler), methods=["POST"]) for name, handler in handlers.items()]
        routes += [Route(path, _serving(body, kind), methods=["GET"]) for path, (body, kind) in _files().items()]
        self.application: Application = Guarded(Starlette(routes=routes), gate)

    def invite(self, port: int) -> Path:
        """A file that opens the viewer at this port in a browser, once."""
        self._invitations.append(Invitation(place(self.gate, port)))
        return self._invitations[-1].file

    async def _enter(self, request: Request, fields: Fields) -> str:
        code = fields.text("code")
        fields.done()
        if not any(invitation.accepts(code) for invitation in self._invitations):
            raise Refused(403, "this link has been used: open the address that `armillary view` printed")
        return _json({"token": self.gate.token})

    async def _start(self, request: Request, fields: Fields) -> str:
        fields.done()
        return await run_in_threadpool(lambda: _json(self.pages.start()))

    async def _head(self, request: Request, fields: Fields) -> str:
        layer, head = self._which(fields)
        fields.done()
        return await run_in_threadpool(lambda: _json(self.pages.dossiers.of(layer, head)))

    async def _spiral(self, request: Request, fields: Fields) -> str:
        kind = fields.choice("kind", ("pos", "cvec"))
        if not self.pages.points:
            raise Refused(422, "this atlas has no positional vectors: scan with the stream positions")
        layer = fields.whole("layer", 0, self.pages.points - 1)
        fields.done()
        return await run_in_threadpool(self.pages.spiral, kind, layer)

    async def _look(self, request: Request, fields: Fields) -> str:
        live, text, (layer, head) = self._live(), fields.text("text"), self._which(fields)
        level, terms = fields.choice("level", LEVELS, "token"), fields.choices("terms", TERMS)
        fields.done()
        return await self._work(request, lambda gone: texts.look(live, gone, text, layer, head, level, terms))

    async def _row(self, request: Request, fields: Fields) -> str:
        live, text, (layer, head) = self._live(), fields.text("text"), self._which(fields)
        token = fields.whole("token", 0, live.most_tokens - 1)
        fields.done()
        return await self._work(request, lambda gone: texts.row(live, gone, text, layer, head, token))

    async def _change(self, request: Request, fields: Fields) -> str:
        live, text, (layer, head) = self._live(), fields.text("text"), self._which(fields)
        level = fields.choice("level", LEVELS, "token")
        change, name = requested_change(fields.part("change"), live, layer, head)
        fields.done()
        return await self._work(
            request, lambda gone: texts.before_and_after(live, gone, text, layer, head, level, change, name)
        )

    async def _work(self, request: Request, work: Work[dict[str, Any]]) -> str:
        asker = Asker(tab_of(request), request.url.path)
        return await self.worker.do(request, asker, lambda gone: _json(work(gone)))

    def _live(self) -> LiveModel:
        if self.pages.live is None:
            raise Refused(422, "no model is loaded: start the viewer with --model MODEL")
        return self.pages.live

    def _which(self, fields: Fields) -> tuple[int, int]:
        layer = fields.whole("layer", 0, len(self.pages.counts) - 1)
        return layer, fields.whole("head", 0, self.pages.counts[layer] - 1)


def _json(value: Any) -> str:
    return json.dumps(plain(value), allow_nan=False)


def _answering(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    """The handler's JSON; errors of the request or of the user become a status and a sentence."""

    async def answer(request: Request) -> Response:
        try:
            body = await handler(request, Fields(await read_json(request)))
            return Response(body, media_type="application/json")
        except Refused as refused:
            return PlainTextResponse(refused.reason, refused.status)
        except ArmillaryError as error:
            return PlainTextResponse(as_options(str(error)), 422)
        except Abandoned:
            return PlainTextResponse("the client left", 499)

    return answer


def _serving(body: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
    async def serve(request: Request) -> Response:
        return Response(body, media_type=kind)

    return serve


def _files() -> dict[str, tuple[bytes, str]]:
    """Every file that is served, read once: no request names a file."""
    served = {}
    for file in files("armillary.viewer").joinpath("static").iterdir():
        kind = KINDS[Path(file.name).suffix]
        served["/" if file.name == "index.html" else f"/static/{file.name}"] = (file.read_bytes(), kind)
    script = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()
    served["/"] = (served["/"][0].replace(b"<!-- plotly -->", _style_names(script)), KINDS[".html"])
    return {**served, "/static/plotly.min.js": (script, KINDS[".js"])}


def _style_names(script: bytes) -> bytes:
    """Elements with the ids of Plotly's inline styles for geographic maps: Plotly then does not add those styles."""
    names = set(re.findall(rb'getElementById\("([0-9a-f]{64})"\)', script))
    return b"".join(b'<meta id="%s" />' % name for name in sorted(names))


def listening_socket(host: str, port: int) -> socket.socket:
    """A socket that listens on this host and port; port 0 takes a free one."""
    if not host:
        raise ArmillaryError(
            "`host` is empty", advice="leave it out for this machine alone, or give 0.0.0.0 for every address"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)  # from here on a browser can connect, and waits until the server runs
    except (OSError, UnicodeError) as error:  # UnicodeError: a label of a host name is too long
        listening.close()
        raise ArmillaryError(_why_not_there(host, port, error)) from error
    return listening


def _why_not_there(host: str, port: int, error: OSError | UnicodeError) -> str:
    """Whether the name, the address or the port is wrong."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return f"there is no machine {host!r} to listen at: give an address of this machine, such as 127.0.0.1"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine: give one that is, such as 127.0.0.1, or 0.0.0.0 for all"
    return f"the viewer cannot listen at {host}:{port} ({error.strerror}): choose another `port`"


def address(gate: Gate, port: int) -> str:
    """The page's address with the token."""
    return f"{place(gate, port)}#token={gate.token}"


def place(gate: Gate, port: int) -> str:
    """The page's address."""
    host = "127.0.0.1" if is_loopback(gate.host) and ":" not in gate.host else gate.host
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


class Impatient(H11Protocol):
    """Closes idle connections: neither half a request nor an unread answer may occupy one."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._check_later(None, 0)

    def _check_later(self, cycle: object, unread: int) -> None:
        self.loop.call_later(MOST_SECONDS, self._check, cycle, unread)

    def _check(self, cycle: object, unread: int) -> None:
        idle = self.cycle is None or self.cycle.response_complete
        left = self.transport.get_write_buffer_size()
        if self.transport.is_closing() and left == 0:
            return
        if left > 0 and left == unread:  # the client reads nothing
            self.transport.abort()
        elif idle and left == 0 and self.cycle is cycle:  # no request since the last check
            self.transport.close()
        else:
            self._check_later(self.cycle, left)


class Server(uvicorn.Server):
    """A server that cancels the model's work when it is stopped."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self._worker = worker

    def handle_exit(self, sig: int, frame: Any) -> None:
        self._worker.stop()
        super().handle_exit(sig, frame)


def configuration(application: Application) -> uvicorn.Config:
    """The server's settings: no logs, limits on connections and waiting."""
    return uvicorn.Config(
        application,
        http=Impatient,
        proxy_headers=False,
        log_level="error",
        access_log=False,
        server_header=False,
        lifespan="off",
        ws="none",
        limit_concurrency=128,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=1,
    )


def serve(viewer: Viewer, sock: socket.socket, *, browser: bool = True) -> None:
    """Serve until Ctrl-C, then stop at once and cancel running work."""
    server = Server(configuration(viewer.application), viewer.worker)
    if browser:
        page = viewer.invite(sock.getsockname()[1])
        threading.Thread(target=webbrowser.open, args=(page.as_uri(),), daemon=True).start()
    with contextlib.suppress(KeyboardInterrupt):
        server.run(sockets=[sock])
    viewer.worker.stop()
