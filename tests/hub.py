"""A stand-in for the hub on this machine: its cache as a folder, or a server of folders as repositories."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copytree

COMMIT = "0123456789abcdef0123456789abcdef01234567"
"""The commit of `main` in the cache that `cached` makes."""


def cached(home: Path, repository: str, folder: Path, commit: str = COMMIT) -> Path:
    """The folder as huggingface_hub would have cached it under this HF_HOME; returns the snapshot."""
    place = home / "hub" / f"models--{repository.replace('/', '--')}"
    copytree(folder, place / "snapshots" / commit)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(commit)
    return place / "snapshots" / commit


@contextmanager
def serving(repositories: dict[tuple[str, str], Path]) -> Iterator[tuple[str, list[str]]]:
    """A server of (repository, revision) -> folder: its address, for HF_ENDPOINT, and what was downloaded."""
    downloaded: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, with_body: bool) -> None:
            before, _, rest = self.path.lstrip("/").partition("/resolve/")
            revision, _, name = rest.partition("/")
            commits = {commit_of(repo, rev): folder for (repo, rev), folder in repositories.items() if repo == before}
            folder = repositories.get((before, revision)) or commits.get(revision)
            if folder is None or not (folder / name).is_file():
                known = any(repo == before for repo, _ in repositories)
                self._missing("EntryNotFound" if folder else "RevisionNotFound" if known else "RepoNotFound")
                return
            data = (folder / name).read_bytes()
            commit = next(commit for commit, place in commits.items() if place == folder)
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{sha256(data).hexdigest()}"')
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if with_body:
                downloaded.append(f"{before}@{revision}/{name}")
                self.wfile.write(data)

        def _missing(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", downloaded
    finally:
        server.shutdown()
        server.server_close()


def commit_of(repository: str, revision: str) -> str:
    """The commit that the server gives for a revision."""
    return sha256(f"{repository}@{revision}".encode()).hexdigest()[:40]
