"""`fgsched uninstall --purge` removes what is fgsched's, whatever users have put there or mounted."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from fakehost import UIDS, hosting, why_not
from fgsched.cli.install.carry import Manifest, _spaces, purge
from fgsched.cli.install.slurmnames import folders, names
from fgsched.domain.errors import NotPermitted, Refused
from otheruser import acting
from test_races import OTHER, exchange, repeated

_WHY_NOT = why_not()
pytestmark = [pytest.mark.root, pytest.mark.skipif(bool(_WHY_NOT), reason=_WHY_NOT or "can be made")]


@pytest.fixture
def host():
    """A host without a controller, on which carol has a file that must stay."""
    with hosting(started=False) as host:
        for name in ("var/lib/fgsched", "run/fgsched"):
            (host.root / name).mkdir(parents=True, exist_ok=True)
        (host.root / "var/lib/fgsched/queue.db").write_text("queue")
        carols(host).write_text("precious")
        yield host


def carols(host):
    return host.home("carol") / "data"


def done(host, *commands):
    """Run shell commands as root in the host."""
    done = host.do("root", "sh", "-ec", "\n".join(commands))
    assert done.status == 0, done.err


def purged(host):
    return host.run("root", "fgsched", "uninstall", "--purge")


def test_what_a_user_has_linked_and_mounted_in_a_space_stays(host):
    space, carol = f"/run/fgsched/space/{UIDS['bob']}", host.home("carol")
    done(
        host,
        f"mkdir -p {space}",
        f"mount -t tmpfs -o mode=711 fgsched {space}",
        f"mkdir -p '{space}/a\nb/c' {space}/job",
        f"ln -s {carol} {space}/link",
        f"mount --bind {carol} '{space}/a\nb/c'",  # as fusermount mounts for a user
        f"touch '{space}/a\nb/x' '{space}/job/-rf\n'",
    )
    gone = purged(host)
    assert (gone.status, gone.err) == (0, "")
    assert "remove /run/fgsched\n" in gone.out
    assert carols(host).read_text() == "precious"
    assert not (host.root / "run/fgsched").exists()
    assert not (host.root / "var/lib/fgsched").exists()


@pytest.mark.parametrize("place", ["/var/lib/fgsched", "/run/fgsched"])
def test_a_mount_of_the_administrator_is_kept_and_named(host, place):
    done(host, f"mkdir {place}/data", f"mount --bind {host.home('carol')} {place}/data")
    gone = purged(host)
    assert gone.status == 0, gone.err
    assert f"keep {place}/data: something is mounted there, or uses it\n" in gone.out
    assert os.listdir(host.root / place[1:]) == ["data"]
    assert carols(host).read_text() == "precious"


def test_a_state_directory_that_is_a_link_of_root_is_emptied_and_the_link_removed(host):
    done(host, f"mkdir {host.path}/disk", f"mv /var/lib/fgsched {host.path}/disk/state")
    done(host, f"ln -s {host.path}/disk/state /var/lib/fgsched")
    gone = purged(host)
    assert gone.status == 0, gone.err
    assert os.listdir(host.path / "disk/state") == []
    assert not os.path.lexists(host.root / "var/lib/fgsched")


def test_hard_links_to_files_of_others_only_lose_a_name(host):
    done(host, "mkdir -p /run/data /run/fgsched/job")
    done(host, "head -c 200000000 /dev/zero >/run/data/large", "ln /run/data/large /run/fgsched/job/large")
    assert purged(host).status == 0
    assert (host.root / "run/data/large").stat().st_size == 200_000_000


def test_a_user_who_exchanges_directories_all_the_time_leads_the_removal_nowhere(tmp_path):
    tmp_path.chmod(0o755)
    for above in tmp_path.parents:
        with suppress(OSError):
            above.chmod(above.stat().st_mode | 0o011)
    image, outside = tmp_path / "image", tmp_path / "outside"
    outside.mkdir()
    for number in range(100):
        (outside / str(number)).write_text("precious")
    for _ in range(20):
        own = image / "run/fgsched/job/own"
        (own / "tree").mkdir(parents=True)
        for number in range(100):
            (own / "tree" / str(number)).touch()
        (own / "link").symlink_to(outside)
        for path in (own, own / "tree", own / "link"):
            os.lchown(path, OTHER, OTHER)
        exchanging = repeated(lambda own=own: exchange(own / "tree", own / "link"))
        with acting(OTHER, exchanging):
            list(purge(image))
        shutil.rmtree(image)
    assert len(os.listdir(outside)) == 100


@pytest.mark.parametrize("place", ["var/lib/fgsched", "var/lib", "run/fgsched"])
def test_another_users_link_is_not_followed(tmp_path, place):
    outside = tmp_path / "outside"
    (outside / "fgsched").mkdir(parents=True)
    (outside / "fgsched" / "data").write_text("precious")
    link = tmp_path / "image" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    os.lchown(link, OTHER, OTHER)
    with pytest.raises(NotPermitted, match="made a link on the way"):
        list(purge(tmp_path / "image"))
    assert (outside / "fgsched" / "data").read_text() == "precious"


@pytest.mark.parametrize("place", ["var/lib/fgsched", "var/lib", "var"])
def test_an_image_whose_links_lead_to_the_host_is_refused(tmp_path, place):
    link = tmp_path / "image" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(f"/{place}")
    with pytest.raises(Refused, match="leads out of the image"):
        Manifest(tmp_path / "image")


def test_only_spaces_are_unmounted():
    table = "\n".join(
        f"36 35 98:0 / {point} rw,noatime shared:1 - {kind} {source} rw"
        for point, kind, source in [
            ("/run/fgsched/space/1000", "tmpfs", "fgsched"),
            ("/run/fgsched/space/1000/a\\040b/home", "fuse.sshfs", "fgsched"),
            ("/run/fgsched/space/1000/x", "tmpfs", "fgsched"),
            ("/run/fgsched/space/1001", "tmpfs", "tmpfs"),
            ("/home", "tmpfs", "fgsched"),
        ]
    )
    assert _spaces(table) == ["/run/fgsched/space/1000"]


def test_a_pipe_in_the_place_of_a_name_of_slurm_stops_nothing(tmp_path):
    os.mkfifo(tmp_path / names()[0])
    assert Path(tmp_path) not in folders([str(tmp_path)], {"PATH": str(tmp_path)})
