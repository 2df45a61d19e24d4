"""The options of fgsub mean the same on the command line, in headers and in the environment."""

import signal

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fgsched.cli import changes
from fgsched.cli.command import OptionsCommand
from fgsched.domain.errors import BadUsage, FgschedError
from fgsched.domain.job import EarlySignal, Request
from fgsched.domain.text import BadValue
from fgsched.domain.units import SubmitContext
from fgsched.lifecycle import constraint
from fgsched.lifecycle.constraint import alternatives
from fgsched.lifecycle.jobscript import directives
from fgsched.protocol import JobChanges
from fgsched.submission import options, table
from fgsched.submission.table import Amount, GpuMemory, HostMemory
from fgsched.views.options import OPTIONS, rows_of


def values(*words):
    settings, _ = options.read(words)
    return {setting.option.name: setting.value for setting in settings}


def refused(*words):
    with pytest.raises(BadUsage) as raised:
        options.read(words)
    return raised.value.cause


def header(*lines, name="train.sh"):
    text = "#!/bin/sh\n" + "\n".join(lines) + "\necho\n"
    settings, warnings = options.from_script(directives(text, name), name)
    return options.latest(settings, strict=True), warnings


def refused_header(*lines):
    with pytest.raises(BadUsage) as raised:
        header(*lines)
    return raised.value.cause


# --- words ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--gpus=0.5"], ["--gpus", "0.5"], ["-G0.5"], ["-G", "0.5"], ["-HG.5"]])
def test_an_option_may_be_spelled_long_or_short_joined_or_apart(words):
    assert values(*words)["gpus"] == Amount("gpu", 5000)


def test_words_from_the_script_on_belong_to_the_script():
    settings, words = options.read(["-H", "train.sh", "--gpus=1", "-x"])
    assert [setting.option.name for setting in settings] == ["hold"]
    assert words == ["train.sh", "--gpus=1", "-x"]


def test_two_dashes_end_the_options():
    assert options.read(["-H", "--", "-cmd", "a"])[1] == ["-cmd", "a"]


def test_one_dash_is_a_word():
    assert options.read(["-H", "-", "a"])[1] == ["-", "a"]


def test_a_negative_number_can_be_a_value():
    assert values("--time", "-1", "-c2") == {"time": 0, "cpus-per-task": 2}


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["--gpus=a100:2"], "gpus", Amount("gpu", 20_000, "a100")),
        (["--gpus-per-task=1"], "gpus-per-task", Amount("gpu", 10_000)),
        (["--fgpu=0.5"], "fgpu", Amount("fgpu", 5000)),
        (["--gres=gpu"], "gres", Amount("gpu", 10_000)),
        (["--gres=gpu:2"], "gres", Amount("gpu", 20_000)),
        (["--gres=gpu:a100"], "gres", Amount("gpu", 10_000, "a100")),
        (["--gres=gpu:a100:0.5"], "gres", Amount("gpu", 5000, "a100")),
        (["--gres=shard:3"], "gres", Amount("shard", 30_000)),
        (["--gpu-mem=8G"], "gpu-mem", GpuMemory(size=8 << 30)),
        (["--gpu-mem=50%"], "gpu-mem", GpuMemory(part=5000)),
        (["--gpu-mem=0"], "gpu-mem", GpuMemory(part=10_000)),
        (["--mem=0"], "mem", HostMemory("job", 0)),
        (["--mem-per-cpu=1G"], "mem-per-cpu", HostMemory("cpu", 1 << 30)),
        (["-t", "1-0"], "time", 86_400),
        (["--signal=USR1"], "signal", EarlySignal(signal=signal.SIGUSR1)),
        (["--signal=B:TERM@90"], "signal", EarlySignal(signal=15, before=90, target="shell")),
        (["--signal=C:10@0"], "signal", EarlySignal(signal=10, before=0, target="children")),
        (["--nodes=1"], "nodes", 1),
        (["-n1"], "ntasks", 1),
        (["--no-slurm-env"], "no-slurm-env", False),
    ],
)
def test_the_value_of_an_option(words, name, value):
    assert values(*words) == {name: value}


