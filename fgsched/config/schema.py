"""The settings of fgsched.toml: type, unit, range, default and meaning of every key."""

import os
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import replace

from fgsched.accounting.policies import IdleRules, StrangerRules
from fgsched.config import forms
from fgsched.config.forms import Bytes, Duration, GpuAmount, Names, Period, Seconds, Switch, Whole
from fgsched.domain.job import HostLimits
from fgsched.domain.policy import (
    MAIN,
    NORMAL,
    Access,
    ChargeAccount,
    Defaults,
    Limits,
    Partition,
    PerJobLimits,
    Policy,
    PreemptRule,
    Qos,
    Resource,
    UserPolicy,
    Weights,
)
from fgsched.domain.times import DAY, FOREVER
from fgsched.domain.units import GIB, MIB, SubmitContext
from fgsched.domain.vendor import ShareService
from fgsched.hooks.programs import HookSettings
from fgsched.lifecycle.jobvariables import VisibleDevices
from fgsched.lifecycle.mps import MpsSettings
from fgsched.mail.letters import MailSettings

LONGEST_GRACE = 7200  # seconds: the most that a command to a shepherd can carry
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")  # of a partition, QOS, account, user or resource
NAME_RULE = "Use letters, digits, '_', '.' and '-', at most 64 characters."

Placement = Literal["pack", "spread"]
GpuCompute = Literal["hard", "fair", "none"]
Mps = Literal["off", "user"]
PreemptMode = Literal["requeue", "suspend", "cancel", "off"]
Unknown = Literal["refuse", "warn", "ignore"]  # a value that the site does not define
PartitionState = Literal["up", "down", "drain", "inactive"]
Tier = Literal["driver", "shim", "watchdog", "none"]
_STANDARD = Weights()


# -- the tables with fixed names --------------------------------------------------------------------


def _key(
    table: str, description: str, *, ge: float | None = None, le: float | None = None, **more: str
) -> Meta:
    """Declare a key of `[table]`. `more`: `name` in the file, `default` as a description."""
    return Meta(description=description, ge=ge, le=le, extra={"table": table, **more})


def _weight(description: str) -> Meta:
    return _key("priority", description, ge=0, le=10**9)


