"""batchspawner's SlurmSpawner without a hub: its script, and its calls as it makes them."""

import asyncio
import os
import pwd

from batchspawner import JobStatus, SlurmSpawner


class User:
    name = pwd.getpwuid(os.getuid()).pw_name
    url = "/user"


class Spawner(SlurmSpawner):
    """The spawner as it is; the hub's parts that it asks for are given."""

    def get_env(self):
        return dict(os.environ)

    def cmd_formatted_for_batch(self):
        return "sleep 300"


async def main():
    spawner = Spawner(user=User())
    spawner.exec_prefix = ""
    spawner.req_homedir = os.getcwd()
    spawner.req_runtime, spawner.req_memory, spawner.req_nprocs, spawner.req_gres = (
        "0:10:00",
        "500M",
        "1",
        "gpu:1",
    )
    spawner.req_keepvars_extra = "PATH"
    await spawner.submit_batch_script()
    assert spawner.job_id.isdigit(), spawner.job_id
    for _ in range(50):
        status = await spawner.query_job_status()
        if status == JobStatus.RUNNING:
            break
        await asyncio.sleep(0.2)
    assert status == JobStatus.RUNNING, status
    assert spawner.state_gethost() == os.uname().nodename.split(".")[0]
    await spawner.cancel_batch_job()
    for _ in range(50):
        status = await spawner.query_job_status()
        if status == JobStatus.NOTFOUND:
            break
        await asyncio.sleep(0.2)
    assert status == JobStatus.NOTFOUND, status


asyncio.run(main())