NAN = "is not a number (use 0 < fraction ≤ 1 or a whole number)"
TRES = "give cpu=N, gres/gpu=N or gres/gpu:TYPE=N, such as cpu=2,gres/gpu=1"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpus=0.55x"], f"--gpus=0.55x {NAN}"),
        (["-G", "0.55x"], f"--gpus=0.55x {NAN}"),
        (["--gpus="], f"--gpus='' {NAN}"),
        (["--gpus=0.0000001"], "--gpus=0.0000001: smallest share is 0.0001"),
        (["--gpu=1"], "unknown option --gpu; did you mean --gpus?"),
        (["--z"], "unknown option --z"),
        (["-Z"], "unknown option -Z"),
        (["--a\x1bb"], "unknown option '--a\\x1bb'"),
        (["--time"], "--time needs a value"),
        (["--time", "--hold"], "--time needs a value"),
        (["-t"], "--time needs a value"),
        (["--hold=yes"], "--hold takes no value"),
        (["--time=400-0"], "--time=400-0: limit is at most 366 days"),
        (["--mem=99999999T"], "--mem=99999999T is larger than 2^63 bytes"),
        (["--container-id=x"], "--container-id is not supported yet"),
        (["-F", "hosts"], "--nodefile is not supported yet"),
        (["--queue=a"], "unknown option --queue; use --partition=NAME"),
        (["--cpus=4"], "unknown option --cpus; use --cpus-per-task=N"),
        (["--share", "0.5"], "unknown option --share; use --gpus=0.5"),
        (["--vram=8G"], "unknown option --vram; use --gpu-mem=SIZE"),
        (["--no=1"], "unknown option --no: it is the beginning of --no-requeue, --no-slurm-env, --nodes"),
        (["--=1"], "unknown option --"),
        (["--reservation="], "--reservation='' is not the name of a reservation"),
        (
            ["--nodes=2"],
            "--nodes=2: fgsched schedules one host; remove it, or ask for more tasks and CPUs of this host",
        ),
        (["--nodes=a"], "--nodes=a is not a number of nodes"),
        (["-c", "2147483648"], "--cpus-per-task=2147483648 is larger than 999999999"),
        (["-n", "0"], "--ntasks=0 is not a whole number of at least 1"),
        (["--cpus-per-task=0"], "--cpus-per-task=0 is not a whole number of at least 1"),
        (["--open-mode=w"], "--open-mode=w is not append or truncate"),
        (["--gpu-mem=150%"], "--gpu-mem=150% is not a share of one GPU (use 0 < fraction ≤ 1)"),
        (
            ["--gpu-mem=x"],
            "--gpu-mem=x is not a size"
            " (use a number and K, M, G or T, or % of the GPU; without a unit it is MiB)",
        ),
        (
            ["--gres=fpga:x"],
            "--gres=fpga:x: invalid generic resource specification (gpu:AMOUNT, or NAME:N)",
        ),
        (["--gres=gpu:1,shard:1"], "--gres=gpu:1,shard:1 asks for GPUs twice"),
        (["--gres=shard:0.5"], "--gres=shard:0.5 is not a whole number of shards"),
        (["--gres=gpu:a100:x"], f"--gres=gpu:a100:x {NAN}"),
        (
            ["--constraint=a|"],
            "--constraint=a|: a feature is missing",
        ),
        (["--partition=a/b"], "--partition=a/b: invalid partition name"),
        (["--signal=X:TERM"], "--signal=X:TERM: 'X:' is not B: (the shell only) or C: (its children only)"),
        (["--signal=TERM@70000"], "--signal=TERM@70000: seconds before the limit are 0 to 65535"),
        (
            ["--output=a%q"],
            "--output=a%q: unknown %q; allowed %j %A %a %u %x %h %% and %b %g %J %N %n %r %s %t",
        ),
        (["--output=a\nb"], "--output='a\\x0ab': control characters are not allowed in a file name"),
        (["--output=" + "x" * 5000], "--output=" + "x" * 80 + "… is longer than 4095 bytes"),
        (["--job-name=" + "x" * 10_000], "--job-name=" + "x" * 80 + "… is 10000 characters; limit 255"),
        (["--job-name="], "--job-name='' is not a name"),
        (["--wrap= "], "--wrap=' ' is not a command"),
    ],
)
def test_a_bad_word_is_refused_by_name(words, message):
    assert refused(*words) == message


