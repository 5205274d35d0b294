-- What ingest asks of the user's table and of rowlock's own.

-- fragment: without_row
state <> 'ingested' AND state <> 'deleted'

-- Paths of the list that some path column has already.
-- name: known_paths
{known_rows}

-- name: file_records
SELECT path, state, size, modified, failures, run_at, error FROM rowlock_files
WHERE source = :source AND {without_row} AND path {among_paths}

-- name: open_records
SELECT path FROM rowlock_files WHERE name = :name AND source = :source AND {without_row}

-- name: forget_records
DELETE FROM rowlock_files WHERE source = :source AND {without_row} AND path {among_paths}

-- name: count_open
SELECT state, count(*) FROM rowlock_files
WHERE name = :name AND source = :source AND {without_row} GROUP BY state

-- Files that were given a row, in pages: what is remembered of one that is gone, with its row, is of no use any more.
-- name: ingested_records
SELECT path FROM rowlock_files
WHERE source = :source AND name = :name AND state = 'ingested' AND path > :path ORDER BY path LIMIT :count

-- name: forget_ingested
DELETE FROM rowlock_files WHERE source = :source AND state = 'ingested' AND path {among_paths}
