-- Version 2: the number of the last commit, and the number of rows that were changed.
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
