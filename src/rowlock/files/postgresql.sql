-- What ingest and janitor say to PostgreSQL in its own way.

-- fragment: paths_given
SELECT value FROM json_array_elements_text(:paths)

-- fragment: listed
SELECT value FROM json_array_elements_text(:ids)

-- fragment: key_read
CAST(«t».«key» AS text)

-- fragment: key_given
CAST(:row_key AS «key_type»)

-- fragment: keys_given
SELECT CAST(value AS «key_type») FROM json_array_elements_text(:ids)

-- Rows that somebody else is just changing are left for the next run.
-- fragment: lock_rows
FOR UPDATE OF «t» SKIP LOCKED
