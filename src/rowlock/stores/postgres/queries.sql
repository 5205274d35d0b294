-- What PostgreSQL says in its own way: inserts, workers on many machines. Claims are in `claims.sql`.
-- Parameters are written as CAST(... AS type), so that no statement depends on a driver's guess.

-- The moment at which this transaction began: what the defaults of a new job are.
-- name: began
SELECT now()

-- name: draw_numbers
SELECT nextval('rowlock_jobs_id_seq') FROM generate_series(1, :count)

-- One job that is due now: one statement, one round trip; a sleeping worker is told in the same breath. The position
-- is the id, which was drawn just before it: defaults come in the order of the columns.
-- name: insert_one
INSERT INTO rowlock_jobs (position, task, queue, priority, max_attempts, args, token)
VALUES (currval('rowlock_jobs_id_seq'), :task, :queue, :priority, :max_attempts, :args, :token)
RETURNING id, date_part('epoch', created_at), (
    SELECT pg_notify('{channel}' || md5(id), '') FROM rowlock_workers
    WHERE {sleeps} AND (jsonb_array_length(queues) = 0 OR jsonb_exists(queues, :queue))
      AND (jsonb_exists(tasks, :task) OR jsonb_exists(tasks, '*'))
    ORDER BY random() LIMIT 1)

-- The jobs as one JSON list: the same statement for every driver, and for any number of jobs.
-- name: insert_many
INSERT INTO rowlock_jobs (id, position, task, queue, priority, state, max_attempts, created_at, run_at, due_at,
                          expires_at, unique_key, unique_until, args, meta)
SELECT new.id, new.id, new.task, new.queue, new.priority,
       CASE WHEN new.due > new.moment THEN 'scheduled' ELSE 'queued' END, new.max_attempts, new.moment, new.due,
       new.due, CASE WHEN new.expires IS NOT NULL
                     THEN greatest(new.moment, new.due) + make_interval(secs => new.expires) END,
       new.unique_key, new.unique_until, CAST(new.args AS json), CAST(new.meta AS json)
FROM (
    SELECT nextval('rowlock_jobs_id_seq') AS id, clock.moment, given.*,
           coalesce(to_timestamp(given.run_at), clock.moment + make_interval(secs => coalesce(given.delay, 0))) AS due
    FROM (SELECT {now} AS moment) clock,
         json_to_recordset(:jobs) AS given (task text, queue text, priority smallint, max_attempts integer,
             delay double precision, run_at double precision, expires double precision, unique_key text,
             unique_until text, args text, meta text)) new
ON CONFLICT (task, unique_key) WHERE {holds_unique_key}
DO NOTHING
RETURNING id, created_at, task, unique_key

-- The connection that did not answer, if the server still has it; asked to end.
-- name: end_connection
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE application_name = :name AND datname = current_database() AND usename = session_user

-- A server that lost one of its processes recovers as after a crash, but goes on as the same server: all that shows is
-- that its statistics begin anew.
-- name: transaction_status
SELECT pg_xact_status(CAST(:number AS xid8)), CAST(date_part('epoch', pg_postmaster_start_time()) AS text),
       coalesce((SELECT stats_reset FROM pg_stat_bgwriter) >= :at, false)

-- name: created_at
SELECT created_at FROM rowlock_jobs WHERE id = :id

-- name: server_facts
SELECT current_setting('server_version'), current_setting('synchronous_commit'), current_setting('fsync'),
       pg_total_relation_size(to_regclass('rowlock_jobs')),
       (SELECT CAST(sum(numbackends) AS bigint) FROM pg_stat_database),
       CAST(current_setting('max_connections') AS integer),
       (SELECT n_dead_tup FROM pg_stat_all_tables WHERE relid = to_regclass('rowlock_jobs')),
       (SELECT n_live_tup FROM pg_stat_all_tables WHERE relid = to_regclass('rowlock_jobs')),
       (SELECT CAST(extract(epoch FROM max(clock_timestamp() - xact_start)) AS double precision)
        FROM pg_stat_activity
        WHERE (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL) AND datname = current_database()
          AND pid <> pg_backend_pid()),
       pg_is_in_recovery()

-- name: find_by_token
SELECT id, created_at FROM (SELECT id, created_at, token FROM rowlock_jobs ORDER BY id DESC LIMIT 100000) latest
WHERE token = :token

