"""dask-jobqueue: workers as jobs, tasks on them, scaled down at the end."""

from dask_jobqueue import SLURMCluster
from distributed import Client


def main():
    with (
        SLURMCluster(
            cores=1,
            memory="1GB",
            processes=1,
            walltime="00:10:00",
            job_name="dask",
            log_directory="logs",
            interface="lo",
            scheduler_options={"dashboard_address": None},
            job_extra_directives=["--gres=gpu:1"],
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=60)
        assert client.gather(client.map(lambda x: x * x, range(10))) == [x * x for x in range(10)]
        cluster.scale(0)


if __name__ == "__main__":
    main()
