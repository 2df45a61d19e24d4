-- Version 2: the number of the last commit, and of the rows of jobs that were ever written.
-- The first is kept beside the queue as well: a write-ahead log that was lost or damaged is told by it. The second
-- is counted by the file itself, whoever writes: it tells a change by another program from damage.

CREATE TABLE commits (
  only  INTEGER PRIMARY KEY CHECK (only = 1),
  count INTEGER NOT NULL CHECK (count >= 0),
  rows  INTEGER NOT NULL CHECK (rows >= 0)
) STRICT;
INSERT INTO commits (only, count, rows) VALUES (1, 0, 0);

CREATE TRIGGER job_is_added AFTER INSERT ON job
BEGIN
  UPDATE commits SET rows = rows + 1;
END;

CREATE TRIGGER job_is_changed AFTER UPDATE ON job
BEGIN
  UPDATE commits SET rows = rows + 1;
END;
