"""Settings and places: what is read, what is refused, and on which line."""

import os
from pathlib import Path
from typing import get_args

import pytest
from msgspec.structs import replace

from fgsched.config import schema
from fgsched.config.contradictions import HostSize, doubts
from fgsched.config.keys import KEYS, SECTIONS
from fgsched.config.load import Config, load
from fgsched.config.schema import (
    AccountSettings,
    FeatureSettings,
    GpuTypeSettings,
    PartitionSettings,
    PerGpuSettings,
    QosSettings,
    ResourceSettings,
    UserSettings,
)
from fgsched.domain import policy
from fgsched.domain.errors import BadUsage, Refused, Unreachable
from fgsched.domain.job import HostLimits
from fgsched.domain.states import Tier
from fgsched.gpus.nvidia import MPS
from fgsched.lifecycle.constraint import FeatureNeeds, needs
from fgsched.lifecycle.mps import MpsSettings
from fgsched.system.paths import Paths
from fgsched.system.safeopen import refuse_unless_safe

MIB = 1 << 20
UID = os.getuid()


@pytest.fixture
def configured(tmp_path):
    """load() of a file with this text."""

    def read(text):
        (tmp_path / "fgsched.toml").write_text(text)
        return load(Paths.find({"FG_HOME": str(tmp_path)}, UID))

    return read


def refusal(read, text):
    with pytest.raises(BadUsage) as caught:
        read(text)
    return str(caught.value)


def test_a_missing_file_means_the_defaults(tmp_path):
    assert load(Paths.find({"FG_HOME": str(tmp_path)}, UID)) == Config()


