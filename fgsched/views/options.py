"""The options of all commands, of fgsched and under the names of Slurm, and the reader of their lines.

`OPTIONS` is the only declaration. A row has the line of the help of each command that has the option, and the
names of Slurm that read it themselves. Parsers, help, completions, input variables and the headers of scripts
follow from it. click prints help and reports the lines that are refused (`cli/command.py`); the values of a
submission are parsed by `submission/table.py`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache
from typing import Any, Generic, TypeVar

from msgspec import Struct

from fgsched.domain.units import parse_count
from fgsched.views.getopt import Known, UnreadableWord, taken

# Kinds. An integer and a number are parsed by click, which no program calls for them.
LIST, TEXT, FLAG, COUNT, OPTIONAL = "list", "text", "flag", "count", "optional"
INTEGER, NUMBER = "integer", "number"
COLOURS = ("auto", "always", "never")
_IGNORED = "Accepted and ignored."
_ENDING = {FLAG: "", OPTIONAL: "?"}  # kind -> how a value is given, as in `Known.long`


class Unread(Exception):
    """Raised for a line that click reports."""


class Option(Struct, frozen=True):
    """An option: its spellings, its kind, and the field of the record that takes its value ("": none)."""

    spelled: str  # "-u --user"
    kind: str
    field: str = ""
    helps: Mapping[str, str] = {}  # of each command that has the option, its line in the help
    metavar: str = ""
    hidden: bool = False  # documented in the manual, not in --help
    values: tuple[str, ...] = ()  # the permitted ones; empty: all
    limits: tuple[float | None, float | None] = (None, None)  # least and largest number
    default: str | float | None = None
    is_required: bool = False
    slurm: str = ""  # names of Slurm that read it themselves, and list it without a line of help
    bare: str = ""  # its value if it is given without one
    slot: str = ""  # of a submission: options with one slot set the same value; "": that of its name
    sets: str = ""  # of a submission: field of the request that takes the value; "": that of the slot's name
    update: str = ""  # of a submission: keys of fgctl update that change it; messages have the first
    inputs: str = ""  # variables that give it, or their beginnings: SBATCH is SBATCH_<NAME>
    step: str = ""  # variables that give it to srun, also within a job
    part: str = ""  # what it concerns in a line of srun outside a job: "job", "step" or "job step"
    in_scripts: bool = True
    of_call: bool = False  # concerns the whole call, not one job: not in a line of a batch
    is_harmless: bool = False  # an option of sbatch without which a script works

    @property
    def empty(self) -> Any:
        """The value of an option that is not given."""
        if self.default is not None:
            return self.parse(str(self.default))
        return {LIST: (), FLAG: False}.get(self.kind)

    @property
    def longs(self) -> list[str]:
        """Its long names, without dashes."""
        return [word[2:] for word in self.spelled.split() if word[:2] == "--"]

    @property
    def shorts(self) -> list[str]:
        """Its letters, without dashes."""
        return [word[1:] for word in self.spelled.split() if word[:2] != "--"]

    @property
    def name(self) -> str:
        """Its first long name."""
        return self.longs[0]

    @property
    def ending(self) -> str:
        """How its value is given, as in `Known.long`."""
        return _ENDING.get(self.kind, "=")

    def parse(self, text: str) -> Any:
        """Return the value of an option. Raises Unread for an invalid one."""
        if self.values and text not in self.values:
            raise Unread
        if self.kind != COUNT:
            return text
        try:
            return parse_count(text)
        except Exception:
            raise Unread from None

    def variables(self, prefix: str) -> list[str]:
        """Return the variables that give the option and begin with `prefix`, such as SBATCH."""
        return _variables(self, self.inputs, prefix)

    def step_variables(self) -> list[str]:
        """Return the variables that give the option to srun, also within a job."""
        return _variables(self, self.step, "")


def _variables(option: Option, words: str, prefix: str) -> list[str]:
    name = option.name.upper().replace("-", "_")
    named = [word if "_" in word else f"{word}_{name}" for word in words.split()]
    return [word for word in named if word.startswith(prefix)]


def _job(
    spelled: str,
    metavar: str,
    text: str,
    *,
    fgrun: str | None = "",
    is_shown: bool = False,
    **attributes: Any,
) -> Option:
    """Return an option of submissions. Without a metavar it is a flag.

    Args:
        text: its line in the help of fgsub.
        fgrun: its line in the help of fgrun; "": that of fgsub; None: fgrun does not have it.
        is_shown: it is in --help, which is one screen; the manual has all.
    """
    kind = OPTIONAL if "bare" in attributes else TEXT if metavar else FLAG
    helps = {"fgsub": text} if fgrun is None else {"fgsub": text, "fgrun": fgrun or text}
    attributes = {"inputs": "FGSUB", **attributes}
    return Option(spelled, kind, helps=helps, metavar=metavar, hidden=not is_shown, **attributes)


def _slurm(spelled: str, names: str, **attributes: Any) -> Option:
    """Return an option of Slurm's names only: "--wait=" takes a value, "--nice?" can have one."""
    kind = {"=": TEXT, "?": OPTIONAL}.get(spelled[-1], FLAG)
    return Option(spelled.rstrip("=?"), kind, slurm=names, **attributes)


def _harmless(spelled: str, names: str = "", **attributes: Any) -> Option:
    """Return an option of sbatch without which a script works; `names`: that have it, too."""
    return _slurm(spelled, f"sbatch {names}", is_harmless=True, **attributes)


def _each(make: Callable[..., Option], spelled: str, *names: str) -> list[Option]:
    """Return options that have nothing but their names."""
    return [make(word, *names) for word in spelled.split()]


def _ignored(commands: str, flags: str, values: str = "", **attributes: Any) -> list[Option]:
    """Return options without a meaning on one host: "--local,-P --priority"."""
    helps = dict.fromkeys(commands.split(), _IGNORED)
    rows = [(spelled, FLAG) for spelled in flags.split(",") if spelled]
    rows += [(spelled, TEXT) for spelled in values.split(",") if spelled]
    return [Option(spelled, kind, helps=helps, hidden=True, **attributes) for spelled, kind in rows]


class QueueOptions(Struct, frozen=True):
    """The options of fgq."""

    user: tuple[str, ...]
    nodelist: str | None
    me: bool
    jobs: tuple[str, ...]
    states: tuple[str, ...]
    partition: tuple[str, ...]
    account: tuple[str, ...]
    qos: tuple[str, ...]
    name: tuple[str, ...]
    recent: bool
    long: bool
    form: str | None  # columns by letter
    names: str | None  # columns by name
    sort: str | None
    noheader: bool
    iterate: int | None  # seconds
    as_slurm: bool
    colour: str
    as_json: bool
    slurm_json: str | None  # json or yaml, also with a data parser of Slurm: json:v0.0.41
    expand: bool
    start: bool
    why: bool


class CancelOptions(Struct, frozen=True):
    """The options of fgcancel."""

    signal: str | None
    batch: bool
    full: bool
    children: bool
    states: tuple[str, ...]
    name: tuple[str, ...]
    user: tuple[str, ...]
    me: bool
    partition: tuple[str, ...]
    account: tuple[str, ...]
    qos: tuple[str, ...]
    interactive: bool
    dry_run: bool
    verbose: bool
    strict: bool
    reason: str


