-- What becomes of claims: outcomes, reports, the timeline, and jobs that are too late.

-- The fence: whatever ends, extends or reports on a claim says this, and zero rows mean that the claim is lost.
-- fragment: this_claim
id = :id AND claim = :claim AND {running}

-- Nobody can take the claim away before the transaction that says this has ended: one that has only read so far takes
-- SQLite's lock by it, or is refused because it saw an old state. Of an indexed column: DuckDB then deletes the row and
-- inserts it again, as all other statements do that end a claim, and sees that these clash. An update of other columns
-- and such a deletion are both let through.
-- name: hold_claim
UPDATE rowlock_jobs SET state = state WHERE {this_claim}

-- fragment: has_run
finished_at = {now}, isolate = 0

-- Completed, failed or cancelled.
-- name: finish
UPDATE rowlock_jobs
SET state = :state, result = :result, failures = failures + :charge, error = :error, error_kind = :error_kind, {has_run}
WHERE {this_claim}

-- A cancel that arrives while the run ends counts as one that was known: it costs nothing.
-- fragment: charge
CASE WHEN cancel_requested_at IS NULL THEN :charge ELSE 0 END

-- What comes back is nobody's; if its cancel was asked for, it is over instead.
-- fragment: comes_back
finished_at = CASE WHEN cancel_requested_at IS NULL THEN NULL ELSE {now} END,
    claimed_by = NULL, claimed_at = NULL, started_at = NULL
WHERE {this_claim}

-- name: finish_retry
UPDATE rowlock_jobs
SET state = CASE WHEN cancel_requested_at IS NULL THEN 'scheduled' ELSE 'cancelled' END,
    run_at = {now+delay}, failures = failures + {charge}, error = :error, error_kind = :error_kind,
    isolate = 0, deaths = CASE WHEN :charge > 0 THEN 0 ELSE deaths END, {comes_back}

-- A release costs nothing and keeps the position; with a delay it waits as scheduled. Without a new error the last one
-- stays, but for the one that says that no worker knew the task: that is not so any more.
-- fragment: released
UPDATE rowlock_jobs
SET state = CASE WHEN cancel_requested_at IS NOT NULL THEN 'cancelled'
                 WHEN :delay IS NULL THEN 'queued' ELSE 'scheduled' END,
    run_at = CASE WHEN :delay IS NULL THEN run_at ELSE {now+delay} END,
    error = coalesce(:error, CASE WHEN error_kind = 'unknown_task' THEN NULL ELSE error END),
    error_kind = coalesce(:error_kind, nullif(error_kind, 'unknown_task')), {comes_back}

-- name: finish_released
{released}

-- The same for a claim that a relay handed over, unless somebody has begun it meanwhile.
-- name: finish_not_begun
{released} AND claimed_by = :worker AND started_at IS NULL

-- Back into its old position; it is claimed alone next time. Its cancel may have been asked for since the rescuer
-- looked.
-- name: rescue_requeue
UPDATE rowlock_jobs
SET state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,
    failures = failures + {charge}, isolate = :isolate, deaths = deaths + 1, {comes_back}

-- A job that ran before keeps its last error beside the reason why it ends now.
-- fragment: too_late
UPDATE rowlock_jobs
SET state = 'failed', error_kind = :error_kind, error = :error || coalesce('; its last error was: ' || error, ''), {has_run}

-- name: expire
{too_late}
WHERE id = :id AND claim = :claim AND state IN ('scheduled', 'queued', 'running')

-- What a living worker has is bounded by its timeout alone, begun or not: what waits there for long is given back. A
-- worker that is only silent may have been frozen with everybody else: that is for rescue to decide, which comes first.
-- fragment: ownerless
NOT EXISTS (SELECT 1 FROM rowlock_workers w WHERE w.id = claimed_by AND w.dead_at IS NULL)

-- What a relay has handed over and nobody has begun is bounded, too: the relay lives, but those who begin may not.
-- fragment: never_begun_or_ownerless
(started_at IS NULL OR {ownerless})

-- due_at is when the job was first due: retries and releases move run_at only, an operator's retry moves both.
-- name: overdue_running
SELECT id, claim FROM rowlock_jobs WHERE state = 'running' AND due_at < {now-age} AND {never_begun_or_ownerless}

