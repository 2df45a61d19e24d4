-- name: count_tables
SELECT count(*) FROM sqlite_schema;

-- name: count_commits
SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = 'commits';

-- name: last_commit
SELECT count, rows, jobs, at FROM commits;

-- name: count_commit
UPDATE commits SET count = :number, at = :at RETURNING jobs;

-- name: tables
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'commits';

-- name: fold_card_use
INSERT INTO card_before (card, active, held, empty, free, external, down, used, energy)
SELECT card, sum(CAST(round(active * 1e6) AS INTEGER)), sum(CAST(round(held * 1e6) AS INTEGER)),
  sum(CAST(round(empty * 1e6) AS INTEGER)), sum(CAST(round(free * 1e6) AS INTEGER)),
  sum(CAST(round(external * 1e6) AS INTEGER)), sum(CAST(round(down * 1e6) AS INTEGER)),
  sum(CAST(round(used * 1e6) AS INTEGER)), sum(CAST(round(energy * 1e6) AS INTEGER))
FROM card_use WHERE span = 86400 AND at >= :since AND at < :until GROUP BY card
ON CONFLICT (card) DO UPDATE SET active = active + excluded.active, held = held + excluded.held,
  empty = empty + excluded.empty, free = free + excluded.free, external = external + excluded.external,
  down = down + excluded.down, used = used + excluded.used,
  energy = coalesce(energy + excluded.energy, energy, excluded.energy);

-- name: fold_owner_use
INSERT INTO owner_before (owner, card, active, held, empty, used)
SELECT owner, card, sum(CAST(round(active * 1e6) AS INTEGER)), sum(CAST(round(held * 1e6) AS INTEGER)),
  sum(CAST(round(empty * 1e6) AS INTEGER)), sum(CAST(round(used * 1e6) AS INTEGER))
FROM owner_use WHERE span = 86400 AND at >= :since AND at < :until GROUP BY owner, card
ON CONFLICT (owner, card) DO UPDATE SET active = active + excluded.active, held = held + excluded.held,
  empty = empty + excluded.empty, used = used + excluded.used;

-- name: get_meta
SELECT value FROM meta WHERE key = :key;

-- name: put_meta
INSERT INTO meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value;

-- name: name_accounts
-- Executed once for each file.
INSERT INTO meta (key, value) VALUES ('name', :value) ON CONFLICT (key) DO NOTHING;

-- name: find_owner
SELECT id FROM owner WHERE uid = :uid AND user = :user AND account = :account AND partition = :partition
  AND qos = :qos AND tag = :tag;

-- name: add_owner
INSERT INTO owner (uid, user, account, partition, qos, tag) VALUES (:uid, :user, :account, :partition, :qos, :tag)
RETURNING id;

-- name: put_card
INSERT INTO card (uuid, gpu, model, total, since, until) VALUES (:uuid, :gpu, :model, :total, :since, :until)
ON CONFLICT (uuid) DO UPDATE SET gpu = excluded.gpu, model = excluded.model, total = excluded.total,
  since = min(since, excluded.since), until = max(until, excluded.until)
RETURNING id;

-- name: find_card
SELECT id FROM card WHERE uuid = :uuid;

-- name: add_job
-- A job that is here already stays as it is.
INSERT INTO job (id, owner, ended_at, submitted_at, eligible_at, started_at, state, gpus, share, memory, time_limit,
  suspended, charged, used, idle, gpu_peak, oom, model, name, array, task, detail, kept)
VALUES (:id, :owner, :ended_at, :submitted_at, :eligible_at, :started_at, :state, :gpus, :share, :memory, :time_limit,
  :suspended, :charged, :used, :idle, :gpu_peak, :oom, :model, :name, :array, :task, :detail, :kept)
ON CONFLICT (id) DO NOTHING;

-- name: find_end
SELECT submitted_at, ended_at FROM job WHERE id = :id;

-- name: put_sample
INSERT INTO sample (job, usage) VALUES (:job, :usage) ON CONFLICT (job) DO UPDATE SET usage = excluded.usage;

-- name: find_sample
SELECT usage FROM sample WHERE job = :job;

-- name: first_record
SELECT min(at) AS at FROM (
  SELECT min(at) AS at FROM card_use WHERE span = 86400
  UNION ALL SELECT min(at) FROM card_use WHERE span = 60
  UNION ALL SELECT min(ended_at) FROM job);

-- name: last_sample
SELECT at, sampled FROM card_use WHERE span = 60 ORDER BY at DESC LIMIT 1;

-- name: drop_sample
DELETE FROM sample WHERE job = :job;

-- name: first_at
-- The begin of the first span of one length, of each table.
SELECT min(at) AS at FROM (
  SELECT (SELECT at FROM card_use WHERE span = :span ORDER BY at LIMIT 1) AS at
  UNION ALL SELECT (SELECT at FROM owner_use WHERE span = :span ORDER BY at LIMIT 1)
  UNION ALL SELECT (SELECT at FROM foreign_run WHERE span = :span ORDER BY at LIMIT 1)
  UNION ALL SELECT (SELECT at FROM demand WHERE span = :span ORDER BY at LIMIT 1));

