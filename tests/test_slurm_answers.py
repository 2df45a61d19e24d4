"""What Slurm's names answer to programs that drive Slurm: layouts, fields, JSON keys, statuses."""

import json
import os
import pwd
import re
from importlib import import_module
from pathlib import Path

import pytest

from fgsched.domain.job import JobUsage
from fgsched.protocol import JobInfo, OnGpu
from fgsched.slurm import scontrol, sstat
from fgsched.slurm.getopt import BadLine
from fgsched.slurm.names import SLURM_NAMES
from fgsched.system.process import TreeUse
from live_host import Home

HOST = os.uname().nodename.split(".")[0]
_REFUSED = "squeue: error: Invalid job format specification: {}\n"
WIDTH = max(9, len(HOST))
SITE = """
[host]
cpus = 8
memory = "16G"
[mail]
send = "off"
[accounts.vision]
users = ["ann", "%s"]
shares = 3
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A host on which job 1 has ended, job 2 runs, and job 3 is held."""
    home = Home(tmp_path_factory.mktemp("names") / "home", config=SITE % pwd.getpwuid(os.geteuid()).pw_name)
    words = ["--slurm-env", "-A", "vision", "-n2", "-t", "10", "--mem=100M"]
    assert home.run("fgsub", "--wait", "-J", "first", *words, "--wrap", "exit 0").status == 0
    assert home.run("fgsub", "-J", "second", "--gpus=1", "-t", "60", "--wrap", "sleep 600").status == 0
    assert home.run("fgsub", "--hold", "-d", "afterok:2", "-J", "third", "--wrap", "true").status == 0
    yield home
    home.run("fgcancel", "2", "3")
    home.run("fgwait", "2")
    home.run("fgsched", "stop")


def said(home, *words):
    """Return the exit status, the output and the errors of one of Slurm's names."""
    done = home.run(*words)
    return done.status, done.out, done.err


def answered(home, patch, *words):
    """Return what one of the names prints, without a process of its own."""
    patch.setattr(os, "environ", home.environ)
    if words[0] == "scontrol":
        return scontrol.answer(words[1:], home.environ)
    assert SLURM_NAMES[words[0]].is_answered
    return import_module(f"fgsched.slurm.{words[0]}").answer(words[1:])


@pytest.mark.parametrize(
    ("words", "out"),
    [
        ("sinfo -o %P", "PARTITION\nmain*\n"),
        ("sinfo -sh", f"main*        up   infinite          1/0/0/1 {HOST}\n"),
        ("sinfo -h -O partition:.8,cpus:.4,nodes:-", "   main*   81-\n"),
        ("sinfo -h -p none", ""),
        (
            "sinfo -N",
            f"{'NODELIST':{WIDTH}}  NODES PARTITION STATE \n{HOST:{WIDTH}}      1     main* mix   \n",
        ),
        ("sinfo -hN -o %N|%t|%G", f"{HOST}|mix|gpu:simulated:2\n"),
        ("sacctmgr -n -P list account", "vision|vision|fgsched\n"),
        ("sacctmgr -n -P show assoc account=vision user=ann format=account,user,share", "vision|ann|1\n"),
        ("sacctmgr -n -s list user ann format=account%20", "              vision \n"),
        ("sacctmgr -nP show qos format=name,priority", "normal|0\n"),
        ("sacctmgr -nP list cluster format=cluster", "fgsched\n"),
        ("sacctmgr -n show wckey", ""),
        ("sshare -A vision -nP -o account,rawshares", "vision|3\n"),
        ("scontrol show hostnames n[1-2]", "n1\nn2\n"),
        ("scontrol ping", f"Slurmctld(primary) at {HOST} is UP\n"),
        ("scontrol version", "slurm-wlm 24.11.5\n"),
        ("sstat -nP -j 2 -o jobid,ntasks", "2.batch|1\n"),
        ("sstat -nP -j 2 -o maxpages,avepages,avecpufreq,maxvmsize,maxvmsizetask", "||||\n"),
    ],
)
def test_an_answer_is_that_of_slurm(site, monkeypatch, words, out):
    assert answered(site, monkeypatch, *words.split()) == out


FIELDS = json.loads((Path(__file__).parent / "data" / "slurm-fields.json").read_text())