-- name: fail_overdue
{too_late}
WHERE id = :id AND claim = :claim AND due_at < {now-age}
  AND (state = 'queued' OR state = 'running' AND {never_begun_or_ownerless})

-- name: pause_for
INSERT INTO rowlock_queues (name, paused_at, paused_until) VALUES (:name, {now}, {now+delay})
ON CONFLICT (name) DO UPDATE SET
    paused_at = coalesce(rowlock_queues.paused_at, excluded.paused_at),
    paused_until = CASE WHEN rowlock_queues.paused_at IS NOT NULL AND rowlock_queues.paused_until IS NULL THEN NULL
                        WHEN rowlock_queues.paused_until > excluded.paused_until THEN rowlock_queues.paused_until
                        ELSE excluded.paused_until END

-- A retry or release of a job that was to be cancelled is its cancellation.
-- name: add_history
INSERT INTO rowlock_history (job_id, claim, event, "at", worker, started_at, error, error_kind)
VALUES (:id, :claim, CASE WHEN :event IN ('retry', 'released')
                           AND (SELECT state FROM rowlock_jobs WHERE id = :id) = 'cancelled'
                          THEN 'cancelled' ELSE :event END, {now}, :worker, :started_at, :error, :error_kind)

-- The error with which the database rejected the outcome of a running job, which stays running until its worker ends.
-- A scalar, not EXISTS: PostgreSQL would make a join of that, and read the whole history.
-- fragment: refusal
(SELECT h.error FROM rowlock_history h WHERE h.job_id = j.id AND h.claim = j.claim AND h.event = 'refused' LIMIT 1)

-- The outcome of a claim cannot be written: what the database said is kept here, once.
-- name: note_refused
INSERT INTO rowlock_history (job_id, claim, event, "at", worker, started_at, error, error_kind)
SELECT :id, :claim, :event, {now}, :worker, :started_at, :error, :error_kind
WHERE EXISTS (SELECT 1 FROM rowlock_jobs WHERE {this_claim})
  AND NOT EXISTS (SELECT 1 FROM rowlock_history WHERE job_id = :id AND claim = :claim AND event = :event)

-- name: held
SELECT id, claim, cancel_requested_at IS NOT NULL FROM rowlock_jobs
WHERE claimed_by = :worker AND state = 'running'

-- name: held_by
SELECT id, claim, failures, max_attempts, started_at, cancel_requested_at, task, deaths, queue, {refusal}
FROM rowlock_jobs j WHERE claimed_by = :worker AND state = 'running'

-- name: tasks_of
SELECT CAST(tasks AS text) FROM rowlock_workers WHERE id = :worker

-- name: report_progress
INSERT INTO rowlock_progress (job_id, claim, done, total, note, "at")
SELECT id, claim, :done, :total, :note, {now} FROM rowlock_jobs WHERE {this_claim}
ON CONFLICT (job_id) DO UPDATE SET
    claim = excluded.claim, done = excluded.done, total = excluded.total, note = excluded.note, "at" = excluded."at"
WHERE rowlock_progress.claim <= excluded.claim

-- name: report_line
INSERT INTO rowlock_logs (job_id, claim, "at", message, fields)
SELECT id, claim, :at, :message, :fields FROM rowlock_jobs WHERE {this_claim}

-- name: trim_lines
DELETE FROM rowlock_logs
WHERE job_id = :id AND id <= (
    SELECT id FROM rowlock_logs WHERE job_id = :id ORDER BY id DESC LIMIT 1 OFFSET :keep)

-- name: add_minute
INSERT INTO rowlock_minutes (minute, worker, queue, task, completed, failed, retried, cancelled, released,
                             run_seconds, wait_seconds)
VALUES (:minute, :worker, :queue, :task, :completed, :failed, :retried, :cancelled, :released,
        :run_seconds, :wait_seconds)
ON CONFLICT (minute, worker, queue, task) DO UPDATE SET
    completed = rowlock_minutes.completed + excluded.completed,
    failed = rowlock_minutes.failed + excluded.failed,
    retried = rowlock_minutes.retried + excluded.retried,
    cancelled = rowlock_minutes.cancelled + excluded.cancelled,
    released = rowlock_minutes.released + excluded.released,
    run_seconds = rowlock_minutes.run_seconds + excluded.run_seconds,
    wait_seconds = rowlock_minutes.wait_seconds + excluded.wait_seconds