-- name: prune_card_use
DELETE FROM card_use WHERE span = :span AND at < :before;

-- name: prune_owner_use
DELETE FROM owner_use WHERE span = :span AND at < :before;

-- name: prune_foreign_run
DELETE FROM foreign_run WHERE span = :span AND at < :before;

-- name: prune_demand
DELETE FROM demand WHERE span = :span AND at < :before;

-- name: add_card_use
INSERT INTO card_use (span, at, card, sampled, active, held, empty, free, external, down, packed, used, memory,
  "foreign", peak, jobs, temperature, energy, throttled)
VALUES (:span, :at, :card, :sampled, :active, :held, :empty, :free, :external, :down, :packed, :used, :memory,
  :foreign, :peak, :jobs, :temperature, :energy, :throttled)
ON CONFLICT (span, at, card) DO NOTHING;

-- name: add_owner_use
INSERT INTO owner_use (span, at, card, owner, job, charged, active, held, empty, used, memory, peak, energy)
VALUES (:span, :at, :card, :owner, :job, :charged, :active, :held, :empty, :used, :memory, :peak, :energy)
ON CONFLICT (span, at, card, owner, job) DO NOTHING;

-- name: add_foreign_run
INSERT INTO foreign_run (span, at, card, user, command, pid, since, until, seconds, memory, peak, used)
VALUES (:span, :at, :card, :user, :command, :pid, :since, :until, :seconds, :memory, :peak, :used)
ON CONFLICT (span, at, card, user, command, pid, since) DO NOTHING;

-- name: add_demand
INSERT INTO demand (span, at, reason, lacking, model, seconds, job_seconds, gpu_seconds, most)
VALUES (:span, :at, :reason, :lacking, :model, :seconds, :job_seconds, :gpu_seconds, :most)
ON CONFLICT (span, at, reason, lacking, model) DO NOTHING;

-- name: add_health
INSERT OR IGNORE INTO health (at, card, kind, detail) VALUES (:at, :card, :kind, :detail);

-- name: add_warned
INSERT OR IGNORE INTO warned (at, job, policy, finding, action, dry)
VALUES (:at, :job, :policy, :finding, :action, :dry);

-- name: add_gap
INSERT INTO gap (since, until, why) VALUES (:since, :until, :why)
ON CONFLICT (since) DO UPDATE SET until = max(until, excluded.until);

-- name: roll_card_use
-- One longer span of each GPU, from the shorter ones in it.
INSERT OR REPLACE INTO card_use (span, at, card, sampled, active, held, empty, free, external, down, packed, used,
  memory, "foreign", peak, jobs, temperature, energy, throttled)
SELECT :into, :at, card, sum(sampled), sum(active), sum(held), sum(empty), sum(free), sum(external), sum(down),
  sum(packed), sum(used), sum(memory), sum("foreign"), max(peak), max(jobs), max(temperature), sum(energy),
  sum(throttled)
FROM card_use WHERE span = :from AND at >= :at AND at < :until GROUP BY card;

-- name: roll_owner_use
INSERT OR REPLACE INTO owner_use (span, at, card, owner, job, charged, active, held, empty, used, memory, peak, energy)
SELECT :into, :at, card, owner, 0, sum(charged), sum(active), sum(held), sum(empty), sum(used), sum(memory),
  max(peak), sum(energy)
FROM owner_use WHERE span = :from AND at >= :at AND at < :until GROUP BY card, owner;

-- name: clear_foreign_run
DELETE FROM foreign_run WHERE span = :into AND at = :at;

-- name: roll_foreign_run
-- Join the times of each process that adjoin. Of a command with more than 20 processes, as one that is started in
-- a loop has, the times of all are joined where they adjoin.
INSERT INTO foreign_run (span, at, card, user, command, pid, since, until, seconds, memory, peak, used)
WITH part AS (
  SELECT * FROM foreign_run WHERE span = :from AND at >= :at AND at < :until),
counted AS (
  SELECT card, user, command, count(DISTINCT pid) AS pids FROM part GROUP BY card, user, command),
named AS (
  SELECT part.card, part.user, part.command, CASE WHEN pids > 20 THEN 0 ELSE pid END AS pid, since, until,
    seconds, memory, peak, used
  FROM part JOIN counted USING (card, user, command)),
begun AS (
  SELECT *, since > 1 + coalesce(max(until) OVER (PARTITION BY card, user, command, pid ORDER BY since, until
    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), since) AS is_first FROM named),
numbered AS (
  SELECT *, sum(is_first) OVER (PARTITION BY card, user, command, pid ORDER BY since, until
    ROWS UNBOUNDED PRECEDING) AS run FROM begun)
SELECT :into, :at, card, user, command, pid, min(since), max(until), sum(seconds), sum(memory), max(peak), sum(used)
FROM numbered GROUP BY card, user, command, pid, run;