class PriorityOptions(Struct, frozen=True):
    """The options of fgprio."""

    jobs: tuple[str, ...]
    user: tuple[str, ...]
    partition: tuple[str, ...]
    long: bool
    norm: bool
    weights: bool
    noheader: bool
    as_json: bool


class ShareOptions(Struct, frozen=True):
    """The options of fgshare."""

    all_users: bool
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    accounts_only: bool
    parsable: bool
    parsable2: bool
    noheader: bool
    as_json: bool


class UseOptions(Struct, frozen=True):
    """The options of fgstat."""

    own: bool  # the job in which the command runs
    allusers: bool
    noheader: bool
    as_json: bool


class EfficiencyOptions(Struct, frozen=True):
    """The options of fgeff."""

    name: tuple[str, ...]
    user: tuple[str, ...]
    starttime: str | None
    last: int  # runs of a name
    as_ascii: bool
    as_json: bool


class ScreenOptions(Struct, frozen=True):
    """The options of fgtop."""

    interval: int  # seconds
    read_only: bool
    filter: str
    me: bool
    once: bool
    as_ascii: bool
    as_json: bool


class AccountOptions(Struct, frozen=True):
    """The options of fgacct."""

    jobs: tuple[str, ...]
    users: tuple[str, ...]
    allusers: bool
    states: tuple[str, ...]
    starttime: str | None
    endtime: str | None
    form: str | None
    brief: bool
    long: bool
    helpformat: bool
    parsable2: bool
    parsable: bool
    delimiter: str
    noheader: bool
    units: str | None
    noconvert: bool
    colour: str
    as_json: bool
    names: tuple[str, ...]
    partitions: tuple[str, ...]
    accounts: tuple[str, ...]
    qualities: tuple[str, ...]
    allocations: bool
    all_steps: bool
    batch_script: bool
    slurm_json: str | None  # json or yaml, also with a data parser of Slurm: json:v0.0.41


class HostOptions(Struct, frozen=True):
    """The options of fginfo."""

    gpus: bool
    long: bool
    reasons: bool
    reservations: bool
    types: bool
    summarize: bool
    node: bool
    noheader: bool
    as_json: bool


_ALL = "FGSUB SBATCH SALLOC SLURM"  # variables of fgsub, sbatch, salloc, and of srun outside a job
_JOBS = "srun salloc"
_OBJECT = "Print a JSON object."
_EVERYTHING = "Print everything as a JSON object."
_SYSTEM = "The host's controller; needs root."
_WITH_SYSTEM = (
    "fgsched start",
    "fgsched run",
    "fgsched stop",
    "fgsched restart",
    "fgsched upgrade",
    "fgsched logs",
    "fgsched doctor",
)
_OF_CONTROLLER = "GPUs: auto, none, a number, 0,2-3, sim:2x16G."
_NOTHING_DONE = "Print what would be done, and do nothing."

