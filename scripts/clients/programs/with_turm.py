"""turm: its screen, read in a terminal of tmux, shows a running job and cancels it."""

import shutil
import subprocess
import sys
import time
from pathlib import Path

if not shutil.which("tmux"):
    print("there is no tmux")
    sys.exit(77)
tmux = ["tmux", "-L", "clients", "-f", "/dev/null"]
words = ["sbatch", "--parsable", "-J", "visible", "--gres=gpu:1", "--wrap", "echo begun; sleep 300"]
job = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
program = Path(sys.executable).parent / "turm"


def screen():
    return subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout


def wait_for(*words):
    shown = ""
    for _ in range(60):
        shown = screen()
        if all(word in shown for word in words):
            return
        time.sleep(0.5)
    sys.exit(f"{words} not on the screen:\n{shown}")


try:
    subprocess.run(
        [*tmux, "new-session", "-d", "-x", "150", "-y", "45", f"{program} --slurm-refresh 1"], check=True
    )
    wait_for("visible", "RUNNING", "gpu=1", "begun")
    print(screen())
    subprocess.run([*tmux, "send-keys", "c"], check=True)
    wait_for("ancel")
    subprocess.run([*tmux, "send-keys", "Enter"], check=True)
    for _ in range(60):
        left = subprocess.run(["squeue", "-h", "-j", job], capture_output=True, text=True)
        if not left.stdout.strip():
            break
        time.sleep(0.5)
    else:
        sys.exit(f"the job was not cancelled:\n{screen()}")
finally:
    subprocess.run([*tmux, "kill-server"], check=False)