def test_every_key_is_read(configured):
    found = configured(
        """
        [gpus]
        devices = [1, 3]
        exclusive = false
        headroom = "256M"
        max_jobs_per_gpu = 4
        share_step = 0.05
        shards_per_gpu = 8
        fgpu_per_gpu = 2
        placement = "spread"
        visible_devices = "uuids"
        share_instances = true
        gpu_compute = "hard"
        oversubscribe = 1.5
        mps = "user"
        mps_control = "/opt/mps"
        [host]
        cpus = 12
        cpu_binding = "none"
        memory = "64G"
        [jobs]
        kill_wait = 10
        default_time = "1:00:00"
        max_script = "1M"
        max_jobs_per_user = 50
        max_bytes_per_user = "1G"
        keep_scripts = "7-0"
        keep_scripts_size = "1M"
        allow_root_jobs = true
        max_requeue = 7
        run_space = "64M"
        max_processes = 900
        no_new_privileges = true
        pam_service = "fgsched"
        kill_invalid_depend = true
        unknown_constraint = "ignore"
        unknown_gres = "warn"
        unknown_license = "warn"
        unknown_partition = "default"
        unknown_reservation = "ignore"
        hints = false
        tmp = "/scratch"
        [sampling]
        interval = 2.5
        deadline = 1
        clean_timeout = 60
        drain_on_xid = [79, 48]
        [accounting]
        enabled = false
        move_after = "1"
        keep_minutes = "7-0"
        keep_hours = "forever"
        keep_days = "3650-0"
        weights = ["A100=2.5", "RTX A6000 = 1"]
        private_data = true
        [policies]
        idle = "cancel"
        idle_window = "30"
        idle_grace = "10"
        idle_users = ["bob"]
        idle_partitions = ["interactive"]
        strangers = "warn"
        strangers_grace = "1"
        strangers_users = ["eve"]
        strangers_commands = ["Xorg", "dcgm*"]
        strangers_to = "admin@example.org"
        [mail]
        send = "smtp"
        from = "gpu@example.org"
        domain = "example.org"
        sendmail = "/bin/sendmail"
        smtp_host = "mail.example.org"
        smtp_port = 587
        smtp_tls = "starttls"
        smtp_user = "gpu"
        smtp_password_file = "/etc/fgsched/password"
        allowed = ["@lab.org", "ann@home.org"]
        tail = 5
        deadline = 10
        give_up = "1-00:00:00"
        max_per_hour = 50
        [hooks]
        prolog = "/usr/bin/env"
        prolog_time = 5
        epilog = "/usr/bin/env"
        epilog_time = 6
        submit_filter = "/usr/bin/env"
        submit_filter_time = 7
        task_prolog = "/usr/bin/env"
        task_prolog_time = 8
        [events]
        command = "/usr/bin/env"
        socket = "/run/site/events"
        [fence]
        watchdog = "warn"
        tolerance = "1G"
        context_memory = "300M"
        tiers = ["shim", "none"]
        preload = "namespace"
        [operators]
        users = ["ann"]
        groups = ["staff"]
        [priority]
        weight_partition = 1
        weight_qos = 2
        weight_fairshare = 3
        weight_age = 4
        weight_size = 5
        favor_small = true
        max_age = "1-0"
        half_life = "2-0"
        fairshare_interval = 30
        [partitions.long]
        max_gpus = 1.5
        preempt_mode = "SUSPEND"
        [qos]
        fast = { priority = 3 }
        [accounts.lab]
        shares = 2
        [users.ann]
        account = "lab"
        [resources]
        matlab = 5
        [gpu_types]
        rtx8000 = "a100"
        [features]
        avx512 = {}
        nvlink = { gpus = "0-1" }
        [per_gpu.1]
        mps = "off"
        oversubscribe = 2
        """
    )
    assert found == Config(
        devices="1,3,",
        exclusive=False,
        headroom=256 * MIB,
        max_jobs_per_gpu=4,
        share_step=500,
        shards_per_gpu=8,
        fgpu_per_gpu=2,
        placement="spread",
        visible_devices="uuids",
        share_instances=True,
        gpu_compute="hard",
        oversubscribe=15_000,
        mps="user",
        mps_control="/opt/mps",
        cpus=12,
        cpu_binding="none",
        memory=65_536 * MIB,
        kill_wait=10,
        default_time=3600,
        max_script=MIB,
        max_jobs_per_user=50,
        max_bytes_per_user=1024 * MIB,
        keep_scripts=7 * 86_400,
        keep_scripts_size=MIB,
        allow_root_jobs=True,
        unknown_constraint="ignore",
        unknown_gres="warn",
        unknown_license="warn",
        unknown_partition="default",
        unknown_reservation="ignore",
        hints=False,
        tmp="/scratch",
        interval=2.5,
        deadline=1,
        clean_timeout=60,
        drain_on_xid=(48, 79),
        accounting=False,
        move_after=60,
        keep_minutes=7 * 86_400,
        keep_hours=-1,
        keep_days=3650 * 86_400,
        weights=(("A100", 2.5), ("RTX A6000", 1.0)),
        private_data=True,
        idle="cancel",
        idle_window=1800,
        idle_grace=600,
        idle_users=("bob",),
        idle_partitions=("interactive",),
        strangers="warn",
        strangers_grace=60,
        strangers_users=("eve",),
        strangers_commands=("Xorg", "dcgm*"),
        strangers_to="admin@example.org",
        mail="smtp",
        mail_from="gpu@example.org",
        mail_domain="example.org",
        sendmail="/bin/sendmail",
        smtp_host="mail.example.org",
        smtp_port=587,
        smtp_tls="starttls",
        smtp_user="gpu",
        smtp_password_file="/etc/fgsched/password",
        mail_allowed=("@lab.org", "ann@home.org"),
        mail_tail=5,
        mail_deadline=10,
        mail_give_up=86_400,
        mail_max_per_hour=50,
        prolog="/usr/bin/env",
        prolog_time=5,
        epilog="/usr/bin/env",
        epilog_time=6,
        submit_filter="/usr/bin/env",
        submit_filter_time=7,
        task_prolog="/usr/bin/env",
        task_prolog_time=8,
        events_command="/usr/bin/env",
        events_socket="/run/site/events",
        watchdog="warn",
        tolerance=1024 * MIB,
        context_memory=300 * MIB,
        tiers=("shim", "none"),
        preload="namespace",
        max_requeue=7,
        run_space=64 * MIB,
        max_processes=900,
        no_new_privileges=True,
        pam_service="fgsched",
        kill_invalid_depend=True,
        operators=("ann",),
        operator_groups=("staff",),
        weight_partition=1,
        weight_qos=2,
        weight_fairshare=3,
        weight_age=4,
        weight_size=5,
        favor_small=True,
        max_age=86_400,
        half_life=2 * 86_400,
        fairshare_interval=30,
        partitions={"long": PartitionSettings(max_gpus=15_000, preempt_mode="suspend")},
        qos={"fast": QosSettings(priority=3)},
        accounts={"lab": AccountSettings(shares=2)},
        users={"ann": UserSettings(account="lab")},
        resources={"matlab": ResourceSettings(count=5)},
        gpu_types={"rtx8000": GpuTypeSettings(model="a100")},
        features={"avx512": FeatureSettings(), "nvlink": FeatureSettings(gpus=(0, 1))},
        per_gpu={"1": PerGpuSettings(mps="off", oversubscribe=20_000)},
    )
    assert found.mps_on([0, 1, 2], MPS) == MpsSettings(gpus=frozenset({0, 2}), program="", service=MPS)
    assert found.gpu_features == {0: ("nvlink",), 1: ("nvlink",)}
    assert (found.site.aliases, found.site.features) == ({"rtx8000": "a100"}, ("avx512",))
    assert needs("AVX512", found.site, has_gpus=True) == FeatureNeeds()
    assert found.site.ignores == ("constraint", "gres", "license", "partition", "reservation")
    assert (found.site.unsaid, found.site.cpus) == (("constraint", "reservation"), 12)
    assert found.limits == HostLimits(
        cpus=12,
        host_memory=65_536 * MIB,
        max_jobs_per_gpu=4,
        share_step=500,
        spread=True,
        max_requeue=7,
        kill_wait=10,
    )
    assert (found.site.shards_per_gpu, found.site.fgpu_per_gpu, found.site.share_step) == (8, 2, 500)
    unset = {name for name in Config.__struct_fields__ if getattr(found, name) == getattr(Config(), name)}
    assert unset == set(), "this test forgets a key"


