-- The accounts: ended jobs and what GPUs did. Version 1. One process writes, any number read.
-- Spans: minute, hour, day. Hours and days begin at full hours and midnights of the host's time zone.

CREATE TABLE meta (
  key   TEXT PRIMARY KEY,
  value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE owner (
  id        INTEGER PRIMARY KEY,
  uid       INTEGER NOT NULL,
  user      TEXT NOT NULL,
  account   TEXT NOT NULL,
  partition TEXT NOT NULL,
  qos       TEXT NOT NULL,
  tag       TEXT NOT NULL,
  UNIQUE (uid, user, account, partition, qos, tag)
) STRICT;

CREATE TABLE card (
  id    INTEGER PRIMARY KEY,
  uuid  TEXT NOT NULL UNIQUE,
  gpu   INTEGER NOT NULL,
  model TEXT NOT NULL,
  total INTEGER NOT NULL,
  since REAL NOT NULL,
  until REAL NOT NULL
) STRICT;

-- The columns that reports read come first; `detail` has the other fields of the record as JSON.
CREATE TABLE job (
  id           INTEGER PRIMARY KEY,          -- as in the queue
  owner        INTEGER NOT NULL REFERENCES owner,
  ended_at     REAL NOT NULL,
  submitted_at REAL NOT NULL,
  eligible_at  REAL NOT NULL,
  started_at   REAL,
  state        TEXT NOT NULL,
  gpus         INTEGER NOT NULL,
  share        INTEGER NOT NULL,             -- ten-thousandths of each GPU
  memory       INTEGER NOT NULL,             -- bytes of each GPU
  time_limit   INTEGER NOT NULL,             -- seconds; 0: none
  suspended    REAL NOT NULL,                -- seconds
  charged      REAL NOT NULL,                -- GPU seconds
  used         REAL,                         -- GPU seconds; NULL: not sampled
  idle         REAL,                         -- GPU seconds: held + empty; NULL: not sampled
  gpu_peak     INTEGER NOT NULL,             -- bytes
  oom          TEXT NOT NULL,
  model        TEXT NOT NULL,
  name         TEXT NOT NULL,
  array        INTEGER NOT NULL,             -- id of its array; 0: none
  task         INTEGER,                      -- index in the array
  detail       TEXT NOT NULL,                -- JSON
  kept         BLOB NOT NULL                 -- compressed JSON: what only commands about this job show
) STRICT;
-- All that the sums of reports need, so that a report on a year does not read the rows. It costs 95 bytes a job.
CREATE INDEX job_by_end ON job (ended_at, owner, state, oom, model, gpus, share, memory, charged, used, idle, gpu_peak,
  eligible_at, started_at, time_limit, name);
CREATE INDEX job_of_owner ON job (owner);
CREATE UNIQUE INDEX job_of_array ON job (array, task) WHERE array > 0;

-- The times of each 1000 consecutive ids, so that a page of history skips those outside of its period.
CREATE TABLE id_range (
  first        INTEGER PRIMARY KEY,          -- a multiple of 1000
  submitted_at REAL NOT NULL,                -- of the first one to be submitted
  ended_at     REAL NOT NULL                 -- of the last one to end
) STRICT;

CREATE TRIGGER job_is_added AFTER INSERT ON job BEGIN
  INSERT INTO id_range (first, submitted_at, ended_at)
  VALUES (NEW.id / 1000 * 1000, NEW.submitted_at, NEW.ended_at)
  ON CONFLICT (first) DO UPDATE SET submitted_at = min(submitted_at, excluded.submitted_at),
    ended_at = max(ended_at, excluded.ended_at);
END;

-- The sums of samples of jobs that are still in the queue.
CREATE TABLE sample (
  job   INTEGER PRIMARY KEY,
  usage TEXT NOT NULL                        -- JSON
) STRICT;

CREATE TABLE card_use (
  span        INTEGER NOT NULL CHECK (span IN (60, 3600, 86400)),
  at          INTEGER NOT NULL,
  card        INTEGER NOT NULL REFERENCES card,
  sampled     REAL NOT NULL,
  active      REAL NOT NULL,
  held        REAL NOT NULL,
  empty       REAL NOT NULL,
  free        REAL NOT NULL,
  external    REAL NOT NULL,
  down        REAL NOT NULL,
  packed      REAL NOT NULL,
  used        REAL NOT NULL,
  memory      REAL NOT NULL,
  "foreign"   REAL NOT NULL,
  peak        INTEGER NOT NULL,
  jobs        INTEGER NOT NULL,
  temperature INTEGER,
  energy      REAL,
  throttled   REAL NOT NULL,
  PRIMARY KEY (span, at, card)
) STRICT, WITHOUT ROWID;

CREATE TABLE owner_use (
  span    INTEGER NOT NULL CHECK (span IN (60, 3600, 86400)),
  at      INTEGER NOT NULL,
  card    INTEGER NOT NULL REFERENCES card,
  owner   INTEGER NOT NULL REFERENCES owner,
  job     INTEGER NOT NULL,                  -- 0: all jobs of the owner, in hours and days
  charged REAL NOT NULL,
  active  REAL NOT NULL,
  held    REAL NOT NULL,
  empty   REAL NOT NULL,
  used    REAL NOT NULL,
  memory  REAL NOT NULL,
  peak    INTEGER NOT NULL,
  energy  REAL,
  PRIMARY KEY (span, at, card, owner, job)
) STRICT, WITHOUT ROWID;

-- Processes outside of jobs, each with its own times: a row never covers a time in which its process was not seen.
CREATE TABLE foreign_run (
  span    INTEGER NOT NULL CHECK (span IN (60, 3600, 86400)),
  at      INTEGER NOT NULL,
  card    INTEGER NOT NULL REFERENCES card,
  user    TEXT NOT NULL,
  command TEXT NOT NULL,
  pid     INTEGER NOT NULL,                  -- 0: several processes, in hours and days with very many
  since   REAL NOT NULL,
  until   REAL NOT NULL,
  seconds REAL NOT NULL,                     -- of all its processes
  memory  REAL NOT NULL,
  peak    INTEGER NOT NULL,
  used    REAL NOT NULL,
  PRIMARY KEY (span, at, card, user, command, pid, since)
) STRICT, WITHOUT ROWID;

CREATE TABLE demand (
  span        INTEGER NOT NULL CHECK (span IN (60, 3600, 86400)),
  at          INTEGER NOT NULL,
  reason      TEXT NOT NULL,
  lacking     TEXT NOT NULL,
  model       TEXT NOT NULL,
  seconds     REAL NOT NULL,
  job_seconds REAL NOT NULL,
  gpu_seconds REAL NOT NULL,
  most        INTEGER NOT NULL,
  PRIMARY KEY (span, at, reason, lacking, model)
) STRICT, WITHOUT ROWID;

CREATE TABLE health (
  at     REAL NOT NULL,
  card   INTEGER NOT NULL REFERENCES card,
  kind   TEXT NOT NULL,
  detail TEXT NOT NULL,
  PRIMARY KEY (at, card, kind, detail)
) STRICT, WITHOUT ROWID;

CREATE TABLE warned (
  at      REAL NOT NULL,
  job     INTEGER NOT NULL,
  policy  TEXT NOT NULL,
  finding TEXT NOT NULL,
  action  TEXT NOT NULL,
  dry     INTEGER NOT NULL,
  PRIMARY KEY (job, at, policy, action)
) STRICT, WITHOUT ROWID;

CREATE TABLE gap (
  since REAL PRIMARY KEY,
  until REAL NOT NULL,
  why   TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- What the accounts counted since they were made. It stays when jobs are archived and days are deleted, so that
-- exported counters never fall. Times in microseconds and energy in microjoules: sums of integers are exact.

CREATE TABLE ended (
  owner INTEGER NOT NULL REFERENCES owner,
  state TEXT NOT NULL,
  jobs  INTEGER NOT NULL,
  PRIMARY KEY (owner, state)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER job_is_counted AFTER INSERT ON job BEGIN
  INSERT INTO ended (owner, state, jobs) VALUES (NEW.owner, NEW.state, 1)
  ON CONFLICT (owner, state) DO UPDATE SET jobs = jobs + 1;
END;

-- The sums of all days before `counted_until` in `meta`; the later days are in card_use and owner_use.
CREATE TABLE card_before (
  card     INTEGER PRIMARY KEY REFERENCES card,
  active   INTEGER NOT NULL,
  held     INTEGER NOT NULL,
  empty    INTEGER NOT NULL,
  free     INTEGER NOT NULL,
  external INTEGER NOT NULL,
  down     INTEGER NOT NULL,
  used     INTEGER NOT NULL,
  energy   INTEGER
) STRICT;

CREATE TABLE owner_before (
  owner  INTEGER NOT NULL REFERENCES owner,
  card   INTEGER NOT NULL REFERENCES card,
  active INTEGER NOT NULL,
  held   INTEGER NOT NULL,
  empty  INTEGER NOT NULL,
  used   INTEGER NOT NULL,
  PRIMARY KEY (owner, card)
) STRICT, WITHOUT ROWID;

INSERT INTO meta (key, value) VALUES ('counted_until', '0');
