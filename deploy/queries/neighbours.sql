-- Who calls a function, and what does it call? Each with the time that they were on stacks
-- together.
--
-- A neighbour counts once for each stack. Time that the function takes itself is under (self).
-- function_name: the function; '' for the one that takes most itself.
-- service: one service, or '' for all. state: 'on-cpu', or a waiting state.
-- event: one event, or '' for the one with most samples: values of two are never added.
WITH params AS (
    SELECT '' AS function_name, '' AS service, 'on-cpu' AS state, '' AS event
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
by_stack AS (
    SELECT stack_id, SUM(value) AS stack_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
    GROUP BY stack_id
),
by_location AS (
    SELECT leaf_location_id, SUM(value) AS location_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND event = (SELECT event FROM counted)
      AND state = (SELECT state FROM params)
    GROUP BY leaf_location_id
),
innermost AS (
    SELECT f.function, SUM(b.location_value) AS self_value
    FROM by_location b
    JOIN location_functions f ON f.location_id = b.leaf_location_id
    WHERE f.inline_depth = 0
    GROUP BY f.function
),
ranked AS (
    SELECT function, ROW_NUMBER() OVER (ORDER BY self_value DESC, function) AS place
    FROM innermost
),
target AS (
    SELECT CASE WHEN p.function_name = '' THEN r.function ELSE p.function_name END AS target_name
    FROM params p
    CROSS JOIN ranked r
    WHERE r.place = 1
),
hit_locations AS (
    SELECT f.location_id, f.inline_depth
    FROM location_functions f
    JOIN target t ON t.target_name = f.function
),
hit_stacks AS (
    SELECT DISTINCT f.stack_id
    FROM stack_frames f
    JOIN hit_locations h ON h.location_id = f.location_id AND h.inline_depth = f.inline_depth
),
-- Names come later: numbers are sorted sooner.
ordered AS (
    SELECT f.stack_id, f.location_id, f.inline_depth,
           LEAD(f.location_id) OVER (PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth) AS caller_location,
           LEAD(f.inline_depth) OVER (PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth) AS caller_inline_depth,
           LAG(f.location_id) OVER (PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth) AS callee_location,
           LAG(f.inline_depth) OVER (PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth) AS callee_inline_depth
    FROM stack_frames f
    JOIN hit_stacks h ON h.stack_id = f.stack_id
),
relations AS (
    SELECT 'caller' AS relation UNION ALL SELECT 'callee' AS relation
),
pairs AS (
    SELECT DISTINCT r.relation, o.stack_id,
           CASE WHEN r.relation = 'caller' THEN o.caller_location
                ELSE o.callee_location END AS neighbour_location,
           CASE WHEN r.relation = 'caller' THEN o.caller_inline_depth
                ELSE o.callee_inline_depth END AS neighbour_inline_depth
    FROM ordered o
    JOIN hit_locations h ON h.location_id = o.location_id AND h.inline_depth = o.inline_depth
    CROSS JOIN relations r
),
once AS (
    SELECT DISTINCT p.relation, p.stack_id,
           CASE WHEN n.function IS NOT NULL THEN n.function
                WHEN p.relation = 'caller' THEN '(none)' ELSE '(self)' END AS neighbour,
           CASE WHEN n.function IS NOT NULL THEN n.module ELSE '' END AS neighbour_module
    FROM pairs p
    LEFT JOIN location_functions n
        ON n.location_id = p.neighbour_location AND n.inline_depth = p.neighbour_inline_depth
)
SELECT t.target_name AS function, o.relation, o.neighbour, o.neighbour_module,
       SUM(b.stack_value) AS shared_value
FROM once o
JOIN by_stack b ON b.stack_id = o.stack_id
CROSS JOIN target t
GROUP BY t.target_name, o.relation, o.neighbour, o.neighbour_module
ORDER BY o.relation DESC, SUM(b.stack_value) DESC, o.neighbour, o.neighbour_module
LIMIT 100
