-- DuckDB has no triggers: the store itself looks in rowlock_meta whether a queue has moved, in every transaction.
-- Nor can a sequence be set: it is made anew, in the same transaction as the first numbers that need it.

-- A sequence that was just made has no last value yet.
-- name: last_number
SELECT greatest(coalesce((SELECT coalesce(last_value, start_value - 1) FROM duckdb_sequences()
                          WHERE sequence_name = 'rowlock_numbers' AND database_name = current_database()), 0),
                (SELECT coalesce(max(id), 0) FROM rowlock_jobs))
