"""The table of fgsub's options, used for the command line, script headers and the environment."""

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from fgsched.cli import optionvalues as values
from fgsched.domain.times import parse_duration


class Option(Struct, frozen=True, kw_only=True):
    """One option of fgsub. Options with the same `slot` set the same value; the later source wins."""

    name: str  # long, without dashes
    slot: str
    parse: Callable[[str], object]
    short: str = ""
    metavar: str = ""  # "": a flag, which takes no value
    help: str = ""
    variable: str = ""  # of the environment; "": none
    in_scripts: bool = True
    hidden: bool = False  # told in the manual, not in --help
    bare: str = ""  # what it means without a value, where it may be given so
    of_call: bool = False  # concerns the whole call, not one job: not in a line of a batch

    @property
    def is_flag(self) -> bool:
        return not self.metavar

    def of(self, value: object) -> "Option":
        """Return the option for this value: --gres without a GPU uses its own slot."""
        of_others = isinstance(value, values.Amount) and value.unit == "none"
        return replace(self, slot="gres") if of_others else self


_NOT_IN_SCRIPTS = {"batch", "test-only", "wrap", "explain-options", "ignore-sbatch"}
_NO_VARIABLE = _NOT_IN_SCRIPTS | {"nodes", "ntasks", "ntasks-per-node"}
_OF_CALL = {"batch", "test-only", "explain-options", "json", "parsable", "quiet", "wait"}
_SHOWN = {  # in --help, which is one screen; the manual has all
    *("gpus", "gpu-mem", "cpus-per-task", "mem", "time", "job-name", "output", "error"),
    *("chdir", "export", "array", "dependency", "hold", "wrap", "batch", "wait", "parsable"),
}
_VARIABLES = {"time": "FGSUB_TIMELIMIT", "ignore-sbatch": "FGSUB_IGNORE_SBATCH"}


def _option(
    names: str, metavar: str, parse: Callable[[str], object], help: str, *, slot: str = "", bare: str = ""
) -> Option:
    """Return a row of the table. `names` is 'gpus G': the long name and an optional short one."""
    name, _, short = names.partition(" ")
    variable = "" if name in _NO_VARIABLE else f"FGSUB_{name.upper().replace('-', '_')}"
    return Option(
        name=name,
        short=short,
        slot=slot or name,
        parse=parse,
        metavar=metavar,
        help=help,
        bare=bare,
        variable=_VARIABLES.get(name, variable),
        in_scripts=name not in _NOT_IN_SCRIPTS,
        hidden=name not in _SHOWN,
        of_call=name in _OF_CALL,
    )


