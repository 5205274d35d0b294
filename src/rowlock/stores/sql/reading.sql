-- What people and front ends read: jobs, queues, numbers, the queue's own facts.

-- fragment: progress_of_j
LEFT JOIN rowlock_progress p ON p.job_id = j.id AND p.claim = j.claim

-- name: get_job
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE j.id = :id

-- name: get_jobs
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE j.id IN ({ids})

-- name: look_at_jobs
SELECT j.id, j.state, j.claim, p.done, p.total, p.note FROM rowlock_jobs j {progress_of_j} WHERE j.id IN ({ids})

-- A page of jobs. {by_held} and {by_bad} name an index, where the planner would walk the primary key instead.
-- fragment: of_page
j.id < :before AND (:state IS NULL OR j.state = :state) AND (:queue IS NULL OR j.queue = :queue)
AND (:task IS NULL OR j.task = :task)

-- fragment: by_held

-- fragment: by_bad

-- name: find
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE {of_page} ORDER BY j.id DESC LIMIT :limit

-- name: find_running
SELECT {job} FROM rowlock_jobs j {by_held} {progress_of_j}
WHERE j.state = 'running' AND {of_page} ORDER BY j.id DESC LIMIT :limit

-- name: find_bad
SELECT {job} FROM rowlock_jobs j {by_bad} {progress_of_j}
WHERE j.state IN ('failed', 'cancelled') AND j.state = :state AND {of_page} ORDER BY j.id DESC LIMIT :limit

-- name: history
SELECT claim, event, "at", worker, started_at, error, error_kind
FROM rowlock_history WHERE job_id = :id ORDER BY id

-- name: logs
SELECT claim, "at", message, fields FROM rowlock_logs WHERE job_id = :id ORDER BY id

-- name: minutes
SELECT minute, worker, queue, task, completed, failed, retried, cancelled, released, run_seconds, wait_seconds
FROM rowlock_minutes WHERE minute >= :since ORDER BY minute

-- What waits, for callers that ask often: the finished jobs are in no index that these two read.
-- name: depth
SELECT count(*) FROM rowlock_jobs WHERE state = 'queued'

-- name: depth_of_queue
SELECT count(*) FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue

-- name: count_jobs
SELECT queue, state, count(*) FROM rowlock_jobs GROUP BY queue, state

-- name: oldest_queued
{levels}
SELECT min((SELECT run_at FROM rowlock_jobs WHERE {in_level} ORDER BY priority DESC, position LIMIT 1)) FROM level

-- name: due_heads
SELECT queue, run_at FROM rowlock_jobs WHERE state = 'scheduled' AND run_at <= {now} ORDER BY run_at LIMIT :most

-- What a relay has handed over and no worker has begun.
-- name: oldest_handed_over
SELECT queue, min(run_at) FROM rowlock_jobs WHERE state = 'running' AND started_at IS NULL GROUP BY queue

-- name: consumer_claims
SELECT consumer, count(claimed_by), count(*) - count(claimed_by)
FROM rowlock_consumer_claims GROUP BY consumer ORDER BY consumer

-- Also those that no worker has taken, because it had met one of them before.
-- name: count_unknown
SELECT task, count(*) FROM rowlock_jobs
WHERE state IN ('scheduled', 'queued') AND task IN (
    SELECT task FROM rowlock_jobs WHERE state IN ('scheduled', 'queued') AND error_kind = 'unknown_task')
GROUP BY task

-- name: refused_jobs
SELECT j.id, j.task, j.claimed_by, h.error FROM rowlock_jobs j
JOIN rowlock_history h ON h.job_id = j.id AND h.claim = j.claim AND h.event = 'refused'
WHERE j.state = 'running' ORDER BY j.id

-- name: refused_rows
SELECT consumer, row_key, claimed_by, error FROM rowlock_consumer_claims
WHERE claimed_by IS NOT NULL AND error_kind = 'refused' ORDER BY claim

-- name: newest_created_at
SELECT (SELECT created_at FROM rowlock_jobs ORDER BY id DESC LIMIT 1)

-- name: meta
SELECT key, value FROM rowlock_meta

-- name: meta_value
SELECT value FROM rowlock_meta WHERE key = :key

-- name: clock
SELECT {now}