def test_the_host_is_measured_where_the_file_is_silent():
    limits = Config().limits
    assert limits.cpus == len(os.sched_getaffinity(0))
    assert limits.host_memory > 64 * MIB


@pytest.mark.parametrize(("written", "held"), [('"auto"', "auto"), ("2", "2"), ("[0]", "0,"), ("[]", "none")])
def test_devices_are_kept_in_the_form_of_the_environment(configured, written, held):
    assert configured(f"[gpus]\ndevices = {written}").devices == held


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[gpus]\nhedroom = '1G'", 2, "Did you mean headroom?"),
        ("[gpus]\nkill_wait = 30", 2, "kill_wait belongs to [jobs]."),
        ("[host]\nzzz = 1", 2, "[host] has cpus, cpu_binding, memory."),
        ("\n[gpu]\nheadroom = '1G'", 2, "Did you mean [gpus]?"),
        ("headroom = '1G'", 1, "headroom is a key of [gpus]."),
        ("[partitions.long]\ntime = 3", 2, 'partitions.long.time = 3 is not a time such as "1-12:00:00"'),
        ("[partitions]\nlong.gpus = 1.5", 2, "partitions.long.gpus = 1.5 is not an amount of GPUs"),
        ("[partitions.long]\ngpuss = 1", 2, "[partitions.long] has no key gpuss."),
        ("[partitions.long]\nmax_running = -1", 2, "-1 is not a whole number, from 0 to 1000000."),
        ("[partitions]\nlong = 3", 2, "partitions.long is not a table."),
        ("[partitions]\n'a b'.gpus = 1", 2, "'a b' is not a name."),
        ("[partitions]\na.default = true\nb.default = true", 1, "more than one partition is the default"),
        ("[resources]\nneuron = 0", 2, "resources.neuron.count = 0 is not a whole number, from 1 to 65536."),
        ("[jobs]\n# twice\nkill_wait = 30\nkill_wait = 31", 4, "Cannot overwrite a value"),
        ("[jobs]\nkill_wait", 2, "Expected '='"),
        ("[jobs]\nkill_wait = 4", 2, "jobs.kill_wait = 4 is not seconds, from 5 to 3600."),
        ("[jobs]\nkill_wait = true", 2, "jobs.kill_wait = True is not seconds"),
        ("[jobs]\nkill_wait = nan", 2, "jobs.kill_wait = nan is not seconds"),
        ("jobs.kill_wait = '30'", 1, 'jobs.kill_wait = "30" is not seconds'),
        ("\njobs = { kill_wait = 1 }", 2, "jobs.kill_wait = 1 is not"),
        ("[gpus]\nheadroom = '1G'\nmax_jobs_per_gpu = -1", 3, "-1 is not a whole number, from 0 to 1000."),
        ("[gpus]\nheadroom = 'much'", 2, 'gpus.headroom = "much" is not a size such as "256M"'),
        ("[gpus]\nheadroom = '65G'", 2, 'from "0M" to "65536M"'),
        ("[gpus]\nshare_step = 1.5", 2, "gpus.share_step = 1.5 is not a share"),
        (
            "[gpus]\noversubscribe = 0.5",
            2,
            "gpus.oversubscribe = 0.5 is not a factor such as 1.5 or 2.0, from 1",
        ),
        ("[per_gpu.x]\nmps = 'off'", 1, "'x' is not the index of a GPU.\nWrite [per_gpu.0]."),
        ("[gpus]\nplacement = 'best'", 2, '"best" is not "pack" or "spread".'),
        ("[gpus]\ndevices = [1.5]", 2, "gpus.devices = [1.5] is not"),
        ("[jobs]\ntmp = 'scratch'", 2, 'jobs.tmp = "scratch" is not an absolute path.'),
        ("[jobs]\ndefault_time = 'soon'", 2, 'jobs.default_time = "soon" is not a time'),
        ("[operators]\nusers = 'ann'", 2, 'operators.users = "ann" is not a list of user names.'),
    ],
)
def test_a_mistake_is_named_with_its_line_and_its_remedy(configured, tmp_path, text, line, said):
    message = refusal(configured, text)
    assert message.startswith(f"{tmp_path}/fgsched.toml:{line}: ")
    assert said in message


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        (
            "[gpus]\nheadroom =",
            2,
            "'headroom =': the value is missing or not complete.\nWrite a whole value after =",
        ),
        ("[gpus]\nheadroom =\n", 2, "'headroom =': the value is missing"),
        ("[gpus]\nheadroom = # later\n", 2, "'headroom = # later': the value is missing"),
        ('[gpus]\nheadroom = "1G', 2, "'headroom = \"1G': the text is not closed.\nEnd the text with"),
        ('[gpus]\nheadroom = "1G\nmps = "off"\n', 2, "'headroom = \"1G': the text is not closed"),
        ("[gpus]\nheadroom = '1G\nmps = 'off'\n", 2, "'headroom = '1G': the text is not closed"),
        (
            "[gpus]\n# all\n\ndevices = [0,\n  1,\n",
            4,
            "'devices = [0,': the value is missing or not complete",
        ),
        ("[gpus]\ndevices = [0, 1\nmps = 'off'\n", 2, "'devices = [0, 1': the list is not closed"),
        ('[gpus]\nheadroom = """1G\n[host]\ncpus = 4\n', 2, "the text is not closed"),
        ("[gpus]\ndevices = [0, 1\n\n# all", 2, "'devices = [0, 1': the list is not closed"),
        ("[host]\ncpus = 4\npartitions = { a = 1", 3, "the table is not closed.\nEnd it with }"),
        ("[host]\ncpus = 4\n[gpus", 3, "'[gpus': the name of a table is not closed.\nWrite it alone"),
        ("[gpus]\nheadroom", 2, "'headroom': Expected '=' after a key.\nWrite KEY = VALUE."),
        ("[gpus]\nheadroom = much\n", 2, "'headroom = much': the value is not one of TOML.\nWrite a text"),
        ("[jobs]\ndefault_time = 2h\n", 2, "the line continues after the value.\nWrite a text between"),
        ("[gpus]\n[host]\n[gpus]\n", 3, "'[gpus]': the table is declared before this line"),
        ("[gpus]\n= 3", 2, "'= 3': this is neither a key nor a table"),
        ("[gpus]\nheadroom = '\\x01'\nmps = \"\\q\"", 3, "man fgsched.toml describes the file"),
    ],
)
def test_a_syntax_error_is_named_with_its_line_its_text_and_its_remedy(
    configured, tmp_path, text, line, said
):
    message = refusal(configured, text)
    assert message.startswith(f"{tmp_path}/fgsched.toml:{line}: '")
    assert said in message


