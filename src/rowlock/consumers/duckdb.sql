-- What consumers say to DuckDB in its own way: with a status column only. No transaction waits for a lock: of two that
-- change the same row, one is refused.

-- What a column of an enumeration may hold, for people.
-- name: labels
SELECT max(CASE WHEN data_type LIKE 'ENUM(%' THEN substr(data_type, 6, length(data_type) - 6) END)
FROM information_schema.columns
WHERE table_catalog = current_database() AND table_name = :table AND column_name = :name

-- name: count_values
SELECT count(DISTINCT word) FROM (
    SELECT CAST(:word AS «status_type») AS word UNION ALL SELECT CAST(:other_word AS «status_type»)) words

-- fragment: fresh_number
nextval('rowlock_consumer_claim_numbers')
