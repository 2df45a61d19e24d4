-- The questions of reports. Periods are epoch seconds, from :since up to :until. A name in braces: the columns
-- of that record in facts.py.

-- name: first_hour
SELECT at FROM card_use WHERE span = 3600 ORDER BY at LIMIT 1;

-- name: all_owners
SELECT id, uid, user, account, partition, qos, tag FROM owner;

-- name: card_totals
-- What each GPU did in a period.
SELECT {GpuTotals}
FROM card_use JOIN card ON card.id = card_use.card
WHERE span = :span AND at >= :since AND at < :until
GROUP BY card.id ORDER BY card.gpu, card.uuid;

-- name: card_slots
-- What each GPU did in each of the slots that divide a period. Days may begin up to :slack seconds early.
SELECT {GpuSlot}
FROM card_use JOIN card ON card.id = card_use.card
WHERE span = :span AND at >= :since AND at < :until
GROUP BY card.id, slot ORDER BY card.gpu, slot;

-- name: charged_by_span
SELECT {ChargedSpan}
FROM card_use WHERE span = :span AND at >= :since AND at < :until GROUP BY at ORDER BY at;

-- name: owner_totals
SELECT {OwnerGpuTotals}
FROM owner_use JOIN card ON card.id = owner_use.card
WHERE span = :span AND at >= :since AND at < :until
GROUP BY owner_use.owner, owner_use.card ORDER BY owner_use.owner, card.gpu;

-- name: counted_since
-- Days that begin before this time are in the sums of counters.
SELECT CAST(value AS INTEGER) AS at FROM meta WHERE key = 'counted_until';

-- name: counted_cards
-- Seconds and joules since the accounts were made, of each GPU.
SELECT card.uuid, sum(active) / 1e6 AS active, sum(held) / 1e6 AS held, sum(empty) / 1e6 AS empty,
  sum(free) / 1e6 AS free, sum(external) / 1e6 AS external, sum(down) / 1e6 AS down, sum(used) / 1e6 AS used,
  sum(energy) / 1e6 AS energy
FROM (
  SELECT card, active, held, empty, free, external, down, used, energy FROM card_before
  UNION ALL
  SELECT card, CAST(round(active * 1e6) AS INTEGER), CAST(round(held * 1e6) AS INTEGER),
    CAST(round(empty * 1e6) AS INTEGER), CAST(round(free * 1e6) AS INTEGER),
    CAST(round(external * 1e6) AS INTEGER), CAST(round(down * 1e6) AS INTEGER),
    CAST(round(used * 1e6) AS INTEGER), CAST(round(energy * 1e6) AS INTEGER)
  FROM card_use WHERE span = 86400 AND at >= :since) AS found
JOIN card ON card.id = found.card GROUP BY card.id ORDER BY card.gpu, card.uuid;

-- name: counted_owners
SELECT owner, card.uuid, sum(active) / 1e6 AS active, sum(held) / 1e6 AS held, sum(empty) / 1e6 AS empty,
  sum(used) / 1e6 AS used
FROM (
  SELECT owner, card, active, held, empty, used FROM owner_before
  UNION ALL
  SELECT owner, card, CAST(round(active * 1e6) AS INTEGER), CAST(round(held * 1e6) AS INTEGER),
    CAST(round(empty * 1e6) AS INTEGER), CAST(round(used * 1e6) AS INTEGER)
  FROM owner_use WHERE span = 86400 AND at >= :since) AS found
JOIN card ON card.id = found.card GROUP BY owner, found.card ORDER BY owner, card.gpu;

-- name: counted_jobs
-- Jobs that ended since the accounts were made, archived ones included.
SELECT owner, state, jobs FROM ended ORDER BY owner, state;

-- name: endings
-- How each job ended, and how long it waited; `size` is its owner, GPUs and share. fgsched.reports.grouping groups the rows:
-- SQLite would sort them. Each column costs 5 % of a report on a year.
SELECT model, (owner << 34) | (gpus << 14) | share AS size, state, oom, charged, started_at - eligible_at AS wait
FROM job WHERE ended_at >= :since AND ended_at < :until
  AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user));

