-- The number of the last commit, as the queue has it. `rows` counts changes: another program that writes changes it.
CREATE TABLE commits (
  only  INTEGER PRIMARY KEY CHECK (only = 1),
  count INTEGER NOT NULL,                    -- commits of the accountant
  rows  INTEGER NOT NULL,                    -- changed rows
  jobs  INTEGER NOT NULL,                    -- that were ever added
  at    REAL NOT NULL                        -- of the last commit, in epoch seconds
) STRICT;

INSERT INTO commits (only, count, rows, jobs, at) SELECT 1, 0, 0, coalesce(sum(jobs), 0), 0.0 FROM ended;

CREATE TRIGGER job_is_guarded AFTER INSERT ON job BEGIN UPDATE commits SET rows = rows + 1, jobs = jobs + 1; END;
