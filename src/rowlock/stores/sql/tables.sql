CREATE TABLE rowlock_meta (
    key   {text} PRIMARY KEY,
    value {text} NOT NULL
){by_key};
INSERT INTO rowlock_meta (key, value) VALUES ('version', '1'), ('compatible_from', '1'), ('install_id', {install_id});

-- Jobs, and what is known about them.
-- Positions are drawn from the same sequence as ids, so that one order covers new, promoted and retried jobs without a
-- second counter to update (docs/decisions/0001).
CREATE TABLE rowlock_jobs (
    id                  {job_id},
    task                {name} NOT NULL,
    queue               {name} NOT NULL,
    priority            {small} NOT NULL DEFAULT 0,
    state               {state},
    position            {big} NOT NULL,
    claim               {claim} NOT NULL DEFAULT 0,
    failures            {int} NOT NULL DEFAULT 0,
    max_attempts        {int},              -- NULL: enqueued by name without the code; the task's own counts
    isolate             {int} NOT NULL DEFAULT 0, -- its worker died: run it for so many seconds without company
    deaths              {int} NOT NULL DEFAULT 0, -- of its workers, since it was last charged for something else{token}
    created_at          {time} NOT NULL{moment},
    run_at              {time} NOT NULL{moment},
    due_at              {time} NOT NULL{moment}, -- when it was first due; retries move run_at only
    expires_at          {time},
    claimed_at          {time},
    claimed_by          {name},
    started_at          {time},
    finished_at         {time},
    cancel_requested_at {time},
    unique_key          {name},
    unique_until        {until},            -- 'claimed' or 'finished'
    args                {json} NOT NULL,
    result              {json},
    error               {text},
    error_kind          {text},
    meta                {json}
);

CREATE TABLE rowlock_workers (
    id            {name} PRIMARY KEY,       -- one incarnation; never used again
    host          {text} NOT NULL,
    pid           {big} NOT NULL,
    version       {text} NOT NULL,
    queues        {jsonb} NOT NULL,         -- a list; empty: all
    tasks         {jsonb} NOT NULL,         -- task -> {"max_attempts": n}; "*": every task
    strategy      {text} NOT NULL,
    concurrency   {int} NOT NULL,
    started_at    {time} NOT NULL,
    lease         {real} NOT NULL,
    reachable_for {real} NOT NULL,          -- seconds after a beat in which a wake-up would be received
    beat_at       {time} NOT NULL,{of_workers}
    info          {json},                   -- residents, prefetch, stacks
    dead_at       {time},
    ended         {text}                    -- 'stopped' or 'silent'
);

CREATE TABLE rowlock_queues (
    name         {name} PRIMARY KEY,
    paused_at    {time},
    paused_until {time},                    -- NULL: until somebody resumes it
    strategy     {text}
);

CREATE TABLE rowlock_history (
    id         {history_id},
    job_id     {big} NOT NULL,
    claim      {claim} NOT NULL,
    event      {text} NOT NULL,
    "at"       {time} NOT NULL,
    worker     {text},
    started_at {time},
    error      {text},
    error_kind {text}
);

CREATE TABLE rowlock_logs (
    id      {log_id},
    job_id  {big} NOT NULL,
    claim   {claim} NOT NULL,
    "at"    {time} NOT NULL,
    message {text} NOT NULL,
    fields  {json}
);

CREATE TABLE rowlock_progress (
    job_id {big} PRIMARY KEY,
    claim  {claim} NOT NULL,
    done   {real} NOT NULL,
    total  {real},
    note   {text} NOT NULL,
    "at"   {time} NOT NULL
);

CREATE TABLE rowlock_minutes (
    minute       {big} NOT NULL,            -- Unix minutes
    worker       {name} NOT NULL,
    queue        {name} NOT NULL,
    task         {name} NOT NULL,
    completed    {big} NOT NULL DEFAULT 0,
    failed       {big} NOT NULL DEFAULT 0,
    retried      {big} NOT NULL DEFAULT 0,
    cancelled    {big} NOT NULL DEFAULT 0,
    released     {big} NOT NULL DEFAULT 0,
    run_seconds  {real} NOT NULL DEFAULT 0,
    wait_seconds {real} NOT NULL DEFAULT 0,
    PRIMARY KEY (minute, worker, queue, task)
){by_key};

CREATE TABLE rowlock_consumer_claims (
    claim      {consumer_claim_id},         -- one never-repeating sequence for all consumers
    consumer   {name} NOT NULL,
    row_key    {key} NOT NULL,
    batch_id   {big},                       -- the claim that stands for a batch of several
    claimed_by {name},
    claimed_at {time},
    started_at {time},
    run_at     {time},                      -- while nobody holds it: when it may be claimed again
    failures   {int} NOT NULL DEFAULT 0,
    isolate    {int} NOT NULL DEFAULT 0,
    deaths     {int} NOT NULL DEFAULT 0,
    error      {text},
    error_kind {text},
    done       {real},
    total      {real},
    note       {text},
    UNIQUE (consumer, row_key)
);

-- Rows out of attempts, where the user's row cannot say so.
CREATE TABLE rowlock_consumer_failures (
    consumer   {name} NOT NULL,
    row_key    {key} NOT NULL,
    failed_at  {time} NOT NULL,
    failures   {int} NOT NULL,
    error      {text},
    mark       {jsonb},                     -- what the row was given; it counts while the row has it
    PRIMARY KEY (consumer, row_key)
){by_key};
