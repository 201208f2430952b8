//! What of a report is not as the program's own account has it.

use serde_json::Value;

use super::account::{Account, Recorded};

/// Sums may differ by a fiftieth, longest waits by a twentieth; what the program does between its
/// clock and the wait is less than this.
const SUM_PART: u64 = 50;
const LONGEST_PART: u64 = 20;
const BESIDE_NS: u64 = 2_000_000;

/// The time, the longest wait and the number of waits of the places that a filter leaves.
struct Places {
    ns: u64,
    longest: u64,
    waits: u64,
}

fn places(report: &Value, filter: impl Fn(&Value) -> bool) -> Places {
    let list = report["places"].as_array().expect("a list").iter().filter(|place| filter(place));
    let mut sum = Places { ns: 0, longest: 0, waits: 0 };
    for place in list {
        let number = |key: &str| place[key].as_u64().expect("a number");
        sum.ns += number("time_ns");
        sum.longest = sum.longest.max(number("longest_ns"));
        sum.waits += number("waits");
    }
    sum
}

fn is_in(place: &Value, function: &str) -> bool {
    let functions = place["functions"].as_array().expect("a list").iter().filter_map(Value::as_str);
    // Some have a package before them, or marks and a file around them: `JS:~reads FILE:5:1`.
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    functions.flat_map(|name| name.split(move |c| !is_word(c))).any(|word| word == function)
}

/// Places of threads whose names begin so, of functions that have no names.
fn of_threads(report: &Value, names: &str, state: &str) -> u64 {
    let threads = report["threads"].as_array().expect("a list").iter();
    let of = threads.filter(|thread| thread["name"].as_str().is_some_and(|name| name.starts_with(names)));
    of.filter_map(|thread| thread["states"].get(state)?.as_u64()).sum()
}

/// The same of an account of threads, not of functions.
fn differences_of_threads(account: &Account, report: &Value) -> Vec<String> {
    let Account { state, function: names, ns: own, .. } = account;
    let of = |state: &str| of_threads(report, names, state);
    let (waited, ready, ran) = (of(state), of("runnable"), of("running"));
    let mut found = Vec::new();
    if waited > own + own / SUM_PART + BESIDE_NS {
        found.push(format!("{names} {state}: {waited} ns, their own sum is {own}"));
    }
    if waited + ready + ran + BESIDE_NS + own / SUM_PART < *own {
        found.push(format!("{names} {state}: {waited} ns, ready {ready}, their own sum is {own}"));
    }
    found
}

fn of_state(report: &Value, state: &str) -> u64 {
    report["states"].get(state).and_then(Value::as_u64).unwrap_or(0)
}

