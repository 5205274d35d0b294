-- What a janitor asks of the user's table. {living} is a row that is not deleted yet, {allowed} one that the conditions
-- allow, {asked} one that is older than :age (if :by_age is 1), {unheld} one that no consumer has at this moment.

-- Without parentheses around it: a condition that closes one and opens another would go beyond its own.
-- name: try_where
SELECT 1 FROM «table» WHERE «bare_where» LIMIT 0

-- name: try_conditions
SELECT 1 FROM «table» WHERE {living} AND {allowed} AND {asked} AND {unheld} AND {names_files} LIMIT 0

-- name: no_time
SELECT CAST(«order» AS text) FROM «table» WHERE «order» IS NOT NULL AND NOT coalesce({is_time}, false) LIMIT 1

-- Oldest first; a row without a time comes last.
-- name: deletable
SELECT {key_read}, «paths» FROM «table» WHERE {living} AND {allowed} AND {names_files} AND {asked}
ORDER BY «t».«order» NULLS LAST, «t».«key» LIMIT :count

-- name: count_protected
SELECT count(*) FROM «table» WHERE {living} AND {names_files} AND {asked} AND NOT coalesce({allowed}, false)

-- All that is not deleted yet, in pages by key. With the table before its name: PostgreSQL would else sort by what is
-- selected, which has the same name and is text.
-- name: living_first
SELECT {key_read}, «paths» FROM «table» WHERE {living} AND {names_files} ORDER BY «t».«key» LIMIT :count

-- name: living_beyond
SELECT {key_read}, «paths» FROM «table» WHERE {living} AND {names_files} AND «key» > {key_given} ORDER BY «t».«key» LIMIT :count

-- Before anything is decided: so that no consumer takes the row until this transaction ends. Another statement then
-- decides, for it must see what was committed until here.
-- name: lock_rows
SELECT {key_read} FROM «table» WHERE «key» {among_keys} ORDER BY «t».«key» {lock_rows}

-- name: still_deletable
SELECT {key_read}, «paths» FROM «table»
WHERE «key» {among_keys} AND {living} AND {allowed} AND {unheld} AND {names_files} AND {asked}

-- name: still_living
SELECT {key_read}, «paths» FROM «table» WHERE «key» {among_keys} AND {living} AND {unheld} AND {names_files}

-- name: is_living
SELECT 1 FROM «table» WHERE «key» = {key_given} AND {living}

-- Of these files, those that a row names which is not to be deleted.
-- name: needed_elsewhere
{needed}

-- name: whole_row
SELECT «all_columns» FROM «table» WHERE «key» = {key_given}

-- name: set_deleted
UPDATE «table» SET {set_deleted} WHERE «key» {among_keys}

-- name: remove_rows
DELETE FROM «table» WHERE «key» {among_keys}

-- name: ingested_as
SELECT path, size, modified FROM rowlock_files WHERE source = :source AND state = 'ingested' AND path {among_paths}

-- name: forget_files
DELETE FROM rowlock_files WHERE source = :source AND path {among_paths}

-- name: mark_file
INSERT INTO rowlock_file_marks (janitor, row_key, companion, path, reason)
VALUES (:janitor, :row_key, :companion, :path, :reason)
ON CONFLICT (janitor, row_key, companion, path) DO NOTHING

-- name: marked_rows
SELECT DISTINCT row_key FROM rowlock_file_marks WHERE janitor = :janitor

-- name: marking_janitors
SELECT DISTINCT janitor FROM rowlock_file_marks

-- name: marks_on_files
SELECT row_key, path FROM rowlock_file_marks WHERE janitor = :janitor AND companion = 0

-- name: adopt_marks
INSERT INTO rowlock_file_marks (janitor, row_key, companion, path, reason)
SELECT :janitor, row_key, companion, path, reason FROM rowlock_file_marks
WHERE janitor = :other AND row_key {among_texts}
ON CONFLICT (janitor, row_key, companion, path) DO NOTHING

-- Keys of another table may be of another type.
-- name: rows_by_text
SELECT {key_read}, «paths» FROM «table» WHERE {key_read} {among_texts}

-- name: marks_of
SELECT row_key, companion, path FROM rowlock_file_marks WHERE janitor = :janitor AND row_key {among_texts}

-- name: unmark
DELETE FROM rowlock_file_marks WHERE janitor = :janitor AND row_key {among_texts}
