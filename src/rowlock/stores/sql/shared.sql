-- Every statement that the stores share, by name. Values are always bound (:name).
-- {now}, {now+delay} and {now-age} are the store's clock and are written by its dialect;
-- {job} is the column list of a job, {claim} that of a claim; {running} guards a claim, {lock} keeps rows for us.
-- A block of the same name in a store's own file is taken instead of the one here.

-- There is no index on (queue, position): one more index costs a quarter of the throughput. Instead the
-- levels are stepped through (one seek each, 201 at most) and the first few of each are merged.
-- fragment: levels
WITH RECURSIVE level (priority) AS (
    SELECT max(priority) FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue
    UNION ALL
    SELECT (SELECT max(priority) FROM rowlock_jobs
            WHERE state = 'queued' AND queue = :queue AND priority < level.priority)
    FROM level WHERE level.priority IS NOT NULL)

-- fragment: in_level
state = 'queued' AND queue = :queue AND priority = level.priority

-- name: levels
{levels}
SELECT priority FROM level WHERE priority IS NOT NULL

-- What a claim may take. Jobs that have to run alone have a statement of their own.
-- fragment: eligible
state = 'queued' AND queue = :queue AND isolate = 0{and_known}

-- fragment: take
{first}

-- fragment: first_by_index
SELECT {claim} FROM rowlock_jobs j WHERE {eligible}{at_level} ORDER BY {order} LIMIT :count

-- Which jobs a mark names, in the level that it is for.
-- fragment: at_mark
priority = one_level.number AND position > one_level.low AND position <= one_level.high

-- In each level the first position that is for this worker, and the last of all.
-- fragment: sweep
{levels}
SELECT priority,
       (SELECT position FROM rowlock_jobs WHERE {in_level} AND {known} ORDER BY {within} LIMIT 1),
       (SELECT position FROM rowlock_jobs WHERE {in_level} ORDER BY priority, position DESC LIMIT 1)
FROM level WHERE priority IS NOT NULL

-- name: claim_isolated
SELECT {claim} FROM rowlock_jobs j WHERE {isolated_for_us} ORDER BY position LIMIT 1

-- fragment: taken
UPDATE rowlock_jobs
SET state = 'running', claim = claim + 1, claimed_by = :worker, claimed_at = {now}, started_at = {now},
    unique_until = nullif(unique_until, 'claimed')

-- name: queue_after
SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued' AND queue > :after