/// What of a report is not as the program has it: sentences.
pub(super) fn differences(account: &Account, recorded: &Recorded, report: &Value) -> Vec<String> {
    let has_no_runtime = recorded.has_no_runtime;
    let mut found = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            found.push(format!("{} in {}: {what}", account.state, account.function));
        }
    };
    if account.is_of_threads {
        return differences_of_threads(account, report);
    }
    let here = |place: &Value| is_in(place, &account.function);
    let waited = places(report, |place| here(place) && place["state"] == *account.state);
    let ready = places(report, |place| here(place) && place["state"] == "runnable");
    // A thread of Go that has waited in the kernel waits for its scheduler, too, by its own clock.
    let of_scheduler = if recorded.is_go { of_state(report, "condition") } else { 0 };
    let (own, beside) = (account.ns, BESIDE_NS + of_state(report, "running") + of_scheduler);
    // A thread that has waited wants its mutex, and that of its interpreter.
    let locked = match &*account.state {
        "lock" => 0,
        _ => places(report, |place| here(place) && place["state"] == "lock").ns,
    };
    let whole = waited.ns + locked + ready.ns + beside + own / SUM_PART;
    check(waited.ns <= own + own / SUM_PART, format!("{} ns, its own sum is {own}", waited.ns));
    check(locked <= waited.ns, format!("{} ns, but {locked} ns are called lock", waited.ns));
    check(whole >= own, format!("{} ns and ready {}, its own sum is {own}", waited.ns, ready.ns));
    let own = account.longest;
    check(
        waited.longest <= own + own / LONGEST_PART,
        format!("the longest is {} ns, its own {own}", waited.longest),
    );
    let least = account.least - account.least / LONGEST_PART;
    check(waited.longest >= least, format!("the longest is {} ns, that took {least}", waited.longest));
    // A thread that is kept from its CPU as it begins to sleep may never wait.
    let most = account.waits + account.waits / 2 + 3;
    let is_counted = waited.waits <= most && waited.waits * 10 >= account.waits * 7;
    check(
        !has_no_runtime || account.state != "timer" || is_counted,
        format!("{} waits, not {}", waited.waits, account.waits),
    );
    // Runtimes take locks of their own in the same functions.
    let wrong_states: &[&str] = if has_no_runtime {
        &["lock", "unknown", "other", "running", "child", "stopped"]
    } else {
        &["unknown", "other", "running", "stopped"]
    };
    for state in wrong_states {
        let wrong = places(report, |place| here(place) && place["state"] == **state);
        let most = match has_no_runtime && *state == "lock" {
            // What a thread has waited for the mutex it has not waited on the condition.
            true if account.has_mutex() => (account.ns + account.ns / SUM_PART).saturating_sub(waited.ns),
            true => 0,
            false => account.ns / SUM_PART,
        };
        check(*state == account.state || wrong.ns <= most, format!("{} ns are called {state}", wrong.ns));
    }
    let idle = places(report, |place| here(place) && place["idle"] == true);
    check(account.may_be_idle() || idle.ns == 0, format!("{} ns are called idle", idle.ns));
    found
}

/// What of a whole report cannot be, whatever the program.
pub(super) fn impossible(recorded: &Recorded, report: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let total = report["total_ns"].as_u64().expect("a number");
    let unknown = of_state(report, "unknown");
    if unknown > total / SUM_PART {
        found.push(format!("{unknown} of {total} ns are unknown: {:#}", report["states"]));
    }
    // Threads that fork at once wait for each other: the C library holds its own locks meanwhile.
    let wants = |account: &Account| ["lock", "child"].contains(&&*account.state) || account.has_mutex();
    let wants_locks = recorded.accounts.iter().any(wants);
    // Runtimes have locks of their own. A program in C has those that it makes, and the kernel's:
    // that of its memory, where threads come and go; `start` is its function that makes them.
    let of_memory = ["__madvise", "__mmap", "mmap", "__munmap", "munmap", "__mprotect", "clone3", "start"];
    let is_of_memory = |place: &Value| of_memory.iter().any(|name| is_in(place, name));
    let is_unwanted = |place: &Value| place["state"] == "lock" && !is_of_memory(place);
    let locks = places(report, is_unwanted).ns;
    if !wants_locks && recorded.has_no_runtime && locks > total / 500 {
        let list = report["places"].as_array().into_iter().flatten();
        let unwanted: Vec<&Value> = list.filter(|place| is_unwanted(place)).collect();
        found.push(format!("{locks} ns are called lock: {unwanted:#?}"));
    }
    // Of children the program knows no CPU time.
    let has_children = recorded.accounts.iter().any(|account| account.state == "child");
    let (ran, own) = (of_state(report, "running"), recorded.ran_ns.filter(|_| !has_children));
    // A thread that was ready counts as running where the kernel has left out that it got a CPU.
    let longest_ready = places(report, |place| place["state"] == "runnable").longest;
    let unseen_ns = recorded.unseen.saturating_mul(longest_ready);
    if own.is_some_and(|own| ran > own + own / 10 + 20_000_000 + unseen_ns) {
        found.push(format!("{ran} ns are called running, its own CPU time is {own:?}"));
    }
    found
}