def test_a_file_that_is_not_utf8_is_refused_with_its_line(tmp_path):
    (tmp_path / "fgsched.toml").write_bytes(b"[jobs]\ntmp = '/\xff'\n")
    with pytest.raises(BadUsage, match=r"fgsched\.toml:2: this is not UTF-8\.\nSave the file"):
        load(Paths.find({"FG_HOME": str(tmp_path)}, UID))


@pytest.mark.parametrize("fault", ["is nested too deeply", "has too many digits"])
def test_a_value_that_cannot_be_read_is_named_with_its_line(configured, tmp_path, fault):
    value = "[" * 5000 + "]" * 5000 if "nested" in fault else "9" * 5000
    message = refusal(configured, f"[gpus]\nheadroom = {value}")
    assert message.startswith(f"{tmp_path}/fgsched.toml:2: the value {fault}.")


def test_a_table_that_is_written_as_a_key_is_told_so(configured, tmp_path):
    message = refusal(configured, 'operators = ["ann"]')
    assert message.startswith(f"{tmp_path}/fgsched.toml:1: operators is a table, not a key.")


def test_a_table_with_two_brackets_is_named_with_its_line(configured, tmp_path):
    message = refusal(configured, '[host]\ncpus = 4\n[[accounts]]  # of the site\nname = "lab"')
    assert message.startswith(f"{tmp_path}/fgsched.toml:3: accounts is a table, not a key.")
    assert message.endswith("Write [accounts] and its keys.")