class Config(Struct, frozen=True, kw_only=True):
    """All settings of a site; without arguments, the defaults."""

    devices: Annotated[forms.Devices, _key("gpus", "GPUs that jobs may use.")] = "auto"
    exclusive: Annotated[
        Switch, _key("gpus", "Refuse to start if another controller of the host allocates one of the GPUs.")
    ] = True
    visible_devices: Annotated[
        VisibleDevices, _key("gpus", "Words of CUDA_VISIBLE_DEVICES in jobs: numbers from 0, or UUIDs.")
    ] = "numbers"
    share_instances: Annotated[
        Switch, _key("gpus", "Allocate parts of MIG instances; otherwise each is allocated as a whole.")
    ] = False
    headroom: Annotated[
        Bytes, _key("gpus", "Memory of each GPU that is kept free of jobs.", ge=0, le=64 * GIB)
    ] = 0
    max_jobs_per_gpu: Annotated[
        Whole, _key("gpus", "Most jobs on one GPU at a time; 0 is no limit.", ge=0, le=1000)
    ] = 0
    share_step: Annotated[
        forms.Share, _key("gpus", "Step of GPU shares: every share is a multiple of it.", ge=1, le=10_000)
    ] = 1
    shards_per_gpu: Annotated[
        Whole, _key("gpus", "Shards in one GPU; 0 refuses --gres=shard.", ge=0, le=10_000)
    ] = 0
    fgpu_per_gpu: Annotated[
        Whole, _key("gpus", "Units of --fgpu in one GPU; 0 refuses --fgpu.", ge=0, le=10_000)
    ] = 0
    placement: Annotated[
        Placement, _key("gpus", "Placement policy: pack jobs to keep GPUs usable, or spread them.")
    ] = "pack"
    gpu_compute: Annotated[GpuCompute, _key("gpus", "Division of a GPU's compute time among its jobs.")] = (
        "fair"
    )
    oversubscribe: Annotated[
        forms.Factor,
        _key("gpus", "Multiple of each GPU that jobs may hold.", ge=10_000, le=160_000),
    ] = 10_000
    mps: Annotated[
        Mps, _key("gpus", "Multi-Process Service (MPS) for jobs on a part of a GPU: one daemon per user.")
    ] = "off"
    mps_control: Annotated[
        forms.Program,
        _key("gpus", "NVIDIA's control program of MPS.", default="nvidia-cuda-mps-control in /usr/bin"),
    ] = ""
    cpus: Annotated[
        Whole,
        _key(
            "host", "CPUs that jobs may use.", ge=1, le=65_536, default="all CPUs that the controller may use"
        ),
    ] = 0
    cpu_binding: Annotated[
        Literal["near", "none"], _key("host", "CPUs that a job with GPUs is bound to.")
    ] = "near"
    memory: Annotated[
        Bytes,
        _key("host", "Host memory that jobs may use.", ge=64 * MIB, le=1 << 50, default="all host memory"),
    ] = 0
    kill_wait: Annotated[
        Seconds, _key("jobs", "Time between SIGTERM and SIGKILL when a job is ended.", ge=5, le=3600)
    ] = 30
    default_time: Annotated[
        Duration, _key("jobs", "Time limit of a job that requests none, in the form of --time.")
    ] = 0
    max_script: Annotated[Bytes, _key("jobs", "Largest job script.", ge=MIB, le=4 * MIB)] = 4 * MIB
    max_jobs_per_user: Annotated[
        Whole, _key("jobs", "Most unfinished jobs of one user; an array counts its tasks.", ge=1, le=10**6)
    ] = 100_000
    max_bytes_per_user: Annotated[
        Bytes,
        _key(
            "jobs",
            "Most memory for scripts and environments of one user's unfinished jobs; 0 is no limit.",
            ge=0,
            le=1 << 40,
        ),
    ] = 256 * MIB
    keep_scripts: Annotated[
        forms.Retention, _key("jobs", "Time that scripts and environments are kept after a job has ended.")
    ] = 30 * DAY
    keep_scripts_size: Annotated[
        Bytes,
        _key(
            "jobs",
            "Most scripts and environments of ended jobs kept per user; the oldest are deleted first.",
            ge=0,
            le=1 << 50,
        ),
    ] = 64 * MIB
    max_requeue: Annotated[
        Whole,
        _key(
            "jobs",
            "Failures of the host, or requeues of short runs, until a job is held.",
            ge=0,
            le=1000,
        ),
    ] = 5
    kill_invalid_depend: Annotated[
        Switch, _key("jobs", "Whether a job is cancelled when its dependency can never be satisfied.")
    ] = False
    allow_root_jobs: Annotated[
        Switch, _key("jobs", "Whether root and uids below 1000 may submit jobs to the host's controller.")
    ] = False
    pam_service: Annotated[
        forms.Word,
        _key(
            "jobs",
            "PAM service that decides who may run jobs, and with which limits; none: limits.conf decides.",
        ),
    ] = ""
    no_new_privileges: Annotated[
        Switch,
        _key(
            "jobs", "Whether setuid programs and file capabilities give the processes of jobs no privileges."
        ),
    ] = False
    max_processes: Annotated[
        Whole,
        _key(
            "jobs", "Most processes and threads of all jobs of one user; 0 is no limit.", ge=0, le=4_194_304
        ),
    ] = 32_768
    run_space: Annotated[
        Bytes,
        _key("jobs", "Space of one user in the host's run directory; 0 is no limit.", ge=0, le=1 << 50),
    ] = 256 * MIB
    unknown_constraint: Annotated[
        Unknown,
        _key("jobs", "Action on a job whose --constraint names a feature that the host does not have."),
    ] = "refuse"
    unknown_gres: Annotated[
        Unknown, _key("jobs", "Action on a job whose --gres names a resource that the site does not have.")
    ] = "refuse"
    unknown_license: Annotated[
        Unknown, _key("jobs", "Action on a job whose --licenses names one that the site does not have.")
    ] = "refuse"
    unknown_partition: Annotated[
        Literal["refuse", "default"],
        _key("jobs", "Action on a job that names a partition which does not exist."),
    ] = "refuse"
    unknown_reservation: Annotated[
        Unknown,
        _key("jobs", "Action on a job that names a reservation which does not exist."),
    ] = "refuse"
    hints: Annotated[
        Switch,
        _key("jobs", "Whether fgsub says that earlier runs used much less GPU memory than is requested."),
    ] = True
    tmp: Annotated[
        forms.AbsolutePath, _key("jobs", "Directory in which the TMPDIR of each job is created.")
    ] = "/tmp"
    interval: Annotated[
        Seconds, _key("sampling", "Interval at which GPUs are sampled.", ge=0.25, le=3600)
    ] = 5
    deadline: Annotated[
        Seconds, _key("sampling", "Time in which the GPU driver must answer.", ge=1, le=60)
    ] = 2
    clean_timeout: Annotated[
        Seconds,
        _key(
            "sampling",
            "Time in which the processes of an ended job must leave a GPU before it is drained.",
            ge=1,
            le=3600,
        ),
    ] = 30
    drain_on_xid: Annotated[
        forms.XidNumbers, _key("sampling", "Xid errors of the driver that drain a GPU.")
    ] = (48, 64, 79, 95, 119, 120, 140)
    accounting: Annotated[
        Switch,
        _key("accounting", "Whether ended jobs and samples are kept in the accounts.", name="enabled"),
    ] = True
    move_after: Annotated[
        Period,
        _key("accounting", "Time that an ended job stays in the queue before it moves to the accounts."),
    ] = 600
    keep_minutes: Annotated[
        forms.Retention, _key("accounting", "Time that samples of each minute are kept.")
    ] = 14 * DAY
    keep_hours: Annotated[
        forms.Retention, _key("accounting", "Time that the sums of each hour are kept.")
    ] = 400 * DAY
    keep_days: Annotated[forms.Retention, _key("accounting", "Time that the sums of each day are kept.")] = (
        FOREVER
    )
    weights: Annotated[
        forms.Weights, _key("accounting", "Weights of GPU models for the report on charged hours; default 1.")
    ] = ()
    private_data: Annotated[
        Switch,
        _key("accounting", "Whether jobs, processes and usage of other users are shown to operators only."),
    ] = False
    idle: Annotated[
        Literal["off", "notify", "requeue", "cancel"],
        _key("policies", "The action, after two warnings, on a job that does not use its GPUs."),
    ] = "off"
    idle_window: Annotated[
        Duration, _key("policies", "Time without computing after which a job is idle.", ge=600, le=7 * DAY)
    ] = 3600
    idle_grace: Annotated[Period, _key("policies", "Time after the start that does not count.")] = 1800
    idle_users: Annotated[forms.UserNames, _key("policies", "Users whose jobs may be idle.")] = ()
    idle_partitions: Annotated[Names, _key("policies", "Partitions whose jobs may be idle.")] = ()
    strangers: Annotated[
        Literal["off", "report", "warn"],
        _key("policies", "What is done about GPU processes of no job: mails to the administrator, to users."),
    ] = "off"
    strangers_grace: Annotated[Period, _key("policies", "Time on a GPU that does not count.")] = 600
    strangers_users: Annotated[
        forms.UserNames, _key("policies", "Users whose processes may use GPUs outside of jobs.")
    ] = ()
    strangers_commands: Annotated[
        forms.Commands, _key("policies", "Commands that may use GPUs outside of jobs.")
    ] = ()
    strangers_to: Annotated[
        str, forms.RECIPIENT, _key("policies", "Who gets the mails about processes of no job.")
    ] = "root"
    mail: Annotated[
        Literal["auto", "sendmail", "smtp", "off"],
        _key(
            "mail",
            "How mails are sent; auto: by SMTP if smtp_host is set, else by sendmail.",
            name="send",
        ),
    ] = "auto"
    mail_from: Annotated[
        str,
        forms.ADDRESS,
        _key("mail", "Sender of mails.", name="from", default="fgsched at the domain"),
    ] = ""
    mail_domain: Annotated[
        str, forms.DOMAIN, _key("mail", "Domain of user names; mails to it are allowed.", name="domain")
    ] = ""
    sendmail: Annotated[forms.AbsolutePath, _key("mail", "Program that takes mails.")] = "/usr/sbin/sendmail"
    smtp_host: Annotated[str, forms.DOMAIN, _key("mail", "SMTP server that takes mails.")] = ""
    smtp_port: Annotated[Whole, _key("mail", "Port of the SMTP server.", ge=1, le=65_535)] = 25
    smtp_tls: Annotated[
        Literal["none", "starttls", "tls"], _key("mail", "Encryption of the connection to the SMTP server.")
    ] = "none"
    smtp_user: Annotated[forms.Word, _key("mail", "User name at the SMTP server; none: no login.")] = ""
    smtp_password_file: Annotated[
        forms.Word, _key("mail", "File with the password at the SMTP server, readable by its owner only.")
    ] = ""
    mail_allowed: Annotated[
        forms.Addresses,
        _key("mail", "Addresses, or @DOMAIN, that may receive mails beside users.", name="allowed"),
    ] = ()
    mail_tail: Annotated[
        Whole, _key("mail", "Last lines of the output in a mail; 0: none.", ge=0, le=1000, name="tail")
    ] = 20
    mail_deadline: Annotated[
        Seconds,
        _key("mail", "Time in which the mail server must take a mail.", ge=1, le=600, name="deadline"),
    ] = 30
    mail_give_up: Annotated[
        Duration,
        _key("mail", "Time after which a mail is no longer tried.", ge=60, le=60 * DAY, name="give_up"),
    ] = 5 * DAY
    mail_max_per_hour: Annotated[
        Whole,
        _key(
            "mail",
            "Mails about the jobs of one user in an hour; further ones are only counted. 0: no limit.",
            ge=0,
            le=10_000,
            name="max_per_hour",
        ),
    ] = 200
    watchdog: Annotated[
        Literal["kill", "warn"],
        _key("fence", "Action on a job that uses GPU memory above its limit or without the hook."),
    ] = "kill"
    tolerance: Annotated[
        Bytes,
        _key("fence", "GPU memory above the limit that is tolerated, per job and GPU.", ge=0, le=64 * GIB),
    ] = 512 * MIB
    context_memory: Annotated[
        Bytes,
        _key(
            "fence",
            "Assumed size of a CUDA context, without stacks of threads, until one has been measured.",
            ge=0,
            le=64 * GIB,
        ),
    ] = 256 * MIB
    tiers: Annotated[
        tuple[Tier, ...], _key("fence", "Enforcement tiers that a job may request with --tier.")
    ] = ("driver", "shim", "watchdog")
    preload: Annotated[
        Literal["auto", "namespace", "environment"],
        _key("fence", "Loading of the hook: by an /etc/ld.so.preload private to the job, or by LD_PRELOAD."),
    ] = "auto"
    prolog: Annotated[
        forms.Program,
        _key("hooks", "Program that runs before each job, as root or as the controller's user."),
    ] = ""
    prolog_time: Annotated[Seconds, _key("hooks", "Time limit of the prolog.", ge=1, le=3600)] = 60
    epilog: Annotated[
        forms.Program, _key("hooks", "Program that runs after each job, as root or as the controller's user.")
    ] = ""
    epilog_time: Annotated[Seconds, _key("hooks", "Time limit of the epilog.", ge=1, le=3600)] = 60
    task_prolog: Annotated[
        forms.Program, _key("hooks", "Program that runs before each job's script, as the job's user.")
    ] = ""
    task_prolog_time: Annotated[Seconds, _key("hooks", "Time limit of the task prolog.", ge=1, le=3600)] = 30
    submit_filter: Annotated[
        forms.Program,
        _key(
            "hooks", "Program that checks and changes each submission, as root or as the controller's user."
        ),
    ] = ""
    submit_filter_time: Annotated[Seconds, _key("hooks", "Time limit of the submit filter.", ge=1, le=60)] = (
        10
    )
    events_command: Annotated[
        forms.Program,
        _key("events", "Program that gets events, one in each line of its standard input.", name="command"),
    ] = ""
    events_socket: Annotated[
        forms.Program,
        _key("events", "Unix socket that gets events, as datagrams or lines of a stream.", name="socket"),
    ] = ""
    operators: Annotated[
        forms.UserNames,
        _key("operators", "Users who may see, hold and cancel every job.", name="users"),
    ] = ()
    operator_groups: Annotated[
        Names,
        _key("operators", "Groups whose members may see, hold and cancel every job.", name="groups"),
    ] = ()
    weight_partition: Annotated[
        Whole, _weight("Weight of the partition factor: 1 for the first partition of the file.")
    ] = _STANDARD.partition
    weight_qos: Annotated[Whole, _weight("Weight of the quality of service: 1 for the highest priority.")] = (
        _STANDARD.qos
    )
    weight_fairshare: Annotated[
        Whole, _weight("Weight of the fair-share factor: 1 for a user without usage.")
    ] = _STANDARD.fairshare
    weight_age: Annotated[Whole, _weight("Weight of the age factor: 1 after a wait of max_age.")] = (
        _STANDARD.age
    )
    weight_size: Annotated[
        Whole, _weight("Weight of the size factor: 1 for a job that needs the whole host.")
    ] = _STANDARD.size
    favor_small: Annotated[
        Switch, _key("priority", "Whether weight_size favors small jobs instead of large ones.")
    ] = False
    max_age: Annotated[
        Duration, _key("priority", "Wait after which the age factor stops growing.", ge=60, le=366 * DAY)
    ] = _STANDARD.max_age
    half_life: Annotated[
        Duration, _key("priority", "Time after which past usage counts half.", ge=60, le=366 * DAY)
    ] = _STANDARD.half_life
    fairshare_interval: Annotated[
        Seconds, _key("priority", "Interval at which fair-share usage is recomputed.", ge=1, le=3600)
    ] = _STANDARD.interval
    partitions: dict[str, "PartitionSettings"] = {}
    qos: dict[str, "QosSettings"] = {}
    accounts: dict[str, "AccountSettings"] = {}
    users: dict[str, "UserSettings"] = {}
    resources: dict[str, "ResourceSettings"] = {}
    gpu_types: dict[str, "GpuTypeSettings"] = {}
    features: dict[str, "FeatureSettings"] = {}
    per_gpu: dict[str, "PerGpuSettings"] = {}

    @property
    def limits(self) -> HostLimits:
        """Return the capacity of the host and the rules of placement."""
        return HostLimits(
            cpus=self.cpus or len(os.sched_getaffinity(0)),
            host_memory=self.memory or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
            max_jobs_per_gpu=self.max_jobs_per_gpu,
            max_requeue=self.max_requeue,
            share_step=self.share_step,
            spread=self.placement == "spread",
            kill_wait=self.kill_wait,
        )

    @property
    def policy(self) -> Policy:
        """Return the partitions, limits and priority weights of the site.

        Unless a partition is declared the default, `main` is added as the last one.
        """
        partitions = dict(self.partitions)
        if not any(partition.default for partition in partitions.values()):
            partitions[MAIN] = replace(partitions.get(MAIN) or PartitionSettings(), default=True)
        qos = {NORMAL: QosSettings()} | self.qos if self.qos else {}
        return Policy(
            partitions=tuple(settings.build(name) for name, settings in partitions.items()),
            qos=tuple(settings.build(name) for name, settings in qos.items()),
            accounts=tuple(settings.build(name) for name, settings in self.accounts.items()),
            users=tuple(settings.build(name) for name, settings in self.users.items()),
            resources=tuple(settings.build(name) for name, settings in self.resources.items()),
            weights=self._weights,
            gpu_compute=self.gpu_compute,
        )

    @property
    def idle_rules(self) -> IdleRules:
        """Return the settings of the idle policy."""
        return IdleRules(
            action=self.idle,
            window=self.idle_window,
            grace=self.idle_grace,
            users=self.idle_users,
            partitions=self.idle_partitions,
        )

    def stranger_rules(self, service: ShareService) -> StrangerRules:
        """Return the settings of the watch for GPU processes of no job. `service`: the vendor's MPS."""
        return StrangerRules(
            action=self.strangers,
            grace=self.strangers_grace,
            users=self.strangers_users,
            commands=(*self.strangers_commands, *([service.server] if self.has_mps else [])),
            to=self.strangers_to,
        )

    @property
    def mails(self) -> MailSettings:
        """Return how mails are sent."""
        mails = "smtp" if self.smtp_host else "sendmail" if os.access(self.sendmail, os.X_OK) else "off"
        return MailSettings(
            way=mails if self.mail == "auto" else self.mail,
            sender=self.mail_from,
            domain=self.mail_domain,
            sendmail=self.sendmail,
            host=self.smtp_host or "localhost",
            port=self.smtp_port,
            tls=self.smtp_tls,
            user=self.smtp_user,
            password_file=self.smtp_password_file,
            allowed=self.mail_allowed,
            tail=self.mail_tail,
            deadline=self.mail_deadline,
            give_up=self.mail_give_up,
            most_per_hour=self.mail_max_per_hour,
        )

    def mps_on(self, gpus: Iterable[int], service: ShareService) -> MpsSettings:
        """Return the settings of MPS on a host with the GPUs of these indices."""
        words = {int(index): settings.mps for index, settings in self.per_gpu.items()}
        chosen = frozenset(index for index in gpus if (words.get(index) or self.mps) == "user")
        return MpsSettings(gpus=chosen, program=self.mps_program(service) if chosen else "", service=service)

    @property
    def oversubscribed_gpus(self) -> dict[int, int]:
        """Return {index: capacity in ten-thousandths} of the GPUs with a setting of their own."""
        return {
            int(index): settings.oversubscribe
            for index, settings in self.per_gpu.items()
            if settings.oversubscribe
        }

    @property
    def has_mps(self) -> bool:
        """Tell whether a GPU has MPS."""
        return "user" in (self.mps, *(gpu_settings.mps for gpu_settings in self.per_gpu.values()))

    def mps_program(self, service: ShareService) -> str:
        """Return the path of the control program of MPS; "": it is not there."""
        places = [self.mps_control] if self.mps_control else [f"/usr/bin/{service.program}"]
        return next((os.path.realpath(path) for path in places if os.access(path, os.X_OK)), "")

    @property
    def hooks(self) -> HookSettings:
        """Return the programs of the site."""
        return HookSettings(
            prolog=self.prolog,
            prolog_time=self.prolog_time,
            epilog=self.epilog,
            epilog_time=self.epilog_time,
            task_prolog=self.task_prolog,
            events_command=self.events_command,
            events_socket=self.events_socket,
            submit_filter=self.submit_filter,
            submit_filter_time=self.submit_filter_time,
        )

    @property
    def _weights(self) -> Weights:
        return Weights(
            partition=self.weight_partition,
            qos=self.weight_qos,
            fairshare=self.weight_fairshare,
            age=self.weight_age,
            size=self.weight_size,
            favor_small=self.favor_small,
            max_age=self.max_age,
            half_life=self.half_life,
            interval=int(self.fairshare_interval),
        )

    @property
    def site(self) -> SubmitContext:
        """Return the settings that convert amounts of a request: shards, fGPUs and host memory."""
        return SubmitContext(
            shards_per_gpu=self.shards_per_gpu,
            fgpu_per_gpu=self.fgpu_per_gpu,
            share_step=self.share_step,
            host_memory=self.limits.host_memory,
            mails=self.mails.way != "off",
            hints=self.hints,
            cpus=self.limits.cpus,
            aliases={name: settings.model for name, settings in self.gpu_types.items()},
            features=tuple(name for name, settings in self.features.items() if not settings.gpus),
            ignores=tuple(name for name, word in self._unknown.items() if word != "refuse"),
            unsaid=tuple(name for name, word in self._unknown.items() if word == "ignore"),
        )

    @property
    def _unknown(self) -> dict[str, str]:
        """Return the action on unknown values of each option that has one."""
        return {
            "constraint": self.unknown_constraint,
            "gres": self.unknown_gres,
            "license": self.unknown_license,
            "partition": self.unknown_partition,
            "reservation": self.unknown_reservation,
        }

    @property
    def gpu_features(self) -> dict[int, tuple[str, ...]]:
        """Return {index: features} of the GPUs that have some."""
        gpu_features: dict[int, tuple[str, ...]] = {}
        for name, feature_settings in self.features.items():
            for index in feature_settings.gpus:
                gpu_features[index] = (*gpu_features.get(index, ()), name)
        return gpu_features