# Of submissions: fgsub, fgrun, sbatch, salloc, and srun outside a job
_OF_JOBS = (
    Option("--pty", FLAG, helps={"fgrun": "Give the job a terminal; default: a shell."},
           slurm="srun sattach"),
    Option("--jupyter", FLAG, helps={"fgrun": "Start Jupyter and print its address."}),
    Option("--no-hangup", FLAG, helps={"fgrun": "The job survives the loss of this terminal."}),
    Option("--jobid", TEXT, helps={"fgrun": "Run the command inside this running job of yours."},
           metavar="ID", slurm="srun", inputs="SLURM_JOB_ID"),
    _job("-G --gpus", "[TYPE:]AMOUNT", "GPUs, or a fraction: 2, 0.5, 50%, 1/2, a100:1.", is_shown=True,
         slurm=_JOBS, inputs=_ALL, part="job", update="gpus"),
    _job("--gpu-mem", "SIZE", "Memory of each GPU: 8G or 50%; 0: all.", is_shown=True, slurm=_JOBS,
         part="job", update="gpu-mem gpumemory"),
    _job("--fgpu", "N", "Same as --gpus, in units of the site's fGPU.", slot="gpus"),
    _job("--gres", "LIST", "gpu:[TYPE:]AMOUNT, shard:N, or a site resource NAME:N.", slot="gpus", slurm=_JOBS,
         inputs=_ALL, step="SLURM_STEP_GRES", part="job"),
    _job("--gpus-per-node", "[TYPE:]AMOUNT", "Same as --gpus.", slot="gpus", slurm=_JOBS, inputs=_ALL,
         part="job"),
    _job("--gpus-per-task", "[TYPE:]AMOUNT", "Same as --gpus.", slot="gpus", slurm=_JOBS, inputs=_ALL,
         step="SLURM", part="job"),
    _job("--tres-per-task", "LIST", "cpu=N and gres/gpu=N of each task.", slurm=_JOBS, inputs=_ALL,
         part="job step"),
    _job("--gpu-bind", "BINDING", "GPUs that each task of a step sees.", slurm=_JOBS, inputs=_ALL,
         step="SLURM", part="job step"),
    _job("--gpu-type", "TYPE", "GPU model whose name contains TYPE.", slurm=_JOBS, part="job",
         update="gpu-type"),
    _job("--type", "TYPE", "Same as --gpu-type.", slot="gpu-type"),
    _job("-C --constraint", "LIST", "Features of the GPUs or the host: a100, a100&nvlink|h100.", slurm=_JOBS,
         inputs=_ALL, part="job"),
    _job("--exclusive", "[user]", "All CPUs and GPUs of the host.", bare="yes", slurm=_JOBS, inputs=_ALL,
         step="SLURM", part="job"),
    _job("-c --cpus-per-task", "N", "Number of CPUs of each task; default: 1.", is_shown=True, slurm=_JOBS,
         inputs="FGSUB SRUN", part="job step", update="cpus numcpus cpuspertask"),
    _job("--mem", "SIZE", "Host memory: 8G; 0: all.", is_shown=True, slurm=_JOBS,
         inputs="FGSUB SBATCH_MEM_PER_NODE SALLOC_MEM_PER_NODE SLURM_MEM_PER_NODE", part="job",
         update="mem minmemorynode"),
    _job("--mem-per-cpu", "SIZE", "Host memory for each CPU.", slot="mem", slurm=_JOBS, inputs=_ALL,
         part="job"),
    _job("--mem-per-gpu", "SIZE", "Host memory for each GPU.", slot="mem", slurm=_JOBS, inputs=_ALL,
         part="job"),
    _job("-t --time", "LIMIT", "Time limit: minutes, H:M:S, D-H, 90s, 2h.", is_shown=True, slurm=_JOBS,
         inputs="FGSUB_TIMELIMIT SBATCH_TIMELIMIT SALLOC_TIMELIMIT SLURM_TIMELIMIT", part="job",
         update="timelimit time"),
    _job("-J --job-name", "NAME", "Job name; default: the script's name.",
         fgrun="Job name; default: the command's name.", sets="name", is_shown=True, slurm=_JOBS,
         inputs=_ALL, part="job step", update="name jobname"),
    _job("-o --output", "FILE", "Output: fg-%j.out; called as sbatch: slurm-%j.out.",
         fgrun="Standard output; default: that of fgrun.", is_shown=True, slurm="srun", inputs="FGSUB SBATCH",
         step="SLURM_STDOUTMODE SRUN", part="step", update="output stdout"),
    _job("-e --error", "FILE", "Standard error; default: as the output.",
         fgrun="Standard error; default: that of fgrun.", is_shown=True, slurm="srun", inputs="FGSUB SBATCH",
         step="SLURM_STDERRMODE SRUN", part="step", update="error stderr"),
    _job("-i --input", "FILE", "Standard input; default: /dev/null.",
         fgrun="Standard input; default: that of fgrun.", slurm="srun", inputs="FGSUB SBATCH",
         step="SLURM_STDINMODE SRUN", part="step"),
    _job("--open-mode", "MODE", "append to the output files, or truncate them.", slurm="srun",
         inputs="FGSUB SBATCH", step="SLURM", part="step"),
    _job("--mkdir", "", "Create the directories of the output files."),
    _job("-D --chdir", "DIR", "Working directory.", is_shown=True, slurm=_JOBS,
         step="SLURM_REMOTE_CWD SLURM_WORKING_DIR", part="job"),
    _job("--export", "LIST", "Environment: ALL, NONE or A,B=x.", is_shown=True, slurm="srun",
         inputs="FGSUB SBATCH", step="SLURM_EXPORT_ENV SRUN_EXPORT_ENV", part="job"),
    _job("--container", "IMAGE", "Run in a container: a directory, a .sif file, or a registry's image.",
         slurm="srun", inputs="FGSUB SBATCH", part="step"),
    _job("--container-image", "IMAGE", "Same as --container.", slot="container", slurm="srun", part="step"),
    _job("--container-mounts", "LIST", "Mounts in the container: /SRC[:/DST[:ro]],…", slurm="srun",
         part="step"),
    _job("--container-workdir", "DIR", "Working directory in the container.", slurm="srun", part="step"),
    _job("-p --partition", "LIST", "Partitions; the first that can start the job.", slurm=_JOBS, inputs=_ALL,
         part="job", update="partition"),
    _job("-A --account", "NAME", "Account to charge.", slurm=_JOBS, inputs=_ALL, part="job",
         update="account"),
    _job("-q --qos", "NAME", "Quality of service.", slurm=_JOBS, inputs=_ALL, part="job", update="qos"),
    _job("--wckey", "NAME", "Tag in the accounts, for fgreport users --by tag.", slurm=_JOBS, inputs=_ALL,
         part="job"),
    _job("-L --licenses", "LIST", "Resources of the site: NAME[:N],…", slurm=_JOBS, part="job"),
    _job("--reservation", "NAME", "Run in this reservation.", slurm=_JOBS, inputs=_ALL, part="job",
         update="reservation"),
    _job("--nice", "[N]", "Lower the priority by N; default: 100.", bare="100", slurm=_JOBS, part="job",
         update="nice"),
    _job("--signal", "[B:|C:]SIG[@SEC]", "Send SIG SEC seconds before the time limit.", slurm=_JOBS,
         inputs=_ALL, part="job"),
    _job("-a --array", "LIST[%N]", "Job array: 0-15, 1,5-9, 0-90:10; N at a time.", fgrun=None, is_shown=True,
         inputs="FGSUB SBATCH_ARRAY_INX", update="arraytaskthrottle throttle"),
    _job("-d --dependency", "LIST", "Start after jobs: afterok:7, afterany:7:8.", is_shown=True, slurm=_JOBS,
         inputs="FGSUB SALLOC SLURM", part="job", update="dependency"),
    _job("--kill-on-invalid-dep", "yes|no", "Cancel if dependencies can never be met.", sets="kill_invalid"),
    _job("-b --begin", "TIME", "Earliest start: 18:00, tomorrow, now+2hours.", slurm=_JOBS, part="job",
         update="begin starttime begintime eligibletime"),
    _job("--deadline", "TIME", "Latest end of the job.", slurm=_JOBS, part="job", update="deadline"),
    _job("--requeue", "", "Requeue after a failure of the host (default).", fgrun=None,
         inputs="FGSUB SBATCH", update="requeue"),
    _job("--no-requeue", "", "Never requeue.", slot="requeue", fgrun=None, inputs="FGSUB SBATCH"),
    _job("-H --hold", "", "Submit the job held.", is_shown=True, slurm=_JOBS, part="job"),
    _job("--tier", "LEVEL", "Enforcement: driver, shim, watchdog or none.", slurm=_JOBS, part="job"),
    _job("--gpu-compute", "POLICY", "Sharing of compute time: hard, fair or none.", slurm=_JOBS, part="job",
         update="gpu-compute"),
    _job("--comment", "TEXT", "Comment.", slurm=_JOBS, part="job", update="comment"),
    _job("--mail-type", "LIST", "Events to send mails about: END, FAIL, ALL, NONE.", slurm=_JOBS, part="job",
         update="mailtype"),
    _job("--mail-user", "ADDRESS", "Address of these mails; default: your own.", slurm=_JOBS, part="job",
         update="mailuser"),
    _job("--wrap", "COMMAND", "Run COMMAND instead of a script.", fgrun=None, is_shown=True, inputs="",
         in_scripts=False),
    _job("--batch", "FILE", "Submit each line of FILE; -: standard input.", fgrun=None, is_shown=True,
         inputs="", in_scripts=False, of_call=True),
    _job("-W --wait", "", "Wait for the end; exit with the job's code.", fgrun=None, is_shown=True,
         inputs="FGSUB SBATCH", of_call=True),
    _job("--parsable", "", "Print only the job id.", fgrun=None, is_shown=True, of_call=True),
    _job("-Q --quiet", "", "Print nothing.", slurm="srun salloc sacctmgr sreport sattach scontrol",
         part="job step", of_call=True),
    _job("--json", "", _OBJECT, fgrun=None, of_call=True),
    _job("--slurm-env", "", "Also set SLURM_ variables."),
    _job("--no-slurm-env", "", "Set no SLURM_ variables.", slot="slurm-env"),
    _job("--ignore-sbatch", "", "Do not read #SBATCH lines.", fgrun=None, in_scripts=False),
    _job("--ignore-pbs", "", "Do not read #PBS and #BSUB lines.", fgrun=None, inputs="FGSUB SBATCH"),
    _job("--test-only", "", "Print when and where it would start; do not submit.", fgrun=None, inputs="",
         in_scripts=False, of_call=True),
    _job("--explain-options", "", "Print each value and its source; do not submit.", fgrun=None, inputs="",
         in_scripts=False, of_call=True),
    _job("-n --ntasks", "N", "Number of tasks that srun starts; each has its CPUs.", slurm=_JOBS,
         inputs="FGSUB SALLOC SLURM", part="job step"),
    _job("--ntasks-per-node", "N", "Same as --ntasks on the one host.", slurm=_JOBS, part="job step"),
    _job("--tasks-per-node", "N", "Same as --ntasks-per-node.", slot="ntasks-per-node", slurm=_JOBS,
         inputs="", part="job step"),
    _job("--ntasks-per-gpu", "N", "Number of tasks for each GPU.", slurm=_JOBS, inputs="FGSUB SALLOC SLURM",
         step="SLURM", part="job step"),
    _job("--cpus-per-gpu", "N", "Number of CPUs for each GPU.", slurm=_JOBS, inputs=_ALL, part="job"),
    _job("--mincpus", "N", "At least this number of CPUs.", slurm=_JOBS, inputs="FGSUB", part="job"),
    _job("-N --nodes", "1", "Number of hosts: 1.", slurm=_JOBS, inputs="", part="job"),
)  # fmt: skip

