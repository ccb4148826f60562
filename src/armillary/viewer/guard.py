"""Access control of the viewer: token, Host, Origin, size of a request, and the content security policy.

Any website that the user visits could try to reach a server on this machine. DNS rebinding (a name that resolves to
127.0.0.1) is refused by the Host header, another site's page by its Origin, everything else by the token.
"""

import asyncio
import hmac
import ipaddress
import json
import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MOST_BYTES = 262_144
"""The largest request body; many times a text of two thousand tokens."""
MOST_SECONDS = 10.0
"""How long a client may take to send its body."""
TOKEN_HEADER = "x-armillary-token"
TAB_HEADER = "x-armillary-tab"
ENTRANCE = "/api/enter"
"""The route that exchanges a one-time code for the token."""

HEADERS = {
    # Plotly sets style attributes while it draws; scripts come only from this server's files.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


class Refused(Exception):
    """A request that is answered with a status of 400 or more and one sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def new_token() -> str:
    """A random token of 256 bits."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Gate:
    """What a request must have. `host` is the address that the server listens on; a wildcard listens on all.

    The token is after '#' in the printed address, so that no request line, log or Referer contains it; the page reads
    it there, stores it for its origin (which, unlike a cookie, includes the port) and sends it in a header.
    """

    host: str
    token: str = field(default_factory=new_token, repr=False)

    def check(self, path: str, headers: dict[str, str]) -> None:
        """Raise Refused unless the request may be answered; the page's own files have no data and need no token."""
        host = headers.get("host", "")
        if not self.knows(host):
            raise Refused(421, "this address is not the one that the viewer listens on")
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host.lower()}":
            raise Refused(403, "another page may not use the viewer")
        asks = path.startswith("/api/")
        if asks and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise Refused(403, "another site may not use the viewer")
        if asks and path != ENTRANCE and not self.holds(headers.get(TOKEN_HEADER, "")):
            raise Refused(403, "the token is missing or wrong: open the address that `armillary view` printed")

    def holds(self, given: str) -> bool:
        """Whether this is the token, compared in constant time."""
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.token.encode())

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server: its own name or, with a wildcard, any plain address."""
        name = _name_of(host)
        known = {"127.0.0.1", "localhost", "::1"} if is_loopback(self.host) else {self.host.lower(), "localhost"}
        return name in known or (is_wildcard(self.host) and _is_address(name))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server at `host`."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def is_wildcard(host: str) -> bool:
    """Whether a server at `host` listens on all of the machine's addresses."""
    return _is_address(host) and ipaddress.ip_address(host).is_unspecified


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _name_of(host: str) -> str:
    """A Host header without its port."""
    found = re.fullmatch(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]+))(?::\d+)?", host.strip().lower())
    return "" if found is None else found[1] or found[2]


class Guarded:
    """An application behind a gate: refusals are answered here, and every answer carries HEADERS."""

    def __init__(self, application: Application, gate: Gate) -> None:
        self._application = application
        self._gate = gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope)
        try:
            self._gate.check(scope["path"], dict(request.headers))
        except Refused as refused:
            await _answer(refused, _with_headers(send))
            return
        await self._application(scope, receive, _with_headers(send))


def _with_headers(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {name.lower() for name, _ in message["headers"]}
            added = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in given]
            if b"cache-control" not in given:
                added.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *added]}
        await send(message)

    return guarded


async def _answer(refused: Refused, send: Send) -> None:
    body = refused.reason.encode()
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def tab_of(request: Request) -> str:
    """The name that a page chose when it was loaded, or ''."""
    tab = request.headers.get(TAB_HEADER, "")
    if not re.fullmatch(r"[0-9a-z]{0,32}", tab):
        raise Refused(400, f"{TAB_HEADER} is up to 32 digits and small letters")
    return tab


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object of a request; raises Refused if it is too large, too slow or malformed."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "requests are JSON: content-type application/json")
    body = bytearray()
    try:
        async with asyncio.timeout(MOST_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BYTES:
                    raise Refused(413, f"a request may have {MOST_BYTES} bytes at most")
    except TimeoutError as error:
        raise Refused(408, "the request did not arrive in time") from error
    except ClientDisconnect as error:
        raise Refused(400, "the client left") from error
    try:
        fields = json.loads(body.decode("utf-8"), parse_constant=_not_a_number)
    except (ValueError, RecursionError) as error:
        raise Refused(400, "the request is not JSON") from error
    if not isinstance(fields, dict):
        raise Refused(400, "a request is a JSON object")
    return fields


def _not_a_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")