@pytest.mark.parametrize(
    ("word", "name"),
    [("--part=a", "partition"), ("--cpus-per-t=2", "cpus-per-task"), ("--depend=afterok:7", "dependency")],
)
def test_a_unique_beginning_of_an_option_is_that_option(word, name):
    (setting,), _ = options.read([word])
    assert setting.option.name == name


def test_blanks_around_a_value_are_not_part_of_it_but_where_they_can_be():
    settings, _ = options.read(["--time= 2:00:00 ", "-c 4", "--comment= a b "])
    assert [setting.text for setting in settings] == ["2:00:00", "4", " a b "]


def test_options_of_slurm_without_effect_here_are_named_once_on_the_command_line():
    settings, words = options.read(["--nodelist=a", "-k", "--hint", "nomultithread", "-w", "b", "x.sh"])
    assert (options.latest(settings)["ignored"].text, words) == ("--nodelist --no-kill --hint", ["x.sh"])


def test_of_one_option_given_twice_on_the_command_line_the_last_counts():
    settings, _ = options.read(["--gpus=1", "--gpus=0.5"])
    assert options.latest(settings)["gpus"].text == "0.5"


def test_two_options_that_say_the_same_thing_differently_exclude_each_other():
    settings, _ = options.read(["--mem=1G", "--mem-per-cpu=1G"])
    with pytest.raises(BadUsage) as raised:
        options.latest(settings)
    assert raised.value.cause == "--mem-per-cpu and --mem exclude each other; give one"


def test_two_spellings_of_the_same_amount_may_stand_together():
    settings, _ = options.read(["--gres=gpu:1", "--gpus=1"])
    assert options.latest(settings)["gpus"].value == Amount("gpu", 10_000)


# --- headers ----------------------------------------------------------------------------------------------


def test_a_header_means_what_the_command_line_means():
    settings, warnings = header("#FG --gpus=0.5 -t 10", "#FG --wait --parsable")
    assert {name: each.value for name, each in settings.items()} == values(
        "--gpus=0.5", "-t", "10", "--wait", "--parsable"
    )
    assert warnings == []


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["#FG", "#FG --gpus=0.55x"], f"train.sh:3: --gpus=0.55x {NAN}"),
        (["#FG --gpu=1"], "train.sh:2: unknown option --gpu; did you mean --gpus?"),
        (["#FG --time"], "train.sh:2: --time needs a value"),
        (["#FG --gpus=0.5", "", "#FG -G 1"], "train.sh:4: --gpus given twice (line 2: 0.5, line 4: 1)"),
        (["#FG --gpus=1 train.py"], "train.sh:2: train.py is not an option (invalid directive)"),
        (["#FG -H --"], "train.sh:2: -- is not an option (invalid directive)"),
        (["#FG --help"], "train.sh:2: --help has no meaning in a script"),
        (["#FG -V"], "train.sh:2: -V has no meaning in a script"),
        (["#FG --wrap=x"], "train.sh:2: --wrap has no meaning in a script"),
        (["#FG --batch=x"], "train.sh:2: --batch has no meaning in a script"),
        (["#FG --container-id=x"], "train.sh:2: --container-id is not supported yet"),
        (
            ["#FG --mail-type=END", "#FG --mail-type=ENDS"],
            "train.sh:3: --mail-type=ENDS: 'ENDS' is not one of NONE, ALL, BEGIN, END, FAIL, REQUEUE,"
            " INVALID_DEPEND, TIME_LIMIT, TIME_LIMIT_90, TIME_LIMIT_80, TIME_LIMIT_50, ARRAY_TASKS",
        ),
        (
            ["#FG --mail-user=ann@example.org\tBcc:x"],
            "train.sh:2: Bcc:x is not an option (invalid directive)",
        ),
        (["#SBATCH --container-id=x"], "train.sh:2: --container-id is not supported yet"),
        (["#SBATCH -F hosts"], "train.sh:2: --nodefile is not supported yet"),
        (["#SBATCH --gpus=x"], f"train.sh:2: --gpus=x {NAN}"),
    ],
)
def test_a_bad_header_is_refused_with_file_and_line(lines, message):
    assert refused_header(*lines) == message


