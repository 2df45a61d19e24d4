"""The table of fgsub's options: one row each, for the command line, script headers and the environment."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from fgsched.cli import optionvalues as values
from fgsched.domain.times import parse_duration


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. Options with the same `slot` say the same thing: the later source wins, one per source."""

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
        """--gres without a GPU in it says nothing about GPUs."""
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
    """`names` is 'gpus G': the long name, then the short one if there is one."""
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
    _option("gpus G", "[TYPE:]AMOUNT", values.gpus, "GPUs, or part of one: 2, 0.5, 50%, 1/2, a100:1."),
    _option("gpu-mem", "SIZE", values.gpu_memory, "Memory of each GPU: 8G, or 50%; 0: all of it."),
    _option("fgpu", "N", values.fgpu, "The same as --gpus in the site's fGPUs.", slot="gpus"),
    _option("gres", "LIST", values.gres, "gpu:[TYPE:]AMOUNT, shard:N, or NAME:N of the site.", slot="gpus"),
    _option("gpus-per-node", "[TYPE:]AMOUNT", values.gpus, "The same as --gpus.", slot="gpus"),
    _option("gpus-per-task", "[TYPE:]AMOUNT", values.gpus, "The same as --gpus.", slot="gpus"),
    _option("gpu-type", "TYPE", values.gpu_type, "Part of the GPU model's name."),
    _option("type", "TYPE", values.gpu_type, "The same as --gpu-type.", slot="gpu-type"),
    _option("constraint C", "TYPE", values.gpu_type, "The same as --gpu-type.", slot="gpu-type"),
    _option("cpus-per-task c", "N", values.count, "CPUs."),
    _option("mem", "SIZE", values.host_memory("job"), "Host memory: 8G; 0: all of it."),
    _option("mem-per-cpu", "SIZE", values.host_memory("cpu"), "Host memory for each CPU.", slot="mem"),
    _option("mem-per-gpu", "SIZE", values.host_memory("gpu"), "Host memory for each GPU.", slot="mem"),
    _option("time t", "LIMIT", parse_duration, "Time limit: minutes, H:M:S, D-H, 90s, 2h."),
    _option("job-name J", "NAME", values.name, "Name; default: the script's."),
    _option("output o", "FILE", values.pattern, "Output; default fg-%j.out."),
    _option("error e", "FILE", values.pattern, "Standard error; default: with the output."),
    _option("input i", "FILE", values.pattern, "Standard input; default /dev/null."),
    _option("open-mode", "MODE", values.open_mode, "append or truncate the output."),
    _option("mkdir", "", _FLAG, "Make the directory of the output."),
    _option("chdir D", "DIR", values.path, "Working directory."),
    _option("export", "LIST", values.anything, "Environment: ALL, NONE, or A,B=x."),
    _option("partition p", "LIST", values.partition, "Partitions; whichever starts it first."),
    _option("account A", "NAME", values.label, "Account that is charged."),
    _option("qos q", "NAME", values.label, "Quality of service."),
    _option("reservation", "NAME", values.reservation, "Run in this reservation of an operator."),
    _option("nice", "[N]", values.nice, "Lower its priority by N; default 100.", bare="100"),
    _option("signal", "[B:|C:]SIG[@SEC]", values.early_signal, "Signal before the time limit."),
    _option("array a", "LIST[%N]", values.array, "An array: 0-15, 1,5-9, 0-90:10; N at a time."),
    _option("dependency d", "LIST", values.dependency, "Wait for jobs: afterok:7, afterany:7:8, singleton."),
    _option("kill-on-invalid-dep", "yes|no", values.yes_or_no, "Cancel it when they can never be met."),
    _option("begin b", "TIME", values.begin, "Not before: 18:00, tomorrow, now+2hours."),
    _option("deadline", "TIME", values.deadline, "To be over by then, or not to start."),
    _option("requeue", "", _FLAG, "Run it again after the host failed it: the default."),
    _option("no-requeue", "", _NO, "Do not.", slot="requeue"),
    _option("hold H", "", _FLAG, "Queue it held."),
    _option("tier", "TIER", values.tier, "driver, shim, watchdog or none."),
    _option("gpu-compute", "POLICY", values.gpu_compute, "Share of a GPU's time: hard, fair or none."),
    _option("comment", "TEXT", values.comment, "A note."),
    _option("wrap", "COMMAND", values.command, "Run COMMAND instead of a script."),
    _option("batch", "FILE", values.path, "One submission a line; -: standard input."),
    _option("wait W", "", _FLAG, "Wait for the end; exit as the job does."),
    _option("parsable", "", _FLAG, "Print the id alone."),
    _option("quiet Q", "", _FLAG, "Print nothing."),
    _option("json", "", _FLAG, "Print an object."),
    _option("slurm-env", "", _FLAG, "Give SLURM_ variables too."),
    _option("no-slurm-env", "", _NO, "Give none.", slot="slurm-env"),
    _option("ignore-sbatch", "", _FLAG, "Do not read #SBATCH lines."),
    _option("test-only", "", _FLAG, "Tell when and where it would start; queue nothing."),
    _option("explain-options", "", _FLAG, "Print each value and where it comes from."),
    _option("ntasks n", "1", values.only_one, "Only 1."),
    _option("nodes N", "1", values.only_one, "Only 1."),
    _option("ntasks-per-node", "1", values.only_one, "Only 1."),
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