_FLAG, _NO = values.flag, values.no
OPTIONS: tuple[Option, ...] = (
    _option("gpus G", "[TYPE:]AMOUNT", values.gpus, "GPUs, or a fraction: 2, 0.5, 50%, 1/2, a100:1."),
    _option("gpu-mem", "SIZE", values.gpu_memory, "Memory of each GPU: 8G or 50%; 0: all."),
    _option("fgpu", "N", values.fgpu, "Same as --gpus, in units of the site's fGPU.", slot="gpus"),
    _option(
        "gres", "LIST", values.gres, "gpu:[TYPE:]AMOUNT, shard:N, or a site resource NAME:N.", slot="gpus"
    ),
    _option("gpus-per-node", "[TYPE:]AMOUNT", values.gpus, "Same as --gpus.", slot="gpus"),
    _option("gpus-per-task", "[TYPE:]AMOUNT", values.gpus, "Same as --gpus.", slot="gpus"),
    _option("gpu-type", "TYPE", values.gpu_type, "GPU model whose name contains TYPE."),
    _option("type", "TYPE", values.gpu_type, "Same as --gpu-type.", slot="gpu-type"),
    _option("constraint C", "TYPE", values.gpu_type, "Same as --gpu-type.", slot="gpu-type"),
    _option("cpus-per-task c", "N", values.count, "Number of CPUs; default: 1."),
    _option("mem", "SIZE", values.host_memory("job"), "Host memory: 8G; 0: all."),
    _option("mem-per-cpu", "SIZE", values.host_memory("cpu"), "Host memory for each CPU.", slot="mem"),
    _option("mem-per-gpu", "SIZE", values.host_memory("gpu"), "Host memory for each GPU.", slot="mem"),
    _option("time t", "LIMIT", parse_duration, "Time limit: minutes, H:M:S, D-H, 90s, 2h."),
    _option("job-name J", "NAME", values.name, "Job name; default: the script's name."),
    _option("output o", "FILE", values.pattern, "Standard output; default: fg-%j.out."),
    _option("error e", "FILE", values.pattern, "Standard error; default: as the output."),
    _option("input i", "FILE", values.pattern, "Standard input; default: /dev/null."),
    _option("open-mode", "MODE", values.open_mode, "append to the output files, or truncate them."),
    _option("mkdir", "", _FLAG, "Create the directories of the output files."),
    _option("chdir D", "DIR", values.path, "Working directory."),
    _option("export", "LIST", values.anything, "Environment: ALL, NONE or A,B=x."),
    _option("partition p", "LIST", values.partition, "Partitions; the first that can start the job."),
    _option("account A", "NAME", values.label, "Account to charge."),
    _option("qos q", "NAME", values.label, "Quality of service."),
    _option("reservation", "NAME", values.reservation, "Run in this reservation."),
    _option("nice", "[N]", values.nice, "Lower the priority by N; default: 100.", bare="100"),
    _option("signal", "[B:|C:]SIG[@SEC]", values.early_signal, "Send SIG SEC seconds before the time limit."),
    _option("array a", "LIST[%N]", values.array, "Job array: 0-15, 1,5-9, 0-90:10; N at a time."),
    _option("dependency d", "LIST", values.dependency, "Start after jobs: afterok:7, afterany:7:8."),
    _option("kill-on-invalid-dep", "yes|no", values.yes_or_no, "Cancel if dependencies can never be met."),
    _option("begin b", "TIME", values.begin, "Earliest start: 18:00, tomorrow, now+2hours."),
    _option("deadline", "TIME", values.deadline, "Latest end of the job."),
    _option("requeue", "", _FLAG, "Requeue after a failure of the host (default)."),
    _option("no-requeue", "", _NO, "Never requeue.", slot="requeue"),
    _option("hold H", "", _FLAG, "Submit the job held."),
    _option("tier", "LEVEL", values.tier, "Enforcement: driver, shim, watchdog or none."),
    _option("gpu-compute", "POLICY", values.gpu_compute, "Sharing of compute time: hard, fair or none."),
    _option("comment", "TEXT", values.comment, "Comment."),
    _option("wrap", "COMMAND", values.command, "Run COMMAND instead of a script."),
    _option("batch", "FILE", values.path, "Submit each line of FILE; -: standard input."),
    _option("wait W", "", _FLAG, "Wait for the end; exit with the job's code."),
    _option("parsable", "", _FLAG, "Print only the job id."),
    _option("quiet Q", "", _FLAG, "Print nothing."),
    _option("json", "", _FLAG, "Print a JSON object."),
    _option("slurm-env", "", _FLAG, "Also set SLURM_ variables."),
    _option("no-slurm-env", "", _NO, "Set no SLURM_ variables.", slot="slurm-env"),
    _option("ignore-sbatch", "", _FLAG, "Do not read #SBATCH lines."),
    _option("test-only", "", _FLAG, "Print when and where it would start; do not submit."),
    _option("explain-options", "", _FLAG, "Print each value and its source; do not submit."),
    _option("ntasks n", "1", values.only_one, "Only 1 is accepted."),
    _option("nodes N", "1", values.only_one, "Only 1 is accepted."),
    _option("ntasks-per-node", "1", values.only_one, "Only 1 is accepted."),
)

# What Slurm has and fgsched has not built: 'name', 'name=' (takes a value), 'name?' (may take one).
_CHANGES_MEANING = """container= container-id= cpus-per-gpu= exclusive?
    export-file= gid= gpus-per-socket= nodefile= tres-per-task= uid= bb= bbf="""
_HARMLESS = """acctg-freq= cluster-constraint= clusters= contiguous core-spec= cores-per-socket=
    cpu-freq= delay-boot= distribution= exclude= extra= extra-node-info= get-user-env? gpu-bind= gpu-freq=
    gres-flags= hint= ignore-pbs licenses= mail-type= mail-user= mcs-label= mem-bind=
    mem-update= mincpus= network= no-kill? nodelist= ntasks-per-core= ntasks-per-gpu=
    ntasks-per-socket= overcommit oversubscribe? power= prefer= priority= profile= propagate? reboot
    resv-ports? segment= sockets-per-node= spread-job stepmgr switches= thread-spec=
    threads-per-core= time-min= tmp= tres-bind= use-min-nodes verbose wait-all-nodes= wckey="""
_SHORT = {
    **{"B": "extra-node-info"},
    **{"F": "nodefile", "k": "no-kill", "L": "licenses", "M": "clusters", "m": "distribution"},
    **{"O": "overcommit", "S": "core-spec", "s": "oversubscribe", "v": "verbose"},
    **{"w": "nodelist", "x": "exclude"},
}


def _rows(names: str) -> dict[str, str]:
    return {row.rstrip("=?"): row[len(row.rstrip("=?")) :] for row in names.split()}


HARMLESS = frozenset(_rows(_HARMLESS))  # without them a Slurm script still does what it says
UNBUILT: dict[str, str] = {**_rows(_CHANGES_MEANING), **_rows(_HARMLESS)}  # name -> "", "=" or "?"
UNBUILT_SHORT: dict[str, str] = _SHORT
BY_NAME: dict[str, Option] = {option.name: option for option in OPTIONS}
BY_SHORT: dict[str, Option] = {option.short: option for option in OPTIONS if option.short}
BY_VARIABLE: dict[str, Option] = {option.variable: option for option in OPTIONS if option.variable}
ASKS_FOR_HELP = {"help": "help", "h": "help", "usage": "help", "version": "version", "V": "version"}
