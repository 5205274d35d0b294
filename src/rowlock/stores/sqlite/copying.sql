-- A queue that has moved refuses every change of its jobs, whoever makes it: the database itself does, so that no program
-- has to look. RAISE takes no expression before SQLite 3.47: where it has moved to is said in rowlock_meta.

-- fragment: refuses
BEGIN SELECT RAISE(ABORT, 'this rowlock queue has moved to another database; `rowlock doctor` on it says where'); END

-- name: freeze_insert
CREATE TRIGGER IF NOT EXISTS rowlock_moved_insert BEFORE INSERT ON rowlock_jobs {refuses}

-- name: freeze_update
CREATE TRIGGER IF NOT EXISTS rowlock_moved_update BEFORE UPDATE ON rowlock_jobs {refuses}

-- name: freeze_delete
CREATE TRIGGER IF NOT EXISTS rowlock_moved_delete BEFORE DELETE ON rowlock_jobs {refuses}

-- name: freeze_history
CREATE TRIGGER IF NOT EXISTS rowlock_moved_history BEFORE INSERT ON rowlock_history {refuses}

-- name: freeze_logs
CREATE TRIGGER IF NOT EXISTS rowlock_moved_logs BEFORE INSERT ON rowlock_logs {refuses}

-- name: freeze_progress
CREATE TRIGGER IF NOT EXISTS rowlock_moved_progress BEFORE INSERT ON rowlock_progress {refuses}

-- name: thaw_insert
DROP TRIGGER IF EXISTS rowlock_moved_insert

-- name: thaw_update
DROP TRIGGER IF EXISTS rowlock_moved_update

-- name: thaw_delete
DROP TRIGGER IF EXISTS rowlock_moved_delete

-- name: thaw_history
DROP TRIGGER IF EXISTS rowlock_moved_history

-- name: thaw_logs
DROP TRIGGER IF EXISTS rowlock_moved_logs

-- name: thaw_progress
DROP TRIGGER IF EXISTS rowlock_moved_progress

-- name: last_number
SELECT max(seq, (SELECT coalesce(max(id), 0) FROM rowlock_jobs)) FROM sqlite_sequence WHERE name = 'rowlock_jobs'

-- name: set_last_number
UPDATE sqlite_sequence SET seq = :position WHERE name = 'rowlock_jobs' AND seq < :position