# Of Slurm's jobs and steps. sbatch refuses what changes the meaning of a script, and ignores the harmless.
_OF_SLURMS_JOBS = (
    *_each(_slurm, "--export-file= --gid= --gpus-per-socket= --uid= --bb= --bbf=", "sbatch"),
    _slurm("--container-id=", "sbatch", inputs="SBATCH"),
    _slurm("-F --nodefile=", "sbatch"),
    *_each(_harmless, "--cluster-constraint= --cpu-freq= --extra= --mcs-label= --mem-update= --prefer="),
    *_each(_harmless, "--priority= --reboot --segment= --stepmgr --tres-bind="),
    _harmless("--acctg-freq=", inputs="SBATCH"),
    _harmless("-M --clusters=", "srun salloc sinfo sshare scontrol", inputs="SBATCH"),
    _harmless("--contiguous", _JOBS, part="job"),
    _harmless("-S --core-spec=", inputs="SBATCH"),
    _harmless("--cores-per-socket=", _JOBS, part="job"),
    _harmless("--delay-boot=", inputs="SBATCH"),
    _harmless("-m --distribution=", _JOBS, inputs="SBATCH SALLOC SLURM", step="SLURM", part="job step"),
    _harmless("-x --exclude=", _JOBS, part="job"),
    _harmless("-B --extra-node-info="),
    _harmless("--get-user-env?", "salloc", inputs="SBATCH"),
    _harmless("--gpu-freq=", _JOBS, inputs="SBATCH SALLOC SLURM", part="job"),
    _harmless("--gres-flags=", inputs="SBATCH"),
    _harmless("--hint=", _JOBS, inputs="SBATCH SALLOC SLURM", step="SLURM", part="job"),
    _harmless("--mem-bind=", "srun", inputs="SBATCH", step="SLURM"),
    _harmless("--network=", _JOBS, inputs="SBATCH SALLOC SLURM", step="SLURM", part="job"),
    _harmless("-k --no-kill?", _JOBS, inputs="SBATCH SALLOC SLURM"),
    _harmless("-w --nodelist=", _JOBS, part="job"),
    _harmless("--ntasks-per-core=", "srun"),
    _harmless("--ntasks-per-socket=", "srun"),
    _harmless("-O --overcommit", _JOBS, inputs="SBATCH SALLOC", step="SLURM", part="step"),
    _harmless("-s --oversubscribe?", "salloc"),
    _harmless("--power=", inputs="SBATCH"),
    _harmless("--profile=", inputs="SBATCH"),
    _harmless("--propagate?", "srun"),
    _harmless("--resv-ports?", "srun"),
    _harmless("--sockets-per-node=", _JOBS, part="job"),
    _harmless("--spread-job", _JOBS, inputs="SBATCH", part="job"),
    _harmless("--switches=", _JOBS, inputs="SBATCH_REQ_SWITCH SBATCH_WAIT4SWITCH", part="job"),
    _harmless("--thread-spec=", inputs="SBATCH"),
    _harmless("--threads-per-core=", _JOBS, inputs="SBATCH SALLOC SLURM", step="SLURM", part="job"),
    _harmless("--time-min=", "salloc"),
    _harmless("--tmp=", "salloc"),
    _harmless("--use-min-nodes", "srun", inputs="SBATCH"),
    _harmless("-v --verbose", "srun salloc sinfo sstat sshare sacctmgr sreport sattach scontrol", part="job"),
    _harmless("--wait-all-nodes=", "salloc", inputs="SBATCH SALLOC"),
    _slurm("-I --immediate?", _JOBS, inputs="SALLOC SLURM", step="SLURM"),
    _slurm("-l --label", "srun sattach", step="SLURM_LABELIO", part="step"),
    _slurm("-u --unbuffered", "srun", step="SLURM_UNBUFFEREDIO", part="step"),
    _slurm("--cpu-bind=", "srun", step="SLURM", part="step"),
    _slurm("--overlap", "srun", step="SLURM", part="step"),
    _slurm("--exact", "srun", part="step"),
    _slurm("--multi-prog", "srun", part="step"),
    _slurm("-K --kill-on-bad-exit?", "srun", step="SLURM_KILL_BAD_EXIT", part="step"),
    _slurm("-W --wait=", "srun", step="SLURM", part="step"),
    _slurm("--mpi=", "srun", step="SLURM_MPI_TYPE", part="step"),
    _slurm("--task-prolog=", "srun", step="SLURM"),
    _slurm("--task-epilog=", "srun", step="SLURM"),
    _slurm("-E --preserve-env", "srun"),
    _slurm("-r --relative=", "srun"),
    _slurm("-X --disable-status", "srun"),
    *_each(_slurm, "--slurmd-debug= --accel-bind= --epilog= --prolog= --het-group= --whole", "srun"),
    _slurm("--no-shell", "salloc"),
    _slurm("--bell", "salloc", inputs="SALLOC"),
    _slurm("--no-bell", "salloc", inputs="SALLOC"),
    _slurm("-K --kill-command?", "salloc", inputs="SALLOC_KILL_CMD"),
    _slurm("--x11?", "salloc"),
)  # fmt: skip

