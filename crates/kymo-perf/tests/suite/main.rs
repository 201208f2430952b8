//! Tests of kymo-perf against the machine they run on.

mod against_perf;
mod cgroup;
mod unprivileged;
