//! A library to preload that probes every function of a program's modules while the program does
//! its work. `bench/everything.py` runs it over a table of programs; by hand:
//!
//! ```text
//! cargo build -p kymo-agent --example everything
//! LD_PRELOAD=target/debug/examples/libeverything.so KYMO_EVERYTHING=libpython3 KYMO_EVERYTHING_DO=returns python3 -m test test_dict
//! ```
//!
//! | variable | meaning |
//! |---|---|
//! | `KYMO_EVERYTHING` | parts of modules' paths, divided by commas; nothing happens without it |
//! | `KYMO_EVERYTHING_DO` | `count` (what it is without), `returns`, `latency`, `record`, or `mixed` |
//! | `KYMO_EVERYTHING_HOW` | `all`: every function before `main`, for good; `each`: one group after another, first those that the folder's reports do not tell of; `random` (what it is without): all, and random parts come and go; `stop`: nothing is probed any more when `main` begins |
//! | `KYMO_EVERYTHING_GROUP` | functions in a group of `each` |
//! | `KYMO_EVERYTHING_SEED` | a number: what comes and goes at random is another for each, and for each process |
//! | `KYMO_EVERYTHING_PART` | `100-200`: some of the functions only, to find the one at which a program goes wrong |
//! | `KYMO_EVERYTHING_REPORT` | a folder in which each process writes what was done, into a file with its number (`report.rs`) |
//! | `KYMO_EVERYTHING_ONLY` | programs that the process starts are left alone |
//! | `KYMO_EVERYTHING_STOP` | the process stops itself (SIGSTOP) before `main` and when it ends, for another counter to begin and to be read |
//! | `KYMO_EVERYTHING_SAY` | the report goes to stderr, too, every two seconds |
//!
//! The program must not notice: a crash or another output is a fault of the patcher.
#[cfg(target_arch = "x86_64")]
mod functions;
#[cfg(target_arch = "x86_64")]
mod report;
#[cfg(target_arch = "x86_64")]
mod work;

#[cfg(target_arch = "x86_64")]
extern "C" fn begin() {
    work::begin();
}

#[cfg(target_arch = "x86_64")]
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = begin;
