"""ipyparallel: a controller here, two engines started by srun in a job."""

import ipyparallel as ipp


def main():
    with ipp.Cluster(engines="slurm", n=2, engine_timeout=90) as clients:
        view = clients[:]
        ids = view.apply_sync(lambda: __import__("os").environ["SLURM_PROCID"])
        assert sorted(ids) == ["0", "1"], ids


main()
