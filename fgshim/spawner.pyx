# fgspawn: forks one shepherd for each job it is told to start, and outlives the controller.
#
# Run as root it is the one place where jobs become their users, so it is a small
# program of its own, without Python: no module body ever runs here, all statics
# begin at zero, nothing allocates memory once it has started, and there are no threads.
# docs/native.md says what it hears and answers.
#
# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False

include "spawner/libc.pxi"
include "spawner/text.pxi"
include "spawner/state.pxi"
include "spawner/message.pxi"
include "spawner/files.pxi"
include "spawner/cgroup.pxi"
include "spawner/user.pxi"
include "spawner/mounts.pxi"
include "spawner/prove.pxi"
include "spawner/priority.pxi"
include "spawner/child.pxi"
include "spawner/tree.pxi"
include "spawner/result.pxi"
include "spawner/watch.pxi"
include "spawner/shepherd.pxi"
include "spawner/orphan.pxi"
include "spawner/controller.pxi"
include "spawner/serve.pxi"
include "spawner/start.pxi"
