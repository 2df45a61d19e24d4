# fgspawn: forks one shepherd for each job it is told to start, and outlives the controller.
#
# Run as root it is the one place where jobs become their users, so it is a small
# program of its own, without Python: no module body ever runs here, all statics
# begin at zero, nothing allocates memory once it has started, and there are no threads.
# docs/native.md says what it hears and answers.
#
# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False

include "spawn_libc.pxi"
include "spawn_text.pxi"
include "spawn_words.pxi"
include "spawn_message.pxi"
include "spawn_files.pxi"
include "spawn_cgroup.pxi"
include "spawn_user.pxi"
include "spawn_mounts.pxi"
include "spawn_prove.pxi"
include "spawn_standing.pxi"
include "spawn_child.pxi"
include "spawn_tree.pxi"
include "spawn_result.pxi"
include "spawn_watch.pxi"
include "spawn_shepherd.pxi"
include "spawn_orphan.pxi"
include "spawn_controller.pxi"
include "spawn_serve.pxi"
include "spawn_begin.pxi"
