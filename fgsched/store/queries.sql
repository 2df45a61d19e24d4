-- name: name_queue
-- Executed once for each queue file.
INSERT INTO meta (key, value) VALUES ('name', :value) ON CONFLICT (key) DO NOTHING;

-- name: date_queue
-- Executed once for each queue file: its creation time.
INSERT INTO meta (key, value) VALUES ('created', strftime('%s', 'now')) ON CONFLICT (key) DO NOTHING;

-- name: get_meta
SELECT value FROM meta WHERE key = :key;

-- name: count_commit
UPDATE commits SET count = :number;

-- name: get_commits
SELECT count, rows FROM commits;

-- name: first_ids
-- No job was ever added, so there is no row to update.
INSERT INTO sqlite_sequence (name, seq) SELECT 'job', :beyond
WHERE NOT EXISTS (SELECT 1 FROM sqlite_sequence WHERE name = 'job');

-- name: raise_ids
UPDATE sqlite_sequence SET seq = :beyond WHERE name = 'job' AND seq < :beyond;

-- name: find_blob
SELECT id FROM blob WHERE digest = :digest;

-- name: add_blob
INSERT INTO blob (digest, data) VALUES (:digest, :data) RETURNING id;

-- name: get_blob
SELECT data FROM blob WHERE id = :id;

-- name: find_submission
SELECT first, count FROM submission WHERE uid = :uid AND key = :key;

-- name: add_submission
INSERT INTO submission (uid, key, first, count, at) VALUES (:uid, :key, :first, :count, :at);

-- name: last_job
SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'job';

-- name: add_job
INSERT INTO job ({submitted}) VALUES ({submitted_values});

-- name: save_job
-- Compare and set: changes no row if the state of the job has changed. An unreadable row is not compared.
UPDATE job SET {changes}
WHERE id = :id AND (:from_state IS NULL OR (state = :from_state AND attempt = :from_attempt));

-- name: repair_job
-- The columns of a damaged row that save_job does not write.
UPDATE job SET uid = :uid, gid = :gid, slot = :slot, array_job = :array_job, array_task = :array_task,
  allocated = :allocated, gpus = CASE WHEN :allocated = '' AND :is_started THEN 0 ELSE max(gpus, 0) END
WHERE id = :id;

-- name: start_job
UPDATE job SET {started}, allocated = :allocated
WHERE id = :id AND state = 'PENDING' AND attempt = :from_attempt;

-- name: make_task
-- Create the row of one task from the row of its array.
INSERT INTO job (uid, gid, user, name, partition, request, gpus, script, environment, submitted_at, state, reason,
  held, array_job, array_task, depends, opened_at, not_before, links)
SELECT uid, gid, user, name, partition, request, gpus, script, environment, submitted_at, state, reason,
  held, array_job, :task, :depends, :opened_at, not_before, links
FROM job WHERE id = :array AND array_task IS NULL AND state = 'PENDING';

-- name: keep_task
-- The last task of an array takes the row of the array.
UPDATE job SET array_task = :task, depends = :depends, opened_at = :opened_at
WHERE id = :array AND array_task IS NULL AND state = 'PENDING';

-- name: tasks_made
SELECT array_task FROM job WHERE array_job = :array AND array_task IS NOT NULL;

-- name: get_task
SELECT * FROM job WHERE array_job = :array AND array_task = :task;

-- name: ends_of_array
SELECT array_task, state FROM job WHERE array_job = :array AND array_task IS NOT NULL AND ended_at IS NOT NULL;

-- name: tasks_of_array
-- A page of the tasks of an array that have their own rows.
SELECT * FROM job WHERE array_job = :array AND array_task > :after ORDER BY array_task LIMIT :page;

-- name: rest_of_array
-- The row of the pending tasks of an array.
SELECT * FROM job WHERE array_job = :array AND array_task IS NULL;

-- name: sum_of_array
-- Numbers of ended and completed rows of an array, and the last start.
SELECT count(*) AS count, total(ended_at IS NOT NULL) AS over, total(state = 'COMPLETED') AS completed,
  CASE WHEN total(started_at IS NOT NULL OR ended_at IS NOT NULL) = count(*) THEN max(started_at) END AS started_at
FROM job WHERE array_job = :array;

-- name: last_of_user
SELECT coalesce(array_job, id) AS id FROM job
WHERE uid = :uid AND (array_job IS NULL OR array_job = id) ORDER BY id DESC LIMIT 1;

-- name: run_job
UPDATE job SET state = 'RUNNING', reason = 'None' WHERE id = :id AND state = 'CONFIGURING' AND attempt = :attempt;

-- name: change_request
UPDATE job SET request = :request, name = :name, partition = :partition, gpus = :gpus WHERE id = :id;

-- name: all_usage
SELECT account, user, seconds, at FROM usage;

