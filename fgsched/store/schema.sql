-- The queue and the accounts. Version 1.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Scripts and environments, each kept once however many jobs share it. Secrets of their owners.
CREATE TABLE blob (
  id     INTEGER PRIMARY KEY,
  digest BLOB NOT NULL UNIQUE,
  data   BLOB NOT NULL
) STRICT;

-- One row a request: a client that repeats its key gets the same ids.
CREATE TABLE submission (
  uid   INTEGER NOT NULL,
  key   TEXT NOT NULL,
  first INTEGER NOT NULL,
  count INTEGER NOT NULL CHECK (count > 0),
  at    REAL NOT NULL,
  PRIMARY KEY (uid, key)
) STRICT, WITHOUT ROWID;

-- What a column can have is asked by CASE and OR: of more than two words after IN, SQLite makes a table in memory
-- each time that a row is written, which took half of the time of a step and two thirds of that of a submission.
CREATE TABLE job (
  id           INTEGER PRIMARY KEY AUTOINCREMENT,
  uid          INTEGER NOT NULL CHECK (uid >= 0),
  gid          INTEGER NOT NULL CHECK (gid >= 0),
  user         TEXT NOT NULL,
  name         TEXT NOT NULL,
  partition    TEXT NOT NULL,
  request      TEXT NOT NULL,                 -- JSON
  gpus         INTEGER NOT NULL CHECK (gpus >= 0),
  script       INTEGER NOT NULL REFERENCES blob,
  environment  INTEGER NOT NULL REFERENCES blob,
  submitted_at REAL NOT NULL,
  opened_at    REAL NOT NULL DEFAULT 0,       -- when the last dependency or hold that kept it back fell away
  state        TEXT NOT NULL CHECK (CASE state {any_state} ELSE 0 END),
  reason       TEXT NOT NULL DEFAULT 'None',
  held         TEXT NOT NULL DEFAULT '' CHECK (held = '' OR held = 'user' OR held = 'admin'),
  attempt      INTEGER NOT NULL DEFAULT 0 CHECK (attempt >= 0),
  slot         INTEGER NOT NULL DEFAULT 0 CHECK (slot >= 0),
  resources    TEXT NOT NULL DEFAULT '',      -- JSON: [[name, [index, ...]], ...]
  boot         TEXT NOT NULL DEFAULT '',
  tier         TEXT NOT NULL DEFAULT 'none',
  mounts       TEXT NOT NULL DEFAULT '',
  cpus         TEXT NOT NULL DEFAULT '',      -- that it is bound to: a list such as 0-3
  allocated    TEXT NOT NULL DEFAULT '',      -- JSON: [[index, uuid, model, share, bytes, charged share], ...]
  started_at   REAL,
  ended_at     REAL,
  cancelled_by INTEGER,
  outcome      TEXT,
  status       INTEGER,
  cpu_seconds  REAL NOT NULL DEFAULT 0,
  max_rss      INTEGER NOT NULL DEFAULT 0,
  gpu_peak     INTEGER NOT NULL DEFAULT 0,
  refusals     INTEGER NOT NULL DEFAULT 0,
  post_mortem  TEXT NOT NULL DEFAULT '',      -- JSON: [gpu, asked, held, limit, [[job, bytes], ...], strangers]
  warning      TEXT NOT NULL DEFAULT '',
  condemned    TEXT NOT NULL DEFAULT 'None',
  detail       TEXT NOT NULL DEFAULT '',
  lost         INTEGER NOT NULL DEFAULT 0 CHECK (lost IN (0, 1)),
  array_job    INTEGER REFERENCES job,        -- the row of the pending tasks of its array
  array_task   INTEGER CHECK (array_task >= 0),
  restarts     INTEGER NOT NULL DEFAULT 0 CHECK (restarts >= 0),
  failures     INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
  not_before   REAL NOT NULL DEFAULT 0,
  note         TEXT NOT NULL DEFAULT '',      -- why it was cancelled
  wish         TEXT NOT NULL DEFAULT '' CHECK (wish IN ('', 'requeue')),
  depends      TEXT NOT NULL DEFAULT '',      -- its dependency without the conditions that are met
  suspended_at REAL,
  suspended    REAL NOT NULL DEFAULT 0 CHECK (suspended >= 0),
  relimited    INTEGER NOT NULL DEFAULT 0 CHECK (relimited IN (0, 1)),  -- a new time limit must be sent to its shepherd
  eviction     TEXT NOT NULL DEFAULT '',      -- JSON: [by, at, mode, attempt, grace, until] of the last time
  -- a job that is under way was started at some time by some boot, and has what it asked for
  CHECK (CASE state {holding_state} ELSE 1 END
         OR (attempt > 0 AND boot <> '' AND started_at IS NOT NULL AND (gpus = 0 OR allocated <> ''))),
  -- a job has an end if and only if its state is final
  CHECK ((ended_at IS NOT NULL) = CASE state {open_state} ELSE 1 END),
  -- the row of an array's pending tasks never runs itself
  CHECK (array_job IS NULL OR array_task IS NOT NULL OR (id = array_job AND attempt = 0)),
  CHECK ((suspended_at IS NOT NULL) = (state = 'SUSPENDED'))
) STRICT;
CREATE INDEX job_open ON job (id) WHERE ended_at IS NULL;
-- no task of an array is ever made twice
CREATE UNIQUE INDEX job_of_array ON job (array_job, array_task) WHERE array_job IS NOT NULL;
CREATE INDEX job_by_end ON job (ended_at) WHERE ended_at IS NOT NULL;

