-- The rows of workers: who lives, who is silent, who is dead and holds claims.

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

-- fragment: silent
dead_at IS NULL AND NOT ({in_lease})

-- fragment: its_lists
queues, tasks

-- name: register_worker
INSERT INTO rowlock_workers (id, host, pid, version, queues, tasks, strategy, concurrency, started_at, lease,
                             reachable_for, beat_at{mono_column})
VALUES (:worker, :host, :pid, :version, :queues, :tasks, :strategy, :concurrency, {now}, :lease,
        :reachable_for, {now}{mono_given})
ON CONFLICT (id) DO NOTHING

-- name: know_tasks
UPDATE rowlock_workers SET tasks = :tasks WHERE id = :worker AND dead_at IS NULL

-- name: beat
UPDATE rowlock_workers SET beat_at = {now}{mono_set}, strategy = :strategy WHERE id = :worker AND dead_at IS NULL

-- name: beat_age
SELECT {beat_age} FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL

-- name: worker_lives
SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL

-- name: living_workers
SELECT id, {its_lists}, info FROM rowlock_workers WHERE dead_at IS NULL AND {in_lease}

-- name: workers
SELECT id, host, pid, version, {its_lists}, strategy, concurrency, started_at, beat_at, {beat_age}, lease, dead_at, ended,
       (SELECT count(*) FROM rowlock_jobs j WHERE j.claimed_by = w.id AND j.state = 'running'), info
FROM rowlock_workers w ORDER BY dead_at IS NOT NULL, started_at, id

-- name: info
SELECT info FROM rowlock_workers WHERE id = :worker

-- name: silent_workers
SELECT id FROM rowlock_workers WHERE {silent}

-- name: declare_dead
UPDATE rowlock_workers SET dead_at = {now}, ended = 'silent'
WHERE id IN (SELECT id FROM rowlock_workers WHERE {silent} {lock}) RETURNING id

-- name: retire_worker
UPDATE rowlock_workers SET dead_at = {now}, ended = 'stopped' WHERE id = :worker AND dead_at IS NULL

-- Those whose claims were committed at the moment at which they were declared dead;
-- with `include_refused` also those whose
-- claims the database refused to give back.
-- name: dead_holders
SELECT id, ended, beat_at, lease FROM rowlock_workers w
WHERE dead_at IS NOT NULL AND (:include_refused = 1 OR dead_at > {now-age})
  AND EXISTS (SELECT 1 FROM rowlock_jobs j
              WHERE j.claimed_by = w.id AND j.state = 'running' AND (:include_refused = 1 OR {refusal} IS NULL))
{lock}