# Of lists, in the order of the help
_OF_ACCOUNTS = (
    Option("-s --state", LIST, "states", {"fgacct": "Jobs that were in one of these states: CD,F,R."},
           "LIST"),
    Option("-S --starttime", TEXT, "starttime", {"fgacct": "Start of the period; default: midnight."},
           "TIME"),
    Option("-E --endtime", TEXT, "endtime", {"fgacct": "End of the period; default: none."}, "TIME"),
    Option("-o --format --fields", TEXT, "form", {"fgacct": "Fields to print: JobID,JobName%20,State%-15."},
           "LIST"),
    Option("-b --brief", FLAG, "brief", {"fgacct": "Print JobID, State and ExitCode."}),
    Option("-l --long", FLAG, "long", {"fgacct": "Print more fields."}),
    Option("-e --helpformat", FLAG, "helpformat", {"fgacct": "Print the names of all fields."}),
    Option("-P --parsable2", FLAG, "parsable2", {"fgacct": "Separate fields with |."}),
    Option("-p --parsable", FLAG, "parsable", {"fgacct": "Like -P, with | also at the end of a line."}),
    Option("--delimiter", TEXT, "delimiter", {"fgacct": "Separator for -P and -p; a comma prints CSV."},
           "TEXT", default="|"),
    Option("-n --noheader", FLAG, "noheader", {"fgacct": "Print no header."}),
    Option("--units", TEXT, "units", {"fgacct": "Unit of memory: K, M or G; default: M."}, "UNIT"),
    Option("--noconvert", FLAG, "noconvert", {"fgacct": "Print memory in bytes."}, hidden=True),
    Option("--name", LIST, "names", {"fgacct": "Jobs with these names."}, "LIST", hidden=True),
    Option("-r --partition", LIST, "partitions", {"fgacct": "Jobs that ran in these partitions."}, "LIST",
           hidden=True),
    Option("-A --accounts", LIST, "accounts", {"fgacct": "Jobs of these accounts."}, "LIST", hidden=True),
    Option("-q --qos", LIST, "qualities", {"fgacct": "Jobs with these QOS."}, "LIST", hidden=True),
    Option("-N --nodelist", TEXT, "", {"fgacct": "Accepted; one host."}, "LIST", hidden=True),
    Option("-D --duplicates", FLAG, "", {"fgacct": "Accepted; a job has one line."}, hidden=True),
    *_ignored(
        "fgacct",
        "--local,--federation,-L --allclusters,--whole-hetjob,--use-local-uid,-c --completion,-v --verbose,"
        "-T --truncate",
        "-W --wckeys,-F --flags,-C --constraints",
    ),
    Option("-X --allocations", FLAG, "allocations", {"fgacct": "Print no steps, even with --steps."},
           hidden=True),
    Option("-B --batch-script", FLAG, "batch_script", {"fgacct": "Print the scripts of jobs."}, hidden=True),
)  # fmt: skip
_OF_LISTS = (
    Option("-j --jobs", LIST, "jobs", {"fgprio": "Jobs with these ids: 7,10-14.",
           "fgacct": "Jobs with these ids, at any time: 7,10-14."}, "LIST"),
    Option("-n --name", LIST, "name", {"fgeff": "Compare the runs of jobs with these names."}, "LIST"),
    Option("-i --interval", COUNT, "interval", {"fgtop": "Default: 2."}, "SECONDS", default="2"),
    Option("--read-only", FLAG, "read_only", {"fgtop": "Jobs cannot be cancelled from the screen."}),
    Option("-u --user", TEXT, "filter", {"fgtop": "Begin with this filter."}, "TEXT", default=""),
    Option("-a --all", FLAG, "all_users", {"fgshare": "Show all users, not only yourself."}),
    Option("-u --users", LIST, "users", {"fgshare": "Show these users."}, "LIST"),
    Option("-A --accounts", LIST, "accounts", {"fgshare": "Show these accounts."}, "LIST"),
    Option("-m --accounts-only", FLAG, "accounts_only", {"fgshare": "Show accounts without users."}),
    Option("-p --parsable", FLAG, "parsable", {"fgshare": "Separate columns with |, also at the end."}),
    Option("-P --parsable2", FLAG, "parsable2", {"fgshare": "Separate columns with |."}),
    Option("-h -n --noheader", FLAG, "noheader", {"fgshare": "Print no header."}),
    Option("--self", FLAG, "own", {"fgstat": "The job in which the command runs."}),
    Option("-w --nodelist", TEXT, "nodelist", {"fgq": "Only jobs on the host: no pending ones."}, "LIST",
           hidden=True, slurm="steps"),
    Option("-w --nodelist", TEXT, "", {"fgcancel": "Accepted; one host."}, "LIST", hidden=True),
    Option("-M --clusters --cluster", TEXT, "",
           dict.fromkeys(("fgq", "fgcancel", "fgacct", "fginfo"), _IGNORED), "LIST", hidden=True,
           slurm="steps"),
    *_ignored("fgq", "--sibling,--array-unique,-P --priority"),
    *_ignored("fgq", "--local,--hide,--federation,--noconvert,-v --verbose", slurm="steps"),
    *_ignored("fgcancel", "-Q --quiet", "-R --reservation,--sibling"),
    *_ignored("fgcancel", "-H --hurry,-c --ctld", "--wckey", inputs="SCANCEL"),
    Option("-s --signal", TEXT, "signal", {"fgcancel": "Send SIG instead; only TERM and KILL cancel."},
           "SIG"),
    Option("-b --batch", FLAG, "batch", {"fgcancel": "Signal only the shell of the script."},
           inputs="SCANCEL"),
    Option("-f --full", FLAG, "full", {"fgcancel": "Signal the shell and its children (default)."},
           inputs="SCANCEL"),
    Option("--children", FLAG, "children", {"fgcancel": "Signal only the processes that the shell started."}),
    Option("-t --state", LIST, "states", {"fgcancel": "Select jobs in these states."}, "LIST",
           inputs="SCANCEL"),
    Option("-n --name --jobname", LIST, "name", {"fgcancel": "Select jobs with these names."}, "LIST",
           inputs="SCANCEL"),
    Option("-u --user", LIST, "user", {"fgq": "Jobs of these users.",
           "fgcancel": "Select jobs of these users.", "fgprio": "Jobs of these users.",
           "fgeff": "Sum up the jobs of these users by name; default: your own."}, "LIST", slurm="steps",
           inputs="SQUEUE_USERS SCANCEL"),
    Option("--me", FLAG, "me", {"fgq": "Your own jobs.", "fgcancel": "Select your own jobs.",
           "fgtop": "Begin with your own jobs."}, slurm="steps"),
    Option("-j --jobs", LIST, "jobs", {"fgq": "Jobs with these ids: 7,10-14."}, "LIST", slurm="steps"),
    Option("-t --states", LIST, "states", {"fgq": "Jobs in these states: R,PD, or all."}, "LIST",
           slurm="steps", inputs="SQUEUE"),
    Option("-p --partition", LIST, "partition", {"fgq": "Jobs of these partitions.",
           "fgcancel": "Select jobs in these partitions.", "fgprio": "Jobs of these partitions."}, "LIST",
           slurm="steps", inputs="SQUEUE SCANCEL"),
    Option("-A --account", LIST, "account", {"fgq": "Jobs of these accounts.",
           "fgcancel": "Select jobs of these accounts."}, "LIST", slurm="steps", inputs="SQUEUE SCANCEL"),
    Option("-q --qos", LIST, "qos", {"fgq": "Jobs of these qualities of service."}, "LIST", hidden=True,
           slurm="steps", inputs="SQUEUE"),
    Option("-q --qos", LIST, "qos", {"fgcancel": "Select jobs with these QOS."}, "LIST", inputs="SCANCEL"),
    Option("-n --name", LIST, "name", {"fgq": "Jobs with these names."}, "LIST", hidden=True, slurm="steps",
           inputs="SQUEUE_NAMES"),
    Option("--recent", FLAG, "recent", {"fgq": "Also jobs that ended in the last 5 minutes."}, hidden=True),
    Option("-i --interactive", FLAG, "interactive", {"fgcancel": "Ask for confirmation of each job."},
           inputs="SCANCEL"),
    Option("--dry-run", FLAG, "dry_run", {"fgcancel": "Print the selected jobs and do nothing."}),
    Option("-v --verbose", FLAG, "verbose", {"fgcancel": "Report every job on standard error."},
           inputs="SCANCEL"),
    Option("--strict", FLAG, "strict", {"fgcancel": "Treat an ended job as an error."}),
    Option("--reason", TEXT, "reason", {"fgcancel": "Reason, recorded with the job."}, "TEXT", default=""),
    Option("-l --long", FLAG, "long", {"fgq": "Print more columns.",
           "fgprio": "Also print user, account and QOS."}, slurm="steps"),
    Option("-o --format", TEXT, "form", {"fgq": "Columns by letter, as squeue -o: '%.8i %j %T'."}, "FORMAT",
           slurm="steps"),
    Option("-O --Format", TEXT, "names", {"fgq": "Columns by name: JobID:8,Why:60."}, "LIST", slurm="steps",
           inputs="SQUEUE_FORMAT2"),
    Option("-S --sort", TEXT, "sort", {"fgq": "Sort by these columns; - for descending order."}, "KEYS",
           slurm="steps", inputs="SQUEUE"),
    Option("-n --norm", FLAG, "norm", {"fgprio": "Print factors from 0 to 1, without weights."}),
    Option("-w --weights", FLAG, "weights", {"fgprio": "Print the weights."}),
    Option("-u --user --uid", LIST, "users", {"fgacct": "Jobs of these users; default: your own."}, "LIST"),
    Option("-a --allusers", FLAG, "allusers", dict.fromkeys(("fgstat", "fgacct"), "Jobs of all users.")),
    Option("-h --noheader", FLAG, "noheader", dict.fromkeys(("fgq", "fgprio", "fgstat"), "Print no header."),
           slurm="sinfo steps"),
    Option("-S --starttime", TEXT, "starttime", {"fgeff": "Jobs since then; default: -30d."}, "TIME"),
    Option("--last", COUNT, "last", {"fgeff": "Runs of a name; default: 20."}, "N", default="20"),
    Option("--once", FLAG, "once", {"fgtop": "Print the screen once, with all jobs, and exit."}),
    Option("--ascii", FLAG, "as_ascii", dict.fromkeys(("fgeff", "fgtop"), "Use ASCII characters only.")),
    Option("-i --iterate", COUNT, "iterate", {"fgq": "Repeat at this interval."}, "SECONDS", slurm="steps"),
    Option("--slurm-columns", FLAG, "as_slurm", {"fgq": "Print exactly the columns of squeue."}),
    *_OF_ACCOUNTS,
    Option("--color", TEXT, "colour", dict.fromkeys(("fgq", "fgacct"), "Colours."), hidden=True,
           values=COLOURS, default="auto"),
    Option("--json", FLAG, "as_json",
           {**dict.fromkeys(("fgq", "fgacct"), "Print all fields as a JSON object."),
           **dict.fromkeys(("fgprio", "fgshare", "fgstat"), _EVERYTHING), "fgeff": _OBJECT,
           "fgtop": "Print GPUs and jobs as a JSON object, and exit."}),
    Option("--slurm-json", TEXT, "slurm_json",
           dict.fromkeys(("fgq", "fgacct"), "Print Slurm's document: json, yaml, json:v0.0.41."), "FORM",
           hidden=True),
    Option("--steps", FLAG, "all_steps", {"fgacct": "Also print the steps of jobs: 7.batch, 7.0."}),
    Option("-a --all", FLAG, "", {"fgq": "Accepted; no partition is hidden."}, hidden=True, slurm="steps",
           inputs="SQUEUE"),
    Option("-r --array", FLAG, "expand", {"fgq": "Print one line for each array task."}, slurm="steps",
           inputs="SQUEUE"),
    Option("--start", FLAG, "start", {"fgq": "Print expected start times of pending jobs."}),
    Option("--why", FLAG, "why", {"fgq": "Print all reasons why jobs are pending, and remedies."}),
)  # fmt: skip
_OF_THE_HOST = (  # of fginfo, of the commands about single jobs, and of fgreport
    Option("-g --gpus", FLAG, "gpus", {"fginfo": "One line for each GPU: usage."}),
    Option("-l --long", FLAG, "long", {"fginfo": "One line for each GPU: hardware."}),
    Option("-R --list-reasons", FLAG, "reasons",
           {"fginfo": "GPUs that accept no jobs, with reason and user."}),
    Option("-T --reservation", FLAG, "reservations", {"fginfo": "One line for each reservation."}),
    Option("--types", FLAG, "types", {"fginfo": "One line for each GPU model."}),
    Option("-s --summarize", FLAG, "summarize", {"fginfo": "One line for each partition, without jobs."}),
    Option("-N --node", FLAG, "node", {"fginfo": "One line for the host: GPUs, CPUs and memory."}),
    Option("-h -n --noheader", FLAG, "noheader", {"fginfo": "Print no header."}),
    Option("--any", FLAG, "any_will_do", {"fgwait": "Wait only until the first job ends."}),
    Option("--timeout", TEXT, "timeout", {"fgwait": "Give up after this time with exit status 124."},
           "SECONDS"),
    Option("-n --lines", TEXT, "lines", {"fgtail": "Start with the last LINES lines; default: all."},
           "LINES"),
    Option("-e --error", FLAG, "error", {"fgtail": "Print standard error, if it has its own file."}),
    Option("-F --wait", FLAG, "wait", {"fgtail": "Wait for a pending job to start."}),
    Option("--no-follow", FLAG, "no_follow", {"fgtail": "Print the current contents and exit."}),
    Option("--gpus", TEXT, "gpus", {"fgfence": "GPUs, or a part of one, such as 0.5."}, "[TYPE:]N"),
    Option("--gpu-mem", TEXT, "gpu_mem", {"fgfence": "Memory of each GPU: 8G, or 25%."}, "SIZE"),
    Option("--gpu-list", TEXT, "gpu_list", {"fgfence": "Choose among these GPUs, such as 0,2-3."}, "LIST",
           default=""),
    Option("--gpu-compute", TEXT, "gpu_compute", {"fgfence": "hard: limit the GPU time to the share, too."},
           values=("none", "hard"), default="none"),
    Option("--print-env", FLAG, "print_env",
           {"fgfence": "Print the variables for another launcher, and exit."}),
    Option("--pid", INTEGER, "pid", {"fgfence": "With --print-env: the fence lasts as long as PID."}, "PID"),
    Option("--since", TEXT, "since", {"fgreport": "Begin of the period, such as 2026-11-09 or -7d."}, "TIME",
           default=""),
    Option("--until", TEXT, "until", {"fgreport": "End of the period; default: now."}, "TIME", default=""),
    Option("--yesterday", FLAG, "yesterday", {"fgreport": "The whole last day."}),
    Option("--week", TEXT, "week", {"fgreport": "A week of ISO 8601, such as 2026-W46."}, "WEEK", default=""),
    Option("--month", TEXT, "month", {"fgreport": "A month, such as 2026-10."}, "MONTH", default=""),
    Option("--by", TEXT, "by", {"fgreport": "users: user, account, partition, type or tag."}, "WHAT",
           default="user"),
    Option("--number", TEXT, "number", {"fgreport": "Rows of a list of the largest; default: 10."}, "N",
           default="10"),
    Option("--user", TEXT, "user", {"fgreport": "me: this user instead of yourself."}, "NAME", default=""),
    Option("--format", TEXT, "formats", {"fgreport": "text, html, csv, json, markdown."}, "LIST", default=""),
    Option("--ascii", FLAG, "as_ascii", {"fgreport": "Text in ASCII only."}),
    Option("--section", TEXT, "section", {"fgreport": "The table that CSV writes."}, "NAME", default=""),
    Option("--only-if", FLAG, "only_if", {"fgreport": "Write nothing if there is nothing to report."}),
    Option("--output", TEXT, "output", {"fgreport": "Write dated files and an index to a folder."}, "DIR",
           default=""),
    Option("--keep", TEXT, "keep", {"fgreport": "Periods of this report to keep there."}, "N", default=""),
    Option("--to", TEXT, "to", {"fgreport": "Send the report by mail."}, "ADDRESS", default=""),
    Option("--subject", TEXT, "subject", {"fgreport": "Subject of the mail."}, "TEXT", default=""),
    Option("--file", TEXT, "file", {"fgreport": "Read these accounts, such as a backup."}, "FILE",
           default=""),
    Option("--json", FLAG, "as_json", {"fginfo": _EVERYTHING,
           "fgwait": "Print the outcomes as a JSON object.",
           "fgfence": "With --print-env: print a JSON object."}),
)  # fmt: skip
_OF_SUBCOMMANDS = (
    Option("-o --oneliner", FLAG, "oneliner", {"fgctl show": "Print one line for each record.",
           "fgctl pidinfo": "Print one line."}),
    Option("--before", TEXT, "before", {"fgctl archive": "Move jobs that ended before this time."}, "TIME",
           is_required=True),
    Option("--gpus", TEXT, "gpus", {"fgctl adopt": "Share of each GPU; default: from the memory in use."},
           "N|FRACTION"),
    Option("--gpu-mem", TEXT, "gpu_mem", {"fgctl adopt": "Memory of each GPU; default: the memory in use."},
           "SIZE"),
    Option("-t --time", TEXT, "time", {"fgctl adopt": "Time limit from now on; default as for fgsub."},
           "TIME"),
    Option("-J --job-name", TEXT, "job_name", {"fgctl adopt": "Name of the job; default: the command."},
           "NAME"),
    Option("--gpu", TEXT, "indices", {"fgctl adopt": "Only these of the GPUs that it uses."}, "INDEX...",
           default=""),
    Option("--gpus", TEXT, "gpus",
           {"fgsched start": _OF_CONTROLLER, "fgsched run": _OF_CONTROLLER,
           "fgsched simulate": "GPUs: 4x80G:H100; +1x80G:A100 adds to the host's."}, "GPUS", default=""),
    Option("--take-over", FLAG, "take_over",
           {"fgsched start": "Take the queue of a host that is gone for good."}),
    Option("--purge", FLAG, "purge", {"fgsched uninstall": "Remove the queue and the accounts as well."}),
    Option("--kill", FLAG, "kill",
           dict.fromkeys(("fgsched stop", "fgsched uninstall"),
                         "Cancel all jobs first; by default they continue.")),
    Option("-v --verbose", FLAG, "verbose",
           {"fgsched status": "Show the sizes of the queue and the accounts as well."}),
    Option("-f --follow", FLAG, "follow", {"fgsched logs": "Print new lines until interrupted."}),
    Option("-n --lines", INTEGER, "lines", {"fgsched logs": "Print only the last N lines."}, "N",
           limits=(0, None)),
    Option("--job", INTEGER, "job", {"fgsched logs": "Print only lines about a job."}, "ID",
           limits=(1, None)),
    Option("--enforcement", FLAG, "enforcement",
           {"fgsched doctor": "Test whether jobs can exceed their share of a GPU."}),
    Option("--recover", FLAG, "recover", {"fgsched doctor": "Recover the readable part of a damaged queue."}),
    Option("--system", FLAG, "system", {**dict.fromkeys(_WITH_SYSTEM, _SYSTEM),
           "fgsched status": "The host's controller."}),
    Option("--check", OPTIONAL, "check", {"fgsched config": "Check the configuration file, or FILE."},
           "[FILE]"),
    Option("--print", FLAG, "is_print", {"fgsched init": _NOTHING_DONE,
           "fgsched slurm-names": "Print the names and their commands (default).",
           "fgsched cron": "Print the lines (default)."}),
    Option("--check", FLAG, "is_check", {"fgsched init": "Run the job of the check in any case."}),
    Option("--install", FLAG, "install",
           {"fgsched cron": "Put them into the crontab; its other lines stay."}),
    Option("--socket", FLAG, "socket", {"fgsched web": "Listen at a Unix socket instead of a port."}),
    Option("--read-only", FLAG, "read_only", {"fgsched web": "The page has no forms and shows no output."}),
    Option("--open", FLAG, "browser", {"fgsched web": "Open the page in a browser of this host."}),
    Option("--keep", FLAG, "keep", {"fgsched web": "Do not end after 30 minutes without an open page."}),
    Option("--status", FLAG, "status", {"fgsched web": "Print whether the page is served."}),
    Option("--stop", FLAG, "stop", {"fgsched web": "End the process and all pages; jobs are not affected."}),
    Option("--systemd", FLAG, "systemd", {"fgsched cron": "systemd timers instead of a crontab."}),
    Option("--to", TEXT, "to",
           dict.fromkeys(("fgsched init", "fgsched cron"), "Address of the reports; default: root."),
           "ADDRESS", default="root"),
    Option("--metrics", TEXT, "metrics", {"fgsched cron": "Also write metrics for Prometheus to DIR."}, "DIR",
           default=""),
    Option("--root", TEXT, "root",
           dict.fromkeys(("fgsched init", "fgsched uninstall"),
                         "Work on the image of a host in DIR; start nothing."),
           "DIR", default="/"),
    Option("--install", TEXT, "folder", {"fgsched slurm-names": "Write a program for each name to DIR."},
           "DIR"),
    Option("--remove", TEXT, "emptied", {"fgsched slurm-names": "Remove these programs from DIR."}, "DIR"),
    Option("--dry-run", FLAG, "dry_run",
           dict.fromkeys(("fgsched policy idle", "fgsched policy strangers"), _NOTHING_DONE)),
    Option("--quiet", FLAG, "quiet",
           dict.fromkeys(("fgsched policy idle", "fgsched policy strangers"), "Print nothing.")),
    Option("--cpus", INTEGER, "cpus", {"fgsched simulate": "CPUs of the host."}, limits=(1, 65536)),
    Option("--mem", TEXT, "mem", {"fgsched simulate": "Memory of the host."}, "SIZE", default=""),
    Option("--policy", TEXT, "policy",
           {"fgsched simulate": "Placement policy; default: that of the settings."},
           values=("pack", "spread")),
    Option("--partition", TEXT, "partition", {"fgsched simulate": "Only jobs of these partitions."}, "NAMES",
           default=""),
    Option("--seed", INTEGER, "seed", {"fgsched simulate": "Without FILE: seed of the generated jobs."}, "N",
           default=1),
    Option("--hours", NUMBER, "hours", {"fgsched simulate": "Without FILE: period of submissions, in hours."},
           limits=(0.1, 24 * 366), default=24.0),
    Option("--load", NUMBER, "load", {"fgsched simulate": "Without FILE: load, where 1 is all GPUs."},
           limits=(0.01, 10), default=0.9),
    Option("--svg", TEXT, "svg", {"fgsched simulate": "Draw a chart of the allocation over time."}, "FILE"),
    Option("--json", FLAG, "as_json",
           {"fgctl show": _OBJECT, "fgctl pidinfo": _OBJECT, "fgsched status": _OBJECT,
            "fgsched doctor": _OBJECT, "fgsched simulate": _OBJECT,
           "fgctl subscribe": "Print a JSON object for each event."}),
)  # fmt: skip
_OF_SLURMS_LISTS = (  # of names of Slurm that answer in their own layout
    _slurm("-a --all", "sinfo sshare scontrol", inputs="SINFO"),
    _slurm("--bg", "sinfo"),
    _slurm("--cluster=", "sinfo sshare scontrol"),
    _slurm("-d --dead", "sinfo"),
    _slurm("-e --exact", "sinfo"),
    _slurm("--federation", "sinfo sreport scontrol"),
    _slurm("-o --format=", "sinfo sstat sshare", inputs="SINFO"),
    _slurm("-O --Format=", "sinfo"),
    _slurm("-F --future", "sinfo scontrol"),
    _slurm("--hide", "sinfo scontrol"),
    _slurm("-i --iterate=", "sinfo"),
    _slurm("--json?", "sinfo scontrol"),
    _slurm("--json", "sacctmgr"),
    _slurm("--local", "sinfo sreport scontrol"),
    _slurm("-l --long", "sinfo sshare"),
    _slurm("--node", "sinfo"),
    _slurm("-n --nodes=", "sinfo"),
    _slurm("-N --Node", "sinfo"),
    _slurm("--Nodes", "sinfo"),
    _slurm("--noconvert", "sinfo sstat"),
    _slurm("-p --partition=", "sinfo", inputs="SINFO"),
    _slurm("-r --responding", "sinfo"),
    _slurm("-R --list-reasons", "sinfo"),
    _slurm("-T --reservation", "sinfo"),
    _slurm("-S --sort=", "sinfo", inputs="SINFO"),
    _slurm("-t --states=", "sinfo"),
    _slurm("-s --summarize", "sinfo"),
    _slurm("--usage", "sinfo sattach"),
    _slurm("-V --version", "sinfo sstat sshare sacctmgr sreport"),
    _slurm("--yaml?", "sinfo scontrol"),
    _slurm("-a --allsteps", "sstat"),
    _slurm("-e --helpformat", "sstat sshare"),
    _slurm("--fields=", "sstat"),
    _slurm("-n --noheader", "sstat sacctmgr sreport"),
    _slurm("-j --jobs=", "sstat"),
    _slurm("-p --parsable", "sstat sshare sacctmgr sreport"),
    _slurm("-P --parsable2", "sstat sshare sacctmgr sreport"),
    _slurm("-i --pidformat", "sstat"),
    _slurm("-A --accounts=", "sshare"),
    _slurm("-h -n --noheader", "sshare"),
    _slurm("-m --partition", "sshare"),
    _slurm("-u --users=", "sshare"),
    _slurm("--user=", "sshare"),
    _slurm("-U --Users", "sshare"),
    _slurm("--accounts-only", "sshare"),
    _slurm("-h --help", "seff sattach"),
    _slurm("-v --version", "seff"),
    _slurm("-d --debug", "seff"),
    _slurm("--local-time", "seff"),
    _slurm("-i --immediate", "sacctmgr"),
    _slurm("-r --readonly", "sacctmgr"),
    _slurm("-s --associations", "sacctmgr"),
    _slurm("-a --all_clusters", "sreport"),
    _slurm("-M --cluster=", "sreport"),
    _slurm("-T --tres=", "sreport"),
    _slurm("-t --time=", "sreport"),
    _slurm("--error-filter=", "sattach"),
    _slurm("--input-filter=", "sattach"),
    _slurm("--layout", "sattach"),
    _slurm("--output-filter=", "sattach"),
    _slurm("-o --oneliner", "scontrol"),
    _slurm("-d --details", "scontrol"),
    _slurm("--sibling", "scontrol"),
    _slurm("-s --steps?", "squeue steps"),
    _slurm("--help", "steps"),
)  # fmt: skip
OPTIONS = (*_OF_JOBS, *_OF_SLURMS_JOBS, *_OF_LISTS, *_OF_THE_HOST, *_OF_SUBCOMMANDS, *_OF_SLURMS_LISTS)


