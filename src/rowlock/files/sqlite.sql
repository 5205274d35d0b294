-- What ingest and janitor say to SQLite in its own way.

-- fragment: paths_given
SELECT value FROM json_each(:paths)

-- fragment: listed
SELECT value FROM json_each(:ids)

-- Keys of whatever type; JSON keeps numbers and texts apart.
-- fragment: key_read
«t».«key»

-- fragment: key_given
:row_key

-- fragment: keys_given
SELECT value FROM json_each(:ids)

-- BEGIN IMMEDIATE has locked everything.
-- fragment: lock_rows