-- The same, but after the last one comes the first again.
-- fragment: next_in_turn
coalesce((SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued' AND queue > :after),
         (SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued'))

-- name: next_queue
SELECT {next_in_turn}

-- What a claim has to know first, in one statement: does the worker live, has any queue settings of its own, does a
-- job wait that has to run alone, and which queue comes next.
-- name: claim_facts
SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL),
       EXISTS (SELECT 1 FROM rowlock_queues),
       EXISTS (SELECT 1 FROM rowlock_jobs WHERE isolate > 0 AND state = 'queued'),
       {next_in_turn}

-- name: queue_has_work
SELECT 1 FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue AND {known} LIMIT 1

-- name: consumer_claims
SELECT consumer, count(claimed_by), count(*) - count(claimed_by)
FROM rowlock_consumer_claims GROUP BY consumer ORDER BY consumer

-- name: queue_has_tasks
SELECT 1 FROM rowlock_jobs WHERE state = 'queued' AND queue = :queue AND task IN ({task_names}) LIMIT 1

-- name: oldest_queued
{levels}
SELECT min(first.run_at) FROM level JOIN rowlock_jobs first ON first.id = (
    SELECT id FROM rowlock_jobs WHERE {in_level} ORDER BY position LIMIT 1)

-- The error with which the database rejected the outcome of a running job, which stays running until its worker ends.
-- A scalar, not EXISTS: PostgreSQL would make a join of that, and read the whole history.
-- fragment: refusal
(SELECT h.error FROM rowlock_history h WHERE h.job_id = j.id AND h.claim = j.claim AND h.event = 'refused' LIMIT 1)

-- Paused queues do not count, nor what the database refuses: nothing of that will move.
-- name: busy
SELECT 1 FROM (
    SELECT queue, task FROM rowlock_jobs j WHERE state = 'running' AND {refusal} IS NULL
    UNION ALL
    SELECT queue, task FROM rowlock_jobs WHERE state = 'scheduled' AND run_at <= {now}) AS moving
WHERE (:all = 1 OR queue IN ({queues})) AND (:every = 1 OR task IN ({task_names}))
  AND queue NOT IN (SELECT name FROM rowlock_queues WHERE paused_at IS NOT NULL)
LIMIT 1

-- The fence: whatever ends, extends or reports on a claim says this, and zero rows mean that the claim is lost.
-- fragment: this_claim
id = :id AND claim = :claim AND {running}

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

-- A relay claims for others: what it hands over has not begun.
-- name: hand_over
UPDATE rowlock_jobs SET started_at = NULL WHERE id IN ({ids}) AND claimed_by = :worker AND {running}

-- What a start has to know first: does the worker live, and is any queue paused?
-- name: start_facts
SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL),
       EXISTS (SELECT 1 FROM rowlock_queues WHERE paused_at IS NOT NULL)

-- Moves a claim that was handed over to the worker that begins it; says whether it is to be cancelled.
-- name: start_claim
UPDATE rowlock_jobs AS j SET claimed_by = :worker, claimed_at = {now}, started_at = {now}
WHERE {this_claim} AND started_at IS NULL
  AND (:all = 1 OR queue IN ({queues}))
RETURNING {claim_as_it_is}, cancel_requested_at IS NOT NULL

-- A retry or release of a job that was to be cancelled is its cancellation.
-- name: add_history
INSERT INTO rowlock_history (job_id, claim, event, "at", worker, started_at, error, error_kind)
VALUES (:id, :claim, CASE WHEN :event IN ('retry', 'released')
                           AND (SELECT state FROM rowlock_jobs WHERE id = :id) = 'cancelled'
                          THEN 'cancelled' ELSE :event END, {now}, :worker, :started_at, :error, :error_kind)

-- The outcome of a claim cannot be written: what the database said is kept here, once.
-- name: note_refused
INSERT INTO rowlock_history (job_id, claim, event, "at", worker, started_at, error, error_kind)
SELECT :id, :claim, :event, {now}, :worker, :started_at, :error, :error_kind
WHERE EXISTS (SELECT 1 FROM rowlock_jobs WHERE {this_claim})
  AND NOT EXISTS (SELECT 1 FROM rowlock_history WHERE job_id = :id AND claim = :claim AND event = :event)

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

-- name: report_progress
INSERT INTO rowlock_progress (job_id, claim, done, total, note, "at")
SELECT id, claim, :done, :total, :note, {now} FROM rowlock_jobs WHERE {this_claim}
ON CONFLICT (job_id) DO UPDATE SET
    claim = excluded.claim, done = excluded.done, total = excluded.total, note = excluded.note, "at" = excluded."at"
WHERE rowlock_progress.claim <= excluded.claim

-- name: report_line
INSERT INTO rowlock_logs (job_id, claim, "at", message, fields)
SELECT id, claim, :at, :message, :fields FROM rowlock_jobs WHERE {this_claim}

-- Workers on one machine: a beat is known by the machine's monotonic clock, for the clock on the wall may jump.
-- fragment: mono_column
, beat_mono

-- fragment: mono_given
, :mono

-- fragment: mono_set
, beat_mono = :mono

-- fragment: beat_age
:mono - beat_mono

-- A value from the future means that the machine was restarted: that worker is gone.
-- fragment: in_lease
beat_mono BETWEEN :mono - lease AND :mono + 1

-- fragment: its_lists
queues, tasks

-- fragment: silent
dead_at IS NULL AND NOT ({in_lease})

-- fragment: next_silent
SELECT min(lease - ({beat_age})) FROM rowlock_workers WHERE dead_at IS NULL AND id <> :worker

-- name: register_worker
INSERT INTO rowlock_workers (id, host, pid, version, queues, tasks, strategy, concurrency, started_at, lease,
                             reachable_for, beat_at{mono_column})
VALUES (:worker, :host, :pid, :version, :queues, :tasks, :strategy, :concurrency, {now}, :lease,
        :reachable_for, {now}{mono_given})
ON CONFLICT (id) DO NOTHING

-- name: beat
UPDATE rowlock_workers SET beat_at = {now}{mono_set}, strategy = :strategy WHERE id = :worker AND dead_at IS NULL

-- name: beat_age
SELECT {beat_age} FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL

-- name: living_workers
SELECT id, {its_lists}, info FROM rowlock_workers WHERE dead_at IS NULL AND {in_lease}

-- name: workers
SELECT id, host, pid, version, {its_lists}, strategy, concurrency, started_at, beat_at, {beat_age}, lease, dead_at, ended,
       (SELECT count(*) FROM rowlock_jobs j WHERE j.claimed_by = w.id AND j.state = 'running'), info
FROM rowlock_workers w ORDER BY dead_at IS NOT NULL, started_at, id

-- name: worker_lives
SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL

-- name: trim_lines
DELETE FROM rowlock_logs
WHERE job_id = :id AND id <= (
    SELECT id FROM rowlock_logs WHERE job_id = :id ORDER BY id DESC LIMIT 1 OFFSET :keep)

-- name: info
SELECT info FROM rowlock_workers WHERE id = :worker

-- name: know_tasks
UPDATE rowlock_workers SET tasks = :tasks WHERE id = :worker AND dead_at IS NULL

-- name: retire_worker
UPDATE rowlock_workers SET dead_at = {now}, ended = 'stopped' WHERE id = :worker AND dead_at IS NULL

-- name: held_by
SELECT id, claim, failures, max_attempts, started_at, cancel_requested_at, task, deaths, queue, {refusal}
FROM rowlock_jobs j WHERE claimed_by = :worker AND state = 'running'

-- name: tasks_of
SELECT CAST(tasks AS text) FROM rowlock_workers WHERE id = :worker

-- Those whose claims were committed at the moment at which they were declared dead;
-- with `include_refused` also those whose
-- claims the database refused to give back.
-- name: dead_holders
SELECT id, ended, beat_at, lease FROM rowlock_workers w
WHERE dead_at IS NOT NULL AND (:include_refused = 1 OR dead_at > {now-age})
  AND EXISTS (SELECT 1 FROM rowlock_jobs j
              WHERE j.claimed_by = w.id AND j.state = 'running' AND (:include_refused = 1 OR {refusal} IS NULL))
{lock}

-- The clock, the seconds until a worker's lease runs out, and the moments at which something is due. ORDER BY and not
-- min: PostgreSQL may gather all rows for that.
-- name: next_needed
SELECT {now}, ({next_silent}),
       (SELECT run_at FROM rowlock_jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT 1),
       (SELECT expires_at FROM rowlock_jobs WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'queued')
        ORDER BY expires_at LIMIT 1),
       (SELECT min(paused_until) FROM rowlock_queues)