-- The cards as they were when the controller started, so that the file itself can refuse an over-full one.
CREATE TABLE card (
  gpu    INTEGER PRIMARY KEY,
  uuid   TEXT NOT NULL,
  usable INTEGER NOT NULL CHECK (usable >= 0),
  model  TEXT NOT NULL DEFAULT '',
  state  TEXT NOT NULL DEFAULT 'ok',
  note   TEXT NOT NULL DEFAULT '',
  at     REAL NOT NULL DEFAULT 0,
  -- ten-thousandths of the card; more than 10000: the site oversubscribes it, and its jobs may hold this multiple
  -- of its share and of its memory
  capacity INTEGER NOT NULL DEFAULT 10000 CHECK (capacity >= 10000)
) STRICT;

CREATE TABLE hold (
  job    INTEGER NOT NULL REFERENCES job,
  gpu    INTEGER NOT NULL REFERENCES card,
  share  INTEGER NOT NULL CHECK (share BETWEEN 0 AND 10000),  -- 0: it stands still, and another job has its part
  memory INTEGER NOT NULL CHECK (memory >= 0),
  PRIMARY KEY (gpu, job)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER no_card_is_over_held AFTER INSERT ON hold
WHEN (SELECT sum(share) FROM hold WHERE gpu = NEW.gpu) > (SELECT capacity FROM card WHERE gpu = NEW.gpu)
  OR (SELECT sum(memory) FROM hold WHERE gpu = NEW.gpu)
     > (SELECT usable * capacity / 10000 FROM card WHERE gpu = NEW.gpu)
BEGIN
  SELECT RAISE(ABORT, 'a card would be held beyond what it has');
END;

CREATE TRIGGER no_card_comes_to_be_over_held AFTER UPDATE ON hold
WHEN (SELECT sum(share) FROM hold WHERE gpu = NEW.gpu) > (SELECT capacity FROM card WHERE gpu = NEW.gpu)
  OR (SELECT sum(memory) FROM hold WHERE gpu = NEW.gpu)
     > (SELECT usable * capacity / 10000 FROM card WHERE gpu = NEW.gpu)
BEGIN
  SELECT RAISE(ABORT, 'a card would be held beyond what it has');
END;

-- Charged GPU seconds of each account and user, decayed to `at`: what the fair share goes by.
CREATE TABLE usage (
  account TEXT NOT NULL,
  user    TEXT NOT NULL,
  seconds REAL NOT NULL CHECK (seconds >= 0),
  at      REAL NOT NULL,
  PRIMARY KEY (account, user)
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
  id      INTEGER PRIMARY KEY,
  job     INTEGER NOT NULL REFERENCES job,
  attempt INTEGER NOT NULL,
  at      REAL NOT NULL,
  old     TEXT NOT NULL,
  new     TEXT NOT NULL,
  reason  TEXT NOT NULL
) STRICT;
CREATE INDEX event_of_job ON event (job);

-- The number of the last commit, and the number of rows that were changed.
-- The number of the last commit is also stored beside the queue, so that a lost or damaged write-ahead log is detected.
-- Triggers count the changed rows, whichever program writes them: a change by another program is not reported as damage.
-- New jobs, submissions, events, scripts and holds are not counted: no other program writes them, and counting them would
-- cost time for each job.

CREATE TABLE commits (
  only  INTEGER PRIMARY KEY CHECK (only = 1),
  count INTEGER NOT NULL CHECK (count >= 0),
  rows  INTEGER NOT NULL CHECK (rows >= 0)
) STRICT;
INSERT INTO commits (only, count, rows) VALUES (1, 0, 0);

CREATE TRIGGER job_is_changed AFTER UPDATE ON job BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER job_is_removed AFTER DELETE ON job BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER hold_is_changed AFTER UPDATE ON hold BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER card_is_added AFTER INSERT ON card BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER card_is_changed AFTER UPDATE ON card BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER card_is_removed AFTER DELETE ON card BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER meta_is_added AFTER INSERT ON meta BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER meta_is_changed AFTER UPDATE ON meta BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER meta_is_removed AFTER DELETE ON meta BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER usage_is_added AFTER INSERT ON usage BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER usage_is_changed AFTER UPDATE ON usage BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER usage_is_removed AFTER DELETE ON usage BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER submission_is_changed AFTER UPDATE ON submission BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER submission_is_removed AFTER DELETE ON submission BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER blob_is_changed AFTER UPDATE ON blob BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER blob_is_removed AFTER DELETE ON blob BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER event_is_changed AFTER UPDATE ON event BEGIN UPDATE commits SET rows = rows + 1; END;
CREATE TRIGGER event_is_removed AFTER DELETE ON event BEGIN UPDATE commits SET rows = rows + 1; END;

-- Jobs that ended and whose script and environment are still to be noted in `idle`. A recovery, the only one to add ended
-- jobs, adds their rows: a trigger would cost a third of the time in which a new job is stored.
CREATE TABLE over (
  job INTEGER PRIMARY KEY
) STRICT;

CREATE TRIGGER job_ends AFTER UPDATE OF ended_at ON job WHEN NEW.ended_at IS NOT NULL AND OLD.ended_at IS NULL
BEGIN
  INSERT OR IGNORE INTO over (job) VALUES (NEW.id);
END;

-- Scripts and environments that ended jobs have, and when the last of these jobs ended. A job that is not over may have
-- one as well: that is looked up before anything is removed. `uid`: of the job that ended last.
CREATE TABLE idle (
  blob     INTEGER PRIMARY KEY REFERENCES blob,
  uid      INTEGER NOT NULL,
  size     INTEGER NOT NULL,
  ended_at REAL NOT NULL
) STRICT;
CREATE INDEX idle_by_end ON idle (ended_at);
CREATE INDEX idle_of_user ON idle (uid, ended_at, size);

-- The holds of open jobs.
CREATE INDEX open_script ON job (script, uid) WHERE ended_at IS NULL;
CREATE INDEX open_environment ON job (environment, uid) WHERE ended_at IS NULL;
