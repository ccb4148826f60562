"""What is sent to the viewer: bytes, and what may come back."""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
PRIVATE = (b"BEGIN PRIVATE", str(HERE.parents[2]).encode())
"""What no answer may hold: keys, and where files lie on this machine."""
NAMES = ("start", "head", "spiral", "look", "row", "change")
WORDS = "When the old clock struck twelve, the clock maker opened the old door."


@dataclass(frozen=True)
class Request:
    """Bytes to send, in parts with a pause after each. `expects` is 'answer' (200), 'refusal' (not 2xx) or 'any'."""

    what: str
    parts: tuple[bytes, ...]
    expects: str = "refusal"
    pause: float = 0.0
    leaves: bool = False
    half_closes: bool = False

    @property
    def words(self) -> str:
        return repr(b"".join(self.parts)[:160])


def message(
    port: int, token: str, path: str, body: bytes | None = b"{}", method: str = "POST", **headers: str | None
) -> bytes:
    """A request as a browser would send it; headers replace the good ones, None leaves one out."""
    good: dict[str, str | None] = {
        "host": f"127.0.0.1:{port}",
        "connection": "close",
        "content-type": "application/json",
        "x-armillary-token": token,
        "content-length": None if body is None else str(len(body)),
    }
    for name, value in headers.items():
        good[name.replace("_", "-")] = value
    lines = [f"{name}: {value}" for name, value in good.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("utf-8", "surrogatepass") + (body or b"")


def fields(rng: random.Random, name: str) -> dict[str, Any]:
    """What a valid request of this name carries: the bundled model has 4 layers with 4 heads, or more."""
    which = {"layer": rng.randrange(2), "head": rng.randrange(2)}
    if name == "start":
        return {}
    if name == "head":
        return which
    if name == "spiral":
        return {"kind": rng.choice(("pos", "cvec")), "layer": rng.randrange(2)}
    text = {"text": rng.choice((WORDS, "a b c", "\N{SNOWMAN} <script>alert(1)</script>")), **which}
    if name == "row":
        return {**text, "token": rng.randrange(2)}
    if name == "change":
        return {**text, "change": {"kind": "scale", "scope": rng.choice(("head", "all")), "alpha": 2.0}}
    return {**text, "level": rng.choice(("token", "word"))}


def valid(port: int, token: str, name: str, asked: dict[str, Any]) -> Request:
    return Request(f"valid: {name}", (message(port, token, f"/api/{name}", json.dumps(asked).encode()),), "answer")


Kind = Callable[[random.Random, int, str], Request]


def good(rng: random.Random, port: int, token: str) -> Request:
    name = rng.choice(NAMES)
    return valid(port, token, name, fields(rng, name))


def page(rng: random.Random, port: int, token: str) -> Request:
    path = rng.choice((f"/?token={token}", "/static/app.js", "/static/plotly.min.js"))
    return Request("valid: page", (message(port, token, path, None, "GET"),), "answer")


def wrong_token(rng: random.Random, port: int, token: str) -> Request:
    given = rng.choice(
        (None, "", token[:-1], token + "x", token.swapcase(), "\N{SNOWMAN}", token[::-1], "x" * 5000, " ")
    )
    name = rng.choice(NAMES)
    sent = message(
        port, token, f"/api/{name}?token={token}", json.dumps(fields(rng, name)).encode(), x_armillary_token=given
    )
    return Request("wrong token", (sent,))


def wrong_host(rng: random.Random, port: int, token: str) -> Request:
    host = rng.choice(
        (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "",
            None,
            "[::1",
            "localhost@evil",
            "0x7f.1",
            "a" * 3000,
        )
    )
    return Request("wrong host", (message(port, token, "/api/start", host=host),))


def wrong_origin(rng: random.Random, port: int, token: str) -> Request:
    changes: tuple[dict[str, Any], ...] = (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": f"https://127.0.0.1:{port}"},
        {"origin": "http://127.0.0.1:1"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    )
    return Request("wrong origin", (message(port, token, "/api/start", **rng.choice(changes)),))


def wrong_method(rng: random.Random, port: int, token: str) -> Request:
    method = rng.choice(("GET", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH", "CONNECT", "PROPFIND", "post", "G" * 300))
    return Request("wrong method", (message(port, token, f"/api/{rng.choice(NAMES)}", method=method),))


def wrong_path(rng: random.Random, port: int, token: str) -> Request:
    up = rng.choice(("../" * 9, "%2e%2e/" * 9, "..%2f" * 9, "....//" * 9, "..\\" * 9, "/" * 9, "%c0%ae%c0%ae/" * 9))
    path = rng.choice(
        (
            f"/static/{up}etc/passwd",
            f"/{up}etc/passwd",
            f"/api/{up}etc/passwd",
            "/static/",
            "/api/",
            "/api/none",
            f"http://evil.example/{up}",
            "/api/start/../../etc/passwd",
            "/" + "a" * 20000,
            "/%00",
            "/static/app.js%00.css",
            "*",
        )
    )
    return Request("wrong path", (message(port, token, path, None, "GET"),))


def not_json(rng: random.Random, port: int, token: str) -> Request:
    body = rng.choice(
        (
            b"",
            b"{",
            b"[1]",
            b"null",
            b'"x"',
            b"\xff\xfe",
            b'{"layer": NaN, "head": 0}',
            b"[" * 100_000,
            b'{"a":' * 50_000,
            b'{"layer": ' + b"9" * 5000 + b', "head": 0}',
            b"{}{}",
            b"\x00",
            b'{"layer": 1e999, "head": 0}',
            rng.randbytes(500),
        )
    )
    return Request("not JSON", (message(port, token, f"/api/{rng.choice(NAMES[1:])}", body),))


ODD: tuple[Any, ...] = (
    None,
    -1,
    10**6,
    10**40,
    1.5,
    0.0,
    True,
    "0",
    "",
    [],
    [0],
    {},
    {"a": 1},
    "x" * 70_000,
    "\ud800",
    "../../etc/passwd",
)


def odd_fields(rng: random.Random, port: int, token: str) -> Request:
    """One field missing, of another type, out of range, or unknown."""
    name = rng.choice(NAMES[1:])
    asked, way = fields(rng, name), rng.random()
    chosen = rng.choice(list(asked))
    if way < 0.2:
        del asked[chosen]
    elif way < 0.35:
        asked[rng.choice(("path", "file", "__class__", "x" * 3000, "\ud800"))] = 1
    elif chosen == "change":
        asked["change"] = {
            "kind": rng.choice(ODD),
            "scope": rng.choice(ODD),
            rng.choice(("alpha", "rank", "x")): rng.choice(ODD),
        }
    else:
        asked[chosen] = rng.choice(ODD)
    return Request("odd fields", (message(port, token, f"/api/{name}", json.dumps(asked).encode()),), "any")


def odd_headers(rng: random.Random, port: int, token: str) -> Request:
    changes: tuple[dict[str, str], ...] = (
        {"content_type": "text/plain"},
        {"content_type": "application/x-www-form-urlencoded"},
        {"content_length": "-1"},
        {"content_length": "x"},
        {"content_length": "9" * 30},
        {"transfer_encoding": "chunked"},
        {"transfer_encoding": "gzip, identity"},
        {"expect": "100-continue"},
        {"x_long": "x" * 100_000},
        {"range": "bytes=0-1"},
        {"upgrade": "websocket", "connection": "Upgrade"},
        {"x_armillary_tab": "../../etc" * 9},
        {"cookie": "token=" + token},
    )
    return Request(
        "odd headers", (message(port, token, "/api/start", b'{"a": 1}', **rng.choice(changes)),), half_closes=True
    )


def huge(rng: random.Random, port: int, token: str) -> Request:
    text = json.dumps({"text": "word " * rng.choice((60_000, 400_000, 2_000_000)), "layer": 0, "head": 0}).encode()
    return Request("huge", (message(port, token, "/api/look", text),))


def long_text(rng: random.Random, port: int, token: str) -> Request:
    text = rng.choice(("word " * 400, "x" * 3000, "\N{SNOWMAN}" * 900, " " * 900, "\u200b\u202e" * 300))
    sent = json.dumps({"text": text, "layer": 0, "head": 0}).encode()
    return Request("long text", (message(port, token, f"/api/{rng.choice(('look', 'change'))}", sent),), "any")


def slow(rng: random.Random, port: int, token: str) -> Request:
    """Half a request: then nothing more until the server gives up, or the client leaves."""
    whole = message(port, token, "/api/look", json.dumps({"text": WORDS, "layer": 0, "head": 0}).encode())
    cut = rng.choice((1, 20, len(whole) // 2, len(whole) - 1))
    return Request("slow", (whole[:cut],), "refusal", 0.05, leaves=rng.random() < 0.9)


def garbage(rng: random.Random, port: int, token: str) -> Request:
    data = rng.choice(
        (
            rng.randbytes(300),
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(200),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /\r\n\r\n",
            b"\r\n" * 500,
            b"GET / HTTP/9.9\r\n\r\n",
            b"POST /api/start HTTP/1.1\r\n" + b"a: b\r\n" * 3000 + b"\r\n",
            b"\x00" * 1000,
        )
    )
    return Request("garbage", (data,), half_closes=True)


def gone(rng: random.Random, port: int, token: str) -> Request:
    """A valid request whose client leaves without the answer."""
    sent = json.dumps({"text": WORDS * 10, "layer": 0, "head": 0}).encode()
    return Request("client leaves", (message(port, token, "/api/look", sent),), "any", 0.01, leaves=True)


SHARES: dict[Kind, int] = {
    good: 20,
    page: 3,
    wrong_token: 10,
    wrong_host: 8,
    wrong_origin: 6,
    wrong_method: 6,
    wrong_path: 10,
    not_json: 10,
    odd_fields: 14,
    odd_headers: 8,
    huge: 3,
    long_text: 3,
    slow: 3,
    garbage: 5,
    gone: 3,
}


def drawn(rng: random.Random, port: int, token: str) -> Request:
    """A request of some kind."""
    kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
    return kind(rng, port, token)
