-- What does each pod, container and systemd unit cost? CPU time, and on how many hosts.
--
-- Counts events whose value is in nanoseconds, as the clocks have it, one of each host.
-- service: one service, or '' for all.
-- event: one event, or '' for that of each host which has most samples: values of two are never
-- added.
-- first_day, last_day: the days that count, both included.
WITH params AS (
    SELECT '' AS service, '' AS event, '0000-00-00' AS first_day, '9999-99-99' AS last_day
),
by_event AS (
    SELECT host_id, event, SUM(samples) AS event_samples
    FROM samples
    WHERE ((SELECT service FROM params) = '' OR service = (SELECT service FROM params))
      AND ((SELECT event FROM params) = '' OR event = (SELECT event FROM params))
      AND state = 'on-cpu'
      AND value_unit = 'ns'
      AND day >= (SELECT first_day FROM params)
      AND day <= (SELECT last_day FROM params)
    GROUP BY host_id, event
),
counted AS (
    SELECT host_id, event
    FROM (
        SELECT host_id, event,
               ROW_NUMBER() OVER (PARTITION BY host_id ORDER BY event_samples DESC, event) AS place
        FROM by_event
    ) ranked
    WHERE place = 1
),
by_unit AS (
    SELECT COALESCE(s.pod, '') AS pod_name, COALESCE(s.container, '') AS container_name,
           COALESCE(s.systemd_unit, '') AS unit_name, s.service AS service,
           COUNT(DISTINCT s.host_id) AS host_count, SUM(s.value) AS cpu_ns
    FROM samples s
    JOIN counted c ON c.host_id = s.host_id AND c.event = s.event
    WHERE ((SELECT service FROM params) = '' OR s.service = (SELECT service FROM params))
      AND s.state = 'on-cpu'
      AND s.value_unit = 'ns'
      AND s.day >= (SELECT first_day FROM params)
      AND s.day <= (SELECT last_day FROM params)
    GROUP BY COALESCE(s.pod, ''), COALESCE(s.container, ''), COALESCE(s.systemd_unit, ''), s.service
)
SELECT pod_name, container_name, unit_name, service, host_count,
       CAST(cpu_ns AS DOUBLE) / 1000000000 AS cpu_seconds,
       100 * CAST(cpu_ns AS DOUBLE) / CAST(SUM(cpu_ns) OVER () AS DOUBLE) AS cpu_percent
FROM by_unit
ORDER BY cpu_ns DESC, pod_name, container_name, unit_name, service
LIMIT 50
