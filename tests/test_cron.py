"""fgsched cron: lines of a crontab and systemd timers, which replace nothing of others."""

import os
import shutil
import subprocess
from errno import ENOSPC
from pathlib import Path

import pytest

from fakehost import with_own_run
from fgsched.cli import cron
from fgsched.domain.errors import BadUsage, Refused
from fgsched.system.disk import Kernel

LINES = cron.block("root", {"FG_HOME": "/srv/my fg"})
OTHERS = "MAILTO=ann\n0 3 * * * backup   # mine\n"


def test_each_line_has_the_home_and_escapes_what_ends_a_command():
    assert [line.partition(" FG_HOME")[0] for line in LINES.splitlines() if not line.startswith("#")] == [
        *("5 6 * * *", "7 6 * * *", "9 6 * * *", "15 6 * * 1", "25 6 1 * *", "*/10 * * * *"),
        "3-59/10 * * * *",
    ]
    assert all(" FG_HOME='/srv/my fg' " in line for line in LINES.splitlines() if not line.startswith("#"))
    assert "+\\%G-W\\%V" in LINES


def test_the_block_is_added_after_the_lines_of_others_and_replaced_alone():
    once = cron.merged(OTHERS, LINES)
    assert once == OTHERS + LINES
    changed = cron.merged(f"{once}5 5 * * * later\n", cron.block("ann", {}))
    assert changed == f"{OTHERS}{cron.block('ann', {})}5 5 * * * later\n"


def test_a_last_line_without_its_end_is_not_joined_with_the_block():
    assert cron.merged("0 3 * * * backup", "x\n") == "0 3 * * * backup\nx\n"


@pytest.mark.parametrize("text", [cron.BEGIN + "\n", cron.END + "\n", LINES + LINES])
def test_a_damaged_block_is_left_alone(text):
    with pytest.raises(Refused):
        cron.merged(OTHERS + text, LINES)


@pytest.fixture
def crontab(tmp_path, monkeypatch):
    """A crontab command that keeps its table in a file."""
    table, program = tmp_path / "table", tmp_path / "crontab"
    program.write_text(
        f"#!/bin/sh\n[ $1 = - ] && exec cat >{table}\n"
        f"[ -e {table} ] && exec cat {table}\necho no crontab for me >&2; exit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return table


def test_the_crontab_is_written_once(crontab):
    assert cron.install(LINES)
    assert crontab.read_text() == LINES
    assert not cron.install(LINES)


def test_an_address_cannot_add_a_command():
    with pytest.raises(BadUsage):
        cron.run(to="root\n* * * * * evil", is_install=False, is_systemd=False, environ={})
    assert "--to 'root;evil'" in cron.run(to="root;evil", is_install=False, is_systemd=False, environ={})


def test_metrics_have_a_line_if_there_is_a_folder_for_them():
    lines = cron.block("root", {}, "/var/lib/prometheus/node-exporter").splitlines()
    assert lines[-2].startswith("*/5 * * * * ")
    assert lines[-2].endswith("fgreport status --format metrics --output /var/lib/prometheus/node-exporter")
    with pytest.raises(BadUsage):
        cron.run(to="root", is_install=False, is_systemd=False, environ={}, metrics="here")


def test_the_folder_of_units_needs_a_home_for_a_user_only():
    assert cron.unit_folder({}, 0) == Path("/etc/systemd/system")
    assert cron.unit_folder({"HOME": "/home/ann"}, 7) == Path("/home/ann/.config/systemd/user")
    assert cron.unit_folder({"XDG_CONFIG_HOME": "/c"}, 7) == Path("/c/systemd/user")
    with pytest.raises(Refused, match="HOME is not set"):
        cron.unit_folder({}, 7)


def test_units_of_another_origin_are_left_alone(tmp_path):
    texts = cron.units("root", {})
    assert len(cron.install_units(tmp_path, texts)) == 14
    assert cron.install_units(tmp_path, texts) == []
    (tmp_path / "fgsched-charge.timer").write_text("[Timer]\n")
    with pytest.raises(Refused):
        cron.install_units(tmp_path, texts)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_accepts_the_units(tmp_path):
    names = [
        path.name for path in cron.install_units(tmp_path, cron.units("root", {"FG_HOME": "/srv/my fg"}))
    ]
    done = subprocess.run(
        with_own_run("systemd-analyze", "verify", *names),
        cwd=tmp_path,
        env=dict(os.environ, SYSTEMD_UNIT_PATH=f"{tmp_path}:"),
        capture_output=True,
        text=True,
    )
    assert [line for line in done.stderr.splitlines() if "fgsched-" in line] == []


def test_a_full_disk_leaves_no_empty_unit_file(tmp_path, monkeypatch):
    texts = cron.units("root", {})

    def full(*_):
        raise OSError(ENOSPC, os.strerror(ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Kernel, "write", full)
        with pytest.raises(Refused, match="No space left"):
            cron.install_units(tmp_path, texts)
    assert os.listdir(tmp_path) == []
    (tmp_path / "fgsched-failures.timer").touch()  # an earlier version left it
    assert len(cron.install_units(tmp_path, texts)) == len(texts)
    assert (tmp_path / "fgsched-failures.timer").read_text() == texts["fgsched-failures.timer"]
