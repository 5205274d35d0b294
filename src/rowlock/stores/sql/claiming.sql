-- How jobs are claimed, and what a claim has to know first. A claim is {take} around what finds its jobs: {first}, which
-- `claim_sql.py` chooses for a strategy. `docs/claims.md` shows them as they are sent. A strategy fills these holes:
--   {order}           its order
--   {within}          the order of the jobs of one level
--   {levels_in_order} the order of the levels
--   {at_level}        a condition on the priority, where a level was drawn
--   {merged}          sorts what was found in several levels
-- PostgreSQL's fused exchange puts its own in place of {queue}, {limit}, {in_some_level} and {if_usual}.

-- fragment: take
{first}

-- fragment: queue
:queue

-- fragment: limit
:count

-- Not {eligible}: to find the levels would step over the jobs that marks are to spare.
-- fragment: in_some_level
{queued}

-- fragment: if_usual

-- fragment: found
{claim}

-- fragment: queued
state = 'queued'

-- The jobs that are work for a worker: what a claim may take, and what lets a queue have its turn. Jobs that have to run
-- alone have a statement of their own.
-- fragment: eligible
{queued} AND (isolate > 0) IS NOT TRUE AND {known}

-- fragment: paused
paused_at IS NOT NULL AND (paused_until IS NULL OR paused_until > {now})

-- By an index that has the order.
-- fragment: first_by_index
SELECT {found} FROM rowlock_jobs j WHERE queue = {queue} AND {eligible}{at_level} {if_usual}
ORDER BY {order} LIMIT {limit} {lock}

-- fragment: first_isolated
SELECT {found} FROM rowlock_jobs j WHERE {isolated_for_us} ORDER BY position LIMIT 1 {lock}

-- SQLite has no index on (queue, position): one more index costs a quarter of the throughput. Instead the
-- levels are stepped through (one seek each, 201 at most) and the first few of each are merged.
-- ORDER BY and LIMIT instead of max: while it expects one row, a PostgreSQL server before 17 gathers all that is queued
-- to find the highest (38 ms instead of 0.1 at 100,000 jobs), and a prepared statement goes on like that.
-- fragment: levels
WITH RECURSIVE level (priority) AS (
    SELECT (SELECT priority FROM rowlock_jobs WHERE {in_some_level} AND queue = {queue}
            ORDER BY priority DESC, position LIMIT 1)
    UNION ALL
    SELECT (SELECT priority FROM rowlock_jobs WHERE {in_some_level} AND queue = {queue} AND priority < level.priority
            ORDER BY priority DESC, position LIMIT 1)
    FROM level WHERE level.priority IS NOT NULL)

-- fragment: in_level
{queued} AND queue = {queue} AND priority = level.priority

-- name: levels
{levels}
SELECT priority FROM level WHERE priority IS NOT NULL

-- What a claim writes.
-- fragment: taking
UPDATE rowlock_jobs AS j
SET state = 'running', claim = j.claim + 1, claimed_by = :worker, claimed_at = {now}, started_at = {begun},
    unique_until = nullif(j.unique_until, 'claimed')

-- A relay claims for others: what it hands over has not begun.
-- fragment: begun
CASE WHEN :begins = 1 THEN {now} END

-- Where to look in each level: where the marks say, and without marks everywhere.
-- fragment: levels_at_marks
SELECT level.priority AS number, coalesce(mark.low, 0) AS low, coalesce(mark.high, 9223372036854775807) AS high
FROM level LEFT JOIN {marks} ON mark.level = level.priority
WHERE level.priority IS NOT NULL ORDER BY {levels_in_order}, low DESC

-- Which jobs a mark names, in the level that it is for.
-- fragment: at_mark
priority = one_level.number AND position > one_level.low AND position <= one_level.high

-- In each level the first position that is for this worker, and the last of all.
-- fragment: sweep
{levels}
SELECT priority,
       (SELECT position FROM rowlock_jobs WHERE {in_level} AND {known} ORDER BY {within} LIMIT 1),
       (SELECT position FROM rowlock_jobs WHERE {in_level} ORDER BY priority, position DESC LIMIT 1)
FROM level WHERE priority IS NOT NULL

-- None named: all.
-- fragment: of_queues
(:queues IS NULL OR queue IN ({queues}))

-- fragment: isolated_for_us
isolate > 0 AND state = 'queued' AND {of_queues} AND {known}
  AND queue NOT IN (SELECT name FROM rowlock_queues WHERE {paused})

-- name: isolated_waiting
SELECT 1 FROM rowlock_jobs WHERE {isolated_for_us} LIMIT 1

-- What a claim has to know first, in one statement: does the worker live, has any queue settings of its own, does a
-- job wait that has to run alone, and which queue comes next.
-- name: claim_facts
SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL),
       EXISTS (SELECT 1 FROM rowlock_queues),
       EXISTS (SELECT 1 FROM rowlock_jobs WHERE isolate > 0 AND state = 'queued'),
       {next_in_turn}

-- name: queue_settings
SELECT name, CASE WHEN {paused} THEN paused_at END, strategy, paused_until FROM rowlock_queues

-- name: queue_after
SELECT (SELECT queue FROM rowlock_jobs WHERE state = 'queued' AND queue > :after ORDER BY queue LIMIT 1)

-- The next queue that has work after {served}; after the last one comes the first again.
-- fragment: next_in_turn
coalesce((SELECT min(queue) FROM rowlock_jobs WHERE {eligible} AND queue > {served}),
         (SELECT min(queue) FROM rowlock_jobs WHERE {eligible}))

-- fragment: served
:after

-- name: next_queue
SELECT {next_in_turn}

-- name: queue_has_work
SELECT 1 FROM rowlock_jobs WHERE queue = :queue AND {eligible} LIMIT 1

-- fragment: starting
UPDATE rowlock_jobs AS j SET claimed_by = :worker, claimed_at = {now}, started_at = {now}
WHERE {this_claim} AND started_at IS NULL AND {of_queues}

-- Moves a claim that was handed over to the worker that begins it; says whether it is to be cancelled.
-- name: start_claim
{starting}
RETURNING {claim_as_it_is}, cancel_requested_at IS NOT NULL
