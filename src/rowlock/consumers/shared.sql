-- What consumers ask of a user's table and of their claims. What is in « » is the user's: quoted, and put in when the
-- consumer is bound to its store. {ready} is what makes a row due, {claim_key} the key of a claim's row.

-- A row is free while no claim has it: neither one in flight nor one that waits to be tried again. A scalar, not
-- EXISTS: PostgreSQL would make a join of that, and compare each row with all claims.
-- fragment: free
{ready} AND {not_given_up} AND (
    SELECT c.claim FROM rowlock_consumer_claims c
    WHERE c.consumer = :consumer AND c.row_key = {key_as_claimed} LIMIT 1) IS NULL

-- A row that has failed, where the row itself has no mark for that.
-- fragment: failure
SELECT f.row_key FROM rowlock_consumer_failures f
WHERE f.consumer = «consumer» AND f.row_key = {key_as_claimed} LIMIT 1

-- What the row was given when it failed; others may have set something else since.
-- fragment: failure_mark
SELECT f.mark FROM rowlock_consumer_failures f
WHERE f.consumer = «consumer» AND f.row_key = {key_as_claimed} LIMIT 1

-- fragment: rows_with_failures
(SELECT row_key AS its_row_key FROM rowlock_consumer_failures WHERE consumer = «consumer») failures
JOIN «table» ON «t».«key» = {its_key}

-- Who has not asked for these facts lets the claim itself look at them: then it takes nothing unless all is as usual.
-- fragment: as_usual
(:asked = 1 OR (
    SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL)
       AND NOT EXISTS (SELECT 1 FROM rowlock_queues WHERE name = :queue AND paused_at IS NOT NULL)
       AND coalesce((SELECT strategy FROM rowlock_queues WHERE name = :queue), :own_strategy) = :strategy
       AND NOT EXISTS (SELECT 1 FROM rowlock_consumer_claims
                       WHERE consumer = :consumer AND claimed_by IS NULL AND run_at <= {now})))

-- Claims that were given back and are due again; their rows may be done or gone by now.
-- fragment: returned
SELECT its_claim FROM (
    SELECT claim AS its_claim, row_key AS its_row_key, run_at AS its_run_at FROM rowlock_consumer_claims
    WHERE consumer = :consumer AND claimed_by IS NULL AND run_at <= {now} AND isolate BETWEEN :isolate_least AND :isolate_most) waiting
JOIN «table» ON «t».«key» = {its_key}
WHERE {ready} ORDER BY its_run_at, its_claim LIMIT :count

-- name: look_free
SELECT 1 FROM «table» {by_index} WHERE {free} LIMIT 1

-- name: look_returned
{returned}

-- name: pick_returned
{returned} {lock_row}

-- name: take_free
{insert_free}

-- name: take_free_beyond
{insert_free_beyond}

-- name: retake
UPDATE rowlock_consumer_claims
SET claim = {fresh_number}, batch_id = NULL, claimed_by = :worker, claimed_at = {now}, started_at = {now},
    error_kind = nullif(error_kind, 'refused')
WHERE claim = :claim_number AND claimed_by IS NULL
RETURNING claim

-- fragment: claim_with_row
SELECT c.claim, c.row_key, c.failures, c.isolate, c.claimed_at, {row_max_attempts}, {place}«columns»

-- name: taken
{claim_with_row} FROM rowlock_consumer_claims c JOIN «table» ON «t».«key» = {claim_key} WHERE c.claim IN ({ids})

-- name: consumer_facts
SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL),
       EXISTS (SELECT 1 FROM rowlock_queues WHERE name = :queue AND paused_at IS NOT NULL),
       EXISTS (SELECT 1 FROM rowlock_consumer_claims
               WHERE consumer = :consumer AND claimed_by IS NULL AND run_at <= {now}),
       (SELECT strategy FROM rowlock_queues WHERE name = :queue){walk_indexes}

-- name: end_claims
DELETE FROM rowlock_consumer_claims WHERE claim IN ({ids}) AND claimed_by = :worker
RETURNING claim, row_key, failures

-- Marks one member of the state and leaves the others as they are at this moment, whoever wrote them.
-- name: mark
UPDATE «table» SET {marked} WHERE «key» = {given_key} AND {markable}

