-- The whole of a usual cycle in one statement and one round trip: completed runs go back, new claims come.
-- It is put together from parts, for what is asked: {done} (no more than one outcome, or many), {first} (the first jobs
-- by the strategy), {queue} (the one to be asked), {awake} (the worker's row said that it sleeps), {and_known} (it leaves
-- tasks that it does not know to others), {of_these} (the queues are named).
-- What is not usual claims nothing here. `has_queue_settings` says that a queue is paused or has a strategy of its own: then the form
-- for many jobs is asked, which looks at each queue. `needs_transaction` says that a job waits that has to run alone, or that a
-- queue has a strategy of its own: that is done in a plain transaction. Each thing asked costs 10 us.

-- fragment: facts
facts AS MATERIALIZED (
    SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL) AS alive,
           EXISTS (SELECT 1 FROM rowlock_queues
                   WHERE (strategy IS NOT NULL OR paused_at IS NOT NULL){of_these_names}) AS has_queue_settings,
           {or_own_order}EXISTS (
               SELECT 1 FROM rowlock_jobs WHERE isolate > 0 AND state = 'queued' AND :isolate > 0{and_known}{of_these}
                 AND queue NOT IN (SELECT name FROM rowlock_queues WHERE paused_at IS NOT NULL)) AS needs_transaction)

-- fragment: any_own_order
EXISTS (SELECT 1 FROM rowlock_queues WHERE strategy IS NOT NULL{of_these_names})

-- A row that says how it stands, with the ids that were finished, and a row for each claim. Both as JSON text: to read
-- the columns one by one took 13 us per claim, this takes 7.
-- fragment: answer
SELECT alive, has_queue_settings, needs_transaction{or_in_vain} AS needs_transaction, {ended} AS text FROM facts
UNION ALL
SELECT NULL, NULL, NULL, text FROM taken

-- One job from one queue.
-- fragment: exchange_one
WITH done AS ({done}),
{facts},
taken AS (
    {taking}
    WHERE j.id = ({first})
    RETURNING {claim_text} AS text){awake}
{answer}

-- fragment: one_is_usual
(SELECT alive AND NOT has_queue_settings AND NOT needs_transaction FROM facts)

-- The same from the next queue after the one served last: its first job is the next entry of the index. To ask for the
-- queue first would step over the dead entries at its head twice (70 of 650 us).
-- fragment: exchange_next
WITH done AS ({done}),
{facts},
taken AS (
    {taking}
    WHERE j.id = coalesce(
        (SELECT id FROM rowlock_jobs
         WHERE {queued} AND queue > :after AND (isolate > 0) IS NOT TRUE{and_known}{if_usual}
         ORDER BY queue, {order} LIMIT 1 FOR UPDATE SKIP LOCKED),
        (SELECT id FROM rowlock_jobs
         WHERE {queued} AND (isolate > 0) IS NOT TRUE{and_known}{if_usual}
         ORDER BY queue, {order} LIMIT 1 FOR UPDATE SKIP LOCKED))
    RETURNING {claim_text} AS text){awake}
{answer}

-- Many jobs, shared among the queues that have any; no more of them are looked for than jobs are wanted.
-- fragment: exchange_many
WITH RECURSIVE {turn},
done AS ({done}),
{facts},
line AS MATERIALIZED (
    SELECT queue FROM turn
    WHERE (SELECT alive AND NOT needs_transaction FROM facts) AND queue IS NOT NULL
      AND queue NOT IN (SELECT name FROM rowlock_queues WHERE paused_at IS NOT NULL)
    LIMIT :count),
shares AS MATERIALIZED ({shares}),
picked AS MATERIALIZED (
    SELECT job.id FROM shares CROSS JOIN LATERAL ({first}) job
    LIMIT :count),
taken AS (
    {taking}
    WHERE j.id = ANY (ARRAY(SELECT id FROM picked))
    RETURNING {claim_text} AS text){awake}
{answer}

-- Begins a claim that a relay handed over. What is not to be begun as it is (taken back, to be cancelled, of a paused
-- queue or one that was not named) is `needs_transaction`.
-- fragment: exchange_start
WITH done AS ({done}),
taken AS (
    UPDATE rowlock_jobs j SET claimed_by = :worker, claimed_at = {now}, started_at = {now}
    WHERE j.id = :start_id AND j.claim = :start_claim AND {running} AND j.started_at IS NULL
      AND j.cancel_requested_at IS NULL AND (:all = 1 OR j.queue = ANY (:names))
      AND NOT EXISTS (SELECT 1 FROM rowlock_queues WHERE name = j.queue AND paused_at IS NOT NULL)
      AND EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL)
    RETURNING {claim_text} AS text),
facts AS MATERIALIZED (SELECT true AS alive, false AS has_queue_settings, NOT EXISTS (SELECT 1 FROM taken) AS needs_transaction)
{answer}

-- fragment: share
(SELECT ceil(:count / greatest(count(*), 1.0))::bigint FROM line)

-- fragment: equal_shares
SELECT queue, {share} AS share FROM line

-- Each job of a share is drawn by itself: a number below the sum of the weights falls between two bounds. An aggregate
-- keeps the order of the levels, as it comes.
-- fragment: drawn_shares
    SELECT queue, level, count(*) AS share FROM (
        SELECT line.queue, filled.levels[width_bucket(random() * filled.total, filled.bounds)] AS level
        FROM line CROSS JOIN LATERAL (
            WITH RECURSIVE {level}
            SELECT array_agg(priority) AS levels, array_agg(bound) AS bounds, max(bound) AS total FROM level) filled
        CROSS JOIN generate_series(1, {share})) drawn
    WHERE level IS NOT NULL GROUP BY queue, level

-- All that was drawn is held by others, or was: a plain transaction passes the draws on to other levels.
-- fragment: in_vain
EXISTS (SELECT 1 FROM shares) AND NOT EXISTS (SELECT 1 FROM taken)

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
