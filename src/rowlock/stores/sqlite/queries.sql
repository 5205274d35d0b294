-- What SQLite says in its own way: claims, the sequence, workers on one machine, pages of jobs.
-- Every claim reads only rowlock_jobs_ready (the tests check the plans, without ANALYZE); BEGIN
-- IMMEDIATE around it makes it safe. benchmarks/claims.py measures it at a million queued rows.

-- Nothing is left out as a rule, and then nothing is looked up. 10,000 jobs that are take 2 ms.
-- fragment: known
(:unknown IS NULL OR task NOT IN (SELECT value FROM json_each(:unknown)))

-- What a claim may take. Jobs that have to run alone have a statement of their own.
-- fragment: eligible
state = 'queued' AND queue = :queue AND isolate = 0{and_known}

-- fragment: take
{first}

-- fragment: first_by_index
SELECT {claim} FROM rowlock_jobs j WHERE {eligible}{at_level} ORDER BY {order} LIMIT :count

-- fragment: first_by_levels
{levels}
SELECT {claim} FROM (SELECT priority AS number FROM level) one_level JOIN rowlock_jobs j ON j.id IN (
    SELECT id FROM rowlock_jobs WHERE {eligible} AND priority = one_level.number ORDER BY {within} LIMIT :count)
ORDER BY {order} LIMIT :count

-- For one job the first of each level are compared, and nothing is merged: 40 us against 200.
-- fragment: take_one
{levels}
SELECT {claim} FROM rowlock_jobs j
WHERE j.state = 'queued' AND j.queue = :queue AND (j.priority, j.position) = (
    SELECT priority, {first_position}((
        SELECT position FROM rowlock_jobs WHERE {eligible} AND priority = level.priority ORDER BY {within} LIMIT 1))
    FROM level WHERE priority IS NOT NULL)

-- name: claim_isolated
SELECT {claim} FROM rowlock_jobs j WHERE {isolated_for_us} ORDER BY position LIMIT 1

-- fragment: taken
UPDATE rowlock_jobs
SET state = 'running', claim = claim + 1, claimed_by = :worker, claimed_at = {now}, started_at = {now},
    unique_until = nullif(unique_until, 'claimed')

-- name: mark_taken
{taken} WHERE id = :id

-- Many at once cost 2.5 us each against 7, one by itself 5 us more; and while one by one is written, Python's other
-- threads are let in between.
-- name: mark_all_taken
{taken} WHERE id IN ({ids})

-- First claims that completed: a JSON object of their ids and results.
-- name: finish_all_completed
UPDATE rowlock_jobs
SET state = 'completed', result = one.value, error = NULL, error_kind = NULL, {has_run}
FROM json_each(:done) one
WHERE rowlock_jobs.id = CAST(one.key AS INTEGER) AND claim = 1 AND {running}

-- The head of each level only: what is first in line was due first, but for retries, which come to the head.
-- name: overdue_queued
{levels}
SELECT first.id, first.claim FROM level JOIN rowlock_jobs first ON first.id IN (
    SELECT id FROM rowlock_jobs
    WHERE state = 'queued' AND queue = :queue AND priority = level.priority
    ORDER BY position LIMIT :count)
WHERE first.due_at < {now-age}