# -- the tables with one entry per name -------------------------------------------------------------


def _jobs(description: str) -> Meta:
    return Meta(description=description, ge=0, le=1_000_000)


def _gpus(description: str) -> Meta:
    return Meta(description=description, ge=0, le=1024 * 10_000)


def _memory(description: str) -> Meta:
    return Meta(description=description, ge=0, le=1 << 50)


def _cpus(description: str) -> Meta:
    return Meta(description=description, ge=0, le=65_536)


def _says(description: str) -> Meta:
    return Meta(description=description)


_GRACE = Meta(
    description="Seconds between the warning of a preempted job and its end.", ge=0, le=LONGEST_GRACE
)
_SHARES = Meta(description="Shares in the fair-share tree, relative to its siblings.", ge=1, le=10**6)
_GPU_MINUTES = Meta(
    description="Most GPU minutes, with the decay of the fair share; 0 is no limit.", ge=0, le=10**12
)


class PartitionSettings(Struct, frozen=True, kw_only=True):
    """A `[partitions.NAME]` table. Partitions are in descending order of priority."""

    preempt: Annotated[Names, _says("Partitions further down whose jobs its jobs may preempt.")] = ()
    preempt_mode: Annotated[PreemptMode, forms.ANY_CASE, _says("How its own jobs are preempted.")] = "requeue"
    preempt_grace: Annotated[Whole, _GRACE] = 0
    preempt_exempt: Annotated[Period, _says("Run time before which its jobs are not preempted.")] = 0
    default: Annotated[Switch, _says("Whether jobs that name no partition are submitted to it.")] = False
    state: Annotated[
        PartitionState, _says("down starts no jobs, drain accepts none, inactive does neither.")
    ] = "up"
    gpus: Annotated[forms.GpuRequest, _says("GPUs of a job that requests none.")] = ""
    gpu_mem: Annotated[forms.GpuMemory, _says("GPU memory of a job that requests none.")] = ""
    cpus: Annotated[Whole, _cpus("CPUs of a job that requests none.")] = 0
    mem: Annotated[Bytes, _memory("Host memory of a job that requests none.")] = 0
    time: Annotated[Duration, _says("Time limit of a job that requests none.")] = 0
    max_gpus: Annotated[GpuAmount, _gpus("Most GPUs of one job; 0 is no limit.")] = 0
    max_gpu_mem: Annotated[Bytes, _memory("Most memory of each GPU of one job.")] = 0
    max_cpus: Annotated[Whole, _cpus("Most CPUs of one job.")] = 0
    max_mem: Annotated[Bytes, _memory("Most host memory of one job.")] = 0
    max_time: Annotated[Duration, _says("Longest time limit of a job.")] = 0
    max_running: Annotated[Whole, _jobs("Most running jobs.")] = 0
    max_pending: Annotated[Whole, _jobs("Most pending jobs.")] = 0
    max_running_per_user: Annotated[Whole, _jobs("Most running jobs of one user.")] = 0
    max_pending_per_user: Annotated[Whole, _jobs("Most pending jobs of one user.")] = 0
    max_running_per_account: Annotated[Whole, _jobs("Most running jobs of one account.")] = 0
    max_pending_per_account: Annotated[Whole, _jobs("Most pending jobs of one account.")] = 0
    max_gpus_running: Annotated[GpuAmount, _gpus("Most GPUs of all its running jobs.")] = 0
    max_gpus_per_user: Annotated[GpuAmount, _gpus("Most GPUs of the running jobs of one user.")] = 0
    max_gpus_per_account: Annotated[GpuAmount, _gpus("Most GPUs of the running jobs of one account.")] = 0
    devices: Annotated[forms.GpuIndices, _says("GPUs that its jobs may use; default all.")] = ()
    placement: Annotated[
        Placement | Literal[""], _says("Placement policy of its jobs; default as [gpus] placement.")
    ] = ""
    max_jobs_per_gpu: Annotated[
        Whole,
        Meta(description="Most jobs on one of its GPUs; 0 is as [gpus] max_jobs_per_gpu.", ge=0, le=1000),
    ] = 0
    share_step: Annotated[
        forms.Share,
        Meta(description="Step of its GPU shares; default as [gpus] share_step.", ge=1, le=10_000),
    ] = 0
    gpu_compute: Annotated[
        GpuCompute | Literal[""], _says("Division of compute time among its jobs; default as [gpus].")
    ] = ""
    users: Annotated[Names, _says("Users who may submit to it; default all.")] = ()
    groups: Annotated[Names, _says("Groups whose members may submit to it.")] = ()
    accounts: Annotated[Names, _says("Accounts that may be charged in it.")] = ()

    def build(self, name: str) -> Partition:
        """Return the partition `name` with these settings."""
        return Partition(
            name=name,
            is_default=self.default,
            state=self.state,
            defaults=Defaults(
                gpus=self.gpus, gpu_mem=self.gpu_mem, cpus=self.cpus, memory=self.mem, time=self.time
            ),
            most=PerJobLimits(
                share=self.max_gpus,
                gpu_memory=self.max_gpu_mem,
                cpus=self.max_cpus,
                memory=self.max_mem,
                time=self.max_time,
            ),
            total=Limits(running=self.max_running, pending=self.max_pending, share=self.max_gpus_running),
            per_user=Limits(
                running=self.max_running_per_user,
                pending=self.max_pending_per_user,
                share=self.max_gpus_per_user,
            ),
            per_account=Limits(
                running=self.max_running_per_account,
                pending=self.max_pending_per_account,
                share=self.max_gpus_per_account,
            ),
            access=Access(users=self.users, groups=self.groups, accounts=self.accounts),
            gpus=self.devices,
            placement=self.placement,
            max_jobs_per_gpu=self.max_jobs_per_gpu,
            share_step=self.share_step,
            gpu_compute=self.gpu_compute,
            preempt=self.preempt,
            preempt_rule=PreemptRule(self.preempt_mode, self.preempt_grace, self.preempt_exempt),
        )


