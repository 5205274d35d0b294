-- What is due, what is put off, what is old; and whether there is anything to do.

-- fragment: next_silent
SELECT min(lease - ({beat_age})) FROM rowlock_workers WHERE dead_at IS NULL AND id <> :worker

-- The clock, the seconds until a worker's lease runs out, and the moments at which something is due. ORDER BY and not
-- min: PostgreSQL may gather all rows for that.
-- name: next_needed
SELECT {now}, ({next_silent}),
       (SELECT run_at FROM rowlock_jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT 1),
       (SELECT expires_at FROM rowlock_jobs WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'queued')
        ORDER BY expires_at LIMIT 1),
       (SELECT min(paused_until) FROM rowlock_queues)

-- A LIMIT that PostgreSQL's planner cannot see, as in a claim: 1 ms instead of 65 for 1,000 of 100,000 that are due,
-- where statements are not prepared.
-- name: due_jobs
SELECT id, queue, task FROM rowlock_jobs WHERE state = 'scheduled' AND run_at <= {now}
ORDER BY run_at, position LIMIT (SELECT :most) {lock}

-- name: promote
UPDATE rowlock_jobs SET state = 'queued', position = :position WHERE id = :id AND state = 'scheduled'

-- None given: any.
-- fragment: of_tasks
(:task_names IS NULL OR task IN ({task_names}))

-- Jobs that wait because no living worker knew their task: for no longer than the delay, so that few others are read.
-- name: put_off_jobs
SELECT id, queue, task FROM rowlock_jobs
WHERE state = 'scheduled' AND run_at <= {now+delay} AND error_kind = 'unknown_task'
  AND {of_queues} AND {of_tasks}
ORDER BY run_at, position LIMIT :most {lock}

-- name: offer
UPDATE rowlock_jobs SET state = 'queued', position = :position, run_at = {now}, error = NULL, error_kind = NULL
WHERE id = :id AND state = 'scheduled'

-- name: expired_jobs
SELECT id, claim FROM rowlock_jobs
WHERE expires_at IS NOT NULL AND expires_at <= {now} AND state IN ('scheduled', 'queued')
ORDER BY expires_at LIMIT (SELECT :most) {lock}

-- Ends pauses whose time is over. Claims look at the time themselves: this is for readers, and wakes who sleeps.
-- name: pauses_over
SELECT name FROM rowlock_queues WHERE paused_until <= {now}

-- name: end_pauses
UPDATE rowlock_queues SET paused_at = NULL, paused_until = NULL WHERE paused_until <= {now} RETURNING name

-- Paused queues do not count, nor what the database refuses: nothing of that will move.
-- name: busy
SELECT 1 FROM (
    SELECT queue, task FROM rowlock_jobs j WHERE state = 'running' AND {refusal} IS NULL
    UNION ALL
    SELECT queue, task FROM rowlock_jobs WHERE state = 'scheduled' AND run_at <= {now}) AS moving
WHERE {of_queues} AND {of_tasks}
  AND queue NOT IN (SELECT name FROM rowlock_queues WHERE {paused})
LIMIT 1

-- name: queue_has_tasks
SELECT 1 FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue AND task IN ({task_names}) LIMIT 1

-- Finished rows are walked in the order of their ids, a page at a time: no index on finished_at is needed.
-- name: prune_page
SELECT id, state, created_at, finished_at FROM rowlock_jobs WHERE id > :beyond ORDER BY id LIMIT :most

-- name: count_side_rows
SELECT job_id, count(*) FROM (
    SELECT job_id FROM rowlock_logs WHERE job_id IN ({ids})
    UNION ALL
    SELECT job_id FROM rowlock_history WHERE job_id IN ({ids})
) AS side_rows GROUP BY job_id

-- Asked again whether they are old enough: since the page was read, an operator may have had one run again.
-- name: prune_jobs
DELETE FROM rowlock_jobs
WHERE id IN ({ids}) AND (state = 'completed' AND finished_at <= {now-keep_completed}
                         OR state IN ('failed', 'cancelled') AND finished_at <= {now-keep_failed})
RETURNING id

-- name: prune_history
DELETE FROM rowlock_history WHERE job_id IN ({ids})

-- name: prune_logs
DELETE FROM rowlock_logs WHERE job_id IN ({ids})

-- name: prune_progress
DELETE FROM rowlock_progress WHERE job_id IN ({ids})

-- name: prune_workers
DELETE FROM rowlock_workers WHERE id IN (SELECT id FROM rowlock_workers WHERE dead_at < {now-age} LIMIT :most)

-- name: prune_minutes
DELETE FROM rowlock_minutes WHERE minute <= (SELECT max(minute) FROM (
    SELECT minute FROM rowlock_minutes WHERE minute < :minute ORDER BY minute LIMIT :most
) AS oldest)
