-- How jobs are claimed: in a plain transaction, from one queue after the other (`take`), or by the fused exchange.

-- A claim takes the first entries of the index that has its order. Without statistics the planner expected several
-- entries and, after the other conditions, one row: then it read and sorted all that was queued (50 ms instead of 0.7,
-- 100,000 of 500,000 jobs). So it is made to expect more rows than entries, at every size of the table: the state is
-- said eight times, which counts as eight times the rows and is still what the indexes ask for; `(isolate > 0) IS
-- NOT TRUE` counts as two thirds of them, `isolate <= 0` as one; and LIMIT is a number that it cannot see.
-- fragment: queued
state IN ('queued', 'queued', 'queued', 'queued', 'queued', 'queued', 'queued', 'queued')

-- Not NOT IN: that would count as half of the rows.
-- fragment: known
(task = ANY (ARRAY(SELECT json_array_elements_text(:unknown)))) IS NOT TRUE

-- The rows are chosen and locked in the inner SELECT, and `id = ANY (ARRAY(...))` makes it run once: a join may run it
-- again and take more than LIMIT says.
-- fragment: take
{taking}
WHERE j.id = ANY (ARRAY({first}))
RETURNING {claim}

-- fragment: found
j.id

-- A number that the planner cannot see.
-- fragment: limit
(SELECT :count)

-- fragment: marks
json_to_recordset(:marks) AS mark (level smallint, low bigint, high bigint)

-- No index has the order, or there are marks: one level after the other, until there are enough.
-- fragment: first_by_levels
{levels}
SELECT found.id FROM ({levels_at_marks}) one_level CROSS JOIN LATERAL (
    SELECT id, priority, position FROM rowlock_jobs
    WHERE queue = {queue} AND {eligible}{at_level} AND {at_mark} {if_usual}
    ORDER BY {within} LIMIT {limit} {lock}) found
{merged}LIMIT {limit}

-- fragment: in_level
{queued} AND queue = {queue} AND priority >= level.priority AND priority <= level.priority

-- The fused exchange: the whole of a usual cycle in one statement and one round trip. Completed runs go back, new claims
-- come ({taken}: one job, many, or one that was handed over), and a worker whose row said that it sleeps is {awake}.
-- What is not usual claims nothing here: what `needs_transaction` (a worker that was declared dead, a queue that has a
-- strategy of its own, a job that has to run alone), and a paused queue, if one job is asked for. The form for many jobs
-- passes over paused queues. Each thing asked costs 10 us.
-- The answer is a row that says how it stands, with the ids that were finished, and a row for each claim, as JSON text:
-- to read its columns one by one took 13 us, this takes 7.
-- fragment: exchange
WITH RECURSIVE done AS ({done}),
facts AS MATERIALIZED ({facts}),
{shared_out}taken AS (
    {taken}
    RETURNING {claim_text} AS claim){awake}
SELECT has_paused, needs_transaction, CAST(ARRAY(SELECT id FROM done) AS text) AS text FROM facts
UNION ALL
SELECT NULL, NULL, claim FROM taken

-- One run, or none: an exchange of 310 us, by the form for many 327.
-- fragment: done_one
UPDATE rowlock_jobs
SET state = 'completed', result = :result, error = NULL, error_kind = NULL, {has_run}
WHERE {this_claim}
RETURNING id

-- No join: one that was planned for a small table reads all of it for ever (1.8 of 2.3 ms at 10,000 rows).
-- The ids come sorted, and width_bucket finds its place among them by halving. The arrays are given once: a driver
-- may send smaller numbers, and to widen the array for every row took half of the time (24 against 12 ms for 300).
-- fragment: done_many
WITH given AS MATERIALIZED (SELECT :done_ids AS ids, :done_claims AS claims, :done_results AS results)
UPDATE rowlock_jobs
SET state = 'completed', error = NULL, error_kind = NULL, {has_run},
    result = CAST((SELECT results FROM given)[width_bucket(id, (SELECT ids FROM given))] AS json)
WHERE id = ANY (CAST((SELECT ids FROM given) AS bigint[]))
  AND claim = (SELECT claims FROM given)[width_bucket(id, (SELECT ids FROM given))] AND {running}
RETURNING id

-- fragment: got_up
,
awake AS (UPDATE rowlock_workers SET sleeping = false WHERE id = :worker AND EXISTS (SELECT 1 FROM taken))

