-- What consumers ask of a user's table and of their claims. What is in « » is the user's: quoted, and put in when the
-- consumer is bound to its store. {claim_key} is the key of a claim's row.

-- {due} is the form's condition, {indexed} that and the user's own, {due_now} that the time of `due_at=` has come.
-- fragment: chosen
{indexed} AND «t».«key» IS NOT NULL

-- fragment: ready
{chosen} AND {due_now}

-- A claim has the row's key as text.
-- fragment: key_as_claimed
CAST(«t».«key» AS text)

-- fragment: held_keys
SELECT {held_key}

-- What a database may have to add: a lock on rows, without those that others have locked or after waiting for them,
-- and how rows are to be looked for.
-- fragment: lock_or_skip

-- fragment: lock_or_wait

-- fragment: walk_indexes

-- A word as it will be in the column, as text: a cast that is written out cuts what is too long.
-- name: try_word
SELECT CAST(CAST(:word AS «status_type») AS text)

-- A row is free while no claim has it: neither one in flight nor one that waits to be tried again. A scalar, not
-- EXISTS: PostgreSQL would make a join of that, and compare each row with all claims.
-- fragment: unclaimed
(SELECT c.claim FROM rowlock_consumer_claims c
 WHERE c.consumer = «consumer» AND c.row_key = {key_as_claimed} LIMIT 1) IS NULL

-- fragment: free
{ready} AND {not_given_up} AND {unclaimed}

-- The record of a row that has failed, where the row itself does not tell that.
-- fragment: failure
FROM rowlock_consumer_failures f WHERE f.consumer = «consumer» AND f.row_key = {key_as_claimed} LIMIT 1

-- The row still has what it was given when it failed; others may have set something else since.
-- fragment: row_failed_by_mark
coalesce({member_state} = (SELECT f.mark {failure}), false)

-- fragment: rows_with_failures
(SELECT row_key AS its_row_key FROM rowlock_consumer_failures WHERE consumer = «consumer») its_failures
JOIN «table» ON «t».«key» = {its_key}

-- Claims with their rows, under names that no table or column of the user's has.
-- fragment: claims_and_rows
(SELECT claim AS its_claim, row_key AS its_row_key, claimed_by AS its_holder, started_at AS its_start, run_at AS its_run_at,
        isolate AS its_isolate, failures AS its_failures, deaths AS its_deaths
 FROM rowlock_consumer_claims WHERE consumer = «consumer») its_claims
JOIN «table» ON «t».«key» = {its_key}

-- Claims that were given back and are due again; their rows may be done or gone by now.
-- fragment: returned
SELECT its_claim FROM {claims_and_rows}
WHERE its_holder IS NULL AND its_run_at <= {now} AND its_isolate BETWEEN :isolate_least AND :isolate_most AND {ready}
ORDER BY its_run_at, its_claim LIMIT :count

-- name: look_free
SELECT 1 FROM «table» {by_index} WHERE {free} LIMIT 1

-- name: look_returned
{returned}

-- name: pick_returned
{returned} {lock_or_skip}

-- {beyond} is empty, or where the last scan ended.
-- fragment: take_free
INSERT INTO rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at, started_at)
SELECT «consumer», {key_as_claimed}, :worker, {now}, {begun} FROM «table» {by_index}
WHERE {beyond}{free} ORDER BY {ordering} LIMIT :count
RETURNING claim

-- name: retake
UPDATE rowlock_consumer_claims
SET claim = {fresh_number}, batch_id = NULL, claimed_by = :worker, claimed_at = {now}, started_at = {begun},
    error_kind = nullif(error_kind, 'refused')
WHERE claim = :claim_number AND claimed_by IS NULL
RETURNING claim

-- fragment: claim_with_row
SELECT c.claim, c.row_key, c.failures, c.isolate, c.claimed_at, {row_max_attempts}, {place}«columns»

-- name: taken
{claim_with_row} FROM rowlock_consumer_claims c JOIN «table» ON «t».«key» = {claim_key} WHERE c.claim IN ({ids})