-- A claim that shows in the user's row: set there, and taken back, by whoever has it.
-- name: take_rows
UPDATE «table» SET {row_taken} WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE claim IN ({ids})) AND {due}

-- How often a row was tried is what the row says: others may have tried it, too.
-- name: read_attempts
UPDATE rowlock_consumer_claims
SET failures = coalesce((SELECT {row_attempts} FROM «table» WHERE «t».«key» = {claimed_key}), failures)
WHERE claim IN ({ids})

-- name: give_rows_back
UPDATE «table» SET {row_given_back}
WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE claim IN ({ids}) AND claimed_by = :worker) AND {markable}

-- name: progress_of_row
UPDATE «table» SET {progress}
WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by IS NOT NULL)
  AND {markable}

-- Rows that somebody else left running, and rows that nobody began in time; what has a claim is our own affair.
-- name: reset_stale
UPDATE «table» SET {row_given_back} WHERE {markable} AND {stale} AND (
    SELECT c.claim FROM rowlock_consumer_claims c
    WHERE c.consumer = :consumer AND c.row_key = {key_as_claimed} AND c.claimed_by IS NOT NULL LIMIT 1) IS NULL

-- A row with a claim was begun, and waits to be tried again.
-- name: fail_too_old
UPDATE «table» SET {marked} WHERE {indexed} AND {too_old} AND (
    SELECT c.claim FROM rowlock_consumer_claims c
    WHERE c.consumer = :consumer AND c.row_key = {key_as_claimed} LIMIT 1) IS NULL

-- name: return_claim
UPDATE rowlock_consumer_claims
SET batch_id = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL, run_at = {now+delay}, failures = failures + :charge,
    isolate = CASE WHEN :event = 'released' AND :isolate = 0 THEN isolate ELSE :isolate END,
    deaths = CASE WHEN :isolate > 0 THEN deaths + 1 WHEN :charge > 0 THEN 0 ELSE deaths END, error = coalesce(:error, error),
    error_kind = coalesce(:error_kind, error_kind), done = NULL, total = NULL, note = NULL
WHERE claim = :claim_number AND claimed_by = :worker

-- What was never tried is forgotten: the row has its old place again.
-- name: forget_claim
DELETE FROM rowlock_consumer_claims WHERE claim = :claim_number AND claimed_by = :worker AND failures = 0 AND isolate = 0 AND deaths = 0

-- name: report_row
UPDATE rowlock_consumer_claims SET done = :done, total = :total, note = :note
WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by IS NOT NULL

-- A batch is known by the number of its first claim.
-- name: name_batch
UPDATE rowlock_consumer_claims SET batch_id = :claim_number WHERE claim IN ({ids})

-- name: members
SELECT coalesce(batch_id, claim), claim, failures, row_key FROM rowlock_consumer_claims
WHERE (claim IN ({ids}) OR batch_id IN ({ids})) AND claimed_by = :worker ORDER BY claim

-- name: held_batches
SELECT DISTINCT coalesce(batch_id, claim) FROM rowlock_consumer_claims WHERE consumer = :consumer AND claimed_by = :worker

-- name: rows_of
SELECT claim, row_key FROM rowlock_consumer_claims WHERE claim IN ({ids})

-- name: held_rows
SELECT claim, row_key, failures, started_at, deaths, error_kind, error, {held_budget} FROM rowlock_consumer_claims
WHERE consumer = :consumer AND claimed_by = :worker ORDER BY claim

-- The outcome of a claim cannot be written: what the database said is kept here, once. Without a charge it was never begun.
-- name: note_refused_row
UPDATE rowlock_consumer_claims
SET error = :error, error_kind = 'refused', started_at = CASE WHEN :charge > 0 THEN coalesce(started_at, claimed_at) END
WHERE claim = :claim_number AND claimed_by = :worker AND coalesce(error_kind, '') <> 'refused'

-- Workers that are dead, or long forgotten, and hold claims all the same; with `again` also those that the database
-- refused to give back.
-- name: dead_holders
SELECT c.claimed_by, min(w.ended), min(w.beat_at), min(w.lease) FROM rowlock_consumer_claims c
LEFT JOIN rowlock_workers w ON w.id = c.claimed_by
WHERE c.consumer = :consumer AND c.claimed_by IS NOT NULL AND (w.id IS NULL OR w.dead_at IS NOT NULL)
  AND (:again = 1 OR coalesce(c.error_kind, '') <> 'refused')
