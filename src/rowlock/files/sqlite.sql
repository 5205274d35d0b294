-- What ingest and janitor say to SQLite in its own way.

-- fragment: listed
SELECT value FROM json_each(:ids)