class QosSettings(Struct, frozen=True, kw_only=True):
    """A `[qos.NAME]` table: a quality of service."""

    preempt: Annotated[Names, _says("QOS of lower priority whose jobs its jobs may preempt.")] = ()
    preempt_mode: Annotated[
        PreemptMode | Literal[""],
        forms.ANY_CASE,
        _says("How its own jobs are preempted; default as their partition."),
    ] = ""
    preempt_grace: Annotated[Whole, _GRACE] = 0
    preempt_exempt: Annotated[Period, _says("Run time before which its jobs are not preempted.")] = 0
    priority: Annotated[
        Whole, Meta(description="Priority; a higher number starts earlier.", ge=0, le=10**6)
    ] = 0
    max_running: Annotated[Whole, _jobs("Most running jobs.")] = 0
    max_pending: Annotated[Whole, _jobs("Most pending jobs.")] = 0
    max_running_per_user: Annotated[Whole, _jobs("Most running jobs of one user.")] = 0
    max_pending_per_user: Annotated[Whole, _jobs("Most pending jobs of one user.")] = 0
    max_gpus_running: Annotated[GpuAmount, _gpus("Most GPUs of all its running jobs.")] = 0
    max_gpus_per_user: Annotated[GpuAmount, _gpus("Most GPUs of the running jobs of one user.")] = 0
    users: Annotated[Names, _says("Users who may request it; default all.")] = ()
    groups: Annotated[Names, _says("Groups whose members may request it.")] = ()
    accounts: Annotated[Names, _says("Accounts that may request it.")] = ()

    def build(self, name: str) -> Qos:
        """Return the quality of service `name` with these settings."""
        return Qos(
            name=name,
            priority=self.priority,
            total=Limits(running=self.max_running, pending=self.max_pending, share=self.max_gpus_running),
            per_user=Limits(
                running=self.max_running_per_user,
                pending=self.max_pending_per_user,
                share=self.max_gpus_per_user,
            ),
            access=Access(users=self.users, groups=self.groups, accounts=self.accounts),
            preempt=self.preempt,
            preempt_rule=PreemptRule(self.preempt_mode, self.preempt_grace, self.preempt_exempt),
        )


