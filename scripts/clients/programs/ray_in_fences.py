"""Run tasks and actors of Ray in fences; print what they see of a GPU as JSON.

The argument is the program of the tests that allocates GPU memory.
"""

import json
import os
import subprocess
import sys

import ray


def fence(gpus: float) -> dict[str, str]:
    """Return the variables of a new fence, which lasts as long as this program and its tasks."""
    words = ["fgfence", "--print-env", "--json", f"--gpus={gpus}", f"--pid={os.getpid()}"]
    return json.loads(subprocess.check_output(words))


def main() -> None:
    program = sys.argv[1]

    def task(*commands: str) -> list[str]:
        done = subprocess.run([program, *commands], capture_output=True, text=True, check=True)
        return done.stdout.splitlines()

    def total() -> int:
        import pynvml  # of the task's own venv

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).total)

    class Holder:
        def hold(self, *commands: str) -> list[str]:
            return task(*commands)

    ray.init(address="local", include_dashboard=False, num_cpus=4, num_gpus=1, _node_ip_address="127.0.0.1")
    quarter = {"env_vars": fence(0.25)}
    half = {"env_vars": fence(0.5)}
    actor = ray.remote(num_gpus=0.5, runtime_env=half)(Holder).remote()
    own_venv = {**quarter, "pip": ["nvidia-ml-py"]}
    answers = {
        "task": ray.get(ray.remote(num_gpus=0.25, runtime_env=quarter)(task).remote("info", "alloc 3G")),
        "actor": ray.get(actor.hold.remote("info", "alloc 3G", "alloc 3G")),
        "own venv": ray.get(ray.remote(num_gpus=0.25, runtime_env=own_venv)(total).remote()),
        "no fence": ray.get(ray.remote(num_gpus=0.25)(task).remote("info")),
    }
    print(json.dumps(answers))
    ray.shutdown()


if __name__ == "__main__":
    main()