-- name: named_endings
-- The same, with the name and the use of each job. `elapsed` is NULL if it never ran on a GPU.
SELECT name, model, (owner << 34) | (gpus << 14) | share AS size, state, oom, charged,
  started_at - eligible_at AS wait, CASE WHEN gpus > 0 THEN ended_at - started_at END AS elapsed, used, idle, memory,
  gpu_peak, time_limit, ended_at, CASE WHEN gpus > 0 AND state = 'COMPLETED' THEN ended_at - started_at END AS completed
FROM job WHERE ended_at >= :since AND ended_at < :until
  AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user));

-- name: unused_memory
-- Byte-seconds of each job that were requested, above its peak.
SELECT owner, model, (memory - gpu_peak) * (ended_at - started_at) * gpus AS unused
FROM job WHERE ended_at >= :since AND ended_at < :until AND memory > gpu_peak AND started_at IS NOT NULL
  AND (gpu_peak > 0 OR idle IS NOT NULL) AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user));

-- name: unused_memory_of_all
SELECT total((memory - gpu_peak) * (ended_at - started_at) * gpus) AS unused
FROM job WHERE ended_at >= :since AND ended_at < :until AND memory > gpu_peak AND started_at IS NOT NULL
  AND (gpu_peak > 0 OR idle IS NOT NULL) AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user));

-- name: waits
-- How long each job that started waited.
SELECT started_at - eligible_at AS wait FROM job
WHERE ended_at >= :since AND ended_at < :until AND started_at IS NOT NULL
  AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user));

-- name: repeated
-- Jobs of one owner with the same name and request, the most charged ones, of jobs with very many names. One
-- number for three columns makes the sort that groups the rows a third faster.
SELECT owner, name, gpus, share, max(memory) AS memory, model, count(*) AS jobs, sum(charged) AS charged,
  sum(used) AS used, sum(idle) AS idle, max(gpu_peak) AS peak, max(ended_at - started_at) AS longest,
  sum(ended_at - started_at) AS elapsed, max(time_limit) AS time_limit, min(ended_at) AS first,
  max(ended_at) AS last,
  coalesce(max(CASE WHEN state = 'COMPLETED' THEN ended_at - started_at END), 0) AS completed
FROM job
WHERE ended_at >= :since AND ended_at < :until AND started_at IS NOT NULL AND gpus > 0
  AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user))
GROUP BY (owner << 34) | (gpus << 14) | share, name, model
ORDER BY sum(charged) DESC, owner, name, gpus, share, model LIMIT 2000;

-- name: measured
-- GPU seconds that the jobs of a user were charged while they were sampled. It reads the rows, so it is for one user.
SELECT name, gpus, share, total(json_extract(detail, '$.usage.charged')) AS charged FROM job
WHERE ended_at >= :since AND ended_at < :until AND used IS NOT NULL
  AND owner IN (SELECT id FROM owner WHERE user = :user)
GROUP BY name, gpus, share;

-- name: examples
-- The latest jobs of one owner with one name and request.
SELECT {Example}
FROM job
WHERE id IN (SELECT id FROM job WHERE ended_at >= :first AND ended_at <= :last AND +owner = :owner
  AND started_at IS NOT NULL AND name = :name AND gpus = :gpus AND share = :share
  ORDER BY ended_at DESC LIMIT :most)
ORDER BY id DESC;

-- name: refusals
-- Jobs that met their limit of GPU memory, or of which the kernel killed a process for host memory, the latest; the
-- peak of host memory is of the largest process.
SELECT {MemoryRefusal}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at >= :since AND job.ended_at < :until AND job.oom = :oom AND (:user = '' OR owner.user = :user)
ORDER BY job.ended_at DESC, job.id DESC LIMIT :most;

-- name: drivers
SELECT at, detail FROM health WHERE kind = 'driver' AND at < :until ORDER BY at;

-- name: warned_jobs
-- Warnings of policies, by user and job name.
SELECT {WarnedJobs}
FROM warned JOIN job ON job.id = warned.job JOIN owner ON owner.id = job.owner
WHERE warned.at < :until AND warned.dry = 0 AND warned.at >= :since
GROUP BY owner.user, job.name;