-- name: silent_workers
SELECT id FROM rowlock_workers WHERE {silent}

-- name: declare_dead
UPDATE rowlock_workers SET dead_at = {now}, ended = 'silent'
WHERE id IN (SELECT id FROM rowlock_workers WHERE {silent} {lock}) RETURNING id

-- Back into its old position; it is claimed alone next time. Its cancel may have been asked for since the rescuer
-- looked.
-- name: rescue_requeue
UPDATE rowlock_jobs
SET state = CASE WHEN cancel_requested_at IS NULL THEN 'queued' ELSE 'cancelled' END,
    failures = failures + {charge}, isolate = :isolate, deaths = deaths + 1, {comes_back}

-- One statement: between two of them a job could be given back or claimed, and be missed by both.
-- name: cancel
UPDATE rowlock_jobs
SET state = CASE WHEN state = 'running' THEN state ELSE 'cancelled' END,
    finished_at = CASE WHEN state = 'running' THEN finished_at ELSE {now} END, cancel_requested_at = {now}
WHERE id = :id AND (state IN ('scheduled', 'queued') OR state = 'running' AND cancel_requested_at IS NULL)
RETURNING state, claim

-- name: held
SELECT id, claim, cancel_requested_at IS NOT NULL FROM rowlock_jobs
WHERE claimed_by = :worker AND state = 'running'

-- name: retry_job
UPDATE rowlock_jobs
SET state = 'queued', position = :position, run_at = {now}, due_at = {now}, failures = 0, isolate = 0, deaths = 0, result = NULL,
    error = NULL, error_kind = NULL, finished_at = NULL, claimed_by = NULL, claimed_at = NULL,
    started_at = NULL, cancel_requested_at = NULL,
    expires_at = CASE WHEN expires_at <= {now} THEN NULL ELSE expires_at END
WHERE id = :id AND state IN ('scheduled', 'completed', 'failed', 'cancelled')

-- name: retry_facts
SELECT claim, state, task, unique_key, unique_until, queue FROM rowlock_jobs WHERE id = :id

-- While this is true of a job, nobody else gets its unique key; the unique indexes are made with it, too. To change it
-- takes a migration, and `wants_key` in `copying/arriving.py` says the same of a row that is not written yet.
-- fragment: holds_unique_key
unique_until IS NOT NULL AND state IN ('scheduled', 'queued', 'running')

-- name: unique_holder
SELECT id FROM rowlock_jobs WHERE task = :task AND unique_key = :unique_key AND {holds_unique_key}

-- name: due_jobs
SELECT id, queue, task FROM rowlock_jobs WHERE state = 'scheduled' AND run_at <= {now}
ORDER BY run_at, position LIMIT :most {lock}

