"""Redis and Valkey servers for tests, where their binary is found: each in a folder and on a port of its own."""

import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

BINARIES = ("redis-server", "valkey-server")
SERVERS = tuple(pytest.param(binary, marks=pytest.mark.redis) for binary in BINARIES)
"""As parameters of a fixture."""


def missing(binary: str) -> str | None:
    """Why there is no server, or None."""
    return None if shutil.which(binary) else f"no {binary} on the path (Debian: apt-get install {binary})"


class Server:
    """One server; its data stay in `folder` when it is stopped or killed and started again.

    Settings are those of its configuration with `_` for `-`; `|` stands between the words of one value.
    """

    def __init__(self, folder: Path, binary: str = "redis-server", **settings: str):
        self.folder, self.binary = folder, binary
        self.settings = {"save": "", "appendonly": "yes", "appendfsync": "everysec", **settings}
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        for _ in range(5):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            try:
                self.start()
            except AssertionError:  # another process took the port meanwhile
                continue
            return self
        raise AssertionError(f"{self.binary} did not start: {(self.folder / 'log').read_text()[-500:]}")

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Begin, and wait until it answers."""
        given = {"bind": "127.0.0.1", "port": str(self.port), "dir": str(self.folder), **self.settings}
        options: list[str] = []
        for name, value in given.items():
            options += ["--" + name.replace("_", "-"), *value.split("|")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen([self.binary, *options], stdout=log, stderr=log)
        until = time.monotonic() + 10
        while not self._answers():
            assert self.process.poll() is None and time.monotonic() < until, "the server ended"
            time.sleep(0.02)

    def stop(self) -> None:
        """As its administrator stops it."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def repair(self) -> None:
        """Cut a transaction that is there in part off the log of a killed server, as the guide says.

        The server alone leaves its first commands in the log, and applies them when it is started once more.
        """
        manifest = next(self.folder.glob("appendonlydir/*.manifest"))
        check = self.binary.replace("server", "check-aof")
        subprocess.run([check, "--fix", str(manifest)], input=b"y\n", check=True, capture_output=True)

    def pause(self) -> None:
        """It hangs: connections are taken, nothing is answered."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(10)
            self.process = None

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
