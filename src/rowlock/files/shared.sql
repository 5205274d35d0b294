-- What ingest and janitor ask of a user's table and of rowlock's own. What is in « » is the user's: quoted, and put in
-- when the service is bound to its store.

-- name: put_record
INSERT INTO rowlock_files (source, path, state, name, size, modified, failures, run_at, error)
VALUES (:source, :path, :state, :name, :size, :modified, :failures, :run_at, :error)
ON CONFLICT (source, path) DO UPDATE SET state = excluded.state, name = excluded.name, size = excluded.size,
    modified = excluded.modified, failures = excluded.failures, run_at = excluded.run_at, error = excluded.error

-- name: add_to_service
INSERT INTO rowlock_file_services (kind, name, done, bytes) VALUES (:kind, :name, :more, :bytes)
ON CONFLICT (kind, name) DO UPDATE
SET done = rowlock_file_services.done + excluded.done, bytes = rowlock_file_services.bytes + excluded.bytes

-- name: service_ran
INSERT INTO rowlock_file_services (kind, name, refused, last_run_at, error)
VALUES (:kind, :name, :refused, {now}, :error)
ON CONFLICT (kind, name) DO UPDATE
SET refused = excluded.refused, last_run_at = excluded.last_run_at, error = excluded.error

-- name: service
SELECT done, bytes, refused, last_run_at, error FROM rowlock_file_services WHERE kind = :kind AND name = :name

-- A service that is given another folder begins anew: each of its folders that was a disk of its own has a row.
-- name: put_mount
INSERT INTO rowlock_file_services (kind, name, mounted) VALUES ('mount', :mount, 1) ON CONFLICT (kind, name) DO NOTHING

-- name: was_mounted
SELECT 1 FROM rowlock_file_services WHERE kind = 'mount' AND name = :mount
