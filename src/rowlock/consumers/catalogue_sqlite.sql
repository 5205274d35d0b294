-- What SQLite's catalogue says about a user's table.

-- Name, type, its place in the primary key (or 0), whether it takes no NULL, its type again, and that it holds any value.
-- name: table_columns
SELECT name, type, pk, "notnull", type, '*' FROM pragma_table_xinfo(:table, :schema) WHERE hidden <> 1

-- Under which name everybody means this table, whatever case and schema it is spelled with.
-- name: real_name
SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND lower(name) = lower(:table)

-- Indexes that make one column unique, whatever the rest of the row is.
-- name: unique_columns
SELECT max(i.name) FROM pragma_index_list(:table) l JOIN pragma_index_info(l.name) i
WHERE l."unique" = 1 AND l.partial = 0 GROUP BY l.name HAVING count(*) = 1

-- name: index_there
SELECT sql FROM sqlite_master WHERE type = 'index' AND name = :name AND tbl_name = :table