def test_every_field_of_squeue_and_sinfo_is_known_under_its_heading(site):
    for command, first in (("squeue", ("-j", "2")), ("sinfo", ())):
        fields = FIELDS[command]
        done = said(site, command, *first, "-O", ",".join(f"{name}:30" for name in fields))
        head = done[1].splitlines()[0]
        assert done[2] == ""
        assert {name: head[at * 30 : at * 30 + 30].strip() for at, name in enumerate(fields)} == fields


def test_every_field_of_sstat_is_known():
    assert {field.heading for field in sstat.FIELDS} == set(FIELDS["sstat"])


def test_every_field_of_sacct_is_known_with_its_width_and_beginnings_mean_the_first(site):
    names = list(FIELDS["sacct"])
    assert said(site, "sacct", "--helpformat")[1].split() == names
    status, out, err = said(site, "sacct", "-j", "1", "-o", "all")
    assert (status, err, len(out.splitlines())) == (0, "", 4)
    assert [len(rule) for rule in out.splitlines()[1].split()] == list(FIELDS["sacct"].values())
    head, *rows = said(site, "sacct", "-j", "1", "-P", "-o", "jobi,st,,nosuch")[1].splitlines()
    assert head == "JobID|Start"
    assert rows[0].startswith("1|20")
    assert said(site, "sacct", "-o", "nosuch")[2].startswith(
        'sacct: error: Invalid field requested: "nosuch"'
    )


def test_scontrol_shows_the_host_as_slurm_shows_a_node(site, monkeypatch):
    out = answered(site, monkeypatch, "scontrol", "-d", "show", "no", HOST)
    assert re.sub(r"=\S+", "=", re.sub("OS=.*", "OS= ", out)) == f"{NODE}   \n\n"
    pairs = dict(re.findall(r"([^\s=]+)=(\S+)", out))
    assert pairs["Gres"] == "gpu:simulated:2"
    assert re.fullmatch(r"gpu:simulated:1\(IDX:[01]\)", pairs["GresUsed"])
    assert pairs["CfgTRES"] == "cpu=8,mem=16G,billing=8,gres/gpu=2,gres/gpu:simulated=2"
    assert pairs["AllocTRES"] == "cpu=1,gres/gpu=1,gres/gpu:simulated=1"
    assert pairs["Partitions"] == "main"


NODE = """NodeName= Arch= CoresPerSocket=\x20
   CPUAlloc= CPUEfctv= CPUTot= CPULoad=
   AvailableFeatures=
   ActiveFeatures=
   Gres=
   GresDrain=
   GresUsed=
   NodeAddr= NodeHostName= Version=
   OS=\x20
   RealMemory= AllocMem= FreeMem= Sockets= Boards=
   State= ThreadsPerCore= TmpDisk= Weight= Owner= MCS_label=
   Partitions=\x20
   BootTime= SlurmdStartTime=
   LastBusyTime= ResumeAfterTime=
   CfgTRES=
   AllocTRES=
   CurrentWatts= AveWatts=
"""


USAGE = JobUsage(
    **dict.fromkeys(("sampled", "charged", "active", "held", "empty", "used", "memory"), 0.0),
    **dict.fromkeys(("peak", "with_process", "busy", "longest_idle"), 0),
    energy=12.6,
)


def test_sstat_shows_what_is_measured_and_leaves_out_what_is_not():
    batch = sstat.SstatRow(JobInfo(step="batch", usage=USAGE), [], TreeUse(read=5 << 10))
    values = {field.heading: field.cell(batch) for field in sstat.FIELDS}
    names = ("MaxDiskRead", "AveDiskRead", "MaxDiskWrite", "ConsumedEnergy")
    assert [values[name] for name in names] == ["5K", "5K", "", "13"]
    on_gpus = [OnGpu(gpu=0, memory=3 << 30, busy=None), OnGpu(gpu=1, memory=5 << 30, busy=None)]
    running = batch._replace(
        job=JobInfo(indices=[0, 1], now=on_gpus), use=TreeUse(rss=2 << 20, cpu_seconds=61.0)
    )
    tres = {field.heading: field.cell(running) for field in sstat.FIELDS}["TRESUsageInMax"]
    assert tres == "cpu=00:01:01,mem=2048K,gres/gpumem=5120M"
    step = batch._replace(job=JobInfo(step="0", usage=USAGE))
    assert {field.heading: field.cell(step) for field in sstat.FIELDS}["ConsumedEnergy"] == ""