-- name: jobs_by_charge
-- The rows are read of the largest jobs alone: the index has all that orders them.
SELECT {TopJob}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.id IN (SELECT job.id FROM job JOIN owner ON owner.id = job.owner
  WHERE job.ended_at >= :since AND job.ended_at < :until AND (:user = '' OR owner.user = :user)
    AND job.charged > 0
  ORDER BY job.charged DESC, job.id LIMIT :most)
ORDER BY job.charged DESC, job.id;

-- name: jobs_by_idle
SELECT {TopJob}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.id IN (SELECT job.id FROM job JOIN owner ON owner.id = job.owner
  WHERE job.ended_at >= :since AND job.ended_at < :until AND (:user = '' OR owner.user = :user)
    AND job.idle > 0
  ORDER BY job.idle DESC, job.id LIMIT :most)
ORDER BY job.idle DESC, job.id;

-- name: jobs_by_wait
SELECT {TopJob}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.id IN (SELECT job.id FROM job JOIN owner ON owner.id = job.owner
  WHERE job.ended_at >= :since AND job.ended_at < :until AND (:user = '' OR owner.user = :user)
    AND job.started_at >= job.eligible_at
  ORDER BY job.started_at - job.eligible_at DESC, job.id LIMIT :most)
ORDER BY wait DESC, job.id;

-- name: failed_jobs
-- The latest jobs that failed.
SELECT {FailedJob}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at >= :since AND job.ended_at < :until AND (:user = '' OR owner.user = :user)
  AND {has_failed}
ORDER BY job.ended_at DESC, job.id DESC LIMIT :most;

-- name: failures_by_name
-- Names of jobs that failed repeatedly.
SELECT {FailuresOfName}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at >= :since AND job.ended_at < :until AND (:user = '' OR owner.user = :user)
GROUP BY owner.user, job.name HAVING failed >= 3 ORDER BY failed DESC, owner.user, job.name LIMIT :most;

-- name: slowdowns
-- (wait + run) / run of each job; a run counts as ten minutes at least.
SELECT gpus, share, (max(0.0, started_at - eligible_at) + ended_at - started_at) / max(600.0, ended_at - started_at)
  AS slowdown
FROM job WHERE ended_at >= :since AND ended_at < :until AND started_at IS NOT NULL
  AND (:user = '' OR owner IN (SELECT id FROM owner WHERE user = :user));

-- name: demand_totals
SELECT {DemandTotals}
FROM demand WHERE span = :span AND at >= :since AND at < :until
GROUP BY reason, lacking, model ORDER BY sum(job_seconds) DESC, reason, lacking, model;

-- name: without_process
-- Jobs with GPUs that were sampled and had no process on one, by user and name.
SELECT {NamedJobs}
FROM job JOIN owner ON owner.id = job.owner
WHERE job.ended_at >= :since AND job.ended_at < :until AND (:user = '' OR owner.user = :user) AND job.gpus > 0
  AND job.started_at IS NOT NULL AND job.idle >= 0.99 * job.charged AND job.charged >= 600
  AND json_extract(detail, '$.usage.with_process') = 0
GROUP BY owner.user, job.name ORDER BY sum(job.charged) DESC, owner.user, job.name LIMIT :most;

-- name: count_runs
SELECT count(*) FROM job
WHERE ended_at >= :since AND ended_at < :until AND started_at IS NOT NULL AND gpus > 0;

-- name: runs
-- The latest jobs that ended in a period, for a replay: what they asked for, and how long they ran.
SELECT {PastRun}
FROM (
  SELECT job.*, owner.user
  FROM job JOIN owner ON owner.id = job.owner
  WHERE job.ended_at >= :since AND job.ended_at < :until AND job.started_at IS NOT NULL AND job.gpus > 0
  ORDER BY job.ended_at DESC, job.id DESC LIMIT :most)
ORDER BY eligible_at, id;

-- name: last_minute
-- What each job did on each GPU in the last minute that was sampled after :since.
SELECT job, card.uuid, active, held, empty FROM owner_use JOIN card ON card.id = owner_use.card
WHERE span = 60 AND at = (SELECT max(at) FROM card_use WHERE span = 60 AND at > :since);