-- name: roll_demand
INSERT OR REPLACE INTO demand (span, at, reason, lacking, model, seconds, job_seconds, gpu_seconds, most)
SELECT :into, :at, reason, lacking, model, sum(seconds), sum(job_seconds), sum(gpu_seconds), max(most)
FROM demand WHERE span = :from AND at >= :at AND at < :until GROUP BY reason, lacking, model;

-- name: jobs_ended
-- Jobs that ended in a period, in the order of their ends.
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at >= :since AND job.ended_at < :until AND (:uid IS NULL OR owner.uid = :uid)
ORDER BY job.ended_at, job.id;

-- name: cards
SELECT uuid, gpu, model, total, since, until FROM card WHERE until >= :since AND since < :until ORDER BY gpu, uuid;

-- name: card_uses
SELECT card_use.*, card.uuid FROM card_use JOIN card ON card.id = card_use.card
WHERE span = :span AND at >= :since AND at < :until ORDER BY at, card.gpu;

-- name: owner_uses
SELECT owner_use.*, card.uuid, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM owner_use JOIN card ON card.id = owner_use.card JOIN owner ON owner.id = owner_use.owner
WHERE span = :span AND at >= :since AND at < :until ORDER BY at, card.gpu, owner.id, owner_use.job;

-- name: foreign_runs
SELECT foreign_run.*, card.uuid FROM foreign_run JOIN card ON card.id = foreign_run.card
WHERE span = :span AND at >= :since AND at < :until ORDER BY at, card.gpu, user, command, pid, foreign_run.since;

-- name: demands
SELECT * FROM demand WHERE span = :span AND at >= :since AND at < :until ORDER BY at, reason, lacking, model;

-- name: health_events
SELECT health.at, card.uuid, kind, detail FROM health JOIN card ON card.id = health.card
WHERE at >= :since AND at < :until ORDER BY at, card.gpu, kind, detail;

-- name: warnings
SELECT at, job, policy, finding, action, dry FROM warned WHERE at >= :since AND at < :until ORDER BY at, job;

-- name: gaps
SELECT since, until, why FROM gap WHERE until > :since AND since < :until ORDER BY since;

-- name: last_job
-- The highest id of a job that is or was here.
SELECT max(coalesce((SELECT max(id) FROM job), 0), coalesce((SELECT CAST(value AS INTEGER) FROM meta
  WHERE key = 'last_job'), 0)) AS id;

-- name: get_job
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner WHERE job.id = :id;

-- name: get_task
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner WHERE job.array = :array AND job.task = :task;

-- name: jobs_of_array
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner WHERE job.array = :array AND job.array > 0 AND job.task > :after
ORDER BY job.task LIMIT :page;

-- name: rest_of_array
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner WHERE job.array = :array AND job.array > 0 AND job.task IS NULL;

-- name: tasks_of_array
SELECT task, state FROM job WHERE array = :array AND array > 0 AND task IS NOT NULL;

-- name: sum_of_array
SELECT count(*) AS count, total(state = 'COMPLETED') AS completed, max(started_at) AS started_at
FROM job WHERE array = :array AND array > 0;

-- name: last_of_owner
SELECT id FROM job WHERE owner = :owner AND (array = 0 OR array = id) ORDER BY id DESC LIMIT 1;

-- name: owners_of_uid
SELECT id FROM owner WHERE uid = :uid;

-- name: ranges
-- Ranges of ids with jobs that existed at some time in a period.
SELECT first FROM id_range WHERE first > :after - 1000 AND submitted_at <= :until AND ended_at >= :since
ORDER BY first LIMIT :most;

-- name: jobs_of_range
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner
WHERE job.id > :after AND job.id < :beyond AND job.submitted_at <= :until AND job.ended_at >= :since
ORDER BY job.id LIMIT :page;

-- name: jobs_of_range_and_user
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner
WHERE job.owner IN (SELECT id FROM owner WHERE uid = :uid) AND job.id > :after AND job.id < :beyond
  AND job.submitted_at <= :until AND job.ended_at >= :since
ORDER BY job.id LIMIT :page;

-- name: runs_since
-- Run times of completed jobs, for forecasts.
SELECT job.ended_at, owner.uid, job.name, job.ended_at - job.started_at - job.suspended AS elapsed, job.time_limit,
  job.kept
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at >= :since AND job.started_at IS NOT NULL AND job.state = 'COMPLETED'
ORDER BY job.ended_at DESC LIMIT :most;

-- name: name_origin
-- Of an archive: the name of the accounts that its records come from.
INSERT INTO meta (key, value) VALUES ('archive_of', :value) ON CONFLICT (key) DO NOTHING;

-- name: remove_job
DELETE FROM job WHERE id = :id;

-- name: first_jobs
SELECT job.*, owner.uid, owner.user, owner.account, owner.partition, owner.qos, owner.tag
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at < :before ORDER BY job.ended_at, job.id LIMIT :most;
