"""What each user is given of the file systems: scratch directories, space below the run directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import silent
from fgsched.system.spaces import Scratch, Spaces
from live_host import PATIENCE, ROOT

UID, GID = os.geteuid(), os.getegid()


def scratch(place, *, for_all=False, **more):
    (place / "run").mkdir(exist_ok=True)
    (place / "tmp").mkdir(exist_ok=True)
    return Scratch(place / "run", f"{place}/tmp/fg-name-", for_all=for_all, **more)


def mode(path):
    return os.stat(path).st_mode & 0o7777


def test_a_users_directory_is_made_once_and_found_again(tmp_path):
    one = scratch(tmp_path)
    assert os.listdir(tmp_path / "tmp") == []
    path = one.of(UID, GID)
    assert (mode(path), mode(os.path.dirname(path))) == (0o700, 0o700)
    assert path == one.of(UID, GID) == scratch(tmp_path).of(UID, GID)
    assert len(os.listdir(tmp_path / "tmp")) == 1


def test_for_all_users_it_can_be_passed_through(tmp_path):
    assert mode(os.path.dirname(scratch(tmp_path, for_all=True).of(UID, GID))) == 0o711


def open_to_all(path):
    os.mkdir(path)
    os.chmod(path, 0o777)


def a_link(path):
    os.symlink(os.path.dirname(path), path)


def a_file(path):
    open(path, "w").close()


@pytest.mark.parametrize("put", [open_to_all, a_link, a_file])
def test_a_name_that_is_taken_meanwhile_is_another_name(tmp_path, put):
    taken = scratch(tmp_path).of(UID, GID)
    os.rmdir(taken)
    os.rmdir(os.path.dirname(taken))
    put(os.path.dirname(taken))
    again = scratch(tmp_path).of(UID, GID)
    assert os.path.dirname(again) != os.path.dirname(taken)
    assert mode(again) == 0o700


def test_what_was_tidied_away_is_made_again_while_the_controller_lives(tmp_path):
    one = scratch(tmp_path)
    path = one.of(UID, GID)
    os.rmdir(path)
    assert one.of(UID, GID) == path
    assert os.path.isdir(path)
    os.rmdir(path)
    os.rmdir(os.path.dirname(path))
    assert os.path.isdir(one.of(UID, GID))


def test_only_the_numbers_of_running_jobs_are_left(tmp_path):
    one = scratch(tmp_path)
    path = one.of(UID, GID)
    for slot in range(4):
        os.mkdir(f"{path}/{slot}")
    os.mkdir(f"{path}/2/full")
    one.tidy({1})
    assert sorted(os.listdir(path)) == ["1", "2"]
    os.rmdir(f"{path}/2/full")
    one.tidy(set())
    assert os.listdir(tmp_path / "tmp") == []


def test_where_no_space_is_wanted_none_is_made(tmp_path):
    none = Spaces(tmp_path, size=0)
    assert (none.of(1000), none.is_limited, os.listdir(tmp_path)) == ("", False, [])


def test_a_directory_that_a_killed_controller_left_half_made_is_given_to_nobody(tmp_path):
    one = scratch(tmp_path)
    path = one.of(UID, GID)
    os.rmdir(path)
    left = f"{os.path.dirname(path)}/new"
    os.mkdir(left)
    with open(f"{left}/trap", "w"):
        pass
    assert os.listdir(scratch(tmp_path).of(UID, GID)) == []


class Clock:
    """Goes on by a millisecond each time that it is read."""

    now = 0.0

    def __call__(self):
        self.now += 0.001
        return self.now


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make directories of others")
def test_any_number_of_entries_of_one_user_delays_a_stop_for_half_a_second(tmp_path):
    one = scratch(tmp_path, clock=Clock())
    many, few = one.of(UID, GID), one.of(UID + 1, GID)
    for slot in range(3000):
        os.mkdir(f"{many}/{slot}")
    os.mkdir(f"{few}/1")
    one.tidy(set())
    assert len(os.listdir(many)) >= 2400
    assert not os.path.exists(few)


@silent.needs_fuse
@pytest.mark.parametrize("where", ["", "/3"])
def test_a_file_system_that_never_answers_does_not_delay_a_stop(tmp_path, where):
    path = scratch(tmp_path).of(UID, GID)
    for slot in (2, 3):
        os.mkdir(f"{path}/{slot}")
    tidy = (
        "import sys; from pathlib import Path; from fgsched.system import spaces\n"
        "if hasattr(spaces, '_mounted'): spaces._mounted = lambda: []  # it is mounted after the look\n"
        "run = Path(sys.argv[1]); prefix = sys.argv[2]\n"
        "spaces.Scratch(run, prefix, for_all=False).tidy(set())\n"
    )
    prefix = path.split("tmp/")[0] + "tmp/" + path.split("tmp/")[1].rsplit("/", 1)[0][:-16]
    with silent.mounted(Path(f"{path}{where}")):
        command = [sys.executable, "-c", tidy, str(tmp_path / "run"), prefix]
        subprocess.run(command, cwd=ROOT, check=True, timeout=PATIENCE)
    assert os.path.isdir(f"{path}/3")
