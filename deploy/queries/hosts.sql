-- What does each host contribute? Minutes with samples, how many, and how busy its CPUs were.
--
-- A host with fewer minutes than its neighbours was away, or its profiler was.
-- event: one event, or '' for one of each host, a clock if it has one, and that which has most
-- samples: values of two are never added.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '' AS event, '0000-00-00' AS first_day, '9999-99-99' AS last_day
),
by_event AS (
    SELECT host_id, event, value_unit, SUM(samples) AS event_samples
    FROM samples
    WHERE ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state = 'on-cpu'
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY host_id, event, value_unit
),
counted AS (
    SELECT host_id, event
    FROM (
        SELECT host_id, event,
               ROW_NUMBER() OVER (
                   PARTITION BY host_id
                   ORDER BY CASE WHEN value_unit = 'ns' THEN 0 ELSE 1 END, event_samples DESC, event
               ) AS place
        FROM by_event
    ) ranked
    WHERE place = 1
),
by_minute AS (
    SELECT s.host_id AS host_id, s.host, s.kernel, s.cpus, s.rate_hz,
           DATE_TRUNC('minute', s.time) AS minute_of,
           SUM(s.samples) AS minute_samples,
           SUM(CASE WHEN s.value_unit = 'ns' THEN s.value ELSE 0 END) AS minute_ns
    FROM samples_by_host s
    JOIN counted c ON c.host_id = s.host_id AND c.event = s.event
    WHERE s.state = 'on-cpu'
      AND s.day >= (SELECT first_day FROM params)
      AND s.day <= (SELECT last_day FROM params)
    GROUP BY s.host_id, s.host, s.kernel, s.cpus, s.rate_hz, DATE_TRUNC('minute', s.time)
),
by_host AS (
    SELECT host_id, host, kernel, cpus, rate_hz, COUNT(*) AS minute_count,
           SUM(minute_samples) AS sample_count, SUM(minute_ns) AS cpu_ns
    FROM by_minute
    GROUP BY host_id, host, kernel, cpus, rate_hz
)
SELECT host, kernel, cpus, rate_hz, minute_count, sample_count,
       CAST(cpu_ns AS DOUBLE) / 1000000000 AS cpu_seconds,
       CASE WHEN cpus > 0
           THEN 100 * CAST(cpu_ns AS DOUBLE) / (60000000000 * CAST(minute_count * cpus AS DOUBLE))
           ELSE 0 END AS busy_percent
FROM by_host
ORDER BY host, host_id