class AccountSettings(Struct, frozen=True, kw_only=True):
    """An `[accounts.NAME]` table."""

    shares: Annotated[Whole, _SHARES] = 1
    gpu_minutes: Annotated[Whole, _GPU_MINUTES] = 0
    max_running: Annotated[Whole, _jobs("Most running jobs.")] = 0
    max_pending: Annotated[Whole, _jobs("Most pending jobs.")] = 0
    max_gpus_running: Annotated[GpuAmount, _gpus("Most GPUs of all its running jobs.")] = 0
    users: Annotated[Names, _says("Users who may charge it; default all.")] = ()

    def build(self, name: str) -> ChargeAccount:
        """Return the account `name` with these settings."""
        return ChargeAccount(name=name, shares=self.shares, limits=_limits(self), users=self.users)


class UserSettings(Struct, frozen=True, kw_only=True):
    """A `[users.NAME]` table."""

    shares: Annotated[Whole, _SHARES] = 1
    account: Annotated[forms.Name, _says("Account of jobs that name none.")] = ""
    gpu_minutes: Annotated[Whole, _GPU_MINUTES] = 0
    max_running: Annotated[Whole, _jobs("Most running jobs.")] = 0
    max_pending: Annotated[Whole, _jobs("Most pending jobs.")] = 0
    max_gpus_running: Annotated[GpuAmount, _gpus("Most GPUs of all running jobs of the user.")] = 0

    def build(self, name: str) -> UserPolicy:
        """Return the user `name` with these settings."""
        return UserPolicy(name=name, shares=self.shares, account=self.account, limits=_limits(self))


