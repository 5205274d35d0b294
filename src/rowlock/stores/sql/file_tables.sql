-- The tables of ingest and janitor, with their indexes.

-- What is known of the files in a folder that ingest watches: those with a row (as they were then), and those without.
CREATE TABLE rowlock_files (
    source   {name} NOT NULL,               -- the user's table
    path     {name} NOT NULL,               -- as that table has it, so that folders may be mounted anywhere
    state    {name} NOT NULL,               -- 'ingested', 'waiting', 'never', 'failed' or 'deleted'
    name     {name} NOT NULL,               -- who wrote this: an ingest or a janitor
    size     {big},
    modified {big},                         -- nanoseconds
    failures {int} NOT NULL DEFAULT 0,
    run_at   {time},                        -- of a failed one: not before
    error    {text},
    PRIMARY KEY (source, path)
){by_key};
CREATE INDEX rowlock_files_open ON rowlock_files (name, state) WHERE state <> 'ingested' AND state <> 'deleted';

-- Deletions under way: written before the first file goes, and removed when it is confirmed.
CREATE TABLE rowlock_file_marks (
    janitor   {name} NOT NULL,
    row_key   {key} NOT NULL,
    companion {int} NOT NULL,               -- 1: in the folder of the companions
    path      {name} NOT NULL,              -- below the folder
    reason    {text} NOT NULL,
    PRIMARY KEY (janitor, row_key, companion, path)
){by_key};

-- One row for each ingest and janitor: what it has done so far, and how its last run was. And one for each folder of
-- theirs that was a disk of its own.
CREATE TABLE rowlock_file_services (
    kind        {name} NOT NULL,            -- 'ingest', 'janitor', or 'mount': a folder
    name        {name} NOT NULL,
    done        {big} NOT NULL DEFAULT 0,   -- rows written, or deleted
    bytes       {big} NOT NULL DEFAULT 0,   -- ingested, or freed
    refused     {int} NOT NULL DEFAULT 0,   -- files that the last run could not or would not touch
    mounted     {int} NOT NULL DEFAULT 0,   -- 1: of a folder
    last_run_at {time},
    error       {text},                     -- what was wrong with the last run
    PRIMARY KEY (kind, name)
){by_key};
