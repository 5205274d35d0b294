-- The whole of a usual cycle in one statement and one round trip: completed runs go back, new claims come.
-- It is put together from parts, for what is asked: {done} (no more than one outcome, or many), {order} (of the
-- strategy), {queue} (the one to be asked), {awake} (the worker's row said that it sleeps), {and_known} (it leaves
-- tasks that it does not know to others).
-- What is not usual (a queue that is paused or has a strategy of its own; for many jobs also one that has to run alone)
-- claims nothing here: the statement says `special`, and it is done step by step. Each thing asked costs 10 us.

-- fragment: facts
facts AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL) AS alive,
           EXISTS (SELECT 1 FROM rowlock_queues WHERE strategy IS NOT NULL OR paused_at IS NOT NULL){or_alone} AS special)

-- fragment: or_alone_waits
 OR EXISTS (SELECT 1 FROM rowlock_jobs WHERE isolate > 0 AND state = 'queued' AND :isolate > 0{and_known})

-- A row that says how it stands, with the ids that were finished, and a row for each claim. Both as JSON text: to read
-- the columns one by one took 13 us per claim, this takes 7.
-- fragment: answer
SELECT alive, special, {ended} AS text FROM facts
UNION ALL
SELECT NULL, NULL, text FROM taken

-- One job from one queue, also one that has to run alone, if `alone` says for how long at most.
-- name: exchange_one
WITH done AS ({done}),
{facts},
taken AS (
    {taking}
    WHERE j.id = (
        SELECT id FROM rowlock_jobs
        WHERE {queued} AND queue = {queue} AND (isolate > :isolate) IS NOT TRUE{and_known} AND (SELECT alive AND NOT special FROM facts)
        ORDER BY {order} LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING {claim_text} AS text){awake}
{answer}

-- The same from the next queue after the one served last: its first job is the next entry of the index. To ask for the
-- queue first would step over the dead entries at its head twice (70 of 650 us).
-- name: exchange_next
WITH done AS ({done}),
{facts},
taken AS (
    {taking}
    WHERE j.id = coalesce(
        (SELECT id FROM rowlock_jobs
         WHERE {queued} AND queue > :after AND (isolate > :isolate) IS NOT TRUE{and_known} AND (SELECT alive AND NOT special FROM facts)
         ORDER BY queue, {order} LIMIT 1 FOR UPDATE SKIP LOCKED),
        (SELECT id FROM rowlock_jobs
         WHERE {queued} AND (isolate > :isolate) IS NOT TRUE{and_known} AND (SELECT alive AND NOT special FROM facts)
         ORDER BY queue, {order} LIMIT 1 FOR UPDATE SKIP LOCKED))
    RETURNING {claim_text} AS text){awake}
{answer}

-- The same for WEIGHTED_RANDOM: each level draws a waiting time, the shortest wins, so that the chances are as the
-- weights. If others hold all of that level, nothing is claimed, and it is done step by step.
-- name: exchange_drawn
WITH RECURSIVE asked AS MATERIALIZED (SELECT {queue} AS queue),
level (priority) AS (
    SELECT (SELECT priority FROM rowlock_jobs WHERE {queued} AND queue = (SELECT queue FROM asked)
            ORDER BY priority DESC, position LIMIT 1)
    UNION ALL
    SELECT (SELECT priority FROM rowlock_jobs
            WHERE {queued} AND queue = (SELECT queue FROM asked) AND priority < level.priority
            ORDER BY priority DESC, position LIMIT 1)
    FROM level WHERE level.priority IS NOT NULL),
drawn AS MATERIALIZED (
    SELECT priority FROM level WHERE priority IS NOT NULL
    ORDER BY -ln(1.0 - random()) / greatest(1, 1 + priority) LIMIT 1),
done AS ({done}),
{facts},
taken AS (
    {taking}
    WHERE j.id = (
        SELECT id FROM rowlock_jobs
        WHERE {queued} AND queue = (SELECT queue FROM asked) AND (isolate > :isolate) IS NOT TRUE{and_known}
          AND priority >= (SELECT priority FROM drawn) AND priority <= (SELECT priority FROM drawn)
          AND (SELECT alive AND NOT special FROM facts)
        ORDER BY priority DESC, position LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING {claim_text} AS text){awake}
{answer}

-- Many jobs, shared among the queues that have any; no more of them are looked for than jobs are wanted.
-- name: exchange_many
WITH RECURSIVE {turn},
done AS ({done}),
{facts},
line AS MATERIALIZED (
    SELECT queue FROM turn WHERE (SELECT alive AND NOT special FROM facts) AND queue IS NOT NULL LIMIT :count),
picked AS MATERIALIZED (
    SELECT job.id FROM line CROSS JOIN LATERAL (
        SELECT id FROM rowlock_jobs WHERE {queued} AND queue = line.queue AND (isolate > 0) IS NOT TRUE{and_known}
        ORDER BY {order}
        LIMIT (SELECT ceil(:count / greatest(count(*), 1.0))::bigint FROM line)
        FOR UPDATE SKIP LOCKED) job
    LIMIT :count),
taken AS (
    {taking}
    WHERE j.id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING {claim_text} AS text){awake}
{answer}

-- fragment: got_up
,
awake AS (UPDATE rowlock_workers SET sleeping = false WHERE id = :worker AND EXISTS (SELECT 1 FROM taken))

-- The next queue after the one served last, or the first.
-- fragment: next_in_turn
coalesce((SELECT queue FROM rowlock_jobs WHERE state = 'queued'{and_known} AND queue > :after ORDER BY queue LIMIT 1),
         (SELECT queue FROM rowlock_jobs WHERE state = 'queued'{and_known} ORDER BY queue LIMIT 1))

-- fragment: done_one
    UPDATE rowlock_jobs
    SET state = 'completed', result = :result, error = NULL, error_kind = NULL, {has_run}
    WHERE id = :id AND claim = :claim AND {running}
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

-- fragment: ended_one
(SELECT '[' || id || ']' FROM done)

-- An aggregate takes 20 us, also of one.
-- fragment: ended_many
CAST((SELECT json_agg(id) FROM done) AS text)

-- name: finish_one
{done_one}

-- name: finish_many
{done_many}

-- A scalar, not EXISTS: that would be turned into a join that reads all that is queued (3.8 ms at 8,000).
-- fragment: turn_named
turn AS (
    SELECT name AS queue FROM unnest(:names) WITH ORDINALITY AS given (name, place)
    WHERE (SELECT true FROM rowlock_jobs WHERE state = 'queued'{and_known} AND queue = name LIMIT 1)
    ORDER BY place)

-- The queues after the one served last, then those before it: each costs one seek.
-- fragment: turn_all
later (queue) AS (
    SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued'{and_known} AND queue > :after
    UNION ALL
    SELECT (SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued'{and_known} AND queue > later.queue)
    FROM later WHERE later.queue IS NOT NULL),
earlier (queue) AS (
    SELECT min(queue) FROM rowlock_jobs WHERE state = 'queued'{and_known} AND queue <= :after
    UNION ALL
    SELECT (SELECT min(queue) FROM rowlock_jobs
            WHERE state = 'queued'{and_known} AND queue > earlier.queue AND queue <= :after)
    FROM earlier WHERE earlier.queue IS NOT NULL),
turn AS (SELECT queue FROM later UNION ALL SELECT queue FROM earlier)
