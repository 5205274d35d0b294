-- The queue's tables in a SQLite database, version 1. Times are Unix seconds (UTC).
-- They carry the prefix rowlock_ so that they can live beside a user's own tables.

CREATE TABLE rowlock_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) WITHOUT ROWID;

-- AUTOINCREMENT: plain rowids are used again after a deletion, which would break the fence.
-- Positions are drawn from the same sequence as ids, so that one order covers new, promoted and
-- retried jobs without a second counter to update (docs/decisions/0001).
CREATE TABLE rowlock_jobs (
    id                  INTEGER PRIMARY KEY AUTOINCREMENT,
    task                TEXT    NOT NULL,
    queue               TEXT    NOT NULL,
    priority            INTEGER NOT NULL DEFAULT 0,
    state               TEXT    NOT NULL
        -- Not IN (...): that fills a temporary table for every row, 9.5 against 6.4 us in a bulk insert.
        CHECK (state = 'scheduled' OR state = 'queued' OR state = 'running'
               OR state = 'completed' OR state = 'failed' OR state = 'cancelled'),
    position            INTEGER NOT NULL,
    claim               INTEGER NOT NULL DEFAULT 0,
    failures            INTEGER NOT NULL DEFAULT 0,
    max_attempts        INTEGER,            -- NULL: enqueued by name without the code; the task's own counts
    isolate               INTEGER NOT NULL DEFAULT 0, -- its worker died: run it for so many seconds without company
    deaths              INTEGER NOT NULL DEFAULT 0, -- of its workers, since it was last charged for something else
    created_at          REAL    NOT NULL,
    run_at              REAL    NOT NULL,
    due_at              REAL    NOT NULL,   -- when it was first due; retries move run_at only
    expires_at          REAL,
    claimed_at          REAL,
    claimed_by          TEXT,
    started_at          REAL,
    finished_at         REAL,
    cancel_requested_at REAL,
    unique_key          TEXT,
    unique_until        TEXT CHECK (unique_until = 'claimed' OR unique_until = 'finished'),
    args                TEXT    NOT NULL,
    result              TEXT,
    error               TEXT,
    error_kind          TEXT,
    meta                TEXT
);

-- Each index costs on every enqueue, claim and finish (ready + held + unique: 77 k jobs/s, one more
-- 58 k, one more 45 k). All are partial; the last three hold only rows that few jobs ever are.
CREATE INDEX rowlock_jobs_ready ON rowlock_jobs (queue, priority DESC, position) WHERE state = 'queued';
CREATE INDEX rowlock_jobs_held ON rowlock_jobs (claimed_by) WHERE state = 'running';
CREATE INDEX rowlock_jobs_due ON rowlock_jobs (run_at) WHERE state = 'scheduled';
CREATE UNIQUE INDEX rowlock_jobs_unique ON rowlock_jobs (task, unique_key)
    WHERE unique_until IS NOT NULL AND state IN ('scheduled', 'queued', 'running');
CREATE INDEX rowlock_jobs_bad ON rowlock_jobs (queue, id) WHERE state IN ('failed', 'cancelled');
CREATE INDEX rowlock_jobs_expiring ON rowlock_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('scheduled', 'queued');
CREATE INDEX rowlock_jobs_isolated ON rowlock_jobs (position) WHERE isolate > 0 AND state = 'queued';

CREATE TABLE rowlock_workers (
    id          TEXT PRIMARY KEY,           -- one incarnation; never used again
    host        TEXT    NOT NULL,
    pid         INTEGER NOT NULL,
    version     TEXT    NOT NULL,
    queues      TEXT    NOT NULL,           -- JSON list; empty: all
    tasks       TEXT    NOT NULL,           -- JSON object: task -> {"max_attempts": n}; "*": every task
    strategy    TEXT    NOT NULL,
    concurrency INTEGER NOT NULL,
    started_at  REAL    NOT NULL,
    lease       REAL    NOT NULL,
    reachable_for REAL  NOT NULL,           -- seconds after a beat in which a wake-up would be received
    beat_at     REAL    NOT NULL,           -- for people; the clock on the wall may jump
    beat_mono   REAL    NOT NULL,           -- for rescue; one monotonic clock per machine
    sleeping    INTEGER NOT NULL DEFAULT 0,
    info        TEXT,                       -- JSON: residents, prefetch, stacks
    dead_at     REAL,
    ended       TEXT                        -- 'stopped' or 'silent'
);

CREATE TABLE rowlock_queues (
    name      TEXT PRIMARY KEY,
    paused_at REAL,
    paused_until REAL,                      -- NULL: until somebody resumes it
    strategy  TEXT
);

CREATE TABLE rowlock_history (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id     INTEGER NOT NULL,
    claim      INTEGER NOT NULL,
    event      TEXT    NOT NULL,
    at         REAL    NOT NULL,
    worker     TEXT,
    started_at REAL,
    error      TEXT,
    error_kind TEXT
);
CREATE INDEX rowlock_history_job ON rowlock_history (job_id);

CREATE TABLE rowlock_logs (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id  INTEGER NOT NULL,
    claim   INTEGER NOT NULL,
    at      REAL    NOT NULL,
    message TEXT    NOT NULL,
    fields  TEXT
);
CREATE INDEX rowlock_logs_job ON rowlock_logs (job_id);