-- fragment: next_in_turn
coalesce((SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued' AND queue > :after),
         (SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued'))

-- name: draw_numbers
UPDATE sqlite_sequence SET seq = seq + :count WHERE name = 'rowlock_jobs'

-- The jobs as one JSON list: the same statement for every driver, and for any number of jobs.
-- name: insert_many
INSERT INTO rowlock_jobs (id, position, task, queue, priority, state, max_attempts, created_at, run_at, due_at,
                          expires_at, unique_key, unique_until, args, meta)
SELECT number, number, task, queue, priority, CASE WHEN due > {now} THEN 'scheduled' ELSE 'queued' END, max_attempts,
       {now}, due, due, max({now}, due) + expires, unique_key, unique_until, args, meta
FROM (
    SELECT {last_number} + 1 + key AS number, json_extract(value, '$.task') AS task,
           json_extract(value, '$.queue') AS queue, json_extract(value, '$.priority') AS priority,
           json_extract(value, '$.max_attempts') AS max_attempts,
           coalesce(json_extract(value, '$.run_at'), {now} + coalesce(json_extract(value, '$.delay'), 0)) AS due,
           json_extract(value, '$.expires') AS expires, json_extract(value, '$.unique_key') AS unique_key,
           json_extract(value, '$.unique_until') AS unique_until, json_extract(value, '$.args') AS args,
           json_extract(value, '$.meta') AS meta
    FROM json_each(:jobs))
WHERE true
ON CONFLICT (task, unique_key) WHERE unique_until IS NOT NULL AND state IN ('scheduled', 'queued', 'running')
DO NOTHING
RETURNING id, created_at, task, unique_key

-- Somebody may have emptied sqlite_sequence.
-- fragment: last_number
coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'rowlock_jobs'),
         (SELECT max(max(id), max(position)) FROM rowlock_jobs), 0)

-- name: queue_there
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'rowlock_meta'

-- name: register_worker
INSERT INTO rowlock_workers (id, host, pid, version, queues, tasks, strategy, concurrency, started_at, lease,
                             reachable_for, beat_at, beat_mono)
VALUES (:worker, :host, :pid, :version, :queues, :tasks, :strategy, :concurrency, {now}, :lease,
        :reachable_for, {now}, :mono)
ON CONFLICT (id) DO NOTHING

-- name: beat
UPDATE rowlock_workers SET beat_at = {now}, beat_mono = :mono, strategy = :strategy
WHERE id = :worker AND dead_at IS NULL

-- name: tell
UPDATE rowlock_workers SET info = json_patch(coalesce(info, '{}'), :info) WHERE id = :worker

-- A value from the future means that the machine was restarted: that worker is gone. With `again` also the dead who
-- hold claims all the same, because the database refused to give them back.
-- name: silent_workers
SELECT id, tasks, beat_at, lease, dead_at IS NOT NULL FROM rowlock_workers w
WHERE dead_at IS NULL AND (beat_mono < :mono - lease OR beat_mono > :mono + 1)
   OR :again = 1 AND dead_at IS NOT NULL
      AND EXISTS (SELECT 1 FROM rowlock_jobs j WHERE j.claimed_by = w.id AND j.state = 'running')

-- name: living_workers
SELECT id, queues, tasks FROM rowlock_workers
WHERE dead_at IS NULL AND beat_mono >= :mono - lease AND beat_mono <= :mono + 1

-- name: beat_age
SELECT :mono - beat_mono FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL

-- name: next_silent
SELECT min(beat_mono + lease) - :mono FROM rowlock_workers WHERE dead_at IS NULL AND id <> :worker

-- name: workers
SELECT w.id, w.host, w.pid, w.version, w.queues, w.tasks, w.strategy, w.concurrency, w.started_at, w.beat_at,
       :mono - w.beat_mono, w.lease, w.dead_at, w.ended,
       (SELECT count(*) FROM rowlock_jobs j WHERE j.claimed_by = w.id AND j.state = 'running'), w.info
FROM rowlock_workers w ORDER BY w.dead_at IS NOT NULL, w.started_at, w.id

-- The index is named where the planner, without ANALYZE, would walk the primary key instead.
-- name: find
SELECT {job} FROM rowlock_jobs j LEFT JOIN rowlock_progress p ON p.job_id = j.id AND p.claim = j.claim
WHERE j.id < :before AND (:queue IS NULL OR j.queue = :queue) AND (:task IS NULL OR j.task = :task)
ORDER BY j.id DESC LIMIT :limit

-- name: find_state
SELECT {job} FROM rowlock_jobs j LEFT JOIN rowlock_progress p ON p.job_id = j.id AND p.claim = j.claim
WHERE j.state = :state AND j.id < :before
  AND (:queue IS NULL OR j.queue = :queue) AND (:task IS NULL OR j.task = :task)
ORDER BY j.id DESC LIMIT :limit

-- name: find_running
SELECT {job} FROM rowlock_jobs j INDEXED BY rowlock_jobs_held LEFT JOIN rowlock_progress p ON p.job_id = j.id AND p.claim = j.claim
WHERE j.state = 'running' AND j.id < :before
  AND (:queue IS NULL OR j.queue = :queue) AND (:task IS NULL OR j.task = :task)
ORDER BY j.id DESC LIMIT :limit

-- name: find_bad
SELECT {job} FROM rowlock_jobs j INDEXED BY rowlock_jobs_bad LEFT JOIN rowlock_progress p ON p.job_id = j.id AND p.claim = j.claim
WHERE j.state IN ('failed', 'cancelled') AND j.state = :state AND j.id < :before
  AND (:queue IS NULL OR j.queue = :queue) AND (:task IS NULL OR j.task = :task)
ORDER BY j.id DESC LIMIT :limit

-- A write, so that a transaction that has only read so far takes the lock, or is refused because it saw an old state.
-- name: hold_claim
UPDATE rowlock_jobs SET claim = claim WHERE id = :id AND claim = :claim AND {running}