-- name: due_heads
SELECT queue, run_at FROM rowlock_jobs WHERE state = 'scheduled' AND run_at <= {now} ORDER BY run_at LIMIT :most

-- What a relay has handed over and no worker has begun.
-- name: oldest_handed_over
SELECT queue, min(run_at) FROM rowlock_jobs WHERE state = 'running' AND started_at IS NULL GROUP BY queue

-- name: promote
UPDATE rowlock_jobs SET state = 'queued', position = :position WHERE id = :id AND state = 'scheduled'

-- Jobs that wait because no living worker knew their task: for no longer than the delay, so that few others are read.
-- name: put_off_jobs
SELECT id, queue, task FROM rowlock_jobs
WHERE state = 'scheduled' AND run_at <= {now+delay} AND error_kind = 'unknown_task'
  AND (:all = 1 OR queue IN ({queues})) AND (:every = 1 OR task IN ({task_names}))
ORDER BY run_at, position LIMIT :most {lock}

-- name: offer
UPDATE rowlock_jobs SET state = 'queued', position = :position, run_at = {now}, error = NULL, error_kind = NULL
WHERE id = :id AND state = 'scheduled'

-- name: expired_jobs
SELECT id, claim FROM rowlock_jobs
WHERE expires_at IS NOT NULL AND expires_at <= {now} AND state IN ('scheduled', 'queued')
ORDER BY expires_at LIMIT :most {lock}

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

-- fragment: isolated_for_us
isolate > 0 AND state = 'queued' AND (:all = 1 OR queue IN ({queues})) AND {known}
  AND queue NOT IN (SELECT name FROM rowlock_queues WHERE paused_at IS NOT NULL)

-- name: isolated_waiting
SELECT 1 FROM rowlock_jobs WHERE {isolated_for_us} LIMIT 1

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

-- Without paused_until a pause lasts until somebody ends it, and it is the longest of all.
-- name: set_paused
INSERT INTO rowlock_queues (name, paused_at) VALUES (:name, CASE WHEN :paused = 1 THEN {now} END)
ON CONFLICT (name) DO UPDATE SET
    paused_at = CASE WHEN :paused = 1 THEN coalesce(rowlock_queues.paused_at, {now}) END, paused_until = NULL

-- name: pause_for
INSERT INTO rowlock_queues (name, paused_at, paused_until) VALUES (:name, {now}, {now+delay})
ON CONFLICT (name) DO UPDATE SET
    paused_at = coalesce(rowlock_queues.paused_at, excluded.paused_at),
    paused_until = CASE WHEN rowlock_queues.paused_at IS NOT NULL AND rowlock_queues.paused_until IS NULL THEN NULL
                        WHEN rowlock_queues.paused_until > excluded.paused_until THEN rowlock_queues.paused_until
                        ELSE excluded.paused_until END

-- Maintenance ends pauses whose time is over, so that claims compare no times.
-- name: pauses_over
SELECT name FROM rowlock_queues WHERE paused_until <= {now}

-- name: end_pauses
UPDATE rowlock_queues SET paused_at = NULL, paused_until = NULL WHERE paused_until <= {now} RETURNING name

-- name: paused_until
SELECT name, paused_until FROM rowlock_queues WHERE paused_until IS NOT NULL

-- name: set_strategy
INSERT INTO rowlock_queues (name, strategy) VALUES (:name, :strategy)
ON CONFLICT (name) DO UPDATE SET strategy = excluded.strategy

-- name: queue_settings
SELECT name, CASE WHEN paused_until <= {now} THEN NULL ELSE paused_at END, strategy FROM rowlock_queues

-- name: get_job
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE j.id = :id

-- name: get_jobs
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE j.id IN ({ids})

-- name: look_at_jobs
SELECT j.id, j.state, j.claim, p.done, p.total, p.note FROM rowlock_jobs j {progress_of_j} WHERE j.id IN ({ids})

-- fragment: progress_of_j
LEFT JOIN rowlock_progress p ON p.job_id = j.id AND p.claim = j.claim

-- A page of jobs. {by_held} and {by_bad} name an index, where the planner would walk the primary key instead.
-- fragment: of_page
j.id < :before AND (:queue IS NULL OR j.queue = :queue) AND (:task IS NULL OR j.task = :task)

-- fragment: by_held

-- fragment: by_bad

-- name: find
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE {of_page} ORDER BY j.id DESC LIMIT :limit

-- name: find_state
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE j.state = :state AND {of_page} ORDER BY j.id DESC LIMIT :limit

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

-- name: meta_value
SELECT value FROM rowlock_meta WHERE key = :key

-- name: clock
SELECT {now}

-- name: meta
SELECT key, value FROM rowlock_meta