@pytest.mark.parametrize("word", ["hetjob", "packjob", ":"])
def test_a_job_of_several_components_is_refused_with_what_to_do_instead(word):
    with pytest.raises(BadUsage) as raised:
        header("#SBATCH -n1", f"#SBATCH {word}", "#SBATCH -n2")
    assert raised.value.cause == f"train.sh:3: {word}: heterogeneous jobs are not supported yet"
    assert raised.value.remedy.startswith("Request the sum of the components in one job, or submit a job")
    with pytest.raises(BadUsage, match="':' between the options of several components: heterogeneous jobs"):
        options.read(["-n1", ":", "-n2", "train.sh"])
    assert options.read(["-n1", "train.sh", ":"])[1] == ["train.sh", ":"]


def test_the_same_value_twice_is_no_contradiction():
    assert header("#FG --gpus=0.5", "#FG -G 50%")[0]["gpus"].value == Amount("gpu", 5000)


def test_nice_may_stand_alone_and_never_takes_the_next_word():
    settings, rest = options.read(["--nice", "5"])
    assert ([setting.value for setting in settings], rest) == ([100], ["5"])


def test_gres_without_a_gpu_says_nothing_of_gpus():
    settings, _ = options.read(["--gres=neuron:2,matlab", "--gpus=0.5"])
    chosen = options.latest(settings)
    assert chosen["gres"].value == Amount("none", 0, resources=(("matlab", 1), ("neuron", 2)))
    assert chosen["gpus"].value == Amount("gpu", 5000)


def test_harmless_options_of_slurm_are_listed_in_one_warning():
    settings, warnings = header(
        "#SBATCH --network=ib --delay-boot 4",
        "#SBATCH -N 1 -n 1 --reboot -G 1",
    )
    assert list(settings) == ["nodes", "ntasks", "gpus"]
    assert warnings == ["train.sh: ignored, without effect here: --network, --delay-boot, --reboot"]


def test_mail_types_of_several_headers_add_up():
    settings, _ = header(
        "#SBATCH --mail-type=END --mail-user ann@example.org", "#SBATCH --mail-type BEGIN,STAGE_OUT"
    )
    assert (settings["mail-type"].value, settings["mail-user"].value) == ("BEGIN,END", "ann@example.org")


@pytest.mark.parametrize(
    ("line", "warning"),
    [
        ("#FG --output=$HOME/x", ["train.sh: line 2: $HOME is not expanded in headers; use %h"]),
        ("#FG --output=~/x", ["train.sh: line 2: ~ is not expanded in headers; use %h"]),
        ("#FG -e ${USER}.err", ["train.sh: line 2: ${USER} is not expanded in headers; use %u"]),
        ("#FG --chdir=$HOME", ["train.sh: line 2: $HOME is not expanded in headers"]),
        ("#FG --comment='$5 and $HOME'", []),
        ("#FG --output=a~b", []),
    ],
)
def test_what_a_header_does_not_expand_is_pointed_out(line, warning):
    assert header(line)[1] == warning


# --- the environment --------------------------------------------------------------------------------------


