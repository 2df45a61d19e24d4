"""parsl: a block of one node with its default settings; programs run by its launchers for srun."""

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SingleNodeLauncher, SrunLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def square(x):
    import os

    return x * x, os.environ["SLURM_JOB_ID"]


def run(launcher):
    provider = SlurmProvider(
        partition="main",
        nodes_per_block=1,
        init_blocks=1,
        max_blocks=1,
        walltime="00:10:00",
        launcher=launcher,
    )
    executor = HighThroughputExecutor(
        label="htex", provider=provider, address="127.0.0.1", cores_per_worker=1, max_workers_per_node=2
    )
    with parsl.load(Config(executors=[executor], strategy="none")):
        assert [one.result(timeout=90)[0] for one in [square(x) for x in range(4)]] == [0, 1, 4, 9]
        states = [one.state.name for one in executor.status().values()]
        assert states == ["RUNNING"], states
        executor.scale_in(1)
    parsl.clear()


if __name__ == "__main__":
    run(SrunLauncher())
    run(SingleNodeLauncher())
