-- Three views that the queries use, for every engine. Files of several hosts repeat stacks, frames
-- and hosts: the views remove the duplicates.

-- The functions at each location: inline_depth 0 is the innermost of those that the compiler has
-- inlined there. A function without a name yet is shown as its module, in brackets. With
-- leaf_location_id of samples and inline_depth 0 it tells who took the time, without a look at the
-- stacks.
CREATE VIEW location_functions AS
SELECT n.location_id AS location_id, n.inline_depth AS inline_depth,
       CASE WHEN n.known_name IS NOT NULL THEN n.known_name
            WHEN n.known_module LIKE '[%' THEN n.known_module
            ELSE '[' || n.known_module || ']' END AS function,
       n.known_module AS module
FROM (
    SELECT location_id, inline_depth, MAX(function) AS known_name, MAX(module) AS known_module
    FROM frames
    GROUP BY location_id, inline_depth
) n;

-- The functions of each stack. depth 0 is the innermost frame. The names are made after the join:
-- what is joined as a text holds on to all texts of the other side in some engines.
CREATE VIEW stack_frames AS
SELECT s.stack_id, s.depth, n.inline_depth, s.location_id AS location_id,
       CASE WHEN n.known_name IS NOT NULL THEN n.known_name
            WHEN n.known_module LIKE '[%' THEN n.known_module
            ELSE '[' || n.known_module || ']' END AS function,
       n.known_module AS module
FROM (SELECT DISTINCT stack_id, depth, location_id FROM stacks) s
JOIN (
    SELECT location_id, inline_depth, MAX(function) AS known_name, MAX(module) AS known_module
    FROM frames
    GROUP BY location_id, inline_depth
) n ON n.location_id = s.location_id;

-- The samples with the names and the CPUs of their hosts.
CREATE VIEW samples_by_host AS
SELECT s.time, s.day, s.service, s.host_id AS host_id, h.host, h.kernel, h.arch, h.cpus, h.rate_hz,
       s.pid, s.tid, s.command, s.container, s.pod, s.systemd_unit,
       s.event, s.value_unit, s.state, s.stack_id, s.value, s.samples, s.leaf_location_id,
       s.waker
FROM samples s
JOIN (
    SELECT host_id, MAX(host) AS host, MAX(kernel) AS kernel, MAX(arch) AS arch,
           MAX(cpus) AS cpus, MAX(rate_hz) AS rate_hz
    FROM hosts
    GROUP BY host_id
) h ON h.host_id = s.host_id;
