-- The stacks as flame graphs take them: functions from the outermost to the innermost, with
-- semicolons between them, and the sum of their values.
--
-- Stacks of more than 48 functions are cut at their inner end. `--csv` and a space instead of the
-- last comma make the folded text that flame graph programs read.
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
levels AS (
    SELECT f.stack_id, b.stack_value, f.function,
           ROW_NUMBER() OVER (
               PARTITION BY f.stack_id ORDER BY f.depth DESC, f.inline_depth DESC
           ) AS level
    FROM stack_frames f
    JOIN by_stack b ON b.stack_id = f.stack_id
),
columns_of_levels AS (
    SELECT stack_id, MAX(stack_value) AS one_value,
           MAX(CASE WHEN level = 1 THEN function END) AS f1,
           MAX(CASE WHEN level = 2 THEN function END) AS f2,
           MAX(CASE WHEN level = 3 THEN function END) AS f3,
           MAX(CASE WHEN level = 4 THEN function END) AS f4,
           MAX(CASE WHEN level = 5 THEN function END) AS f5,
           MAX(CASE WHEN level = 6 THEN function END) AS f6,
           MAX(CASE WHEN level = 7 THEN function END) AS f7,
           MAX(CASE WHEN level = 8 THEN function END) AS f8,
           MAX(CASE WHEN level = 9 THEN function END) AS f9,
           MAX(CASE WHEN level = 10 THEN function END) AS f10,
           MAX(CASE WHEN level = 11 THEN function END) AS f11,
           MAX(CASE WHEN level = 12 THEN function END) AS f12,
           MAX(CASE WHEN level = 13 THEN function END) AS f13,
           MAX(CASE WHEN level = 14 THEN function END) AS f14,
           MAX(CASE WHEN level = 15 THEN function END) AS f15,
           MAX(CASE WHEN level = 16 THEN function END) AS f16,
           MAX(CASE WHEN level = 17 THEN function END) AS f17,
           MAX(CASE WHEN level = 18 THEN function END) AS f18,
           MAX(CASE WHEN level = 19 THEN function END) AS f19,
           MAX(CASE WHEN level = 20 THEN function END) AS f20,
           MAX(CASE WHEN level = 21 THEN function END) AS f21,
           MAX(CASE WHEN level = 22 THEN function END) AS f22,
           MAX(CASE WHEN level = 23 THEN function END) AS f23,
           MAX(CASE WHEN level = 24 THEN function END) AS f24,
           MAX(CASE WHEN level = 25 THEN function END) AS f25,
           MAX(CASE WHEN level = 26 THEN function END) AS f26,
           MAX(CASE WHEN level = 27 THEN function END) AS f27,
           MAX(CASE WHEN level = 28 THEN function END) AS f28,
           MAX(CASE WHEN level = 29 THEN function END) AS f29,
           MAX(CASE WHEN level = 30 THEN function END) AS f30,
           MAX(CASE WHEN level = 31 THEN function END) AS f31,
           MAX(CASE WHEN level = 32 THEN function END) AS f32,
           MAX(CASE WHEN level = 33 THEN function END) AS f33,
           MAX(CASE WHEN level = 34 THEN function END) AS f34,
           MAX(CASE WHEN level = 35 THEN function END) AS f35,
           MAX(CASE WHEN level = 36 THEN function END) AS f36,
           MAX(CASE WHEN level = 37 THEN function END) AS f37,
           MAX(CASE WHEN level = 38 THEN function END) AS f38,
           MAX(CASE WHEN level = 39 THEN function END) AS f39,
           MAX(CASE WHEN level = 40 THEN function END) AS f40,
           MAX(CASE WHEN level = 41 THEN function END) AS f41,
           MAX(CASE WHEN level = 42 THEN function END) AS f42,
           MAX(CASE WHEN level = 43 THEN function END) AS f43,
           MAX(CASE WHEN level = 44 THEN function END) AS f44,
           MAX(CASE WHEN level = 45 THEN function END) AS f45,
           MAX(CASE WHEN level = 46 THEN function END) AS f46,
           MAX(CASE WHEN level = 47 THEN function END) AS f47,
           MAX(CASE WHEN level = 48 THEN function END) AS f48
    FROM levels
    WHERE level <= 48
    GROUP BY stack_id
),
folded AS (
    SELECT COALESCE(f1, '')
               || COALESCE(';' || f2, '')
               || COALESCE(';' || f3, '')
               || COALESCE(';' || f4, '')
               || COALESCE(';' || f5, '')
               || COALESCE(';' || f6, '')
               || COALESCE(';' || f7, '')
               || COALESCE(';' || f8, '')
               || COALESCE(';' || f9, '')
               || COALESCE(';' || f10, '')
               || COALESCE(';' || f11, '')
               || COALESCE(';' || f12, '')
               || COALESCE(';' || f13, '')
               || COALESCE(';' || f14, '')
               || COALESCE(';' || f15, '')
               || COALESCE(';' || f16, '')
               || COALESCE(';' || f17, '')
               || COALESCE(';' || f18, '')
               || COALESCE(';' || f19, '')
               || COALESCE(';' || f20, '')
               || COALESCE(';' || f21, '')
               || COALESCE(';' || f22, '')
               || COALESCE(';' || f23, '')
               || COALESCE(';' || f24, '')
               || COALESCE(';' || f25, '')
               || COALESCE(';' || f26, '')
               || COALESCE(';' || f27, '')
               || COALESCE(';' || f28, '')
               || COALESCE(';' || f29, '')
               || COALESCE(';' || f30, '')
               || COALESCE(';' || f31, '')
               || COALESCE(';' || f32, '')
               || COALESCE(';' || f33, '')
               || COALESCE(';' || f34, '')
               || COALESCE(';' || f35, '')
               || COALESCE(';' || f36, '')
               || COALESCE(';' || f37, '')
               || COALESCE(';' || f38, '')
               || COALESCE(';' || f39, '')
               || COALESCE(';' || f40, '')
               || COALESCE(';' || f41, '')
               || COALESCE(';' || f42, '')
               || COALESCE(';' || f43, '')
               || COALESCE(';' || f44, '')
               || COALESCE(';' || f45, '')
               || COALESCE(';' || f46, '')
               || COALESCE(';' || f47, '')
               || COALESCE(';' || f48, '') AS stack,
           one_value
    FROM columns_of_levels
)
SELECT stack, SUM(one_value) AS stack_sum
FROM folded
GROUP BY stack
ORDER BY stack
