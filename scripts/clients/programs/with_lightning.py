"""Lightning: SLURMEnvironment in two tasks of srun, an all-reduce, and a training that is requeued."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

ENVIRONMENT = """
import json
import torch
from pytorch_lightning.plugins.environments import SLURMEnvironment

assert SLURMEnvironment.detect()
slurm = SLURMEnvironment()
slurm.validate_settings(num_devices=2, num_nodes=1)
read = {
    "rank": slurm.global_rank(),
    "world": slurm.world_size(),
    "local rank": slurm.local_rank(),
    "node": slurm.node_rank(),
    "address": slurm.main_address,
    "port": slurm.main_port,
    "job": slurm.job_id(),
    "name": slurm.job_name(),
}
place = f"tcp://{slurm.main_address}:{slurm.main_port}"
ranks = {"rank": slurm.global_rank(), "world_size": slurm.world_size()}
torch.distributed.init_process_group("gloo", init_method=place, **ranks)
total = torch.tensor([slurm.global_rank() + 1])
torch.distributed.all_reduce(total)
print(json.dumps(read | {"sum": total.item()}), flush=True)
torch.distributed.destroy_process_group()
"""
# Both tasks of the first run wait after their third step: Lightning handles the signal there in both.
TRAINING = """
import os
import time
from pathlib import Path
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.plugins.environments import SLURMEnvironment


class Module(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        return self.layer(batch[0]).mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

    def on_train_start(self):
        print("rank", self.global_rank, "starts at step", self.global_step, flush=True)

    def on_train_batch_end(self, *_):
        if self.global_step == 3 and os.environ.get("SLURM_RESTART_COUNT", "0") == "0":
            Path(f"waits-{self.global_rank}").touch()
            while not self.trainer.received_sigterm:
                time.sleep(0.05)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(32, 4)), batch_size=2)
quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
hosts = {"accelerator": "cpu", "strategy": "ddp", "devices": 2, "num_nodes": 1}
trainer = Trainer(max_steps=6, default_root_dir=os.getcwd(), **hosts, **quiet)
assert isinstance(trainer.strategy.cluster_environment, SLURMEnvironment)
trainer.fit(Module(), data)
print("rank", trainer.global_rank, "of", trainer.world_size, "ends at step", trainer.global_step, flush=True)
"""


def submit(name: str, task: str) -> subprocess.Popen[str]:
    """Submit a job of two tasks that run a program; its output is NAME.txt."""
    Path(f"{name}.py").write_text(task)
    options = f"--ntasks-per-node=2 --nodes=1 -t 5 --requeue --open-mode=append -J {name} -o {name}.txt"
    Path(f"{name}.sh").write_text(f"#!/bin/bash\n#SBATCH {options}\nsrun -n 2 {sys.executable} {name}.py\n")
    words = ["sbatch", "--parsable", "--wait", f"{name}.sh"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True)


def lines_of(name: str, first: str) -> list[str]:
    text = Path(f"{name}.txt").read_text()
    print(text)
    return sorted(line for line in text.splitlines() if line.startswith(first))


def check_environment() -> None:
    job = int(submit("environment", ENVIRONMENT).communicate()[0])
    host = os.uname().nodename.split(".")[0]
    same = {
        "world": 2,
        "node": 0,
        "address": host,
        "port": 15000 + job,
        "job": job,
        "name": "environment",
        "sum": 3,
    }
    read = [json.loads(line) for line in lines_of("environment", "{")]
    assert read == [{"rank": rank, "local rank": rank, **same} for rank in range(2)], read


def check_training() -> None:
    waiting = submit("training", TRAINING)
    while not all(Path(f"waits-{rank}").exists() for rank in range(2)):
        assert waiting.poll() is None, lines_of("training", "")
        time.sleep(0.1)
    assert waiting.stdout is not None
    job = waiting.stdout.readline().strip()
    subprocess.run(["scancel", "--signal=USR1", job], check=True)
    assert waiting.wait() == 0, lines_of("training", "")
    assert lines_of("training", "rank") == [
        "rank 0 of 2 ends at step 6",
        "rank 0 starts at step 0",
        "rank 0 starts at step 3",
        "rank 1 of 2 ends at step 6",
        "rank 1 starts at step 0",
        "rank 1 starts at step 3",
    ]


check_environment()
check_training()