def test_a_file_that_was_asked_for_has_to_exist(tmp_path):
    for name in ("FGSCHED_CONFIG", "FG_CONFIG"):
        paths = Paths.find({"FG_HOME": str(tmp_path), name: str(tmp_path / "no.toml")}, UID)
        with pytest.raises(BadUsage, match=rf"there is no such file.\nCorrect or unset {name}\."):
            load(paths)


def test_the_longer_name_of_the_variable_for_the_file_comes_first():
    paths = Paths.find({"HOME": "/h", "FG_CONFIG": "/a.toml", "FGSCHED_CONFIG": "/b.toml"}, UID)
    assert str(paths.config_file) == "/b.toml"


def test_a_file_that_cannot_be_read_is_no_crash(tmp_path):
    (tmp_path / "fgsched.toml").mkdir()
    with pytest.raises(BadUsage, match="cannot be read: Is a directory"):
        load(Paths.find({"FG_HOME": str(tmp_path)}, UID))


def a_pipe(path):
    os.mkfifo(path)


def without_an_end(path):
    path.symlink_to("/dev/zero")


def of_2_gib(path):
    path.touch()
    os.truncate(path, 1 << 31)


@pytest.mark.parametrize(
    ("put", "cause"),
    [
        (a_pipe, "this is a device, a pipe or a socket, not a file"),
        (without_an_end, "this is a device, a pipe or a socket, not a file"),
        (of_2_gib, "this file has more than 1 MiB"),
    ],
)
def test_a_file_without_an_end_is_refused(tmp_path, put, cause):
    put(tmp_path / "fgsched.toml")
    with pytest.raises(BadUsage, match=rf"fgsched\.toml: {cause}"):
        load(Paths.find({"FG_HOME": str(tmp_path)}, UID))


def test_every_key_says_what_it_takes_and_means():
    assert all(
        key.description.endswith(".") and key.allowed
        for keys in (KEYS, *SECTIONS.values())
        for key in keys.values()
    )
    assert KEYS["kill_wait"].allowed == "seconds, from 5 to 3600"
    assert KEYS["operators"].name == "users"


def test_the_words_of_the_settings_are_those_of_the_domain():
    assert get_args(schema.Tier) == tuple(tier.value for tier in Tier if tier is not Tier.MIG)
    assert get_args(schema.PreemptMode) == policy.MODES
    assert get_args(schema.PartitionState) == policy.STATES
    assert KEYS["tiers"].allowed == 'a list of some of ["driver", "shim", "watchdog", "none"]'


