-- What SQLite says in its own way: claims, the sequence, which index to read.
-- Every claim reads only rowlock_jobs_ready (the tests check the plans, without ANALYZE); BEGIN
-- IMMEDIATE around it makes it safe. benchmarks/claims.py measures it at a million queued rows.

-- Nothing is left out as a rule, and then nothing is looked up. 10,000 jobs that are take 2 ms.
-- fragment: known
(:unknown IS NULL OR task NOT IN (SELECT value FROM json_each(:unknown)))

-- fragment: marks
(SELECT json_extract(value, '$.level') AS level, json_extract(value, '$.low') AS low,
        json_extract(value, '$.high') AS high FROM json_each(:marks)) mark

-- fragment: first_by_levels
{levels}
SELECT {claim} FROM ({levels_at_marks}) one_level JOIN rowlock_jobs j ON j.id IN (
    SELECT id FROM rowlock_jobs WHERE queue = :queue AND {eligible}{at_level} AND {at_mark} ORDER BY {within} LIMIT :count)
ORDER BY {order} LIMIT :count

-- All at once cost 2.5 us each against 7; and while one by one is written, Python's other threads are let in between.
-- name: mark_taken
{taking} WHERE id IN ({ids})

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
    SELECT id FROM rowlock_jobs WHERE {in_level} ORDER BY position LIMIT :count)
WHERE first.due_at < {now-age}

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
ON CONFLICT (task, unique_key) WHERE {holds_unique_key}
DO NOTHING
RETURNING id, created_at, task, unique_key

-- Somebody may have emptied sqlite_sequence.
-- fragment: last_number
coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'rowlock_jobs'),
         (SELECT max(max(id), max(position)) FROM rowlock_jobs), 0)

-- name: queue_there
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'rowlock_meta'

-- name: tell
UPDATE rowlock_workers SET info = json_patch(coalesce(info, '{}'), :info) WHERE id = :worker

-- Without ANALYZE.
-- fragment: by_held
INDEXED BY rowlock_jobs_held

-- fragment: by_bad
INDEXED BY rowlock_jobs_bad
