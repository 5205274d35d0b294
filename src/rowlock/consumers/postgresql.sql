-- What consumers say to PostgreSQL in its own way.

-- fragment: key_as_claimed
CAST(«t».«key» AS text)

-- fragment: claim_key
CAST(c.row_key AS «key_type»)

-- fragment: claimed_key
CAST(rowlock_consumer_claims.row_key AS «key_type»)

-- fragment: its_key
CAST(its_row_key AS «key_type»)

-- fragment: given_key
CAST(:row_key AS «key_type»)

-- fragment: order_as_text
CAST(«t».«order» AS text)

-- Not FOR UPDATE: rows of other tables that refer to this one may be written meanwhile.
-- fragment: lock_row
FOR NO KEY UPDATE OF «t» SKIP LOCKED

-- Who looks at the facts goes on to take the first few of what is to be tried again, in this transaction. The server
-- cannot know how many there are, and if it guesses a few it sorts them all.
-- fragment: walk_indexes
, set_config('enable_sort', 'off', true)

-- fragment: is_object
jsonb_typeof(«state») IN ('object', 'null')

-- fragment: due_state
(«state» IS NULL OR ({is_object} AND «state» ->> '«name»' IS NULL))

-- fragment: markable_state
(«state» IS NULL OR {is_object})

-- fragment: broken_state
(«state» IS NOT NULL AND NOT {is_object})

-- fragment: row_failed_state
(jsonb_typeof(«state» -> '«name»' -> 'failed') IS NOT NULL)

-- fragment: row_done_state
(«state» ->> '«name»' IS NOT NULL AND jsonb_typeof(«state» -> '«name»' -> 'failed') IS NULL)

-- fragment: row_failed_by_mark
coalesce((«state» -> '«name»') = ({failure_mark}), false)

-- fragment: row_done_by_mark
(«state» ->> '«name»' IS NOT NULL AND NOT {row_failed_by_mark})

-- fragment: kept_mark
CAST(:mark AS jsonb)

-- fragment: row_cleared_state
«state» = «state» - '«name»'

-- As many as the server last counted; a table that it never counted is read.
-- name: count_all
SELECT CASE WHEN reltuples >= 0 THEN CAST(reltuples AS bigint) ELSE (SELECT count(*) FROM «table») END
FROM pg_catalog.pg_class WHERE oid = to_regclass(:table)

-- fragment: marked_state
«state» = jsonb_set(CASE WHEN jsonb_typeof(«state») = 'object' THEN «state» ELSE CAST('{}' AS jsonb) END,
                    ARRAY['«name»'], CAST(:mark AS jsonb))

-- The user's words as the column's own type: text, or an enumeration.
-- fragment: now_running
CAST(:running_word AS «status_type»)

-- fragment: now_due
CAST(:due_word AS «status_type»)

-- fragment: now_word
CAST(:word AS «status_type»)

-- fragment: held_keys
SELECT CAST(row_key AS «key_type»)

-- A word as it will be in the column, as text: a cast that is written out cuts what is too long.
-- name: try_word
SELECT CAST(CAST(:word AS «status_type») AS text)

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
-- yet: neither alone is safe.
-- fragment: insert_free
WITH picked AS MATERIALIZED (
    SELECT {key_as_claimed} AS row_key FROM «table» WHERE {free} AND {as_usual}
    ORDER BY «ordering» LIMIT :count {lock_row}){insert_picked}

-- fragment: insert_free_beyond
WITH picked AS MATERIALIZED (
    SELECT {key_as_claimed} AS row_key FROM «table»
    WHERE {beyond} AND {free} AND {as_usual}
    ORDER BY «ordering» LIMIT :count {lock_row}){insert_picked}

-- The claims come with their rows, which spares a round trip.
-- fragment: insert_picked
, c AS (
    INSERT INTO rowlock_consumer_claims (consumer, row_key, claimed_by, claimed_at, started_at)
    SELECT :consumer, row_key, :worker, {now}, {now} FROM picked
    ON CONFLICT (consumer, row_key) DO NOTHING
    RETURNING claim, row_key, failures, isolate, claimed_at)
{claim_with_row} FROM c JOIN «table» ON «t».«key» = {claim_key}

-- fragment: fresh_number
DEFAULT

-- Before the claims are ended, in one order: whoever claims locks a row first, too.
-- name: lock_rows
SELECT 1 FROM «table» WHERE «t».«key» IN (
    {held_keys} FROM rowlock_consumer_claims WHERE claim IN ({ids}) AND claimed_by = :worker)
ORDER BY «t».«key» FOR NO KEY UPDATE

-- Rows that all come to the same; says which were there.
-- name: mark_all
UPDATE «table» SET {marked}
WHERE «key» = ANY (ARRAY(SELECT CAST(given AS «key_type») FROM json_array_elements_text(:ids) given)) AND {markable}
RETURNING CAST(«key» AS text)

-- name: next_silent
SELECT CAST(extract(epoch FROM min(beat_at + make_interval(secs => lease)) - {now}) AS double precision)
FROM rowlock_workers WHERE dead_at IS NULL AND id <> :worker

-- The last two also of a domain: whether it takes NULL, and the type (with its length) that it was made of.
-- name: table_columns
SELECT a.attname, format_type(a.atttypid, a.atttypmod), false, a.attnotnull OR t.typnotnull,
       format_type(coalesce(nullif(t.typbasetype, 0), a.atttypid), greatest(a.atttypmod, t.typtypmod))
FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: unique_columns
SELECT a.attname FROM pg_catalog.pg_index i
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]
WHERE i.indrelid = to_regclass(:table) AND i.indisunique AND i.indisvalid AND i.indpred IS NULL
  AND i.indexprs IS NULL AND i.indnkeyatts = 1

-- Each with the category of its type, whether it can be written, and whether it must be.
-- name: columns_to_copy
SELECT a.attname, CAST(t.typcategory AS text), a.attgenerated = '', a.attnotnull FROM pg_catalog.pg_attribute a
JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass(:table) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: index_there
SELECT NULL FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = to_regclass(:table) AND c.relname = :name AND i.indisvalid

-- Nobody can take the claims away before the transaction that asks has ended.
-- name: hold_claims
SELECT 1 FROM rowlock_consumer_claims
WHERE (claim = :claim_number OR batch_id = :claim_number) AND claimed_by = :worker ORDER BY claim FOR NO KEY UPDATE
