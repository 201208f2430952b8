-- What changed in the newest build? Functions whose share of their module differs most between
-- the two newest builds of it.
--
-- A build counts as newer if it was seen first later. Modules with one build are left out.
-- module: one module by its base name, or '' for all.
-- service: one service, or '' for all. state: 'on-cpu', or a waiting state.
-- event: one event, or '' for the one with most samples: values of two are never added.
WITH params AS (
    SELECT '' AS module, '' AS service, 'on-cpu' AS state, '' AS event
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
seen AS (
    SELECT module, build_id, MIN(first_seen) AS seen_at
    FROM builds
    WHERE (SELECT module FROM params) = '' OR module = (SELECT module FROM params)
    GROUP BY module, build_id
),
ranked AS (
    SELECT module, build_id,
           ROW_NUMBER() OVER (PARTITION BY module ORDER BY seen_at DESC, build_id) AS age
    FROM seen
),
pairs AS (
    SELECT n.module AS module, o.build_id AS old_build, n.build_id AS new_build
    FROM ranked n
    JOIN ranked o ON o.module = n.module
    WHERE n.age = 1 AND o.age = 2
),
by_location AS (
    SELECT leaf_location_id, SUM(value) AS location_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
    GROUP BY leaf_location_id
),
location_builds AS (
    SELECT location_id, MAX(build_id) AS build
    FROM frames
    WHERE build_id IS NOT NULL
    GROUP BY location_id
),
by_function AS (
    SELECT p.module AS module, p.old_build, p.new_build, f.function,
           SUM(CASE WHEN l.build = p.old_build THEN b.location_value ELSE 0 END) AS old_value,
           SUM(CASE WHEN l.build = p.new_build THEN b.location_value ELSE 0 END) AS new_value
    FROM by_location b
    JOIN location_functions f ON f.location_id = b.leaf_location_id
    JOIN location_builds l ON l.location_id = f.location_id
    JOIN pairs p ON p.module = f.module
    WHERE f.inline_depth = 0 AND (l.build = p.old_build OR l.build = p.new_build)
    GROUP BY p.module, p.old_build, p.new_build, f.function
),
whole AS (
    SELECT module, SUM(old_value) AS old_whole, SUM(new_value) AS new_whole
    FROM by_function
    GROUP BY module
),
shares AS (
    SELECT f.module AS module, f.function, f.old_build, f.new_build,
           100 * CAST(f.old_value AS DOUBLE) / CAST(w.old_whole AS DOUBLE) AS old_percent,
           100 * CAST(f.new_value AS DOUBLE) / CAST(w.new_whole AS DOUBLE) AS new_percent
    FROM by_function f
    JOIN whole w ON w.module = f.module
    WHERE w.old_whole > 0 AND w.new_whole > 0
)
SELECT module, function, old_build, new_build, old_percent, new_percent,
       new_percent - old_percent AS change_points
FROM shares
ORDER BY ABS(new_percent - old_percent) DESC, module, function
LIMIT 50
