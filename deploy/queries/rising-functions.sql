-- Which functions take more from day to day? Their share of the first and of the last day, and
-- on how many days it rose.
--
-- A day without the function counts as 0 %.
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
by_location AS (
    SELECT day, leaf_location_id, SUM(value) AS location_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY day, leaf_location_id
),
by_function AS (
    SELECT b.day, f.function, f.module, SUM(b.location_value) AS self_value
    FROM by_location b
    JOIN location_functions f ON f.location_id = b.leaf_location_id
    WHERE f.inline_depth = 0
    GROUP BY b.day, f.function, f.module
),
by_day AS (
    SELECT day, SUM(self_value) AS day_value FROM by_function GROUP BY day
),
days AS (
    SELECT day, day_value,
           ROW_NUMBER() OVER (ORDER BY day) AS day_number, COUNT(*) OVER () AS day_count
    FROM by_day
    WHERE day_value > 0
),
functions AS (
    SELECT DISTINCT function, module FROM by_function
),
shares AS (
    SELECT f.function AS function, f.module AS module, d.day_number, d.day_count,
           100 * CAST(COALESCE(v.self_value, 0) AS DOUBLE)
               / CAST(d.day_value AS DOUBLE) AS day_percent
    FROM functions f
    CROSS JOIN days d
    LEFT JOIN by_function v
        ON v.function = f.function AND v.module = f.module AND v.day = d.day
),
trends AS (
    SELECT n.function AS function, n.module AS module,
           SUM(CASE WHEN n.day_percent > o.day_percent THEN 1 ELSE 0 END) AS days_up,
           SUM(CASE WHEN n.day_percent < o.day_percent THEN 1 ELSE 0 END) AS days_down,
           MAX(CASE WHEN o.day_number = 1 THEN o.day_percent ELSE 0 END) AS first_percent,
           MAX(CASE WHEN n.day_number = n.day_count THEN n.day_percent ELSE 0 END) AS last_percent
    FROM shares n
    JOIN shares o ON o.function = n.function AND o.module = n.module
    WHERE n.day_number = o.day_number + 1
    GROUP BY n.function, n.module
)
SELECT function, module, days_up, days_down, first_percent, last_percent,
       last_percent - first_percent AS rise_points
FROM trends
WHERE last_percent > first_percent
ORDER BY last_percent - first_percent DESC, function, module
LIMIT 50
