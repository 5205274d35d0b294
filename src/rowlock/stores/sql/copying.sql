-- What `rowlock copy` reads and writes, on whichever side. Times leave as Unix seconds and JSON as text.
-- {jobs_columns} and the like are those of `COLUMNS` in `copying.py`.

-- fragment: finished
state IN ('completed', 'failed', 'cancelled')

-- A few columns of all jobs of one page of ids, so that only what is missing on the other side is read whole.
-- name: copy_page
SELECT id, state, claim FROM rowlock_jobs WHERE id > :beyond AND id < :before ORDER BY id LIMIT :most

-- name: copy_finished_page
SELECT id, state, claim FROM rowlock_jobs WHERE id > :beyond AND id < :before AND {finished} ORDER BY id LIMIT :most

-- How large each job is with all that hangs on it: a batch is as many as fit into memory.
-- name: copy_sizes
SELECT j.id, length(CAST(j.args AS text)) + coalesce(length(CAST(j.result AS text)), 0) + coalesce(length(j.error), 0)
    + coalesce((SELECT sum(100 + length(l.message) + coalesce(length(CAST(l.fields AS text)), 0))
                FROM rowlock_logs l WHERE l.job_id = j.id), 0)
    + coalesce((SELECT sum(100 + coalesce(length(h.error), 0)) FROM rowlock_history h WHERE h.job_id = j.id), 0)
FROM rowlock_jobs j WHERE j.id IN ({ids})

-- name: copy_jobs
SELECT {jobs_columns} FROM rowlock_jobs WHERE id IN ({ids}) ORDER BY id

-- name: copy_history
SELECT {history_columns} FROM rowlock_history WHERE job_id IN ({ids}) ORDER BY id

-- name: copy_logs
SELECT {logs_columns} FROM rowlock_logs WHERE job_id IN ({ids}) ORDER BY id

-- name: copy_progress
SELECT {progress_columns} FROM rowlock_progress WHERE job_id IN ({ids})

-- name: copy_queues
SELECT {queues_columns} FROM rowlock_queues

-- name: delete_jobs
DELETE FROM rowlock_jobs WHERE id IN ({ids})

-- name: lowest_id
SELECT min(id) FROM rowlock_jobs

-- name: count_states
SELECT state, count(*) FROM rowlock_jobs WHERE id > :beyond AND id < :before GROUP BY state

-- name: count_copied_history
SELECT count(*) FROM rowlock_history WHERE job_id > :beyond AND job_id < :before

-- name: count_copied_logs
SELECT count(*) FROM rowlock_logs WHERE job_id > :beyond AND job_id < :before

-- name: key_holders
SELECT unique_key, id FROM rowlock_jobs
WHERE task = :task AND unique_key IN ({keys}) AND {holds_unique_key}

-- name: write_meta
INSERT INTO rowlock_meta (key, value) VALUES (:key, :value) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: delete_meta
DELETE FROM rowlock_meta WHERE key = :key

-- Workers of jobs, not of consumers: those go on with the table that stays. They find out at their next beat.
-- name: end_job_workers
UPDATE rowlock_workers SET dead_at = {now}, ended = 'stopped'
WHERE dead_at IS NULL AND substr(CAST(queues AS text), 1, 11) <> '["consumer:'
