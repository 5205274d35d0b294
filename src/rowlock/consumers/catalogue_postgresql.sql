-- What PostgreSQL's catalogue says about a user's table.

-- Name, type, whether it is in the primary key, whether it takes no NULL, its type again, and that type's category. The
-- last three also look into a domain: whether that takes NULL, and the type (with its length) that it was made of.
-- name: table_columns
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(a.attnum = ANY (i.indkey), false),
       a.attnotnull OR t.typnotnull,
       format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), greatest(a.atttypmod, t.typtypmod)),
       CAST(t.typcategory AS text)
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- Under which name everybody means this table, whether it is spelled with its schema or not.
-- name: real_name
SELECT n.nspname || '.' || c.relname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(:table)

-- name: unique_columns
SELECT a.attname FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(:table) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL AND i.indnkeyatts = 1

-- With what was noted with it when it was created.
-- name: index_there
SELECT obj_description(c.oid, 'pg_class') FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass(:table) AND c.relname = :name AND i.indisvalid
