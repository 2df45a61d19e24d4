"""One party of scripts/bench/floods, run in its test host: `flood.py flood KIND SECONDS`."""

import json
import secrets
import select
import socket
import sys
import time

SOCKET = "/run/fgsched/socket"
_PAUSE = 0.005  # seconds between two requests of a measured user


def line(op, **arguments):
    return json.dumps({"v": 2, "op": op, **arguments}).encode() + b"\n"


def repeated(one):
    return one * max(1, 2**16 // len(one))


FIELDS = ["id", "state", "name", "user", "cause", "reason", "elapsed"]
QUEUE, HISTORY = line("queue", fields=FIELDS), line("history", fields=FIELDS)
LINES = line("queue_line", name="fgq", words=[])
MANY = list(range(3, 5003))
ORDERS = line("hold", ids=MANY) + line("release", ids=MANY)
TEST = line(
    "test",
    key="test of a submission",
    requests=[{"name": "test", "chdir": "/", "demand": {"gpus": 1, "share": 5000}}],
    scripts=["#!/bin/sh\ntrue\n"],
    environments=[{}],
    jobs=[[0, 0, 0, False]],
)
REPORTS = line("report", report="me") + line("report", report="users")
QUESTIONS = line("why") + line("starts") + line("priorities")
# kind -> (connections, what each sends repeatedly, whether it reads, bytes after which it sends no more)
KINDS = {
    "newlines": (16, b"\n" * 2**16, True, 0),
    "junk lines": (16, repeated(b'{"a":[1,2,{"b":null}]}\n'), True, 0),
    "ping": (16, repeated(line("ping")), True, 0),
    "queue": (16, repeated(QUEUE), True, 0),
    "history": (16, repeated(HISTORY), True, 0),
    "never reads": (200, repeated(QUEUE), False, 0),
    "unread lists": (200, repeated(LINES + QUEUE + line("starts")), False, 0),
    "half sent": (200, b"a" * 2**16, False, 8 * 2**20),
    "large junk": (4, b"[" + b"{}," * (8 * 2**20 // 3 - 2) + b"{}]\n", True, 0),
    "connects": (0, b"", False, 0),
    "crowd": (10_000, line("ping"), True, 0),
    "submits": (64, b"", True, 0),
    "spins": (0, b"", False, 0),  # no flood: only its use of a processor
    "questions": (5, repeated(QUESTIONS), True, 0),
    "orders": (5, repeated(ORDERS), True, 0),  # each about 5,000 jobs
    "tests": (5, repeated(TEST), True, 0),  # fgsub --test-only
    "reports": (5, repeated(REPORTS), True, 0),
    "lists": (5, repeated(LINES + QUEUE + HISTORY), True, 0),
    "classes": (5, repeated(QUESTIONS), True, 0),  # each waiting job is of another class
    "prologs": (0, b"", False, 0),  # no flood: 150 jobs with a slow prolog
    "filters": (64, b"", True, 0),  # submissions about which a slow submit filter is asked
    "scripts": (0, b"", False, 0),  # held jobs with scripts of 4 MiB, which are cancelled at once
}
LONG = {
    "questions",
    "tests",
    "reports",
    "orders",
    "lists",
    "unread lists",
}  # they are sent where many jobs wait
SITE = {"prologs", "filters"}  # they need programs of the site


def dial():
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(SOCKET)
    return sock


class Flooder:
    """Keeps a number of connections busy; a closed connection is replaced."""

    def __init__(self, kind):
        self.count, self.payload, self.reads, self.most = KINDS[kind]
        self.left = {}  # socket -> what is still to be sent of the payload
        self.sent = self.read = self.closed = self.most_open = 0
        self.amount = {}
        self.poll = select.poll()  # select(2) knows 1,024 descriptors only
        self.spins = kind == "spins"
        if kind in ("submits", "filters"):
            self.payload = b"".join(submission() for _ in range(200))
        self.kind = kind

    def run(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.spins:
                continue
            if self.kind == "prologs":
                time.sleep(_PAUSE)
                continue
            if self.kind == "scripts":
                self.submit_script()
                continue
            if self.count:
                self.round()
            else:
                dial().close()
                self.closed += 1

    def submit_script(self):
        message = submission(script="#!/bin/sh\n" + secrets.token_hex(2**21 - 64))
        _, answer = asked(message)
        self.sent, self.closed = self.sent + len(message), self.closed + 1
        if "ok" in answer:
            asked(line("cancel", ids=[answer["ok"]["first"]]))

    def round(self):
        for _ in range(min(10 if self.count < 1000 else 200, self.count - len(self.left))):
            try:
                sock = dial()
            except OSError:  # the queue of the listening socket is full
                self.closed += 1
                break
            sock.setblocking(False)
            self.left[sock], self.amount[sock] = memoryview(self.payload), 0
        self.most_open = max(self.most_open, len(self.left))
        known = {sock.fileno(): sock for sock in self.left}
        for number, sock in known.items():
            writes = not self.most or self.amount[sock] < self.most
            self.poll.register(number, select.POLLIN * self.reads | select.POLLOUT * writes)
        ready = self.poll.poll(50)
        for number in known:
            self.poll.unregister(number)
        for number, events in ready:
            if events & ~select.POLLOUT and self.reads:
                self.take(known[number])
            if events & select.POLLOUT and known[number] in self.left:
                self.give(known[number])

    def take(self, sock):
        try:
            data = sock.recv(2**18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.read += len(data)
        if not data:
            self.drop(sock)

    def give(self, sock):
        rest = self.left[sock] or memoryview(self.payload)
        try:
            sent = sock.send(rest[: 2**18])
        except BlockingIOError:
            return
        except OSError:
            self.drop(sock)
            return
        self.sent += sent
        self.amount[sock] += sent
        self.left[sock] = rest[sent:]

    def drop(self, sock):
        self.closed += 1
        del self.left[sock], self.amount[sock]
        sock.close()


def submission(*, hold=True, script="#!/bin/sh\ntrue\n"):
    return line(
        "submit",
        key=secrets.token_hex(16),
        requests=[{"name": "flood", "chdir": "/", "output": "/dev/null", "demand": {}}],
        scripts=[script],
        environments=[{"PATH": "/usr/bin:/bin"}],
        jobs=[[0, 0, 0, hold]],
    )


def asked(message):
    """Return (milliseconds to the answer on a new connection, the answer)."""
    begun = time.perf_counter()
    with dial() as sock, sock.makefile("rb") as answers:
        sock.sendall(message)
        answer = answers.readline()
    return (time.perf_counter() - begun) * 1000, json.loads(answer or b"{}")


def ran():
    """Return (milliseconds from the submission of a job to its end, the answer)."""
    begun = time.perf_counter()
    _, answer = asked(submission(hold=False))
    if "ok" in answer:
        _, answer = asked(line("wait", ids=[answer["ok"]["first"]]))
    took = (time.perf_counter() - begun) * 1000
    has_run = "ok" in answer and answer["ok"]["jobs"][0]["state"] == "COMPLETED"
    return took, answer if has_run else {"failed": answer}


def ask(operation, seconds):
    """Repeat one request; return the times and the bad answers."""
    times, wrong, ids = [], [], []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        one = submission() if operation == "submit" else line(operation)
        took, answer = ran() if operation == "run" else asked(one)
        times.append(took)
        if "ok" not in answer:
            wrong.append(answer)
        elif operation == "submit":
            ids.append(answer["ok"]["first"])
        time.sleep(_PAUSE)
    if ids:
        asked(line("cancel", ids=ids))
    return {"times": times, "wrong": wrong[:5], "failed": len(wrong)}


def main():
    kind, what, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    if kind == "ask":
        print(json.dumps(ask(what, seconds)))
        return
    flooder = Flooder(what)
    flooder.run(seconds)
    made = {"made": flooder.closed + len(flooder.left), "open": flooder.most_open}
    print(json.dumps({"sent": flooder.sent, "read": flooder.read, "closed": flooder.closed} | made))


if __name__ == "__main__":
    main()
