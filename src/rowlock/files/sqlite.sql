-- What ingest and janitor say to SQLite in its own way.

-- fragment: among_paths
IN (SELECT value FROM json_each(:paths))

-- Keys of whatever type; JSON keeps numbers and texts apart.
-- fragment: among_keys
IN (SELECT value FROM json_each(:ids))

-- fragment: among_texts
IN (SELECT value FROM json_each(:ids))

-- fragment: key_read
«t».«key»

-- fragment: key_given
:row_key

-- BEGIN IMMEDIATE has locked everything.
-- fragment: lock_rows
