-- Who waits for whom, for what, and where? Time of threads off the CPU: for each command, state and
-- innermost function outside of the kernel, by who ended the wait.
--
-- waker is the name of a thread, or what an interrupt did ('a timer', 'the network', 'a disk'); ''
-- where nobody is known, as in time in which a thread was ready.
-- service: one service, or '' for all. event: one event, or '' for the one with most samples.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '' AS service, '' AS event, '0000-00-00' AS first_day, '9999-99-99' AS last_day
),
counted AS (
    SELECT event
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state <> 'on-cpu'
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY event
    ORDER BY SUM(samples) DESC, event
    LIMIT 1
),
by_stack AS (
    SELECT service, command, state, stack_id, COALESCE(waker, '') AS ended_by,
           SUM(value) AS stack_value, SUM(samples) AS stack_samples
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state <> 'on-cpu'
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY service, command, state, stack_id, COALESCE(waker, '')
),
user_frames AS (
    SELECT stack_id, function,
           ROW_NUMBER() OVER (PARTITION BY stack_id ORDER BY depth, inline_depth) AS place
    FROM stack_frames
    WHERE module NOT LIKE '[%'
),
by_function AS (
    SELECT b.service, b.command, b.state, COALESCE(f.function, '') AS waits_in, b.ended_by,
           SUM(b.stack_value) AS waited, SUM(b.stack_samples) AS waits
    FROM by_stack b
    LEFT JOIN (SELECT stack_id, function FROM user_frames WHERE place = 1) f
        ON f.stack_id = b.stack_id
    GROUP BY b.service, b.command, b.state, COALESCE(f.function, ''), b.ended_by
)
SELECT service, command, state, waits_in, ended_by AS waker, waited, waits,
       100 * CAST(waited AS DOUBLE) / CAST(SUM(waited) OVER () AS DOUBLE) AS waited_percent
FROM by_function
ORDER BY waited DESC, service, command, state, waits_in, ended_by
LIMIT 50
