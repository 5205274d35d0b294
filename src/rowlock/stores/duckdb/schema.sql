-- The queue's tables in a DuckDB database, version 1. Times are Unix seconds (UTC), JSON is text.
-- They carry the prefix rowlock_ so that they can live beside a user's own tables.

CREATE SEQUENCE rowlock_numbers START 1;
CREATE SEQUENCE rowlock_history_numbers START 1;
CREATE SEQUENCE rowlock_log_numbers START 1;
CREATE SEQUENCE rowlock_consumer_claim_numbers START 1;

-- include: tables

-- DuckDB has no partial indexes. In an expression that is NULL for every row that holds no key, a unique index is one.
-- There is no index on state or queue: DuckDB reads these columns whole, 1.4 ms for a million finished jobs.
CREATE UNIQUE INDEX rowlock_jobs_unique ON rowlock_jobs (task, (
    CASE WHEN {holds_unique_key} THEN unique_key END));
