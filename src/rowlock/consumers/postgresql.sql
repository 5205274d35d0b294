-- What consumers say to PostgreSQL in its own way.

-- Not FOR UPDATE: rows of other tables that refer to this one may be written meanwhile.
-- fragment: lock_or_wait
FOR NO KEY UPDATE OF «t»

-- fragment: lock_or_skip
{lock_or_wait} SKIP LOCKED

-- A transaction that reads the facts goes on to take the first few claims that are tried again. The server cannot know
-- how many such claims there are, and if it guesses a few it sorts them all.
-- fragment: walk_indexes
, set_config('enable_sort', 'off', true)

-- fragment: is_object
jsonb_typeof(«state») IN ('object', 'null')

-- fragment: due_state
(«state» IS NULL OR ({is_object} AND «state» ->> '«name»' IS NULL))

-- A value that another program wrote meanwhile is kept. Written so that the server does not scan the index of due rows
-- to find one key.
-- fragment: markable_state
coalesce({due_state}, false)

-- fragment: broken_state
(«state» IS NOT NULL AND NOT {is_object})

-- fragment: row_failed_state
(jsonb_typeof(«state» -> '«name»' -> 'failed') IS NOT NULL)

-- fragment: row_done_state
(«state» ->> '«name»' IS NOT NULL AND NOT {row_failed})

-- fragment: member_state
(«state» -> '«name»')

-- fragment: row_cleared_state
«state» = «state» - '«name»'

-- As many as the server last counted; a table that it never counted is read.
-- name: count_all
SELECT CASE WHEN reltuples >= 0 THEN CAST(reltuples AS bigint) ELSE (SELECT count(*) FROM «table») END
FROM pg_catalog.pg_class WHERE oid = to_regclass(:table)

-- fragment: marked_state
«state» = jsonb_set(CASE WHEN jsonb_typeof(«state») = 'object' THEN «state» ELSE CAST('{}' AS jsonb) END,
                    ARRAY['«name»'], CAST(:mark AS jsonb))

-- What a column of an enumeration may hold, for people.
-- name: labels
SELECT string_agg(quote_literal(e.enumlabel), ', ' ORDER BY e.enumsortorder) FROM pg_catalog.pg_enum e
JOIN pg_catalog.pg_type t ON e.enumtypid IN (t.oid, t.typbasetype)
JOIN pg_catalog.pg_attribute a ON a.atttypid = t.oid
WHERE a.attrelid = to_regclass(:table) AND a.attname = :name

-- How many values these two are; the empty rows bring the column's collation along.
-- name: count_values
SELECT count(DISTINCT word) FROM (
    SELECT «status» FROM «table» WHERE false
    UNION ALL SELECT CAST(:word AS «status_type») UNION ALL SELECT CAST(:other_word AS «status_type»)) AS words (word)

-- The lock on the row looks again whether it is due, and the insert loses to a claim that this statement could not see
-- yet: neither alone is safe. The claims come with their rows, which spares a round trip.
-- fragment: take_free
WITH picked AS MATERIALIZED (
    SELECT {key_as_claimed} AS row_key FROM «table» WHERE {beyond}{free}
    ORDER BY {ordering} LIMIT :count {lock_or_skip}),
c AS (
    INSERT INTO rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at, started_at)
    SELECT «consumer», row_key, :worker, {now}, {begun} FROM picked
    ON CONFLICT (consumer, row_key) DO NOTHING
    RETURNING claim, row_key, failures, isolate, claimed_at)
{claim_with_row} FROM c JOIN «table» ON «t».«key» = {claim_key}

-- fragment: fresh_number
DEFAULT

-- Found by their numbers, and not among all that the worker holds (0.3 ms against 54 beside 50,000): `coalesce` does not
-- imply the condition of the index of held claims.
-- fragment: ours
claim = ANY (ARRAY({ids})) AND coalesce(claimed_by, '') = :worker

-- With the locks of `lock_rows`, which come first because they are counted: a statement of their own costs 5 to 15 % of
-- an exchange of 100 rows on busy cores.
-- name: end_claims
WITH locked AS MATERIALIZED (
    SELECT 1 FROM «table» WHERE «t».«key» IN ({held_keys} FROM rowlock_consumer_claims WHERE {ours})
    ORDER BY «t».«key» {lock_or_wait})
DELETE FROM rowlock_consumer_claims WHERE {ours} AND (SELECT count(*) FROM locked) >= 0
RETURNING claim, row_key, failures

-- Marks rows that all get the same values; returns the keys of those that were there.
-- name: mark_all
UPDATE «table» SET {marked}
WHERE «key» = ANY (ARRAY(SELECT CAST(given AS «key_type») FROM json_array_elements_text(:ids) given)) AND {markable}
RETURNING CAST(«key» AS text)

-- No other transaction can take the claims away before this one has ended.
-- name: hold_claims
SELECT 1 FROM rowlock_consumer_claims
WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by = :worker ORDER BY claim FOR NO KEY UPDATE