CREATE TABLE rowlock_progress (
    job_id INTEGER PRIMARY KEY,
    claim  INTEGER NOT NULL,
    done   REAL    NOT NULL,
    total  REAL,
    note   TEXT    NOT NULL,
    at     REAL    NOT NULL
);

CREATE TABLE rowlock_minutes (
    minute       INTEGER NOT NULL,          -- Unix minutes
    worker       TEXT    NOT NULL,
    queue        TEXT    NOT NULL,
    task         TEXT    NOT NULL,
    completed    INTEGER NOT NULL DEFAULT 0,
    failed       INTEGER NOT NULL DEFAULT 0,
    retried      INTEGER NOT NULL DEFAULT 0,
    cancelled    INTEGER NOT NULL DEFAULT 0,
    released     INTEGER NOT NULL DEFAULT 0,
    run_seconds  REAL    NOT NULL DEFAULT 0,
    wait_seconds REAL    NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, worker, queue, task)
) WITHOUT ROWID;

CREATE TABLE rowlock_consumer_claims (
    claim      INTEGER PRIMARY KEY AUTOINCREMENT, -- one never-repeating sequence for all consumers
    consumer   TEXT    NOT NULL,
    row_key            NOT NULL,            -- of whatever type the user's key is
    batch_id        INTEGER,                     -- the claim that stands for a batch of several
    claimed_by TEXT,
    claimed_at REAL,
    started_at REAL,
    run_at     REAL,                        -- while nobody holds it: when it may be claimed again
    failures   INTEGER NOT NULL DEFAULT 0,
    isolate      INTEGER NOT NULL DEFAULT 0,
    deaths     INTEGER NOT NULL DEFAULT 0,
    error      TEXT,
    error_kind TEXT,
    done       REAL,
    total      REAL,
    note       TEXT,
    UNIQUE (consumer, row_key)
);
CREATE INDEX rowlock_consumer_claims_held ON rowlock_consumer_claims (claimed_by) WHERE claimed_by IS NOT NULL;
CREATE INDEX rowlock_consumer_claims_waiting ON rowlock_consumer_claims (consumer, run_at)
    WHERE claimed_by IS NULL;
CREATE INDEX rowlock_consumer_claims_batch ON rowlock_consumer_claims (batch_id) WHERE batch_id IS NOT NULL;

CREATE TABLE rowlock_consumer_failures (         -- rows out of attempts, where the user's row cannot say so
    consumer   TEXT    NOT NULL,
    row_key            NOT NULL,
    failed_at  REAL    NOT NULL,
    failures   INTEGER NOT NULL,
    error      TEXT,
    mark       TEXT,                        -- what the row was given, as JSON; it counts while the row has it
    PRIMARY KEY (consumer, row_key)
) WITHOUT ROWID;

-- What is known of the files in a folder that ingest watches: those with a row (as they were then), and those without.
CREATE TABLE rowlock_files (
    source     TEXT    NOT NULL,            -- the user's table
    path       TEXT    NOT NULL,            -- as that table has it, so that folders may be mounted anywhere
    state      TEXT    NOT NULL,            -- 'ingested', 'waiting', 'never', 'failed' or 'deleted'
    name       TEXT    NOT NULL,            -- who wrote this: an ingest or a janitor
    size       INTEGER,
    modified   INTEGER,                     -- nanoseconds
    failures   INTEGER NOT NULL DEFAULT 0,
    run_at     REAL,                        -- of a failed one: not before
    error      TEXT,
    PRIMARY KEY (source, path)
) WITHOUT ROWID;
CREATE INDEX rowlock_files_open ON rowlock_files (name, state) WHERE state <> 'ingested' AND state <> 'deleted';

-- Deletions under way: written before the first file goes, and removed when it is confirmed.
CREATE TABLE rowlock_file_marks (
    janitor   TEXT    NOT NULL,
    row_key           NOT NULL,             -- of whatever type the user's key is
    companion INTEGER NOT NULL,             -- 1: in the folder of the companions
    path      TEXT    NOT NULL,             -- below the folder
    reason    TEXT    NOT NULL,
    PRIMARY KEY (janitor, row_key, companion, path)
) WITHOUT ROWID;

-- One row for each ingest and janitor: what it has done so far, and how its last run was.
CREATE TABLE rowlock_file_services (
    kind        TEXT    NOT NULL,           -- 'ingest' or 'janitor'
    name        TEXT    NOT NULL,
    done        INTEGER NOT NULL DEFAULT 0, -- rows written, or deleted
    bytes       INTEGER NOT NULL DEFAULT 0, -- ingested, or freed
    refused     INTEGER NOT NULL DEFAULT 0, -- files that the last run could not or would not touch
    mounted     INTEGER NOT NULL DEFAULT 0, -- the folder was a disk of its own
    last_run_at REAL,
    error       TEXT,                       -- what was wrong with the last run
    PRIMARY KEY (kind, name)
) WITHOUT ROWID;

-- The sequence row is made here, so that the first insert can already read it.
INSERT INTO sqlite_sequence (name, seq) VALUES ('rowlock_jobs', 0);
INSERT INTO rowlock_meta (key, value) VALUES
    ('version', '1'),
    ('compatible_from', '1'),
    ('install_id', lower(hex(randomblob(16))));
