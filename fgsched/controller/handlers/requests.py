"""Make the handlers of all requests."""

import os
import sys
import time
from functools import partial

from fgsched.config.load import Config, load
from fgsched.controller.audit import Audit, file_writer
from fgsched.controller.engine import Engine
from fgsched.controller.eventloop import EventLoop
from fgsched.controller.handlers.about import ControllerInfo
from fgsched.controller.handlers.adopt import AdoptHandlers
from fgsched.controller.handlers.dispatch import Beyond, Dispatcher, Handlers
from fgsched.controller.handlers.explain import ExplainHandlers
from fgsched.controller.handlers.fields import Live
from fgsched.controller.handlers.jobs import FIRST_USER, JobHandlers, Rules
from fgsched.controller.handlers.partitions import ConfigActions, PartitionHandlers
from fgsched.controller.handlers.priority import PriorityHandlers
from fgsched.controller.handlers.query import QueryHandlers
from fgsched.controller.handlers.reservations import ReservationHandlers
from fgsched.controller.handlers.wait import WaitHandlers
from fgsched.launch import regions
from fgsched.launch.launcher import Launcher
from fgsched.launch.unhooked import Unhooked
from fgsched.system.paths import Paths


class Requests:
    """The handlers of all requests."""

    def __init__(
        self,
        engine: Engine,
        loop: EventLoop,
        launcher: Launcher,
        live: Live,
        about: ControllerInfo,
        beyond: Beyond,
    ) -> None:
        self.jobs = JobHandlers(engine, rules(about.places, about.config))
        actions = ConfigActions(lambda: load(about.places), beyond.obey)
        self.partitions = PartitionHandlers(engine, actions)
        self.reservations = ReservationHandlers(engine)
        write = file_writer(about.places.audit, time.time)
        self.audit = Audit(write, lambda number: engine.jobtable.named(number))
        loop.witness = self.audit.witness
        self.waiters = WaitHandlers(loop.finish, loop.faults)
        explain = ExplainHandlers(engine, self.jobs.tried)
        person = partial(_person, about)
        adopt = AdoptHandlers(engine, self.jobs, beyond.job_of, person, sys.executable)
        priority = PriorityHandlers(engine)
        handlers = Handlers(self.jobs, self.partitions, priority, explain, self.reservations, adopt)
        refused = partial(regions.refusal, str(launcher.run.path))
        live = live._replace(refusal=refused, unhooked=Unhooked(launcher.shepherd).of)
        query = QueryHandlers(engine, launcher.pids, live)
        self.dispatcher = Dispatcher(handlers, query, self.waiters, loop, about, beyond)


def _person(about: ControllerInfo, uid: int) -> tuple[int, str] | None:
    """Return (gid, name) of a user who can own jobs of this controller. Raises Busy."""
    if about.places.mode == "user" and uid != os.geteuid():
        return None
    about.host_users.is_known(uid)  # it is looked up, if it is not known
    host_user = about.host_users.of(uid)
    if host_user is None:
        return (os.getegid(), str(uid)) if uid == os.geteuid() else None
    return host_user.gid, host_user.name


def rules(places: Paths, config: Config) -> Rules:
    """Return the rules for submissions from the configuration."""
    may_be_root = places.mode == "user" or config.allow_root_jobs
    return Rules(
        config.max_script,
        config.default_time,
        least_uid=0 if may_be_root else FIRST_USER,
        tiers=config.tiers,
        kill_invalid=config.kill_invalid_depend,
        max_jobs=config.max_jobs_per_user,
        max_material=config.max_bytes_per_user,
        kept_material=config.keep_scripts_size,
        mail=config.mails,
    )
