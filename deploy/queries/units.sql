-- What does each pod, container and systemd unit cost? CPU time, and on how many hosts.
--
-- Counts events whose value is in nanoseconds, as the clocks have it.
-- service: one service, or '' for all.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '' AS service, '0000-00-00' AS first_day, '9999-99-99' AS last_day
),
by_unit AS (
    SELECT COALESCE(pod, '') AS pod_name, COALESCE(container, '') AS container_name,
           COALESCE(systemd_unit, '') AS unit_name, service,
           COUNT(DISTINCT host_id) AS host_count, SUM(value) AS cpu_ns
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND state = 'on-cpu'
      AND value_unit = 'ns'
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY COALESCE(pod, ''), COALESCE(container, ''), COALESCE(systemd_unit, ''), service
)
SELECT pod_name, container_name, unit_name, service, host_count,
       CAST(cpu_ns AS DOUBLE) / 1000000000 AS cpu_seconds,
       100 * CAST(cpu_ns AS DOUBLE) / CAST(SUM(cpu_ns) OVER () AS DOUBLE) AS cpu_percent
FROM by_unit
ORDER BY cpu_ns DESC, pod_name, container_name, unit_name, service
LIMIT 50
