-- Which job holds a unique key. A claim lets go of one that is held until then (`unique_until`, in {taking}); the insert
-- of each database looks out for it (`insert_many`).

-- While this is true of a job, nobody else gets its unique key; the unique indexes are made with it, too. To change it
-- takes a migration, and `wants_key` in `copying/arriving.py` says the same of a row that is not written yet.
-- fragment: holds_unique_key
unique_until IS NOT NULL AND state IN ('scheduled', 'queued', 'running')

-- name: unique_holder
SELECT id FROM rowlock_jobs WHERE task = :task AND unique_key = :unique_key AND {holds_unique_key}
