"""What each user is given of the file systems: scratch directories, space below the run directory."""

import os

import pytest

from fgsched.system.spaces import Scratch, Spaces, _mounted

UID, GID = os.geteuid(), os.getegid()


def scratch(place, *, for_all=False):
    (place / "run").mkdir(exist_ok=True)
    (place / "tmp").mkdir(exist_ok=True)
    return Scratch(place / "run", f"{place}/tmp/fg-name-", for_all=for_all)


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


@pytest.mark.parametrize("name", ["\udcff", "a\u2028b"])
def test_a_mount_that_a_user_named_in_any_bytes_is_read(tmp_path, monkeypatch, name):
    table = tmp_path / "mountinfo"
    line = f"36 35 0:1 / /home/ann/{name} rw - fuse.x x rw\n37 35 0:2 / /run/x rw - tmpfs fgsched rw\n"
    table.write_bytes(os.fsencode(line))
    monkeypatch.setattr("fgsched.system.spaces._MOUNTS", table)
    assert _mounted() == [f"/home/ann/{name}", "/run/x"]
