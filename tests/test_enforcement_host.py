"""fgsched doctor --enforcement with the host's controller, over the fake driver."""

import pytest

import fakecuda
import fgshim
from fakecuda import Card
from fakehost import hosting, why_not
from fixtures_spawner import NEEDS_SPAWNER

NO_HOST = why_not()
pytestmark = [
    *NEEDS_SPAWNER,
    pytest.mark.root,
    pytest.mark.mounts,
    pytest.mark.compiler,
    pytest.mark.skipif(bool(NO_HOST), reason=NO_HOST or "-"),
]
CARD = Card("A100", 8 << 30, context=64 << 20)
CONFIG = "[host]\ncpus = 64\n[sampling]\ninterval = 1\n"


def install(host, driver):
    """Install a driver with one card in the host, which programs with any environment find."""
    place = host.path / "driver"
    place.mkdir()
    gpus = place / "cards"
    driver.at(gpus).gpus(CARD)
    gpus.chmod(0o666)
    for name in fakecuda.LIBRARIES:
        fakecuda.build_library(name, place, flags=[f'-DFAKE_CUDA_STATE="{gpus}"'])
    listed = host.path / "etc" / "ld.so.conf"
    listed.write_text(f"{place}\n{listed.read_text()}")
    done = host.do("root", "sh", "-c", "mount -t tmpfs none /var/cache && exec /sbin/ldconfig -X")
    assert done.status == 0, done.err


@pytest.fixture(scope="module")
def host(built_driver):
    if not fgshim.library().exists():
        pytest.skip("the hook is not built: run setup.py build_ext --inplace")
    with hosting(config=CONFIG, started=False) as one:
        install(one, built_driver)
        one.start()
        yield one


def test_root_tests_with_jobs_of_the_user_of_sudo(host):
    done = host.run("root", "fgsched", "doctor", "--enforcement", "--json", env={"SUDO_USER": "bob"})
    assert done.err == ""
    found = {(row["tier"], row["check"]): (row["verdict"], row["why"]) for row in done.json["checks"]}
    assert (done.status, done.json["holds"]) == (0, True), found
    assert found["shim", "cuMemAlloc"] == found["shim", "env -i"] == ("holds", "")
    assert found["watchdog", "unhooked process"] == (
        "holds",
        "the hook stays without LD_PRELOAD: there was nothing to see",
    )
    owners = host.run("root", "fgacct", "-n", "-X", "-P", "--format=User,JobName").lines
    assert set(owners) == {"bob|doctor-shim"}