def from_environment(**variables):
    settings, warnings = options.from_environment(variables)
    return {each.option.name: each.value for each in settings}, warnings


def test_each_option_has_a_variable():
    given_values, warnings = from_environment(
        FGSUB_GPUS="0.5", FGSUB_TIMELIMIT="5", FGSUB_EXPORT="NONE", PATH="x"
    )
    assert given_values == {"gpus": Amount("gpu", 5000), "time": 300, "export": "NONE"}
    assert warnings == []


@pytest.mark.parametrize(
    ("text", "is_set"),
    [
        *[("", True), ("yes", True), ("1", True), ("7", True), ("-1", True)],
        *[("0", False), ("no", False), ("true", False), ("00", False)],
    ],
)
def test_a_flag_in_the_environment_is_set_as_in_slurm(text, is_set):
    assert from_environment(FGSUB_HOLD=text)[0] == ({"hold": True} if is_set else {})


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FGSUB_GPUS", f"FGSUB_GPUS=x {NAN}"),
        ("FGSUB_CONTAINER_ID", "FGSUB_CONTAINER_ID: --container-id is not supported yet"),
    ],
)
def test_a_bad_variable_is_refused_by_name(variable, message):
    with pytest.raises(BadUsage) as raised:
        options.from_environment({variable: "x"})
    assert raised.value.cause == message


def test_the_input_variables_of_sbatch_are_read():
    variables = {"SBATCH_ARRAY_INX": "0-3", "SBATCH_MEM_PER_NODE": "1G", "SBATCH_TIMELIMIT": "5"}
    variables |= {"SBATCH_EXCLUSIVE": "", "SBATCH_ACCOUNT": "", "SBATCH_REQUEUE": "1", "SBATCH_WAIT": "0"}
    variables |= {
        "SBATCH_HINT": "x",
        "SBATCH_GET_USER_ENV": "",
        "SBATCH_CPU_BIND": "none",
        "SLURM_MEM_PER_CPU": "x",
    }
    settings, warnings = options.from_slurm_environment(variables)
    assert {each.option.name: each.text for each in settings} == {
        **{"array": "0-3", "mem": "1G", "time": "5", "exclusive": "yes", "requeue": ""},
    }
    assert warnings == ["ignored, without effect here: SBATCH_GET_USER_ENV, SBATCH_HINT"]


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("SBATCH_GPUS", f"SBATCH_GPUS=x {NAN}"),
        ("SBATCH_TRES_PER_TASK", f"SBATCH_TRES_PER_TASK=x: {TRES}"),
    ],
)
def test_a_bad_variable_of_sbatch_is_refused_by_name(variable, message):
    with pytest.raises(BadUsage) as raised:
        options.from_slurm_environment({variable: "x"})
    assert raised.value.cause == message


def test_every_variable_of_sbatch_is_an_option_that_is_known_or_ignored():
    names = set(table.BY_SLURM_VARIABLE.values())
    assert names <= table.BY_NAME.keys() | table.UNBUILT


def test_a_variable_that_is_no_option_is_pointed_out():
    assert from_environment(FGSUB_GPU="1")[1] == ["FGSUB_GPU is not an option of fgsub"]


# --- click ------------------------------------------------------------------------------------------------


@click.command(cls=OptionsCommand)
@click.version_option("0.1")
def command(settings, words):
    """Queue a job."""
    click.echo([(setting.option.name, setting.text) for setting in settings])
    click.echo(words)


def test_a_command_gets_settings_and_words():
    result = CliRunner().invoke(command, ["-G", "0.5", "train.sh", "--help"])
    assert result.output == "[('gpus', '0.5')]\n['train.sh', '--help']\n"


@pytest.mark.parametrize("words", [["--help"], ["-G", "1", "--help"], ["--usage"], ["-h"]])
def test_help_names_every_option_that_is_no_second_name(words):
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 0
    for option in table.OPTIONS:
        assert (f"--{option.name} " in result.output) is not option.hidden


