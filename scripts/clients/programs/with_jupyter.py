"""fgrun --jupyter with jupyterlab and notebook: two servers at once, kernels in the jobs, token and end."""

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
import uuid

from websocket import create_connection

FGRUN = os.path.join(os.environ["FGSCHED_BIN"], "fgrun")
ADDRESS = re.compile(r"open (http://127\.0\.0\.1:([0-9]+))/(lab|tree)\?token=(\w+)")
CODE = "import os; print(os.environ['FG_JOB_ID'], os.environ['FG_GPU_FRACTION'])"


class Notebook:
    """A running `fgrun --jupyter`."""

    def __init__(self, kind):
        words = [FGRUN, "--jupyter", "--gpus=0.25", "--time=10", kind, "--allow-root"]
        self._process = subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        found = None
        while found is None:
            line = self._process.stderr.readline()
            assert line, "fgrun ended without an address"
            print(line, end="", flush=True)
            found = ADDRESS.search(line)
        self.base, self.port, self.page, self.token = found.groups()

    def get(self, path, token, data=None):
        """The answer, as text."""
        asked = urllib.request.Request(
            f"{self.base}{path}", data=data, headers={"Authorization": f"token {token}"}
        )
        with urllib.request.urlopen(asked) as answer:
            return answer.read().decode()

    def executed(self, code):
        """What a new kernel prints."""
        kernel = json.loads(self.get("/api/kernels", self.token, b"{}"))["id"]
        address = f"ws://127.0.0.1:{self.port}/api/kernels/{kernel}/channels?token={self.token}"
        socket = create_connection(address, timeout=60)
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "username": "", "version": "5.3"}
        header["session"] = uuid.uuid4().hex
        content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
        content["user_expressions"] = {}
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": content}
        socket.send(json.dumps({**message, "channel": "shell", "buffers": []}))
        while True:
            said = json.loads(socket.recv())
            if said["msg_type"] == "stream":
                socket.close()
                return said["content"]["text"].strip()

    def end(self):
        """The exit status after Ctrl-C."""
        self._process.send_signal(signal.SIGINT)
        print(self._process.stderr.read(), end="")
        return self._process.wait(60)


lab, notebook = Notebook("lab"), Notebook("notebook")
assert (lab.page, notebook.page) == ("lab", "tree")
assert lab.port != notebook.port
assert "started" in lab.get("/api/status", lab.token)
try:
    refused = lab.get("/api/status", notebook.token)
except urllib.error.HTTPError as error:
    refused = error.code
assert refused == 403
assert "<title>" in lab.get("/lab", lab.token).lower()
jobs = {one.executed(CODE) for one in (lab, notebook)}
print(jobs)
assert jobs == {"1 0.25", "2 0.25"}
assert (lab.end(), notebook.end()) == (0, 0)
print("jupyterlab and notebook: works")