-- fragment: facts
SELECT EXISTS (SELECT 1 FROM rowlock_queues WHERE {paused} AND {is_ours}) AS has_paused,
       NOT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL)
       OR EXISTS (SELECT 1 FROM rowlock_queues WHERE strategy IS NOT NULL AND {is_ours})
       OR :isolate > 0 AND EXISTS (SELECT 1 FROM rowlock_jobs WHERE {isolated_for_us}) AS needs_transaction

-- fragment: is_ours
(:queues IS NULL OR name IN ({queues}))

-- fragment: is_usual
AND (SELECT NOT has_paused AND NOT needs_transaction FROM facts)

-- One job, of one queue: 2,280 jobs/s one at a time, by the form for many 1,980.
-- fragment: taken_one
{taking} WHERE j.id = ({first})

-- The first job of the next queue after the one served last is the next entry of the index. To ask for the queue first
-- would step over the dead entries at its head twice (70 of 650 us).
-- fragment: first_of_next_queue
coalesce(
    (SELECT id FROM rowlock_jobs WHERE queue > :after AND {eligible} {is_usual}
     ORDER BY queue, {order} LIMIT 1 {lock}),
    (SELECT id FROM rowlock_jobs WHERE {eligible} {is_usual}
     ORDER BY queue, {order} LIMIT 1 {lock}))

-- Many jobs, shared among the queues that have any; no more of them are looked for than jobs are wanted. In a plain
-- transaction Python shares and draws, which takes two round trips for each queue: 2.8 ms instead of 0.55 for 10 jobs of
-- 8 queues, and 0.8 instead of 0.35 for one that is drawn.
-- fragment: taken_many
{taking} WHERE j.id = ANY (ARRAY(SELECT job.id FROM shares CROSS JOIN LATERAL ({first}) job LIMIT :count))

-- fragment: shares_of_queues
{turn},
line AS MATERIALIZED (
    SELECT queue FROM turn
    WHERE NOT is_start AND (SELECT NOT needs_transaction FROM facts) AND queue IS NOT NULL
      AND queue NOT IN (SELECT name FROM rowlock_queues WHERE {paused})
    LIMIT :count),
shares AS MATERIALIZED ({shares}),

-- A scalar, not EXISTS: that would be turned into a join that reads all that is queued (3.8 ms at 8,000).
-- fragment: turn_named
turn AS (
    SELECT name AS queue, false AS is_start FROM json_array_elements_text(:queues) WITH ORDINALITY AS given (name, place)
    WHERE (SELECT true FROM rowlock_jobs WHERE queue = name AND {eligible} LIMIT 1)
    ORDER BY place)

-- One queue after the other, beginning after the one served last: each costs one seek. UNION ends it when it comes round.
-- fragment: turn_all
turn (queue, is_start) AS (
    SELECT :after COLLATE "C", true
    UNION
    SELECT {next_in_turn}, false FROM turn WHERE queue IS NOT NULL)

-- fragment: share
(SELECT ceil(:count / greatest(count(*), 1.0))::bigint FROM line)

-- fragment: equal_shares
SELECT queue, {share} AS share FROM line

-- Each job of a share is drawn by itself: a number below the sum of the weights falls between two bounds. The bound of a
-- level is the sum of the weights before it. An aggregate keeps the order of the levels, as it comes.
-- fragment: drawn_shares
SELECT queue, level, count(*) AS share FROM (
    SELECT shares.queue, filled.levels[width_bucket(random() * filled.total, filled.bounds)] AS level
    FROM line AS shares CROSS JOIN LATERAL (
        {levels}
        SELECT array_agg(priority) AS levels, array_agg(above - weight) AS bounds, max(above) AS total FROM (
            SELECT priority, {weight} AS weight, CAST(sum({weight}) OVER (ORDER BY priority DESC) AS double precision) AS above
            FROM level WHERE priority IS NOT NULL) weighed) filled
    CROSS JOIN generate_series(1, {share})) drawn
WHERE level IS NOT NULL GROUP BY queue, level

-- Begins a claim that a relay handed over. What is not to be begun as it is (taken back, to be cancelled, of a paused
-- queue or one that was not named) is `needs_transaction`.
-- fragment: taken_start
{starting} AND j.cancel_requested_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM rowlock_queues WHERE name = j.queue AND {paused})
  AND EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL)

-- fragment: facts_of_start
SELECT false AS has_paused, NOT EXISTS (SELECT 1 FROM taken) AS needs_transaction
