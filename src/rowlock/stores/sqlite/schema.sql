-- The queue's tables in a SQLite database, version 1. Times are Unix seconds (UTC), JSON is text.
-- They carry the prefix rowlock_ so that they can live beside a user's own tables.

-- include: tables

-- include: indexes

-- include: file_tables
CREATE INDEX rowlock_jobs_due ON rowlock_jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX rowlock_jobs_bad ON rowlock_jobs (queue, id) WHERE state IN ('failed', 'cancelled');

-- The sequence row is made here, so that the first insert can already read it.
INSERT INTO sqlite_sequence (name, seq) VALUES ('rowlock_jobs', 0);
