-- What changed since yesterday? Functions whose own share differs most between two days.
--
-- Shares of each day, so that days with more hosts or more load can be compared.
-- service: one service, or '' for all. state: 'on-cpu', or a waiting state.
-- event: one event, or '' for the one with most samples: values of two are never added.
-- old_day, new_day: '' for the two newest days.
WITH params AS (
    SELECT '' AS service, 'on-cpu' AS state, '' AS event, '' AS old_day, '' AS new_day
),
counted AS (
    SELECT event
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state = (SELECT state FROM params)
    GROUP BY event
    ORDER BY SUM(samples) DESC, event
    LIMIT 1
),
new_days AS (
    SELECT MAX(day) AS new_day
    FROM samples
    WHERE (SELECT new_day FROM params) = '' OR day = (SELECT new_day FROM params)
),
old_days AS (
    SELECT MAX(day) AS old_day
    FROM samples
    WHERE day < (SELECT new_day FROM new_days)
      AND ((SELECT old_day FROM params) = '' OR day = (SELECT old_day FROM params))
),
by_location AS (
    SELECT s.leaf_location_id,
           SUM(CASE WHEN s.day = o.old_day THEN s.value ELSE 0 END) AS old_location_value,
           SUM(CASE WHEN s.day = n.new_day THEN s.value ELSE 0 END) AS new_location_value
    FROM samples s
    CROSS JOIN old_days o
    CROSS JOIN new_days n
    WHERE ((SELECT service FROM params) = '' OR s.service = (SELECT service FROM params))
      AND s.event = (SELECT event FROM counted)
      AND s.state = (SELECT state FROM params)
      AND (s.day = o.old_day OR s.day = n.new_day)
    GROUP BY s.leaf_location_id
),
by_function AS (
    SELECT f.function, f.module,
           SUM(b.old_location_value) AS old_value, SUM(b.new_location_value) AS new_value
    FROM by_location b
    JOIN location_functions f ON f.location_id = b.leaf_location_id
    WHERE f.inline_depth = 0
    GROUP BY f.function, f.module
),
whole AS (
    SELECT SUM(old_value) AS old_whole, SUM(new_value) AS new_whole FROM by_function
),
shares AS (
    SELECT f.function, f.module, f.old_value, f.new_value,
           100 * CAST(f.old_value AS DOUBLE) / CAST(w.old_whole AS DOUBLE) AS old_percent,
           100 * CAST(f.new_value AS DOUBLE) / CAST(w.new_whole AS DOUBLE) AS new_percent
    FROM by_function f
    CROSS JOIN whole w
    WHERE w.old_whole > 0 AND w.new_whole > 0
)
SELECT function, module, old_value, new_value, old_percent, new_percent,
       new_percent - old_percent AS change_points
FROM shares
ORDER BY ABS(new_percent - old_percent) DESC, function, module
LIMIT 50
