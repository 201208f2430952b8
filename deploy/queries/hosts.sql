-- What does each host contribute? Minutes with samples, how many, and how busy its CPUs were.
--
-- A host with fewer minutes than its neighbours was away, or its profiler was.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '0000-00-00' AS first_day, '9999-99-99' AS last_day
),
by_minute AS (
    SELECT host_id, host, kernel, cpus, rate_hz, DATE_TRUNC('minute', time) AS minute_of,
           SUM(samples) AS minute_samples,
           SUM(CASE WHEN value_unit = 'ns' THEN value ELSE 0 END) AS minute_ns
    FROM samples_by_host
    WHERE state = 'on-cpu'
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY host_id, host, kernel, cpus, rate_hz, DATE_TRUNC('minute', time)
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
