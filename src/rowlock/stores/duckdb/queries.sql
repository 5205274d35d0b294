-- What DuckDB says in its own way: claims, the sequence, lists as JSON.
-- There are no indexes but those of primary and unique keys: every other condition reads its columns whole.

-- fragment: known
(:unknown IS NULL OR task NOT IN (SELECT unnest(from_json(:unknown, '["VARCHAR"]'))))

-- name: levels
SELECT DISTINCT priority FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue ORDER BY priority DESC

-- name: oldest_queued
SELECT min(run_at) FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue

-- name: mark_taken
{taking} WHERE id IN ({ids})

-- First claims that completed, as a JSON list of {id, result}: 0.03 ms each, one by one 0.7.
-- name: finish_all_completed
UPDATE rowlock_jobs
SET state = 'completed', result = one.result, error = NULL, error_kind = NULL, {has_run}
FROM (SELECT unnest(from_json(:done, '[{"id": "BIGINT", "result": "VARCHAR"}]'), recursive := true)) one
WHERE rowlock_jobs.id = one.id AND claim = 1 AND {running}
RETURNING rowlock_jobs.id

-- name: overdue_queued
SELECT id, claim FROM rowlock_jobs
WHERE state = 'queued' AND queue = :queue AND due_at < {now-age} ORDER BY position LIMIT :count

-- name: draw_numbers
SELECT nextval('rowlock_numbers') FROM range(:count)

-- The jobs as one JSON list: the same statement for every driver, and for any number of jobs. Not ON CONFLICT: it raises
-- for a key whose job was updated since, and takes two rows of one statement without a key for duplicates (1.5 and 2.0).
-- name: insert_many
{insert_numbered}
    FROM (SELECT unnest(from_json(:jobs, '[{"task": "VARCHAR", "queue": "VARCHAR", "priority": "INTEGER",
        "max_attempts": "INTEGER", "run_at": "DOUBLE", "delay": "DOUBLE", "expires": "DOUBLE",
        "unique_key": "VARCHAR", "unique_until": "VARCHAR", "args": "VARCHAR", "meta": "VARCHAR"}]'),
        recursive := true))) one
WHERE unique_key IS NULL OR NOT EXISTS (
    SELECT 1 FROM rowlock_jobs j
    WHERE j.task = one.task AND j.unique_key = one.unique_key AND {holds_unique_key})
QUALIFY unique_key IS NULL OR row_number() OVER (PARTITION BY task, unique_key ORDER BY number) = 1
RETURNING id, created_at, task, unique_key

-- A single job without a unique key: 1.4 ms of CPU time, by the other statement 4.5.
-- name: insert_one
{insert_numbered}
    FROM (SELECT :task AS task, :queue AS queue, :priority AS priority, :max_attempts AS max_attempts,
                 CAST(:run_at AS DOUBLE) AS run_at, CAST(:delay AS DOUBLE) AS delay, :expires AS expires,
                 NULL AS unique_key, NULL AS unique_until, :args AS args, :meta AS meta))
RETURNING id, created_at

-- fragment: insert_numbered
INSERT INTO rowlock_jobs (id, position, task, queue, priority, state, max_attempts, created_at, run_at, due_at,
                          expires_at, unique_key, unique_until, args, meta)
SELECT number, number, task, queue, priority, CASE WHEN due > {now} THEN 'scheduled' ELSE 'queued' END, max_attempts,
       {now}, due, due, greatest({now}, due) + expires, unique_key, unique_until, args, meta
FROM (
    SELECT nextval('rowlock_numbers') AS number, *, coalesce(run_at, {now} + coalesce(delay, 0)) AS due

-- name: queue_there
SELECT 1 FROM information_schema.tables
WHERE table_catalog = current_database() AND table_name = 'rowlock_meta'

-- name: tell
UPDATE rowlock_workers SET info = CAST(json_merge_patch(coalesce(info, '{}'), :info) AS VARCHAR) WHERE id = :worker