GROUP BY c.claimed_by

-- What the database refuses does not count: nothing of that will move.
-- name: in_flight
SELECT 1 FROM rowlock_consumer_claims
WHERE consumer = :consumer AND claimed_by IS NOT NULL AND coalesce(error_kind, '') <> 'refused' LIMIT 1

-- name: next_return
SELECT min(run_at) FROM rowlock_consumer_claims WHERE consumer = :consumer AND claimed_by IS NULL AND run_at > {now}

-- name: row_alone_waiting
SELECT 1 FROM rowlock_consumer_claims
WHERE consumer = :consumer AND claimed_by IS NULL AND run_at <= {now} AND isolate > 0 LIMIT 1

-- Claims that wait for a row which is done, gone or not chosen any more.
-- name: forget_the_idle
DELETE FROM rowlock_consumer_claims
WHERE consumer = :consumer AND claimed_by IS NULL AND claim NOT IN (
    SELECT its_claim FROM (
        SELECT claim AS its_claim, row_key AS its_row_key FROM rowlock_consumer_claims
        WHERE consumer = :consumer AND claimed_by IS NULL) waiting
    JOIN «table» ON «t».«key» = {its_key} WHERE {chosen})

-- name: broken_rows
SELECT {key_as_claimed} FROM «table» WHERE {broken} LIMIT :count

-- name: try_form
SELECT 1 FROM «table» WHERE {due} LIMIT 0

-- name: try_condition
SELECT 1 FROM «table» WHERE {ready} LIMIT 0

-- name: broken
{broken}

-- What an index has of it; the user's own condition may not fit into one.
-- name: due_condition
{due}

-- name: count_ready
SELECT coalesce(sum(CASE WHEN {due_now} THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN {due_now} THEN 0 ELSE 1 END), 0)
FROM «table» {by_index} WHERE {chosen} AND {not_given_up}

-- Of rows whose time lies ahead.
-- name: next_due
SELECT {next_due_at} FROM «table» {by_index} WHERE {chosen} AND NOT {due_now}

-- name: not_a_time
SELECT CAST(«due_at» AS text) FROM (SELECT «due_at» FROM «table» LIMIT 1000) some WHERE {not_a_time} LIMIT 1

-- name: count_claims
SELECT sum(CASE WHEN claimed_by IS NULL THEN 0 ELSE 1 END), sum(CASE WHEN claimed_by IS NULL THEN 1 ELSE 0 END)
FROM rowlock_consumer_claims WHERE consumer = :consumer

-- name: count_failed_rows
SELECT count(*) FROM {failed_rows} WHERE {row_failed}

-- name: count_broken
SELECT count(*) FROM «table» WHERE {broken}

-- Reads the whole table.
-- name: count_done
SELECT count(*) FROM «table» WHERE {row_done}

-- name: oldest
SELECT {order_as_text}, {order_seconds} FROM «table» {by_index} WHERE {free} ORDER BY «ordering» LIMIT 1

-- name: failed_condition
{row_failed}

-- name: running_condition
{row_running}

-- name: done_condition
{row_done}

-- name: clear_failed
UPDATE «table» SET {row_cleared} WHERE {row_failed}

-- name: keep_failure
INSERT INTO rowlock_consumer_failures (consumer, row_key, failed_at, failures, error, mark)
VALUES (:consumer, :row_key, {now}, :failures, :error, {kept_mark})
ON CONFLICT (consumer, row_key) DO UPDATE
SET failed_at = excluded.failed_at, failures = excluded.failures, error = excluded.error, mark = excluded.mark

-- name: forget_failure
DELETE FROM rowlock_consumer_failures WHERE consumer = :consumer AND row_key = :row_key

-- name: clear_marks
UPDATE «table» SET {row_cleared} WHERE «key» IN (SELECT «t».«key» FROM {failed_rows} WHERE {row_failed})

-- name: forget_failures
DELETE FROM rowlock_consumer_failures WHERE consumer = :consumer

-- Of rows that are done or gone by now.
-- name: forget_past_failures
DELETE FROM rowlock_consumer_failures
WHERE consumer = :consumer AND row_key NOT IN (SELECT its_row_key FROM {failed_rows} WHERE {row_failed})
