-- What DuckDB's catalogue says about a user's table.

-- Name, type, whether it is in the primary key, whether it takes no NULL, and its type again.
-- name: table_columns
SELECT c.column_name, c.data_type, list_contains(coalesce(k.constraint_column_names, []), c.column_name),
       c.is_nullable = 'NO', c.data_type
FROM information_schema.columns c
LEFT JOIN duckdb_constraints() k ON k.database_name = c.table_catalog AND k.schema_name = c.table_schema
     AND k.table_name = c.table_name AND k.constraint_type = 'PRIMARY KEY'
WHERE c.table_catalog = current_database() AND c.table_schema = coalesce(:schema, current_schema())
  AND c.table_name = :table ORDER BY c.ordinal_position

-- Constraints that make one column unique; an index that does is not listed with its columns.
-- name: unique_columns
SELECT constraint_column_names[1] FROM duckdb_constraints()
WHERE database_name = current_database() AND table_name = :table AND constraint_type IN ('PRIMARY KEY', 'UNIQUE')
  AND len(constraint_column_names) = 1

-- There are no partial indexes, so that there is none to make: a claim reads the columns that it needs whole.
-- name: index_there
SELECT '' WHERE :table IS NOT NULL AND :name IS NOT NULL
