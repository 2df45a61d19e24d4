-- Statements that read the readable rows of a damaged queue and write them into a new one.

-- name: read_blob
SELECT * FROM blob NOT INDEXED WHERE id BETWEEN :low AND :high;

-- name: read_job
SELECT * FROM job NOT INDEXED WHERE id BETWEEN :low AND :high;

-- name: read_card
SELECT * FROM card NOT INDEXED WHERE gpu BETWEEN :low AND :high;

-- name: read_event
SELECT * FROM event NOT INDEXED WHERE id BETWEEN :low AND :high;

-- name: read_meta
SELECT * FROM meta ORDER BY key;

-- name: read_meta_backwards
SELECT * FROM meta ORDER BY key DESC;

-- name: read_submission
SELECT * FROM submission ORDER BY uid, key;

-- name: read_submission_backwards
SELECT * FROM submission ORDER BY uid DESC, key DESC;

-- name: read_usage
SELECT * FROM usage ORDER BY account, user;

-- name: read_usage_backwards
SELECT * FROM usage ORDER BY account DESC, user DESC;

-- name: last_blob
SELECT max(id) FROM blob NOT INDEXED;

-- name: last_event
SELECT max(id) FROM event NOT INDEXED;

-- name: last_of_jobs
SELECT max(id) FROM job NOT INDEXED;

-- name: default_of
SELECT name, dflt_value FROM pragma_table_info('job');

-- name: keep_blob
INSERT OR IGNORE INTO blob (id, digest, data) VALUES (:id, :digest, :data);

-- name: keep_meta
INSERT OR IGNORE INTO meta (key, value) SELECT :key, :value WHERE :key NOT IN ('name', 'created');

-- name: keep_submission
INSERT OR IGNORE INTO submission (uid, key, first, count, at) VALUES (:uid, :key, :first, :count, :at);

-- name: keep_card
INSERT OR IGNORE INTO card (gpu, uuid, usable, model, state, note, at)
VALUES (:gpu, :uuid, :usable, :model, :state, :note, :at);

-- name: keep_usage
INSERT OR IGNORE INTO usage (account, user, seconds, at) VALUES (:account, :user, :seconds, :at);

-- name: keep_event
INSERT OR IGNORE INTO event (id, job, attempt, at, old, new, reason)
SELECT :id, :job, :attempt, :at, :old, :new, :reason WHERE EXISTS (SELECT 1 FROM job WHERE job.id = :job);

-- name: keep_job
INSERT OR IGNORE INTO job ({columns})
VALUES ({values});

-- name: note_ended
-- The scripts and environments of the ended jobs are to be noted as of any job that ends.
INSERT INTO over (job) SELECT id FROM job WHERE ended_at IS NOT NULL;

-- name: definitions
-- The definitions of the tables and indexes; those of SQLite's own have no text.
SELECT CAST(name AS BLOB), CAST(sql AS BLOB) FROM sqlite_schema WHERE typeof(sql) = 'text';
