//! kymo as its users meet it: the built binary, run on real programs, beside perf where there is
//! one.
//!
//! | a new test about | belongs into |
//! |---|---|
//! | perf and kymo reading or writing the same file | `interop.rs`, a recording in `scenario.rs` |
//! | the same with perf of three Debian releases, and every kind of recording | `matrix/`: a kind in `kinds.rs` |
//! | programs that nobody here wrote | `real.rs` |
//! | recordings of other machines | `aarch64.rs` |
//! | what a user has on a machine and tests must not see: caches, settings, plugins | `environment.rs` |
//! | options, exit codes, what is printed where | `cli.rs`; on a terminal: `terminal.rs` |
//! | the pages of options in the book | `reference.rs` |
//! | samples by cgroup, container, unit and pod | `cgroups.rs` |
//! | options of perf that kymo must have an answer to | `perf_options.rs`, the options in `../perf_options/` |
//! | what options of perf make `record` do | `record_options.rs` |
//! | what a run of `record` leaves behind, whatever happens | `record.rs` |
//! | what fails around a recorder: disks, pipes, limits, CPUs, the recorder itself, the programs | `faults/` |
//! | `kymo bench`: that it measures what perf's benchmark does (never how fast) | `bench.rs` |
//! | commands to a recording that runs | `control.rs` |
//! | where recordings and results are written, and what is in the way there; root in another user's folder | `places.rs` |
//! | several files, by signal, time, size or command; snapshots | `switching.rs` |
//! | what `list` and `doctor` say about a machine | `machine.rs` |
//! | options of `report` beside perf's | `report_options.rs` |
//! | options of `script` and `data convert` beside perf's | `script_options.rs` |
//! | scripts in Python: `script -s` | `python_scripts.rs` |
//! | names that earlier reports have found: the symbol cache | `symbol_cache.rs` |
//! | `--json`, `--folded`, `--flamegraph`, `--html`; `kymo export`, `kymo import` | `exports.rs` |
//! | tables for query engines: `export --to parquet`, `symbolize` | `dataset.rs` |
//! | `kymo stat` | `stat.rs`; single options of perf: `stat_options.rs` |
//! | `kymo sched` | `sched/`: beside perf in `beside_perf.rs` |
//! | hidden CPUs, cgroups' memory, filters of system calls, real-time programs | `sandboxes.rs` |
//! | what was lost: `--loss`, and the lines of `--header` | `losses.rs` |
//! | more samples than can be kept: `--overload`, `--max-memory` | `overload.rs` |
//! | perf's small verbs (`evlist`, `buildid-*`, `inject`, ...), and verbs that kymo does not have | `perf_verbs.rs` |
//! | `kymo stat --tasks` | `tasks.rs` |
//! | `kymo probe`, `kymo list --probes`, `-e probe:...` | `probe.rs`, `probe_inside.rs`; arguments by name: `probe_args.rs` |
//! | what a program is like while and after it is probed, whatever becomes of kymo | `probe_lifetimes.rs` |
//! | kymo killed at any moment of whatever it does | `kills.rs` |
//! | recordings that end badly: kymo killed, disks full, files cut | `endings.rs` |
//! | `-p` with children, and by name | `kin.rs` |
//! | servers under load: nginx, PostgreSQL | `servers.rs` |
//! | programs that restrict themselves while they are observed | `sandboxed_targets.rs` |
//! | programs that cannot be entered | `probe_refusals.rs` |
//! | programs that cannot load the agent, and are probed in-process even so | `probe_static.rs` |
//! | kernels that do not let a program write its own code | `probe_unforced.rs` |
//! | `--ret` where stacks are copied by what is loaded late, handlers are left, calls are deep | `timed_calls.rs` |
//! | callers where tables are missing, compressed, elsewhere or of no use | `callers.rs` |
//! | programs that walk, copy or switch their own stacks | `runtimes.rs` |
//! | names of code that programs make while they run | `generated_code.rs` |
//! | names and build ids of files that move, vanish, are replaced, or lie in other roots | `mapped_files.rs` |
//! | Python's functions in call chains | `python.rs` |
//! | what others can put in kymo's way: libraries, names, programs that lie or are mute | `trust.rs` |
//! | `kymo watch` | `watch.rs` |
//! | where threads wait: `--wall` | `wall.rs`, `wall_idle.rs`; their sums: `wall_sums.rs` |
//! | waits against programs' own accounts of them | `waits_truth/` |
//! | contended locks: `kymo locks` | `locks.rs`; how long they are held: `lock_holds.rs` |
//! | questions about a recording: `kymo query` | `query.rs` |
//! | two builds compared: `kymo diff` | `diff.rs` |
//! | the page in a browser: `kymo view` | `view.rs`; what its user does there: `page.rs` |
//! | queries by the Model Context Protocol: `kymo mcp` | `mcp/`, which `make test-mcp` runs |
//! | instructions and source lines: `kymo annotate` | `annotate.rs` |
//! | `kymo report` as a browser in the terminal | `browser.rs`, through `at_terminal.rs` |
//! | `kymo diff` as a browser in the terminal | `browser_diff.rs` |
//! | `kymo top` | `top.rs` |
//! | files that are damaged or no recordings | `damaged.rs` |
//! | recordings of other machines, guests, rebuilt programs | `foreign.rs` |
//! | files and names that cost their readers: holes, compression, endless debug information | `bombs/` |
//! | the programs of `fixtures/programs` | `fixtures.rs`; any test builds them through `programs.rs`, one for itself alone through `copied.rs` |
//!
//! A test that cannot run here says so through `tools::skip`.

mod aarch64;
mod annotate;
mod at_terminal;
mod bench;
mod bombs;
mod browser;
mod browser_diff;
mod callers;
mod cgroups;
mod cli;
mod control;
mod copied;
mod damaged;
mod dataset;
mod debuginfod;
mod diff;
mod endings;
mod environment;
mod exports;
mod faults;
mod fixtures;
mod foreign;
mod generated_code;
mod interop;
mod kills;
mod kin;
mod launched;
mod lock_holds;
mod locks;
mod losses;
mod machine;
mod mapped_files;
mod matrix;
mod mcp;
mod mem_events;
mod overload;
mod page;
mod perf_options;
mod perf_verbs;
mod places;
mod probe;
mod probe_args;
mod probe_foreign;
mod probe_inside;
mod probe_lifetimes;
mod probe_refusals;
mod probe_signals;
mod probe_static;
mod probe_static_events;
mod probe_unforced;
mod programs;
mod python;
mod python_scripts;
mod query;
mod real;
mod record;
mod record_options;
mod reference;
mod report_options;
mod runtimes;
mod sandboxed_targets;
mod sandboxes;
mod scenario;
mod sched;
mod scopes;
mod script_options;
mod servers;
mod stacks;
mod stat;
mod stat_options;
mod switching;
mod symbol_cache;
mod table;
mod tasks;
mod terminal;
mod thread_stacks;
mod timed_calls;
mod tools;
mod top;
mod tree;
mod trust;
mod uprobes_of_others;
mod view;
mod waits_truth;
mod wall;
mod wall_idle;
mod wall_sums;
mod watch;
mod watch_finds;