-- name: consumer_facts
SELECT EXISTS (SELECT 1 FROM rowlock_workers WHERE id = :worker AND dead_at IS NULL),
       EXISTS (SELECT 1 FROM rowlock_queues WHERE name = «queue» AND {paused}),
       EXISTS (SELECT 1 FROM rowlock_consumer_claims
               WHERE consumer = «consumer» AND claimed_by IS NULL AND run_at <= {now}),
       (SELECT strategy FROM rowlock_queues WHERE name = «queue»){walk_indexes}

-- Every transaction locks the rows, in one order, before it changes their claims: those of the worker, or those that
-- nobody has begun.
-- name: lock_rows
SELECT 1 FROM «table» WHERE «t».«key» IN (
    {held_keys} FROM rowlock_consumer_claims WHERE {in_these} AND (claimed_by = :worker OR started_at IS NULL))
ORDER BY «t».«key» {lock_or_wait}

-- name: end_claims
DELETE FROM rowlock_consumer_claims WHERE claim IN ({ids}) AND claimed_by = :worker
RETURNING claim, row_key, failures

-- Marks this consumer's member of the state, and leaves the other members as they are at this moment.
-- name: mark
UPDATE «table» SET {marked} WHERE «key» = {given_key} AND {markable}

-- Writes claims into the user's rows; only the worker that holds a claim does so, and only it takes that back.
-- name: take_rows
UPDATE «table» SET {row_taken} WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE claim IN ({ids})) AND {due}

-- Reads the number of attempts from the user's row: other programs may have tried the row, too.
-- name: read_attempts
UPDATE rowlock_consumer_claims
SET failures = coalesce((SELECT {row_attempts} FROM «table» WHERE «t».«key» = {claimed_key}), failures)
WHERE claim IN ({ids})

-- name: give_row_back
UPDATE «table» SET {row_given_back}
WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE claim = :claim_number AND claimed_by = :worker) AND {markable}

-- name: progress_of_row
UPDATE «table» SET {progress}
WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by IS NOT NULL)
  AND {markable}

-- Makes rows due again that another program left running; rowlock rescues rows with a claim by itself.
-- name: reset_stale
UPDATE «table» SET {row_given_back} WHERE {markable} AND {stale} AND (
    SELECT c.claim FROM rowlock_consumer_claims c
    WHERE c.consumer = «consumer» AND c.row_key = {key_as_claimed} AND c.claimed_by IS NOT NULL LIMIT 1) IS NULL

-- Fails rows that were not begun in time; a row with a claim was begun, and waits to be tried again.
-- name: fail_too_old
UPDATE «table» SET {marked} WHERE {indexed} AND {too_old} AND {unclaimed}

