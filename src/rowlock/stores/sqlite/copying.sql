-- A queue that has moved refuses every change of its jobs, whoever makes it: the database itself does, so that no program
-- has to look. RAISE takes no expression before SQLite 3.47: where it has moved to is said in rowlock_meta.

-- fragment: refuses
BEGIN SELECT RAISE(ABORT, 'this rowlock queue has moved to another database; `rowlock doctor` on it says where'); END

-- fragment: freeze
CREATE TRIGGER IF NOT EXISTS rowlock_moved_{trigger} BEFORE {event} ON rowlock_{table} {refuses}

-- fragment: thaw
DROP TRIGGER IF EXISTS rowlock_moved_{trigger}

-- name: last_number
SELECT max(seq, (SELECT coalesce(max(id), 0) FROM rowlock_jobs)) FROM sqlite_sequence WHERE name = 'rowlock_jobs'

-- name: set_last_number
UPDATE sqlite_sequence SET seq = :position WHERE name = 'rowlock_jobs' AND seq < :position
