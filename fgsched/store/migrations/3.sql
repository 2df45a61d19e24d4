-- Version 3: scripts and environments of ended jobs are removed after a while.

-- Jobs that ended and whose script and environment are still to be noted in `idle`. A recovery, the only one to add ended
-- jobs, adds their rows: a trigger would cost a third of the time in which a new job is stored.
CREATE TABLE over (
  job INTEGER PRIMARY KEY
) STRICT;
INSERT INTO over (job) SELECT id FROM job WHERE ended_at IS NOT NULL;

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