@cache
def rows_of(*commands: str) -> tuple[Option, ...]:
    """Return the options of commands, and of names of Slurm, in the order of their help."""
    places = set[int]().union(*(_places().get(command, ()) for command in commands))
    return tuple(OPTIONS[place] for place in sorted(places))


@cache
def _places() -> dict[str, list[int]]:
    """Return where the options of each command are in the table; a group asks for each subcommand."""
    places = dict[str, list[int]]()
    for place, row in enumerate(OPTIONS):
        for command in (*row.helps, *row.slurm.split()):
            places.setdefault(command, []).append(place)
    return places


def known_of(*commands: str, never: Collection[str] = (), by_slot: bool = False) -> Known:
    """Return how the line of a command is read; of several commands, with the options of all.

    Args:
        never: words that are no beginnings of a name.
        by_slot: the beginning of several options with one slot means the shortest of them.
    """
    rows = rows_of(*commands)
    return Known(
        long={name: row.ending for row in rows for name in row.longs},
        short={letter: row.name for row in rows for letter in row.shorts},
        same={name: (row.slot or row.name) if by_slot else row.spelled for row in rows for name in row.longs},
        never=never,
    )


Record = TypeVar("Record")


class TableCommand(Struct, Generic[Record], frozen=True):
    """A command, and the record of its options."""

    name: str
    record: type[Record]

    @property
    def options(self) -> tuple[Option, ...]:
        """The options that the command has."""
        return rows_of(self.name)

    def read(self, words: Sequence[str]) -> tuple[Record, list[str]]:
        """Return the options and the operands of a line, as click reads them. Raises Unread."""
        known, by_name = _known(self.name), {long: row for row in self.options for long in row.longs}
        values = {row.field: row.empty for row in self.options if row.field}
        operands = list[str]()
        try:
            for name, text in taken(known, words, operands, permute=True, is_value=is_value):
                _put(values, by_name[name], text)
        except UnreadableWord:
            raise Unread from None
        return self.record(**values), operands


@cache
def _known(command: str) -> Known:
    return known_of(command, never=("help",))


def _put(values: dict[str, Any], option: Option, text: str | None) -> None:
    """Store the value of an option; the last one counts, and lists grow."""
    value = True if text is None else option.parse(text)
    if option.field:
        values[option.field] = (*values[option.field], value) if option.kind == LIST else value


def is_value(word: str) -> bool:
    """Tell whether a word can be the value of the option before it: mostly a value was forgotten."""
    return word[:2] != "--"


QUEUE = TableCommand("fgq", QueueOptions)
CANCEL = TableCommand("fgcancel", CancelOptions)
PRIORITY = TableCommand("fgprio", PriorityOptions)
SHARE = TableCommand("fgshare", ShareOptions)
USE = TableCommand("fgstat", UseOptions)
EFFICIENCY = TableCommand("fgeff", EfficiencyOptions)
SCREEN = TableCommand("fgtop", ScreenOptions)
ACCOUNTING = TableCommand("fgacct", AccountOptions)
HOST = TableCommand("fginfo", HostOptions)
