-- What the accounts counted since they were made. It stays when jobs are archived and days are deleted, so that
-- exported counters never fall. Times in microseconds and energy in microjoules: sums of integers are exact.

CREATE TABLE ended (
  owner INTEGER NOT NULL REFERENCES owner,
  state TEXT NOT NULL,
  jobs  INTEGER NOT NULL,
  PRIMARY KEY (owner, state)
) STRICT, WITHOUT ROWID;

INSERT INTO ended (owner, state, jobs) SELECT owner, state, count(*) FROM job GROUP BY owner, state;

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

INSERT INTO meta (key, value) VALUES ('counted_until', '0') ON CONFLICT (key) DO NOTHING;
