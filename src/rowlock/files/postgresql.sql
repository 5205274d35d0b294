-- What ingest and janitor say to PostgreSQL in its own way.

-- fragment: listed
SELECT value FROM json_array_elements_text(:ids)
