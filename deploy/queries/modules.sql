-- Which programs and libraries take most time, and how much of it has no function name yet?
--
-- `kymo symbolize DATASET` gives names where debug files can be found.
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
    SELECT leaf_location_id, SUM(value) AS location_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY leaf_location_id
),
by_module AS (
    SELECT f.module, COUNT(DISTINCT f.location_id) AS location_count,
           SUM(b.location_value) AS self_value,
           SUM(CASE WHEN f.function = '[' || f.module || ']'
                      OR (f.function = f.module AND f.module LIKE '[%')
                    THEN b.location_value ELSE 0 END) AS unnamed_value
    FROM by_location b
    JOIN location_functions f ON f.location_id = b.leaf_location_id
    WHERE f.inline_depth = 0
    GROUP BY f.module
)
SELECT module, location_count, self_value,
       100 * CAST(self_value AS DOUBLE) / CAST(SUM(self_value) OVER () AS DOUBLE) AS self_percent,
       CASE WHEN self_value > 0
           THEN 100 * CAST(unnamed_value AS DOUBLE) / CAST(self_value AS DOUBLE)
           ELSE 0 END AS unnamed_percent
FROM by_module
ORDER BY self_value DESC, module
LIMIT 50
