"""Servers on this machine, which end with the process."""

import threading
from collections.abc import Callable
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serving(respond: Callable[[BaseHTTPRequestHandler], None]) -> str:
    """The address of a server that answers each GET so."""
    handler = type(
        "Handler",
        (BaseHTTPRequestHandler,),
        {"do_GET": lambda handler: respond(handler), "log_message": lambda *_: None},
    )
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


@cache
def slow_file() -> str:
    """Where any address is a file of 300 kB that comes in six pieces, or from where a range begins."""
    return serving(_slowly)


def _slowly(handler: BaseHTTPRequestHandler) -> None:
    whole = b"a,b\n" + b"1,2\n" * 75_000
    start = int(handler.headers.get("Range", "bytes=0-")[6:].rstrip("-"))
    headers = {"ETag": '"v1"', "Content-Length": len(whole) - start}
    if start:
        headers["Content-Range"] = f"bytes {start}-{len(whole) - 1}/{len(whole)}"
    handler.send_response(206 if start else 200)
    for name, value in headers.items():
        handler.send_header(name, str(value))
    handler.end_headers()
    try:
        for low in range(start, len(whole), 50_000):
            handler.wfile.write(whole[low : low + 50_000])
            threading.Event().wait(0.02)
    except OSError:  # the client was killed
        handler.close_connection = True