@pytest.mark.parametrize("words", [["-o", "%all"], ["-O", "all"]])
def test_sinfo_shows_every_field_between_bars(site, monkeypatch, words):
    head, row = answered(site, monkeypatch, "sinfo", *words).splitlines()
    cells = dict(zip(head.split("|"), row.split("|"), strict=True))
    assert head.startswith("PARTITION|PARTITION|AVAIL|TIMELIMIT|")
    assert {key: cells[key] for key in ("AVAIL", "CPUS", "NODELIST", "GRES", "CLUSTER")} == {
        **{"AVAIL": "up", "CPUS": "8", "NODELIST": HOST, "GRES": "gpu:simulated:2", "CLUSTER": "N/A"}
    }


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("scontrol show job 99", "slurm_load_jobs error: Invalid job id specified"),
        ("scontrol show partition none", "Partition none not found"),
        ("scontrol show node none", "Node none not found"),
        ("sinfo -t idle,BAD", 'error: Bad state string: "bad"'),
        ("scontrol show nosuch", "invalid entity:nosuch for keyword:show "),
        ("scontrol show host", "invalid entity:host for keyword:show "),
        ("scontrol show", "too few arguments for keyword:show"),
        ("scontrol show res none", "Reservation none not found"),
        ("scontrol show job abc", "scontrol_print_job error: Invalid job id specified"),
        ("sinfo --nonsense", "unrecognized option '--nonsense'"),
        ("sacctmgr show nonsense", "error: Invalid entity: nonsense"),
        ("sacctmgr add user bob", "error: accounts are tables of fgsched.toml"),
        ("sreport job sizesbyaccount", "error: the report 'job sizesbyaccount' is not supported"),
        ("sstat -j 1", "error: no steps running for job 1"),
        ("seff 99", "Job not found."),
    ],
)
def test_a_refusal_is_in_the_words_of_slurm(site, monkeypatch, words, error):
    with pytest.raises(BadLine, match=re.escape(error)):
        answered(site, monkeypatch, *words.split())


@pytest.mark.parametrize(
    ("words", "result"),
    [
        ("squeue --version", (0, "slurm-wlm 24.11.5\n", "")),
        ("squeue -hj3 -o %i|%T|%j", (0, "3|PENDING|third\n", "")),
        ("squeue -hj3 -o %E", (0, "afterok:2(unfulfilled)\n", "")),
        ("squeue -hj3 -O Dependency:9,nosuch,,State:3", (0, "afterok:2PEN\n", _REFUSED.format("nosuch"))),
        ("squeue -hj3 -o %i|%s|%j", (0, "3|%s|third\n", _REFUSED.format("s"))),
        ("squeue -hj3 -o plain", (0, "plain\n", "")),
        (
            "sacct -nP -j 1 -o jobid,jobname,partition,state",
            (0, "1|first|main|COMPLETED\n1.batch|batch||COMPLETED\n", ""),
        ),
        ("sacct -nXP -j 1,1.7,99 -o jobid,jobname", (0, "1|first\n", "")),
        ("scontrol show partition none", (1, "Partition none not found\n", "")),
        ("squeue -hj 99", (1, "", "slurm_load_jobs error: Invalid job id specified\n")),
        ("squeue -hj 1 -o %i", (0, "", "")),
        ("squeue -hj 99,98", (0, "", "")),
        ("squeue -j 99 -o %i", (1, "", "slurm_load_jobs error: Invalid job id specified\n")),
        ("squeue -hj 2 -o %Y", (0, "(null)\n", "")),
        ("squeue -j 99,98 -o %i", (0, "JOBID\n", "")),
        ("squeue -hj 3,99 -o %i", (0, "3\n", "")),
        ("scancel 99", (0, "", "")),
        ("scontrol wait_job 2", (0, "", "")),
        (
            "scontrol wait_job jobid=1",
            (1, "", "scontrol: error: job 1 has ended: COMPLETED\nfgacct -j 1 shows it.\n"),
        ),
    ],
)
def test_a_program_of_a_name_ends_as_that_of_slurm(site, words, result):
    assert said(site, *words.split()) == result


