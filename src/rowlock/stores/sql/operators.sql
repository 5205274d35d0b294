-- What operators do to jobs and queues.

-- One statement: between two of them a job could be given back or claimed, and be missed by both.
-- name: cancel
UPDATE rowlock_jobs
SET state = CASE WHEN state = 'running' THEN state ELSE 'cancelled' END,
    finished_at = CASE WHEN state = 'running' THEN finished_at ELSE {now} END, cancel_requested_at = {now}
WHERE id = :id AND (state IN ('scheduled', 'queued') OR state = 'running' AND cancel_requested_at IS NULL)
RETURNING state, claim

-- name: retry_facts
SELECT claim, state, task, unique_key, unique_until, queue FROM rowlock_jobs WHERE id = :id

-- name: retry_job
UPDATE rowlock_jobs
SET state = 'queued', position = :position, run_at = {now}, due_at = {now}, failures = 0, isolate = 0, deaths = 0, result = NULL,
    error = NULL, error_kind = NULL, finished_at = NULL, claimed_by = NULL, claimed_at = NULL,
    started_at = NULL, cancel_requested_at = NULL,
    expires_at = CASE WHEN expires_at <= {now} THEN NULL ELSE expires_at END
WHERE id = :id AND state IN ('scheduled', 'completed', 'failed', 'cancelled')

-- Without paused_until a pause lasts until somebody ends it, and it is the longest of all.
-- name: set_paused
INSERT INTO rowlock_queues (name, paused_at) VALUES (:name, CASE WHEN :paused = 1 THEN {now} END)
ON CONFLICT (name) DO UPDATE SET
    paused_at = CASE WHEN :paused = 1 THEN coalesce(rowlock_queues.paused_at, {now}) END, paused_until = NULL

-- name: set_strategy
INSERT INTO rowlock_queues (name, strategy) VALUES (:name, :strategy)
ON CONFLICT (name) DO UPDATE SET strategy = excluded.strategy
