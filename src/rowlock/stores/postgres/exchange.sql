-- The whole of a usual cycle in one statement and one round trip: completed runs go back, new claims come.
-- It is written once for each {turn} (all queues, or those named), {order} (of the strategy) and {done} (at most one
-- outcome, or many).
-- What is not usual (a strategy of its own for a queue, a job that has to run alone) claims nothing here: the
-- statement says `special`, and the general way does it.

-- name: exchange
WITH RECURSIVE {turn},
done AS ({done}),
facts AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL) AS alive,
           EXISTS (SELECT 1 FROM rowlock_queues WHERE strategy IS NOT NULL)
           OR EXISTS (SELECT 1 FROM rowlock_jobs WHERE alone > 0 AND state = 'queued' AND :alone > 0) AS special),
line AS MATERIALIZED (
    SELECT queue FROM turn
    WHERE (SELECT alive AND NOT special FROM facts)
      AND queue IS NOT NULL AND queue NOT IN (SELECT name FROM rowlock_queues WHERE paused_at IS NOT NULL)
    LIMIT :count),
picked AS MATERIALIZED (
    SELECT job.id FROM line CROSS JOIN LATERAL (
        SELECT id FROM rowlock_jobs WHERE state = 'queued' AND queue = line.queue AND alone <= 0
        ORDER BY {order}
        LIMIT (SELECT ceil(:count / greatest(count(*), 1.0))::bigint FROM line)
        FOR UPDATE SKIP LOCKED) job
    LIMIT :count),
taken AS (
    UPDATE rowlock_jobs j
    SET state = 'running', claim = j.claim + 1, claimed_by = :worker, claimed_at = {now}, started_at = {now},
        unique_until = nullif(j.unique_until, 'claimed')
    WHERE j.id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING {claim}),
awake AS (
    UPDATE rowlock_workers SET sleeping = false
    WHERE id = :worker AND sleeping AND EXISTS (SELECT 1 FROM picked))
SELECT facts.alive, facts.special, (SELECT array_agg(id) FROM done), taken.*
FROM facts LEFT JOIN taken ON true

-- fragment: done_one
    UPDATE rowlock_jobs
    SET state = 'completed', result = :result, finished_at = {now}, error = NULL, error_kind = NULL, alone = 0
    WHERE id = :id AND claim = :claim AND {running}
    RETURNING id

-- No join: one that was planned for a small table reads all of it for ever (1.8 of 2.3 ms at 10,000 rows).
-- fragment: done_many
    UPDATE rowlock_jobs
    SET state = 'completed', result = CAST((:done_results)[array_position(:done_ids, id)] AS json),
        finished_at = {now}, error = NULL, error_kind = NULL, alone = 0
    WHERE id = ANY (:done_ids) AND claim = (:done_claims)[array_position(:done_ids, id)] AND {running}
    RETURNING id

-- name: finish_one
{done_one}

-- name: finish_many
{done_many}

-- fragment: turn_named
turn AS (
    SELECT name AS queue FROM unnest(:names) WITH ORDINALITY AS given (name, place)
    WHERE EXISTS (SELECT 1 FROM rowlock_jobs WHERE state = 'queued' AND queue = name)
    ORDER BY place)

-- The queues after the one served last, then those before it: each costs one seek, and no more are looked for
-- than jobs are wanted.
-- fragment: turn_all
later (queue) AS (
    SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued' AND queue > :after
    UNION ALL
    SELECT (SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued' AND queue > later.queue)
    FROM later WHERE later.queue IS NOT NULL),
earlier (queue) AS (
    SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued' AND queue <= :after
    UNION ALL
    SELECT (SELECT min(queue) FROM rowlock_jobs
            WHERE state = 'queued' AND queue > earlier.queue AND queue <= :after)
    FROM earlier WHERE earlier.queue IS NOT NULL),
turn AS (SELECT queue FROM later UNION ALL SELECT queue FROM earlier)