def test_a_setting_that_was_removed_is_refused_with_its_replacement(configured):
    error = refusal(configured, '[gpus]\nheadroom = "1G"\ndefragment = "2:00:00"\n')
    assert "fgsched.toml:3: defragment was removed: running jobs are no longer requeued" in error
    assert "Delete the key. `preempt` of a partition or a QOS lets its jobs preempt others" in error


def test_a_period_without_a_limit_is_shown_as_unlimited():
    assert KEYS["default_time"].form.show(Config().default_time) == '"UNLIMITED"'


def test_a_size_without_a_unit_is_refused_whatever_its_type(configured):
    for written in ("256", "1.5"):
        assert "is not a size" in refusal(configured, f"[gpus]\nheadroom = {written}")


@pytest.mark.parametrize(
    ("table", "key"),
    [
        ("partitions.long", "max_mem"),
        ("partitions.long", "mem"),
        ("partitions.long", "max_gpu_mem"),
        ("partitions.long", "gpu_mem"),
        ("host", "memory"),
        ("gpus", "headroom"),
        ("fence", "tolerance"),
        ("fence", "context_memory"),
        ("jobs", "run_space"),
    ],
)
def test_a_small_size_without_a_unit_is_refused_with_the_one_that_is_meant(configured, table, key):
    said = refusal(configured, f'[{table}]\n{key} = "8"')
    assert f'{table}.{key} = "8" has no unit, and would be MiB; did you mean "8G"? Else write "8M".' in said
    for written in ("300", "300M", "2G"):
        configured(f'[{table}]\n{key} = "{written}"')


@pytest.mark.parametrize("mode", [0o666, 0o664])
def test_a_file_that_others_can_write_does_not_rule_the_host(tmp_path, mode):
    path = tmp_path / "fgsched.toml"
    path.touch()
    refuse_unless_safe(path, owner=UID)
    path.chmod(mode)
    with pytest.raises(Refused, match="is writable by others"):
        refuse_unless_safe(path, owner=UID)


def test_nor_does_a_file_whose_directory_others_can_write(tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "fgsched.toml").touch()
    (tmp_path / "link").symlink_to(tmp_path / "open" / "fgsched.toml")
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(Refused, match=r"fgsched\.toml is writable by others .*/open has mode 0777"):
        refuse_unless_safe(tmp_path / "link", owner=UID)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs uid 0")
def test_root_obeys_no_file_of_a_user(tmp_path):
    path = tmp_path / "fgsched.toml"
    path.touch()
    os.chown(path, 1234, 1234)
    paths = Paths.find({"FGSCHED_CONFIG": str(path)}, 0, system=True)
    with pytest.raises(Refused, match="belongs to uid 1234"):
        load(paths)
    assert load(replace(paths, mode="user")) == Config()


NO_HOST = Path("/nonexistent")


def find(environ, **options):
    return Paths.find(environ, 1234, **{"system_run": NO_HOST, "initialised": NO_HOST, **options})


def test_fg_home_holds_everything():
    paths = find({"FG_HOME": "/h", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "XDG_CONFIG_HOME": "/c"})
    assert paths == Paths(
        mode="user",
        home=Path("/h"),
        state=Path("/h"),
        run=Path("/h/run"),
        is_named=True,
        config_file=Path("/h/fgsched.toml"),
    )
    assert (paths.queue, paths.socket) == (Path("/h/queue.db"), Path("/h/run/socket"))
    assert (paths.lock, paths.log) == (Path("/h/lock"), Path("/h/fgsched.log"))


def test_a_user_has_the_directories_that_xdg_names():
    paths = find(
        {"HOME": "/home/a", "XDG_STATE_HOME": "/s", "XDG_RUNTIME_DIR": "/r", "XDG_CONFIG_HOME": "/c"}
    )
    assert (paths.state, paths.run) == (Path("/s/fgsched"), Path("/s/fgsched/run"))
    assert paths.config_file == Path("/c/fgsched/fgsched.toml")


def test_without_them_the_usual_ones_below_the_home():
    paths = find({"HOME": "/home/a", "XDG_STATE_HOME": "relative", "XDG_RUNTIME_DIR": ""})
    assert paths.state == Path("/home/a/.local/state/fgsched")
    assert paths.config_file == Path("/home/a/.config/fgsched/fgsched.toml")
    assert paths.run == Path("/home/a/.local/state/fgsched/run")


