"""A stand-in for nvidia-cuda-mps-control, which speaks its documented protocol and needs no GPU.

`install` makes the program. As `-f` it is the daemon: it listens in CUDA_MPS_PIPE_DIRECTORY, starts servers
and lists clients. Without an argument it is the front end, which passes the lines of its standard input on.
As `client` it is a CUDA program: it connects, and works until its work is terminated or it is killed. What
happens is noted in `heard`, one event in each line.

The file `mode` makes the daemon fail: `fails` (it exits), `hangs` (it does not answer), `serverless` (it
starts no server), `stays` (it ignores quit and SIGTERM).
"""

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

HERE = Path(sys.argv[0]).parent
CANNOT_FIND = "Cannot find MPS control daemon process"


def install(directory: Path, mode: str = "") -> Path:
    """Make the program in a directory, which only its owner can change."""
    directory.mkdir(mode=0o755)
    program = directory / "nvidia-cuda-mps-control"
    program.write_text(f"#!{sys.executable} -IS\n{Path(__file__).read_text()}")
    program.chmod(0o755)
    (directory / "heard").touch()
    (directory / "heard").chmod(0o666)
    (directory / "mode").write_text(mode)
    return program


def note(*words: object) -> None:
    with (HERE / "heard").open("a") as heard:
        heard.write(" ".join(map(str, words)) + "\n")


def place() -> str:
    return f"{os.environ['CUDA_MPS_PIPE_DIRECTORY']}/control"


# -- the daemon -------------------------------------------------------------------------------------

servers: list[subprocess.Popen[bytes]] = []
clients: dict[int, "Connection"] = {}
mode = ""


class Connection(socketserver.StreamRequestHandler):
    """A front end or a client."""

    def setup(self) -> None:
        super().setup()
        self.is_terminated = threading.Event()  # the client has said so

    def handle(self) -> None:
        for line in self.rfile:
            words = line.decode().split()
            if words[:1] == ["client"]:
                self.serve_client(int(words[1]))
            elif mode == "hangs":
                signal.pause()
            elif answer := answered(words):
                self.wfile.write(f"{answer}\n".encode())

    def serve_client(self, pid: int) -> None:
        clients[pid] = self
        note("client", pid)
        while self.connection.recv(4096):
            self.is_terminated.set()
        self.is_terminated.set()
        clients.pop(pid, None)


def answered(words: list[str]) -> str:
    note(*words)
    match words:
        case ["get_server_list"]:
            return "\n".join(str(one.pid) for one in servers)
        case ["start_server", "-uid", _]:
            if mode != "serverless" and not servers:
                servers.append(subprocess.Popen(["/bin/sleep", "1000000"]))
            return ""
        case ["get_client_list", _]:
            return "\n".join(map(str, clients))
        case ["terminate_client", _, pid]:
            if int(pid) not in clients:
                return f"Client {pid} not found"
            client = clients[int(pid)]
            client.connection.sendall(b"terminated\n")
            client.is_terminated.wait()
            return ""
        case ["quit", *_]:
            if mode != "stays":
                for one in servers:
                    one.kill()
                    one.wait()
                os._exit(0)
            return ""
    return f'Unknown command "{" ".join(words)}"'


class Daemon(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True


def serve() -> None:
    global mode
    mode = (HERE / "mode").read_text()
    variables = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY")}
    note("daemon", os.getpid(), os.getuid(), *variables.values())
    if mode == "fails":
        sys.exit(3)
    if mode == "stays":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.path.exists(place()):
        sys.exit("An instance of this daemon is already running")
    Daemon(place(), Connection).serve_forever()


# -- its other ends ---------------------------------------------------------------------------------


def connect() -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(place())
    return connection


def pass_on() -> None:
    """Pass commands on, and print the answers."""
    try:
        connection = connect()
    except OSError:
        sys.exit(CANNOT_FIND)
    connection.sendall(sys.stdin.buffer.read())
    connection.shutdown(socket.SHUT_WR)
    while data := connection.recv(4096):
        sys.stdout.buffer.write(data)


def work() -> None:
    """Be a client of the daemon until its work is terminated, and then wait for a signal."""
    signal.signal(signal.SIGTERM, lambda *_: (note("sigterm", os.getpid()), os._exit(0)))
    connection = connect()
    connection.sendall(f"client {os.getpid()}\n".encode())
    if connection.recv(4096):
        note("terminated", os.getpid())
        connection.sendall(b"done\n")
    else:
        note("lost", os.getpid())
    while True:
        signal.pause()


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["-f"]:
            serve()
        case ["client"]:
            work()
        case _:
            pass_on()
