-- The queue's tables in a PostgreSQL database, version 1.
-- They carry the prefix rowlock_ so that they can live beside a user's own tables, or in a schema of their own.
-- Arguments and results are json, not jsonb: what comes back is what was put in, to the last digit.
-- The defaults are those of a job that is due now: leaving them out takes a COPY of 10,000 from 139 to 98 ms.
-- No CHECK: the server prepares each anew for every statement, 7 us apiece for an insert and for every update of it.
-- Queues compare as bytes (COLLATE "C"): an order that is the same on every machine, and faster.

-- include: tables

-- include: indexes

-- include: file_tables
CREATE INDEX rowlock_jobs_line ON rowlock_jobs (queue, position) WHERE state = 'queued';
CREATE INDEX rowlock_jobs_due ON rowlock_jobs (run_at, position) WHERE state = 'scheduled';
CREATE INDEX rowlock_jobs_bad ON rowlock_jobs (state, id) WHERE state IN ('failed', 'cancelled');
CREATE INDEX rowlock_workers_sleeping ON rowlock_workers (id) WHERE sleeping;

-- A job is updated twice, and what its old versions leave in the index at the head of a queue has to be stepped over:
-- 80,000 of them made a claim take 270 ms. By default a table with a million finished jobs is vacuumed after 200,000
-- dead rows; here after 20,000, and without pauses. benchmarks/postgres_tables.py: 2,000 to 2,100 jobs/s one at a time
-- and 18,800 to 28,200 in batches this way, 1,850 to 2,050 and 18,500 to 21,300 by default.
-- No fillfactor: a change of state is never a heap-only update, because the indexes ask for the state. 100, 80 and 60
-- gave the same jobs/s within the spread, and tables of 3.8, 4.2 and 5.1 MB.
ALTER TABLE rowlock_jobs SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
ALTER TABLE rowlock_consumer_claims SET (
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);
-- Every beat, report and run rewrites a row: room on its page makes that cheap.
ALTER TABLE rowlock_workers SET (fillfactor = 50);
ALTER TABLE rowlock_progress SET (fillfactor = 70);
ALTER TABLE rowlock_minutes SET (fillfactor = 70);
ALTER TABLE rowlock_file_services SET (fillfactor = 50);
