"""The report of recorded traces in a browser, and the trace in Perfetto: `opscope analyze --open`.

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
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from opscope.cli.console import note, write_recording_page
from opscope.errors import InputError
from opscope.model.files import scratch_prefix

if TYPE_CHECKING:
    from opscope.analysis.summary import Summary
    from opscope.model.session import Session

_ADDRESS = "127.0.0.1"
_TRACE = "trace.json.gz"


def serve_recording(session: Session, summary: Summary, *, top: int | None) -> None:
    """Serve the page to this machine alone until Ctrl-C, and open a browser; nothing is left behind."""
    from opscope.report.exports import export_trace  # noqa: PLC0415 - imports much

    with TemporaryDirectory(prefix=scratch_prefix()) as scratch:
        folder = Path(scratch)
        files = {"": folder / "page.html"}  # the page is at the empty name
        try:
            files[_TRACE] = export_trace(session, folder / _TRACE)
        except InputError as error:
            note(f"The trace could not be given to Perfetto: {error}")
        write_recording_page(files[""], session, summary, top=top, trace=_TRACE if _TRACE in files else "")
        with PageServer(files) as server:
            sys.stdout.write(f"{server.url} (Ctrl-C ends it)\n")
            sys.stdout.flush()
            # A browser in a terminal would not return before it is left.
            threading.Thread(target=webbrowser.open, args=(server.url,), daemon=True).start()
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                sys.stderr.write("\n")


class PageServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._folder = f"/{secrets.token_urlsafe(16)}/"
        self.files = {self._folder + name: file for name, file in files.items()}
        super().__init__((_ADDRESS, 0), _Handler)
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (_ADDRESS, "localhost"))

    @property
    def url(self) -> str:
        return f"http://{_ADDRESS}:{self.server_port}{self._folder}"

    def handle_error(self, *_: object) -> None:
        """Say what went wrong; a browser that breaks off has changed its mind."""
        error = sys.exc_info()[1]
        if not isinstance(error, ConnectionError):
            note(f"a request failed: {type(error).__name__}: {error}")


class _Handler(SimpleHTTPRequestHandler):
    server: PageServer
    server_version, sys_version = "opscope", ""

    def send_head(self) -> Any:
        """As in the base, of what is served alone."""
        # A name of another site may be made to lead here: its page must not read what is served.
        if self.headers.get("Host") not in self.server.hosts or self.path not in self.server.files:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def translate_path(self, path: str) -> str:
        return str(self.server.files[path])

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

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
