-- What only PostgreSQL's catalogue has to be asked for: SQLite tells it with the columns.

-- name: primary_key
SELECT a.attname FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(:table) AND i.indisprimary