class ResourceSettings(Struct, frozen=True, kw_only=True):
    """A `[resources.NAME]` table, or `NAME = count` in `[resources]`."""

    count: Annotated[Whole, Meta(description="Number of units on this host.", ge=1, le=65_536)] = 1
    visible_env: Annotated[
        forms.Name, _says("Environment variable that lists the units assigned to a job.")
    ] = ""

    def build(self, name: str) -> Resource:
        """Return the countable resource `name` with these settings."""
        return Resource(name=name, count=self.count, visible_env=self.visible_env)


def _limits(settings: AccountSettings | UserSettings) -> Limits:
    return Limits(
        running=settings.max_running,
        pending=settings.max_pending,
        share=settings.max_gpus_running,
        gpu_seconds=settings.gpu_minutes * 60,
    )


class GpuTypeSettings(Struct, frozen=True, kw_only=True):
    """A `[gpu_types.NAME]` table, or `NAME = "MODEL"` in `[gpu_types]`."""

    model: Annotated[forms.Name, _says("Part of the model's name that this name means.")] = ""


class FeatureSettings(Struct, frozen=True, kw_only=True):
    """A `[features.NAME]` table."""

    gpus: Annotated[forms.GpuIndices, _says("GPUs that have the feature; none: the host has it.")] = ()


class PerGpuSettings(Struct, frozen=True, kw_only=True):
    """A `[per_gpu.INDEX]` table: one GPU of the host."""

    mps: Annotated[Mps | Literal[""], _says("MPS on this GPU; default as [gpus] mps.")] = ""
    oversubscribe: Annotated[
        forms.Factor,
        Meta(
            description="Multiple of this GPU that jobs may hold; default as [gpus].", ge=10_000, le=160_000
        ),
    ] = 0