def test_the_version_is_answered():
    assert "0.1" in CliRunner().invoke(command, ["-H", "-V"]).output


# --- the table --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", sorted({name for row in OPTIONS for name in (*row.helps, *row.slurm.split())})
)
def test_no_name_of_a_command_means_two_things(command):
    together = {"fgsub": ("fgsub", "sbatch"), "fgrun": ("fgrun", "fgsub", "sbatch")}
    rows = rows_of(*together.get(command, (command,)))
    words = [word for row in rows for word in row.spelled.split()]
    assert sorted(words) == sorted(set(words))


@given(
    st.lists(
        st.one_of(
            st.text(), st.sampled_from(sorted(table.BY_NAME)).map("--{}".format), st.text().map("-{}".format)
        )
    )
)
def test_any_words_are_read_or_refused(words):
    try:
        settings, rest = options.read(words)
    except FgschedError as error:
        assert error.cause.isprintable()  # noqa: PT017
    else:
        assert len(rest) + len(settings) <= 2 * sum(map(len, words)) + len(words)


@given(option=st.sampled_from(table.OPTIONS), text=st.text())
def test_any_value_is_read_or_refused(option, text):
    word = f"--{option.name}" if option.is_flag else f"--{option.name}={text}"
    try:
        settings, rest = options.read([word])
    except FgschedError as error:
        assert error.cause.isprintable()  # noqa: PT017
    else:
        assert ([setting.option.name for setting in settings], rest) == ([option.name], [])


def test_a_constraint_with_very_many_brackets_is_refused():
    with pytest.raises(BadValue, match="more than 64 brackets"):
        alternatives("(" * 5000 + "a" + ")" * 5000)


def test_a_constraint_of_more_terms_than_a_person_writes_is_refused_before_they_are_read(monkeypatch):
    read, real = [], constraint._tokens
    monkeypatch.setattr(constraint, "_tokens", lambda text: read.append(text) or real(text))
    assert alternatives("&".join(["a"] * 256)) == (("a",) * 256,)
    for sign in "&|,":
        with pytest.raises(BadValue, match="more than 256 features"):
            alternatives(sign.join(["a"] * 257))
    assert len(read) == 1


# --- fields of the request --------------------------------------------------------------------------------

COMPUTED = {  # of several options, of the line, or of the process that submits
    "demand", "tasks", "task_cpus", "time_limit", "early_signal", "append", "throttle", "args", "submit_line",
    "submit_dir", "umask", "rlimits", "warnings",
}  # fmt: skip


def test_each_field_of_a_request_is_set_by_an_option_or_computed():
    assert {option.field for option in table.OPTIONS} - {""} == set(Request.__struct_fields__) - COMPUTED


@pytest.mark.parametrize("name", ["account", "qos", "wckey", "reservation", "tier", "comment", "mail-user"])
def test_an_option_with_the_name_of_a_field_sets_it(name):
    settings, _ = options.read([f"--{name}", "shim"])
    assert options.fields(options.latest(settings)) == {name.replace("-", "_"): "shim"}


def test_each_change_of_a_job_has_a_key_of_fgctl_update_in_the_row_of_its_option():
    fields = {changes.field_of(key) for key in changes.KEYS}
    assert fields == set(JobChanges.__struct_fields__)


@pytest.mark.parametrize(
    ("typed", "key"), [("GPU_Mem", "gpu-mem"), ("StdOut", "output"), ("JobName", "name")]
)
def test_a_key_of_fgctl_update_has_the_spellings_of_its_row(typed, key):
    assert changes.words_by_key([f"{typed}=8G"]) == {key: "8G"}


@pytest.mark.parametrize("word", ["gpu-mem=8Q", "timelimit=x", "error=%q", "nice=a", "deadline=never"])
def test_a_value_of_fgctl_update_is_refused_with_its_key(word):
    with pytest.raises(BadValue) as raised:
        changes.read_changes(changes.words_by_key([word]), SubmitContext())
    assert raised.value.cause.startswith(word)