-- Columns of an index (here: the consumer's name) are set, so that this clashes with another transaction that ends the
-- claim: DuckDB does not see that for an update of other columns beside a deletion.
-- name: return_claim
UPDATE rowlock_consumer_claims
SET consumer = consumer, batch_id = NULL, claimed_by = NULL, claimed_at = NULL, started_at = NULL, run_at = {now+delay}, failures = failures + :charge,
    isolate = CASE WHEN :event = 'released' AND :isolate = 0 THEN isolate ELSE :isolate END,
    deaths = CASE WHEN :isolate > 0 THEN deaths + 1 WHEN :charge > 0 THEN 0 ELSE deaths END, error = coalesce(:error, error),
    error_kind = coalesce(:error_kind, error_kind), done = NULL, total = NULL, note = NULL
WHERE claim = :claim_number AND claimed_by = :worker

-- Of rows that were never tried: they are claimed again in their old order.
-- name: forget_claims
DELETE FROM rowlock_consumer_claims WHERE claim IN ({ids}) AND claimed_by IS NULL AND failures = 0 AND isolate = 0 AND deaths = 0

-- A write, as in hold_claim.
-- name: hold_claims
UPDATE rowlock_consumer_claims SET consumer = consumer
WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by = :worker

-- name: report_row
UPDATE rowlock_consumer_claims SET done = :done, total = :total, note = :note
WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by IS NOT NULL

-- A batch is known by the number of its first claim.
-- name: name_batch
UPDATE rowlock_consumer_claims SET batch_id = :claim_number WHERE claim IN ({ids})

-- name: members
SELECT coalesce(batch_id, claim), claim, row_key, failures, {held_budget} FROM rowlock_consumer_claims
WHERE {in_these} AND claimed_by = :worker ORDER BY claim

-- name: held_batches
SELECT DISTINCT coalesce(batch_id, claim) FROM rowlock_consumer_claims WHERE consumer = «consumer» AND claimed_by = :worker

-- name: rows_of
SELECT claim, row_key FROM rowlock_consumer_claims WHERE claim IN ({ids})

-- name: held_rows
SELECT claim, row_key, failures, started_at, deaths, error_kind, error, {held_budget} FROM rowlock_consumer_claims
WHERE consumer = «consumer» AND claimed_by = :worker ORDER BY claim

-- The outcome of a claim cannot be written: what the database said is kept here, once. Without a charge it was never begun.
-- name: note_refused_row
UPDATE rowlock_consumer_claims
SET error = :error, error_kind = 'refused', started_at = CASE WHEN :charge > 0 THEN coalesce(started_at, claimed_at) END
WHERE claim = :claim_number AND claimed_by = :worker AND coalesce(error_kind, '') <> 'refused'

-- Workers that are dead, or deleted, and still hold claims; with `include_refused` also workers that only hold claims
-- which the database refused to give back.
-- name: dead_holders_of_rows
SELECT c.claimed_by, min(w.ended), min(w.beat_at), min(w.lease) FROM rowlock_consumer_claims c
LEFT JOIN rowlock_workers w ON w.id = c.claimed_by
WHERE c.consumer = «consumer» AND c.claimed_by IS NOT NULL AND (w.id IS NULL OR w.dead_at IS NOT NULL)
  AND (:include_refused = 1 OR coalesce(c.error_kind, '') <> 'refused')
GROUP BY c.claimed_by

-- Without claims that the database refuses to change: those stay as they are.
-- name: in_flight
SELECT 1 FROM rowlock_consumer_claims
WHERE consumer = «consumer» AND claimed_by IS NOT NULL AND coalesce(error_kind, '') <> 'refused' LIMIT 1

-- The clock, the seconds until a worker's lease runs out, and the moments at which something is due.
-- name: next_row_needed
SELECT {now}, ({next_silent}),
       (SELECT min(run_at) FROM rowlock_consumer_claims WHERE consumer = «consumer» AND claimed_by IS NULL AND run_at > {now}),
       (SELECT min(paused_until) FROM rowlock_queues)

-- name: row_alone_waiting
SELECT 1 FROM rowlock_consumer_claims
WHERE consumer = «consumer» AND claimed_by IS NULL AND run_at <= {now} AND isolate > 0 LIMIT 1

-- Claims that wait for a row which is done, gone or not chosen any more.
-- name: forget_the_idle
DELETE FROM rowlock_consumer_claims
WHERE consumer = «consumer» AND claimed_by IS NULL AND claim NOT IN (
    SELECT its_claim FROM {claims_and_rows} WHERE its_holder IS NULL AND {chosen})

-- name: broken_rows
SELECT {key_as_claimed} FROM «table» WHERE {broken} LIMIT :count

-- name: try_form
SELECT 1 FROM «table» WHERE {due} LIMIT 0

-- Without parentheses around it: a condition that closes one and opens another would go beyond its own.
-- name: try_where
SELECT 1 FROM «table» WHERE «bare_where» LIMIT 0

-- name: try_condition
SELECT 1 FROM «table» WHERE {ready} LIMIT 0

-- name: count_ready
SELECT coalesce(sum(CASE WHEN {due_now} THEN 1 ELSE 0 END), 0), coalesce(sum(CASE WHEN {due_now} THEN 0 ELSE 1 END), 0)
FROM «table» {by_index} WHERE {chosen} AND {not_given_up}

-- Rows that are due later.
-- name: next_due_row
SELECT {next_due_at} FROM «table» {by_index} WHERE {chosen} AND NOT {due_now}

-- name: count_claims
SELECT count(claimed_by), count(*) - count(claimed_by) FROM rowlock_consumer_claims WHERE consumer = «consumer»

-- name: count_ended
SELECT coalesce(sum(completed + failed), 0) FROM rowlock_minutes
WHERE queue = «queue» AND minute >= :since AND minute < :minute

-- name: count_failed_rows
SELECT count(*) FROM {failed_rows} WHERE {row_failed}

-- name: count_broken
SELECT count(*) FROM «table» WHERE {broken}

-- name: count_all
SELECT count(*) FROM «table»

-- Reads the whole table.
-- name: count_done
SELECT count(*) FROM «table» WHERE {row_done}

-- name: oldest
SELECT {order_as_text}, {order_seconds} FROM «table» {by_index} WHERE {free} ORDER BY {ordering} LIMIT 1

-- {still_failed} is asked again when another transaction has changed the row meanwhile: the list of keys is not.
-- name: clear_failed
UPDATE «table» SET {row_cleared}
WHERE «key» IN (SELECT «t».«key» FROM {failed_rows} WHERE {row_failed}) AND {still_failed}

-- The mark that the row has by now.
-- fragment: kept_mark_state
(SELECT {member_state} FROM «table» WHERE «key» = {given_key})

-- name: keep_failure
INSERT INTO rowlock_consumer_failures (consumer, row_key, failed_at, failures, error, mark)
VALUES («consumer», :row_key, {now}, :failures, :error, {kept_mark})
ON CONFLICT (consumer, row_key) DO UPDATE
SET failed_at = excluded.failed_at, failures = excluded.failures, error = excluded.error, mark = excluded.mark

-- name: forget_failure
DELETE FROM rowlock_consumer_failures WHERE consumer = «consumer» AND row_key = :row_key

-- name: forget_failures
DELETE FROM rowlock_consumer_failures WHERE consumer = «consumer»

-- Deletes the failures of rows that are done or gone by now.
-- name: forget_past_failures
DELETE FROM rowlock_consumer_failures
WHERE consumer = «consumer» AND row_key NOT IN (SELECT its_row_key FROM {failed_rows} WHERE {row_failed})

-- fragment: in_these
(claim IN ({ids}) OR batch_id IN ({ids}))

-- Moves claims that were handed over to the worker that begins them.
-- name: start_rows
UPDATE rowlock_consumer_claims SET claimed_by = :worker, claimed_at = {now}, started_at = {now}
WHERE consumer = «consumer» AND {in_these} AND claimed_by IS NOT NULL AND started_at IS NULL
RETURNING claim

-- name: show_started
UPDATE «table» SET {row_started}
WHERE «key» IN ({held_keys} FROM rowlock_consumer_claims WHERE {in_these} AND claimed_by = :worker) AND {markable}

-- Claims of rows that were due for too long: handed over and not begun, or held by a dead worker.
-- name: overdue_claims
SELECT its_claim, its_row_key, its_holder FROM {claims_and_rows}
WHERE its_holder IS NOT NULL AND {overdue} AND (its_start IS NULL OR NOT EXISTS (
    SELECT 1 FROM rowlock_workers w WHERE w.id = its_holder AND w.dead_at IS NULL))

-- Of rows that were not begun in time: claims that were handed over.
-- name: late_claims
SELECT its_claim, its_row_key, its_holder FROM {claims_and_rows}
WHERE its_holder IS NOT NULL AND its_start IS NULL AND its_failures = 0 AND its_deaths = 0 AND {too_old}

-- Claims that wait to be tried again.
-- name: retake_overdue
UPDATE rowlock_consumer_claims SET claimed_by = :worker, claimed_at = {now}, started_at = NULL
WHERE claimed_by IS NULL AND claim IN (
    SELECT its_claim FROM {claims_and_rows} WHERE its_holder IS NULL AND {ready} AND {overdue} LIMIT :count)
RETURNING claim

-- name: take_overdue
INSERT INTO rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at)
SELECT «consumer», {key_as_claimed}, :worker, {now} FROM «table» WHERE {free} AND {overdue} LIMIT :count {lock_or_skip}
ON CONFLICT (consumer, row_key) DO NOTHING
RETURNING claim
