-- Which hosts differ? Functions whose own share on one host is far from that of all hosts.
--
-- Functions with less than least_percent of all hosts are left out.
-- service: one service, or '' for all. state: 'on-cpu', or a waiting state.
-- event: one event, or '' for the one with most samples: values of two are never added.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '' AS service, 'on-cpu' AS state, '' AS event, 1 AS least_percent,
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
    SELECT host_id, leaf_location_id, SUM(value) AS location_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY host_id, leaf_location_id
),
by_host_function AS (
    SELECT b.host_id, f.function, f.module, SUM(b.location_value) AS self_value
    FROM by_location b
    JOIN location_functions f ON f.location_id = b.leaf_location_id
    WHERE f.inline_depth = 0
    GROUP BY b.host_id, f.function, f.module
),
by_host AS (
    SELECT host_id, SUM(self_value) AS host_value FROM by_host_function GROUP BY host_id
),
by_function AS (
    SELECT function, module, SUM(self_value) AS function_value
    FROM by_host_function
    GROUP BY function, module
),
fleet AS (
    SELECT function, module,
           100 * CAST(function_value AS DOUBLE)
               / CAST(SUM(function_value) OVER () AS DOUBLE) AS fleet_percent
    FROM by_function
),
names AS (
    SELECT host_id, MAX(host) AS host_name FROM hosts GROUP BY host_id
),
shares AS (
    SELECT h.host_id AS host_id, f.function AS function, f.module AS module, f.fleet_percent,
           100 * CAST(COALESCE(v.self_value, 0) AS DOUBLE)
               / CAST(h.host_value AS DOUBLE) AS host_percent
    FROM by_host h
    CROSS JOIN fleet f
    LEFT JOIN by_host_function v
        ON v.host_id = h.host_id AND v.function = f.function AND v.module = f.module
    WHERE h.host_value > 0 AND f.fleet_percent >= (SELECT least_percent FROM params)
)
SELECT n.host_name AS host, s.function, s.module, s.host_percent, s.fleet_percent,
       s.host_percent - s.fleet_percent AS difference_points
FROM shares s
JOIN names n ON n.host_id = s.host_id
ORDER BY ABS(s.host_percent - s.fleet_percent) DESC, n.host_name, s.function, s.module
LIMIT 50