def test_scontrol_shows_a_job_as_slurm_does(site, monkeypatch):
    out = answered(site, monkeypatch, "scontrol", "-o", "show", "job", "2")
    pairs = dict(word.split("=", 1) for word in out.split())  # every word is Key=Value, as programs split it
    assert (pairs["JobId"], pairs["JobState"], pairs["TimeLimit"]) == ("2", "RUNNING", "01:00:00")
    tres = "cpu=1,node=1,billing=1,gres/gpu=1"
    assert (pairs["ReqTRES"], pairs["Command"]) == (tres, "(null)")
    assert pairs["AllocTRES"] == f"{tres},gres/gpu:simulated=1"
    assert "Dependency=afterok:2(unfulfilled)\n" in answered(
        site, monkeypatch, "scontrol", "show", "job", "3"
    )
    out = answered(site, monkeypatch, "scontrol", "-d", "show", "job=2")
    assert "JOB_GRES=gpu:simulated:1\n" in out
    assert f"Nodes={HOST} CPU_IDs=" in out
    assert "GRES=gpu:simulated:1(IDX:" in out


def test_scontrol_shows_a_partition_alone_on_its_line(site, monkeypatch):
    lines = answered(site, monkeypatch, "scontrol", "show", "partition").splitlines()
    assert lines[0] == "PartitionName=main"
    assert lines[-2] == "   TRES=cpu=8,mem=16G,node=1,billing=8,gres/gpu=2,gres/gpu:simulated=2"


def test_documents_have_the_keys_of_slurm(site, monkeypatch):
    queue = json.loads(said(site, "squeue", "--json")[1])
    assert {job["job_id"]: job["job_state"] for job in queue["jobs"]} == {2: ["RUNNING"], 3: ["PENDING"]}
    limits = {job["job_id"]: job["time_limit"] for job in queue["jobs"]}
    assert limits == {
        2: {"set": True, "infinite": False, "number": 60},
        3: {"set": False, "infinite": True, "number": 0},
    }
    assert {job["dependency"] for job in queue["jobs"]} == {"", "afterok:2(unfulfilled)"}
    assert queue["jobs"][0].keys() >= {
        "name",
        "partition",
        "user_name",
        "nodes",
        "tres_alloc_str",
        "time_limit",
    }
    accounts = json.loads(said(site, "sacct", "-j", "1", "--json")[1])["jobs"]
    assert [(job["job_id"], job["state"]["current"]) for job in accounts] == [(1, ["COMPLETED"])]
    assert [step["step"]["id"] for step in accounts[0]["steps"]] == ["1.batch"]
    assert {one["type"]: one["count"] for one in accounts[0]["tres"]["allocated"]}["cpu"] == 2
    one = json.loads(answered(site, monkeypatch, "scontrol", "show", "job", "2", "--json"))["jobs"]
    assert [job["name"] for job in one] == ["second"]
    summary = json.loads(answered(site, monkeypatch, "sinfo", "--json"))["sinfo"]
    assert [(part["node"]["state"], part["cpus"]["total"]) for part in summary] == [(["MIXED"], 8)]


_DOCUMENTS = {
    "squeue": ("squeue",),
    "sacct": ("sacct", "-j", "1"),
    "sinfo": ("sinfo",),
    "node": ("scontrol", "show", "node"),
    "partition": ("scontrol", "show", "partition"),
}


def shape(value, path=""):
    """Return {path: type} of the values of a document; the items of a list have one path."""
    if isinstance(value, dict):
        return {key: of for name, one in value.items() for key, of in shape(one, f"{path}.{name}").items()}
    if isinstance(value, list):
        return {path: "list"} | {key: of for one in value for key, of in shape(one, f"{path}[]").items()}
    return {path: type(value).__name__}


