-- Processes outside of jobs, each with its own times: a row never covers a time in which its process was not seen.
-- The table foreign_use of earlier releases has one row for all processes of a user and command.

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