-- Somebody who waits for jobs of one of these queues (none given: of any), knows one of these tasks (none given: any
-- will do) and is alive as far as one can know; of those who fit, one that takes most of the queues. Once per transaction: the setting goes with it, and reads as ''
-- in the session's next one. Like the word itself it is undone by a rollback to a savepoint.
-- name: wake_one
SELECT pg_notify('{channel}' || md5(id), ''), set_config('rowlock.told', 'yes', true) FROM rowlock_workers w
WHERE {sleeps} AND coalesce(current_setting('rowlock.told', true), '') = ''
  AND (:queues IS NULL OR jsonb_array_length(w.queues) = 0 OR EXISTS ({queues} WHERE jsonb_exists(w.queues, value)))
  AND (:task_names IS NULL OR jsonb_exists(w.tasks, '*') OR EXISTS ({task_names} WHERE jsonb_exists(w.tasks, value)))
ORDER BY CASE WHEN jsonb_array_length(w.queues) > 0
              THEN (SELECT count(*) FROM ({queues}) given WHERE NOT jsonb_exists(w.queues, value)) ELSE 0 END, random()
LIMIT 1

-- Somebody else who waits, and for whom there is something to do: in the word's one transaction there may have been
-- jobs for both. One is looked at after the other, and what a long value has to be unpacked for is done once for each.
-- name: wake_another
SELECT pg_notify('{channel}' || md5(id), '') FROM (
    SELECT id, queues, tasks || '{}' AS tasks FROM rowlock_workers WHERE {sleeps} AND id <> :worker
    ORDER BY random()) w
WHERE CASE jsonb_array_length(w.queues)
    WHEN 0 THEN (SELECT true FROM rowlock_jobs WHERE state = 'queued' AND {known_to_w} LIMIT 1)
    ELSE (SELECT bool_or((SELECT true FROM rowlock_jobs
                          WHERE state = 'queued' AND queue = name AND {known_to_w} LIMIT 1))
          FROM jsonb_array_elements_text(w.queues) AS taken (name)) END
LIMIT 1

-- fragment: known_to_w
(jsonb_exists(w.tasks, task) OR jsonb_exists(w.tasks, '*'))

-- Everybody who waits and goes by this name: each may be a different reader of the same table.
-- name: wake_readers
SELECT pg_notify('{channel}' || md5(id), '') FROM rowlock_workers WHERE {sleeps} AND jsonb_exists(queues, :queue)

-- fragment: sleeps
sleeping AND dead_at IS NULL AND beat_at > now() - make_interval(secs => reachable_for)

-- name: sleep
UPDATE rowlock_workers SET sleeping = true WHERE id = :worker RETURNING jsonb_array_length(queues) > 0

-- name: awake
UPDATE rowlock_workers SET sleeping = false WHERE id = :worker AND sleeping

-- name: tell
UPDATE rowlock_workers SET info = CAST(coalesce(CAST(info AS jsonb), '{}') || CAST(:info AS jsonb) AS json) WHERE id = :worker

-- Not to_regclass: it may answer from before the lock was had, and two processes would both create the tables.
-- name: queue_there
SELECT 1 FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.relname = '{meta_name}' AND ({here})

-- The head of each level only: what is first in line was due first, but for retries, which come to the head.
-- name: overdue_queued
{levels}
SELECT first.id, first.claim FROM level CROSS JOIN LATERAL (
    SELECT id, claim, due_at FROM rowlock_jobs WHERE {in_level}
    ORDER BY priority DESC, position LIMIT (SELECT :count)) first
WHERE first.due_at < {now-age}

-- What follows is in place of the shared statements of these names.

-- Filters are hidden in coalesce: the planner would take two of them for so rare that it reads and sorts everything.
-- fragment: of_page
j.id < :before AND coalesce(j.state = :state, true) AND coalesce(j.queue = :queue, true)
AND coalesce(j.task = :task, true)

-- name: find_running
SELECT {job} FROM rowlock_jobs j {progress_of_j} WHERE j.state = 'running' AND {of_page} ORDER BY j.id + 0 DESC LIMIT :limit

-- The server's clock is the same for workers on all machines.
-- fragment: mono_column

-- fragment: mono_given

-- fragment: mono_set

-- fragment: in_lease
beat_at >= {now} - make_interval(secs => lease)

-- fragment: beat_age
extract(epoch FROM {now} - beat_at)::float8

-- fragment: its_lists
CAST(queues AS json), CAST(tasks AS json)
