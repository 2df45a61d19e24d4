"""The spawner reads how many processes of a job the kernel killed, from files in the kernel's formats."""

import pytest

from fixtures_spawner import NEEDS_SPAWNER

pytestmark = NEEDS_SPAWNER
UNIFIED = "low 0\nhigh 7\nmax 31\noom 3\noom_kill {}\noom_group_kill 9\n"
OLDER = "low 0\nhigh 7\nmax 31\noom 3\noom_kill {}\n"  # Linux before 5.17
FIRST = "oom_kill {}\nlow 0\n"
VERSION_1 = "oom_kill_disable 0\nunder_oom 1\noom_kill {}\n"
FILES = {
    "version 2": ("memory.events", UNIFIED.format(2), 2),
    "version 2, without group kills": ("memory.events", OLDER.format(12), 12),
    "no process was killed": ("memory.events", UNIFIED.format(0), 0),
    "another order of lines": ("memory.events", FIRST.format(1), 1),
    "version 1": ("memory.oom_control", VERSION_1.format(4), 4),
    "version 1 of a kernel that does not count": (
        "memory.oom_control",
        "oom_kill_disable 1\nunder_oom 0\n",
        0,
    ),
    "an empty file": ("memory.events", "", 0),
    "no file": ("cgroup.events", "populated 0\nfrozen 0\n", 0),
}


@pytest.mark.parametrize(("name", "text", "kills"), FILES.values(), ids=FILES)
def test_killed_processes_are_counted_as_the_kernel_writes_them(name, text, kills, spawner, tmp_path):
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.procs").touch()  # a process joins by writing here
    (group / name).write_text(text)
    result = spawner.launch("#!/bin/sh\n", cgroups=((str(group), ()),)).result()
    assert (result.exit_code, result.oom_kills) == (0, kills)


def test_the_largest_count_of_the_groups_of_a_job_is_its_count(spawner, tmp_path):
    groups = []
    for number in (3, 5, 1):
        group = tmp_path / f"group{number}"
        group.mkdir()
        (group / "cgroup.procs").touch()
        (group / "memory.events").write_text(UNIFIED.format(number))
        groups.append((str(group), ()))
    assert spawner.launch("#!/bin/sh\n", cgroups=tuple(groups)).result().oom_kills == 5
