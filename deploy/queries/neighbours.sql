-- Who calls a function, and what does it call? Each with the time that they were on stacks
-- together.
--
-- A neighbour counts once for each stack. Time that the function takes itself is under (self).
-- function_name: the function; '' for the one that takes most itself.
-- service: one service, or '' for all. state: 'on-cpu', or a waiting state.
WITH params AS (
    SELECT '' AS function_name, '' AS service, 'on-cpu' AS state, '' AS event
),
by_stack AS (
    SELECT stack_id, SUM(value) AS stack_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state = (SELECT state FROM params)
    GROUP BY stack_id
),
by_location AS (
    SELECT leaf_location_id, SUM(value) AS location_value
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state = (SELECT state FROM params)
    GROUP BY leaf_location_id
),
innermost AS (
    SELECT f.function, SUM(b.location_value) AS self_value
    FROM by_location b
    JOIN innermost_functions f ON f.location_id = b.leaf_location_id
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
hit_stacks AS (
    SELECT DISTINCT f.stack_id
    FROM stack_frames f
    JOIN target t ON t.target_name = f.function
),
ordered AS (
    SELECT f.stack_id, f.function, b.stack_value,
           MAX(f.function) OVER (
               PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth
               ROWS BETWEEN 1 FOLLOWING AND 1 FOLLOWING
           ) AS caller,
           MAX(f.module) OVER (
               PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth
               ROWS BETWEEN 1 FOLLOWING AND 1 FOLLOWING
           ) AS caller_module,
           MAX(f.function) OVER (
               PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth
               ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING
           ) AS callee,
           MAX(f.module) OVER (
               PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth
               ROWS BETWEEN 1 PRECEDING AND 1 PRECEDING
           ) AS callee_module
    FROM stack_frames f
    JOIN hit_stacks h ON h.stack_id = f.stack_id
    JOIN by_stack b ON b.stack_id = f.stack_id
),
relations AS (
    SELECT 'caller' AS relation UNION ALL SELECT 'callee' AS relation
),
pairs AS (
    SELECT r.relation, o.stack_id, o.stack_value,
           CASE WHEN r.relation = 'caller' THEN COALESCE(o.caller, '(none)')
                ELSE COALESCE(o.callee, '(self)') END AS neighbour,
           CASE WHEN r.relation = 'caller' THEN COALESCE(o.caller_module, '')
                ELSE COALESCE(o.callee_module, '') END AS neighbour_module
    FROM ordered o
    JOIN target t ON t.target_name = o.function
    CROSS JOIN relations r
),
once AS (
    SELECT relation, neighbour, neighbour_module, stack_id, MAX(stack_value) AS one_value
    FROM pairs
    GROUP BY relation, neighbour, neighbour_module, stack_id
)
SELECT t.target_name AS function, o.relation, o.neighbour, o.neighbour_module,
       SUM(o.one_value) AS shared_value
FROM once o
CROSS JOIN target t
GROUP BY t.target_name, o.relation, o.neighbour, o.neighbour_module
ORDER BY o.relation DESC, SUM(o.one_value) DESC, o.neighbour, o.neighbour_module
LIMIT 100
