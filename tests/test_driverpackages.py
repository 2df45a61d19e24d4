"""Where tests find a driver that is installed on the host. A script and empty files represent the driver."""

import pytest

import driverpackages
from cudapackages import NotHere

VERSION = "580.65.06"
FILES = (f"libnvidia-ml.so.{VERSION}", f"libcuda.so.{VERSION}")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """The folder with the files of the driver: in PATH, and known to the dynamic linker."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'none'}:{tmp_path}")
    for name in FILES:
        (tmp_path / name).touch()
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho 'NVIDIA System Management Interface -- v{VERSION}'\necho\n")
    program.chmod(0o755)
    return tmp_path


def test_an_installed_driver_of_the_branch_is_found(host):
    found = driverpackages.driver("580")
    assert (found.branch, found.version) == ("580", VERSION)
    assert (found.smi, found.nvml, found.cuda) == (host / "nvidia-smi", host / FILES[0], host / FILES[1])
    assert found.libraries == (found.nvml, found.cuda)


def test_an_installed_driver_of_another_branch_is_not_taken(host):
    with pytest.raises(NotHere, match=f"58 is not in Debian, and .*/nvidia-smi is of version {VERSION}"):
        driverpackages.installed("58")


def test_a_program_that_does_not_tell_its_version_is_not_taken(host):
    (host / "nvidia-smi").write_text("#!/bin/sh\necho v580\n")
    with pytest.raises(NotHere, match="nvidia-smi is of version unknown"):
        driverpackages.installed("580")


@pytest.mark.parametrize("name", FILES)
def test_an_installed_driver_without_a_library_of_its_version_is_not_taken(host, name):
    (host / name).rename(host / name.replace(VERSION, "580.65.07"))
    with pytest.raises(NotHere, match=f"{name} of the driver that is installed here was not found"):
        driverpackages.installed("580")


def test_without_nvidia_smi_no_driver_is_installed(host):
    (host / "nvidia-smi").unlink()
    with pytest.raises(NotHere, match="branch 580 is not in Debian, and no nvidia-smi is in PATH"):
        driverpackages.installed("580")
