-- A queue that has moved refuses every change of its jobs, whoever makes it: the database itself does, so that no program
-- has to look. CREATE TRIGGER waits for the transactions that have written: what they commit is there to be copied.
-- Triggers belong to a table, so that their names take no schema before them.

-- name: freeze_function
CREATE OR REPLACE FUNCTION rowlock_moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    RAISE EXCEPTION USING ERRCODE = 'RLMVD', MESSAGE = (SELECT value FROM rowlock_meta WHERE key = 'moved');
END $$

-- name: freeze_jobs
CREATE TRIGGER queue_has_moved BEFORE INSERT OR UPDATE OR DELETE ON rowlock_jobs
FOR EACH ROW EXECUTE FUNCTION rowlock_moved()

-- name: freeze_history
CREATE TRIGGER queue_has_moved BEFORE INSERT ON rowlock_history FOR EACH ROW EXECUTE FUNCTION rowlock_moved()

-- name: freeze_logs
CREATE TRIGGER queue_has_moved BEFORE INSERT ON rowlock_logs FOR EACH ROW EXECUTE FUNCTION rowlock_moved()

-- name: freeze_progress
CREATE TRIGGER queue_has_moved BEFORE INSERT ON rowlock_progress FOR EACH ROW EXECUTE FUNCTION rowlock_moved()

-- With the triggers that call it.
-- name: thaw
DROP FUNCTION IF EXISTS rowlock_moved() CASCADE

-- name: lock_numbers
ALTER SEQUENCE rowlock_jobs_id_seq CACHE 1

-- name: last_number
SELECT greatest(CASE WHEN is_called THEN last_value ELSE last_value - 1 END,
                (SELECT coalesce(max(id), 0) FROM rowlock_jobs)) FROM rowlock_jobs_id_seq

-- name: set_last_number
SELECT setval('rowlock_jobs_id_seq', :position)