@pytest.mark.parametrize("version", ["40", "41", "42"])
@pytest.mark.parametrize("name", _DOCUMENTS)
def test_a_document_has_the_keys_and_types_of_its_version_of_slurm(site, name, version):
    expected = SHAPES[name]["42"] | SHAPES[name].get(version, {})
    document = json.loads(said(site, *_DOCUMENTS[name], f"--json=v0.0.{version}")[1])
    shown = {path: of for path, of in shape(document).items() if "job_resources" not in path}
    assert document["meta"]["plugin"]["data_parser"] == f"data_parser/v0.0.{version}"
    differing = {path: of for path, of in expected.items() if of and shown.get(path) != of}
    assert {path: of for path, of in differing.items() if not path.endswith("flags[]")} == {}
    assert shown.keys() <= expected.keys() | {".nodes[].features[]", ".nodes[].active_features[]"}
    assert not [path for path in shown if expected.get(path) == ""]


SHAPES = json.loads((Path(__file__).parent / "data" / "slurm-documents.json").read_text())


def test_a_node_that_does_not_exist_is_refused(site):
    status, out, err = said(site, "squeue", "-w", "nosuch")
    assert (status, out, err.splitlines()[0]) == (1, "", "squeue: error: Invalid node name nosuch")


def test_a_document_in_yaml_says_what_the_one_in_json_says(site):
    status, out, err = said(site, "squeue", "--yaml")
    assert (status, err, out.splitlines()[:3]) == (0, "", ["%YAML 1.1", "--- !!map", "!!str jobs: !!seq"])
    assert "  !!str job_state: !!seq\n  - !!str RUNNING\n" in out
    assert out.endswith("!!str errors: !!seq []\n!!str warnings: !!seq []\n...\n\n")


def test_the_data_parsers_are_listed_and_another_one_is_refused(site):
    listed = "data_parser/v0.0.42\ndata_parser/v0.0.40\ndata_parser/v0.0.41\n"
    for command in ("squeue", "sacct", "sinfo", "scontrol"):
        assert said(site, command, "--json=list") == (0, listed, "Possible data_parser plugins:\n")
        status, out, err = said(site, command, "--yaml=v0.0.38")
        assert (status, out) == (1, "")
        assert err.startswith(f"{command}: error: load_plugins: unable to find plugin: data_parser/v0.0.38\n")


def test_a_job_and_its_use_are_reported(site, monkeypatch):
    lines = answered(site, monkeypatch, "seff", "1").splitlines()
    assert lines[0] == "Job ID: 1"
    assert "Cores per node: 2" in lines
    period = ("start=now-1hour", "end=now")  # the default end is midnight
    out = answered(site, monkeypatch, "sreport", "-nP", "cluster", "utilization", *period)
    assert out.startswith("fgsched|")
    words = ("-nP", "-T", "gres/gpu", "user", "top", *period)
    assert "|gres/gpu|" in answered(site, monkeypatch, "sreport", *words)


def test_sreport_reports_in_the_unit_and_of_the_resource_that_were_asked_for(site, monkeypatch):
    period = ("cluster", "utilization", "start=now-1hour", "end=now")
    shown = {
        "-t percent": "Usage reported in CPU Percentage of Total",
        "-t hours": "Usage reported in CPU Hours",
        "-T gres/gpu": "Usage reported in TRES Minutes",
        "-T gres/gpu -t percent": "Usage reported in TRES Percentage of Total",
    }
    for words, head in shown.items():
        assert head in answered(site, monkeypatch, "sreport", *words.split(), *period)
    row = answered(site, monkeypatch, "sreport", "-nP", "-t", "percent", *period).strip().split("|")
    assert row[-1] == "100.00%"
    parts = [float(cell.removesuffix("%")) for cell in row[1:-1]]
    assert sum(parts) == pytest.approx(100.0, abs=0.02)
    users = answered(site, monkeypatch, "sreport", "-nP", "-t", "percent", "user", "top", *period[2:])
    assert all(line.split("|")[-2].endswith("%") for line in users.splitlines())
    assert said(site, "sreport", "-t", "fortnights", *period)[0] == 1


@pytest.mark.parametrize(
    ("lines", "refused"),
    [
        (("--wrap true", "", "-p none --wrap true"), "list:3: invalid partition: none"),
        (("--wrap true", "# a note", "--gpus=1 --wrap true", "-d afterok:99 --wrap true"), "list:4: Job"),
    ],
)
def test_a_refused_list_names_the_line(site, lines, refused):
    (site.path / "list").write_text("\n".join(lines))
    done = site.run("fgsub", "--batch", "list")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"fgsub: error: Batch job submission failed: {refused}")