def test_without_home_the_account_tells_it():
    assert Paths.find({}, 0, system_run=NO_HOST, initialised=NO_HOST).state == Path(
        "/root/.local/state/fgsched"
    )


def test_a_uid_without_account_and_home_is_told_what_to_set():
    with pytest.raises(BadUsage, match="Set FG_HOME"):
        Paths.find({}, 3_999_999_999, system_run=NO_HOST, initialised=NO_HOST)


def test_the_controller_of_the_host_is_used_when_its_socket_is_there(tmp_path):
    assert find({"HOME": "/home/a"}, system_run=tmp_path).mode == "user"
    (tmp_path / "socket").touch()
    paths = find({"HOME": "/home/a"}, system_run=tmp_path)
    assert (paths.mode, paths.run, paths.state) == ("system", tmp_path, Path("/var/lib/fgsched"))
    assert paths.config_file == Path("/etc/fgsched/fgsched.toml")
    assert find({"FG_HOME": "/h"}, system_run=tmp_path).mode == "user"
    assert find({"FG_HOME": "/h"}, system_run=tmp_path, system=True).mode == "system"


def test_the_controller_of_a_host_that_was_initialised_is_used_also_while_it_does_not_run(tmp_path):
    mark = tmp_path / "initialised"
    assert find({"HOME": "/home/a"}, initialised=mark).mode == "user"
    mark.touch()
    assert find({"HOME": "/home/a"}, initialised=mark).mode == "system"
    assert find({"FG_HOME": "/h"}, initialised=mark).mode == "user"


@pytest.mark.parametrize("name", ["FG_HOME", "FGSCHED_CONFIG", "FG_CONFIG"])
def test_a_relative_place_is_refused(name):
    with pytest.raises(BadUsage, match=f"{name} is 'here'"):
        find({"HOME": "/home/a", name: "here"})
    with pytest.raises(BadUsage) as refused:
        find({"HOME": "/home/a", name: "a\x1b[31m\n"})
    assert all(char.isprintable() for char in refused.value.cause + refused.value.remedy)


def test_directories_above_the_state_are_not_open_to_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        find({"FG_HOME": str(tmp_path / "a" / "b" / "c")}).prepare(UID)
    finally:
        os.umask(before)
    made = [tmp_path / "a", tmp_path / "a" / "b"]
    assert [oct(path.stat().st_mode & 0o777) for path in made] == ["0o755"] * 2


def test_directories_are_made_private(tmp_path):
    paths = find({"FG_HOME": str(tmp_path / "a" / "b")})
    paths.prepare(UID)
    paths.prepare(UID)
    assert paths.run.stat().st_mode & 0o777 == 0o700
    assert paths.state.stat().st_mode & 0o777 == 0o700
    paths.check(UID)


def test_the_run_directory_of_the_host_can_be_passed_through(tmp_path):
    paths = replace(find({}, system=True), state=tmp_path / "state", run=tmp_path / "run")
    umask = os.umask(0o077)
    paths.prepare(UID)
    os.umask(umask)
    assert paths.run.stat().st_mode & 0o777 == 0o711


def squat_link(run):
    (run.parent / "elsewhere").mkdir()
    run.symlink_to("elsewhere")


def squat_open(run):
    run.mkdir()
    run.chmod(0o777)


@pytest.mark.parametrize(
    ("squat", "fault"),
    [
        (squat_link, "is a symbolic link"),
        (squat_open, "can be changed by others"),
        (Path.touch, "not a directory"),
    ],
)
def test_a_run_directory_that_another_laid_out_is_refused(tmp_path, squat, fault):
    paths = find({"FG_HOME": str(tmp_path)})
    squat(paths.run)
    with pytest.raises(Unreachable, match=fault):
        paths.prepare(UID)
    with pytest.raises(Unreachable, match=fault):
        paths.check(UID)


def test_a_run_directory_of_another_user_is_refused(tmp_path):
    paths = find({"FG_HOME": str(tmp_path)})
    paths.run.mkdir()
    with pytest.raises(Unreachable, match=f"belongs to uid {UID}, not to uid {UID + 1}"):
        paths.check(UID + 1)


