"""`opscope view`: show the report of recorded traces in a browser, and the trace in Perfetto.

A page in a file may load nothing. Served, it may load the trace, which it hands to Perfetto's page in another
window of the browser; neither goes through a network. Both lie at an address that others do not know, and
only requests for it under this machine's own names are answered.
"""

from __future__ import annotations

import secrets
import sys
import threading
import webbrowser
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from shutil import copyfileobj
from tempfile import TemporaryDirectory
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from opscope.cli.console import All, Merge, Top, note, open_source, status, write_recording_page
from opscope.errors import InputError
from opscope.model.files import scratch_prefix
from opscope.results import summarize

_ADDRESS = "127.0.0.1"
_TRACE = "trace.json.gz"
_TYPES = {".html": "text/html; charset=utf-8", ".gz": "application/gzip"}


def view(
    traces: Annotated[list[str], Parameter(name="TRACE")],
    /,
    *,
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 0,
    no_browser: bool = False,
    top: Top = 10,
    all: All = False,  # noqa: A002 - the option's name
    merge: Merge = False,
) -> int:
    """Show the report of recorded traces in a browser, and hand the trace to Perfetto.

    The page is served to this machine alone until Ctrl-C, which leaves nothing behind. Its button opens
    ui.perfetto.dev, which gets the trace from the browser, with tracks of idle causes, of the operator that
    each kernel was attributed to, and of the critical path.

    Example: opscope view trace.json.gz

    Exit codes: 0 also after Ctrl-C.

    Args:
        traces: Kineto traces (.json, .json.gz, .json.zst), folders of rank files, addresses (s3://, gs://, https://),
            or one saved session. Several are read as the ranks of one job; Perfetto gets a single one.
        port: Where it is served; any that is free by default.
        no_browser: Open no browser, say the address alone.
        top: Operators to list.
        all: List every operator and kernel instead.
        merge: Read traces together that are not of one job too.
    """
    with TemporaryDirectory(prefix=scratch_prefix()) as folder:
        files = _files(traces, Path(folder), top=None if all else top, merge=merge)
        with PageServer(files, port) as server:
            _serve(server, is_opened=not no_browser)
    return 0


def _files(traces: list[str], folder: Path, *, top: int | None, merge: bool) -> dict[str, Path]:
    """What is served, by name; the page is at the empty one."""
    from opscope.report.trace_export import export_trace  # noqa: PLC0415 - imports much

    files = {"": folder / "page.html"}
    with open_source(traces, merge=merge) as session:
        with status("Summarizing"):
            summary = summarize(session)
        try:
            files[_TRACE] = export_trace(session, folder / _TRACE)
        except InputError as error:
            note(f"The trace could not be given to Perfetto: {error}")
        trace = _TRACE if _TRACE in files else ""
        write_recording_page(files[""], session, summary, top=top, trace=trace)
    return files


def _serve(server: PageServer, *, is_opened: bool) -> None:
    sys.stdout.write(f"{server.url} (Ctrl-C ends it)\n")
    sys.stdout.flush()
    if is_opened:
        # A browser in a terminal would not return before it is left.
        threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        sys.stderr.write("\n")


class PageServer(ThreadingHTTPServer):
    """Serves a few files to browsers on this machine.

    Args:
        files: By name; the one at the empty name is the page.
        port: Any that is free if 0.

    Raises:
        InputError: The port cannot be had.
    """

    daemon_threads = True

    def __init__(self, files: Mapping[str, Path], port: int = 0) -> None:
        self._folder = f"/{secrets.token_urlsafe(16)}/"
        self.files = {self._folder + name: file for name, file in files.items()}
        try:
            super().__init__((_ADDRESS, port), _Handler)
        except OSError as error:
            message = f"port {port} cannot be had ({error.strerror})"
            raise InputError(message, hint="Leave out --port") from error
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost"))

    @property
    def url(self) -> str:
        """Of the page."""
        return f"http://{_ADDRESS}:{self.server_port}{self._folder}"

    def handle_error(self, *_: object) -> None:
        """Say what went wrong; a browser that breaks off has changed its mind."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            note(f"a request failed: {type(error).__name__}: {error}")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "opscope", ""

    def do_GET(self) -> None:
        file = self.server.files.get(self.path)
        # A name of another site may be made to lead here: its page must not read what is served.
        if self.headers.get("Host") not in self.server.hosts or file is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        with file.open("rb") as content:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", _TYPES[file.suffix])
            self.send_header("Content-Length", str(file.stat().st_size))
            for name, value in _HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            copyfileobj(content, self.wfile)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its name in the base
        """Nothing: the terminal is the user's."""


# The page has its policy in itself; who may show it in a frame can only be said here.
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
