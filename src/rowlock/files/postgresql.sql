-- What ingest and janitor say to PostgreSQL in its own way.

-- An array, not a subquery: of that the server would make a join, and read the whole table for a few paths.
-- fragment: among_paths
= ANY (ARRAY(SELECT value FROM json_array_elements_text(:paths)))

-- fragment: among_keys
= ANY (ARRAY(SELECT CAST(value AS «key_type») FROM json_array_elements_text(:ids)))

-- fragment: among_texts
= ANY (ARRAY(SELECT value FROM json_array_elements_text(:ids)))

-- fragment: key_read
CAST(«t».«key» AS text)

-- fragment: key_given
CAST(:row_key AS «key_type»)

-- Rows that somebody else is just changing are left for the next run.
-- fragment: lock_rows
FOR UPDATE OF «t» SKIP LOCKED
