-- Which functions take most time with all that they call?
--
-- A function counts once for each stack that it is in, also where it calls itself.
-- service: one service, or '' for all. state: 'on-cpu', or a waiting state.
-- event: one event, or '' for the one with most samples: values of two are never added.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '' AS service, 'on-cpu' AS state, '' AS event,
           '0000-00-00' AS first_day, '9999-99-99' AS last_day
),
counted AS (
    SELECT event
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state = (SELECT state FROM params)
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY event
    ORDER BY SUM(samples) DESC, event
    LIMIT 1
),
by_stack AS (
    SELECT stack_id, SUM(value) AS stack_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY stack_id
),
stack_functions AS (
    SELECT stack_id, function, module,
           MAX(CASE WHEN depth = 0 AND inline_depth = 0 THEN 1 ELSE 0 END) AS is_innermost
    FROM stack_frames
    GROUP BY stack_id, function, module
),
by_function AS (
    SELECT f.function, f.module,
           SUM(b.stack_value) AS total_value, SUM(b.stack_value * f.is_innermost) AS self_value
    FROM by_stack b
    JOIN stack_functions f ON f.stack_id = b.stack_id
    GROUP BY f.function, f.module
)
SELECT function, module, total_value, self_value,
       100 * CAST(total_value AS DOUBLE) / CAST(SUM(self_value) OVER () AS DOUBLE) AS total_percent
FROM by_function
ORDER BY total_value DESC, function, module
LIMIT 50