-- name: put_usage
INSERT INTO usage (account, user, seconds, at) VALUES (:account, :user, :seconds, :at)
ON CONFLICT (account, user) DO UPDATE SET seconds = :seconds, at = :at;

-- name: put_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = :value;

-- name: drop_meta
DELETE FROM meta WHERE key = :key;

-- name: mails
SELECT key, value FROM meta WHERE key >= 'mail:' AND key < 'mail;' ORDER BY key;

-- name: exits_of_array
SELECT min(coalesce(status, 0) >> 8 & 255) AS lowest, max(coalesce(status, 0) >> 8 & 255) AS highest
FROM job WHERE array_job = :array AND array_task IS NOT NULL;

-- name: add_hold
INSERT INTO hold (job, gpu, share, memory) VALUES (:job, :gpu, :share, :memory);

-- name: change_hold
UPDATE hold SET share = :share WHERE gpu = :gpu AND job = :job;

-- name: drop_hold
DELETE FROM hold WHERE gpu = :gpu AND job = :job;

-- name: drop_orphan_holds
DELETE FROM hold WHERE job NOT IN (SELECT id FROM job);

-- name: all_holds
SELECT job, gpu, share, memory FROM hold ORDER BY job, gpu;

-- name: add_event
INSERT INTO event (job, attempt, at, old, new, reason) VALUES (:job, :attempt, :at, :old, :new, :reason);

-- name: drop_old_events
DELETE FROM event
WHERE job = :job AND id <= (SELECT id FROM event WHERE job = :job ORDER BY id DESC LIMIT 1 OFFSET :most);

-- name: events_of_job
SELECT attempt, at, old, new, reason FROM event WHERE job = :job ORDER BY id;

-- name: fresh_jobs
-- Jobs that are pending as submitted: all other columns have the defaults of a new row, or are not read for such a job.
SELECT id, uid, gid, user, request, submitted_at FROM job
WHERE ended_at IS NULL AND {as_submitted} AND id NOT IN (SELECT job FROM hold) ORDER BY id;

-- name: changed_jobs
-- All other open jobs. A job with a hold is open, even if a damaged row shows another state.
SELECT * FROM job WHERE id IN (
  SELECT id FROM job WHERE ended_at IS NULL AND ({as_submitted}) IS NOT TRUE UNION SELECT job FROM hold) ORDER BY id;

-- name: get_job
SELECT * FROM job WHERE id = :id;

-- name: get_material
SELECT script, environment FROM job WHERE id = :id;

-- name: history
-- Jobs that existed at some time in the period, page by page.
SELECT * FROM job
WHERE id > :after AND submitted_at <= :until AND (ended_at IS NULL OR ended_at >= :since)
  AND (:uid IS NULL OR uid = :uid)
ORDER BY id LIMIT :page;

-- name: ended_since
SELECT * FROM job WHERE ended_at >= :since ORDER BY id LIMIT 20000;

-- name: runs_since
-- Run times of completed jobs, for forecasts.
SELECT uid, name, ended_at - started_at - suspended AS elapsed, json_extract(request, '$.time_limit') AS time_limit,
  json_extract(request, '$.submit_line') AS submit_line, json_extract(request, '$.submit_dir') AS submit_dir
FROM job WHERE json_valid(request) AND ended_at >= :since AND started_at IS NOT NULL AND state = 'COMPLETED' ORDER BY ended_at DESC LIMIT 2000;

-- name: move_card
-- A GPU has one index: delete the row of its previous index.
UPDATE card SET uuid = '', state = 'ok', note = '' WHERE uuid = :uuid AND gpu <> :gpu;

-- name: put_card
-- A GPU that is known already is not written: a controller must start on a full disk.
INSERT INTO card (gpu, uuid, usable, model, capacity) VALUES (:gpu, :uuid, :usable, :model, :capacity)
ON CONFLICT (gpu) DO UPDATE SET uuid = :uuid, usable = :usable, model = :model, capacity = :capacity,
  state = CASE WHEN uuid = :uuid THEN state ELSE 'ok' END, note = CASE WHEN uuid = :uuid THEN note ELSE '' END
WHERE (uuid, usable, model, capacity) IS NOT (:uuid, :usable, :model, :capacity);

-- name: mark_card
UPDATE card SET state = :state, note = :note, at = :at
WHERE gpu = :gpu AND (state, note, at) IS NOT (:state, :note, :at);

-- name: get_cards
SELECT gpu, uuid, usable, model, state, note, at FROM card ORDER BY gpu;

-- name: held_cards
SELECT DISTINCT gpu FROM hold;

-- name: columns
-- All tables and columns of the file, to compare with the schema.
SELECT there.name AS "table", its.name AS "column"
FROM sqlite_schema AS there JOIN pragma_table_info(there.name) AS its WHERE there.type = 'table';

-- name: ended_lately
SELECT over.job, job.uid, job.ended_at, job.script, job.environment
FROM over JOIN job ON job.id = over.job ORDER BY over.job LIMIT :most;

