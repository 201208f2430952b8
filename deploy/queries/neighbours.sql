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
innermost AS (
    SELECT f.function, SUM(b.stack_value) AS self_value
    FROM by_stack b
    JOIN stack_frames f ON f.stack_id = b.stack_id
    WHERE f.depth = 0 AND f.inline_depth = 0
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
positions AS (
    SELECT f.stack_id, f.function, f.module, b.stack_value,
           ROW_NUMBER() OVER (
               PARTITION BY f.stack_id ORDER BY f.depth, f.inline_depth
           ) AS position
    FROM stack_frames f
    JOIN by_stack b ON b.stack_id = f.stack_id
),
hits AS (
    SELECT p.stack_id, p.position, p.stack_value
    FROM positions p
    JOIN target t ON t.target_name = p.function
),
pairs AS (
    SELECT 'caller' AS relation, h.stack_id, h.stack_value,
           COALESCE(n.function, '(none)') AS neighbour, COALESCE(n.module, '') AS neighbour_module
    FROM hits h
    LEFT JOIN positions n ON n.stack_id = h.stack_id AND n.position = h.position + 1
    UNION ALL
    SELECT 'callee' AS relation, h.stack_id, h.stack_value,
           COALESCE(n.function, '(self)') AS neighbour, COALESCE(n.module, '') AS neighbour_module
    FROM hits h
    LEFT JOIN positions n ON n.stack_id = h.stack_id AND n.position = h.position - 1
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