@pytest.mark.parametrize("below", ["", "a/b"])
def test_a_place_below_a_file_is_told_with_its_path(tmp_path, below):
    (tmp_path / "file").touch()
    paths = find({"FG_HOME": str(tmp_path / "file" / below)})
    for use in (paths.prepare, paths.check):
        with pytest.raises(Unreachable, match=f"{tmp_path}/file.*[nN]ot a directory") as told:
            use(UID)
        assert "FG_HOME" in told.value.remedy


def test_a_client_does_not_mind_that_nothing_is_there_yet(tmp_path):
    find({"FG_HOME": str(tmp_path)}).check(UID)
    assert list(tmp_path.iterdir()) == []


BIG = HostSize(cpus=64, memory=1 << 40, gpus=(0, 1), gpu_memory=16 << 30)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[partitions.p]\nmem = "4G"\nmax_mem = "2G"',
            "[partitions.p] mem = 4096M is above its max_mem = 2048M",
        ),
        ("[partitions.p]\ncpus = 4\nmax_cpus = 2", "[partitions.p] cpus = 4 is above its max_cpus = 2"),
        (
            '[partitions.p]\ntime = "2-0"\nmax_time = "1:00:00"',
            "[partitions.p] time = 2-00:00:00 is above its max_time = 1:00:00",
        ),
        (
            '[partitions.p]\ngpu_mem = "8G"\nmax_gpu_mem = "4G"',
            "[partitions.p] gpu_mem = 8192M is above its max_gpu_mem = 4096M",
        ),
        ("[partitions.p]\ngpus = 2\nmax_gpus = 1", "[partitions.p] gpus = 2 is above its max_gpus = 1"),
        (
            "[partitions.p]\ngpus = 0.5\nmax_gpus_per_user = 0.25",
            "[partitions.p] gpus = 0.5 is above its max_gpus_per_user = 0.25",
        ),
        (
            "[gpus]\nshare_step = 0.05\n[partitions.p]\nmax_gpus = 0.01",
            "[partitions.p] max_gpus = 0.01 is below the least share of a job, share_step = 0.05",
        ),
        ("[partitions.p]\ngpus = 3", "[partitions.p] gpus = 3, but jobs may use 2"),
        ("[partitions.p]\ngpus = 2\ndevices = [1]", "[partitions.p] gpus = 2, but jobs may use 1"),
        ("[partitions.p]\ndevices = [1, 7]", "[partitions.p] devices = 7: this host has no such GPU"),
        ('[partitions.p]\ngpu_mem = "20G"', "[partitions.p] gpu_mem = 20G, but the largest GPU has 16384M"),
        ("[partitions.p]\ncpus = 65", "[partitions.p] cpus = 65, but jobs may use 64 CPUs"),
        ('[accounts.lab]\n[users.ann]\naccount = "lap"', '[users.ann] account = "lap" is not declared'),
        (
            '[accounts.lab]\nusers = ["ben"]\n[users.ann]\naccount = "lab"',
            '[users.ann] account = "lab", whose users do not include ann',
        ),
        (
            '[accounts.lab]\n[partitions.p]\naccounts = ["lap"]',
            '[partitions.p] accounts has "lap", which is not declared',
        ),
        ('[accounts.lab]\n[qos.q]\naccounts = ["lap"]', '[qos.q] accounts has "lap", which is not declared'),
    ],
)
def test_a_setting_that_another_one_or_the_host_makes_useless_is_warned_of(configured, text, sentence):
    assert doubts(configured(text), BIG) == [sentence]


def test_settings_that_agree_cause_no_doubt(configured):
    text = (
        '[partitions.p]\nmem = "2G"\nmax_mem = "2G"\ngpus = 1\nmax_gpus = 1\ngpu_mem = "50%"'
        '\nmax_gpu_mem = "1G"\n[accounts.lab]\nusers = ["ann"]\n[users.ann]\naccount = "lab"'
    )
    assert doubts(configured(text), BIG) == []
    assert doubts(configured('[users.ann]\naccount = "free"'), BIG) == [], (
        "a site without accounts takes any name"
    )