-- name: forget_ended
DELETE FROM over WHERE job <= :job;

-- name: note_idle
INSERT INTO idle (blob, uid, size, ended_at)
SELECT id, :uid, length(data), :ended_at FROM blob WHERE id = :blob AND length(data) > 0
ON CONFLICT (blob) DO UPDATE SET uid = excluded.uid, ended_at = excluded.ended_at
WHERE excluded.ended_at > ended_at RETURNING size;

-- name: idle_since
SELECT blob, size, ended_at FROM idle WHERE ended_at <= :before ORDER BY ended_at LIMIT :most;

-- name: first_idle
SELECT min(ended_at) AS ended_at FROM idle;

-- name: idle_beyond
-- Users whose ended jobs use more bytes than this.
SELECT uid, sum(size) - :most AS excess FROM idle GROUP BY uid HAVING sum(size) > :most;

-- name: idle_of_user
SELECT blob, size, ended_at FROM idle WHERE uid = :uid ORDER BY ended_at LIMIT :most;

-- name: drop_idle
DELETE FROM idle WHERE blob = :blob;

-- name: is_open
-- Whether an open job uses the blob.
SELECT EXISTS (SELECT 1 FROM job WHERE script = :blob AND ended_at IS NULL)
  OR EXISTS (SELECT 1 FROM job WHERE environment = :blob AND ended_at IS NULL) AS is_open;

-- name: is_open_of
-- Whether an open job of this user has the blob.
SELECT EXISTS (SELECT 1 FROM job WHERE script = :blob AND uid = :uid AND ended_at IS NULL)
  OR EXISTS (SELECT 1 FROM job WHERE environment = :blob AND uid = :uid AND ended_at IS NULL) AS is_open;

-- name: prune_blob
-- The row remains, because jobs refer to it; its digest changes, so that equal data gets a new row.
UPDATE blob SET data = x'', digest = CAST('pruned ' || id AS BLOB) WHERE id = :blob;

-- name: open_material
-- (blob, size) of the distinct blobs of a user's open jobs.
SELECT blob.id AS blob, length(blob.data) AS size FROM blob WHERE blob.id IN (
  SELECT script FROM job INDEXED BY open_script WHERE ended_at IS NULL AND uid = :uid
  UNION SELECT environment FROM job INDEXED BY open_environment WHERE ended_at IS NULL AND uid = :uid);

-- name: ended_material
-- Bytes of the scripts and environments of a user's ended jobs that are still there.
SELECT coalesce(sum(length(data)), 0) AS size FROM blob WHERE id IN (
  SELECT blob FROM idle WHERE uid = :uid
  UNION SELECT job.script FROM over JOIN job ON job.id = over.job WHERE job.uid = :uid
  UNION SELECT job.environment FROM over JOIN job ON job.id = over.job WHERE job.uid = :uid);

-- name: old_submissions
SELECT uid, key, at FROM submission WHERE (uid, key) > (:uid, :key) ORDER BY uid, key LIMIT :most;

-- name: drop_submission
DELETE FROM submission WHERE uid = :uid AND key = :key;

-- name: settled
-- Ended jobs in the order of their ends, whose scripts and environments are noted in `idle`.
SELECT id, ended_at, array_job, array_task FROM job
WHERE ended_at IS NOT NULL AND (ended_at, id) > (:at, :id) AND ended_at <= :before
  AND NOT EXISTS (SELECT 1 FROM over WHERE over.job = job.id)
  AND NOT EXISTS (SELECT 1 FROM hold WHERE hold.job = job.id)
ORDER BY ended_at, id LIMIT :most;

-- name: first_end
-- The first end of a job that is in the queue.
SELECT min(ended_at) AS ended_at FROM job WHERE ended_at IS NOT NULL;

-- name: other_row
-- A row that refers to the row of its array.
SELECT id FROM job WHERE array_job = :id AND id <> :id LIMIT 1;

-- name: references
-- Script and environment of a job: id and first bytes of the digest. Pruned ones are left out.
SELECT (SELECT blob.id || ':' || lower(hex(substr(digest, 1, 8))) FROM blob WHERE blob.id = script AND data <> x'')
  AS script,
  (SELECT blob.id || ':' || lower(hex(substr(digest, 1, 8))) FROM blob WHERE blob.id = environment AND data <> x'')
  AS environment
FROM job WHERE id = :id;

-- name: find_reference
SELECT data FROM blob WHERE id = CAST(:id AS INTEGER) AND lower(hex(substr(digest, 1, 8))) = :digest;

-- name: remove_events
DELETE FROM event WHERE job = :id;

-- name: remove_job
DELETE FROM job WHERE id = :id AND ended_at IS NOT NULL;

-- name: remove_blob
-- The last row stays, so that no other blob gets its id.
DELETE FROM blob WHERE id = :blob AND id < (SELECT max(id) FROM blob);
