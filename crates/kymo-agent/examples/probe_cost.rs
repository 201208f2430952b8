//! What a probe costs: nanoseconds for each hit over the bare call, of the functions that the kernel's own bench uses.
//!
//! ```text
//! cargo run --release -p kymo-agent --example probe_cost [threads]
//! ```
//!
//! `nop`, `push` and `ret` are what the function begins with. All hot code is assembly, so the build profile does not matter. Each figure is the median
//! of rounds in which the bare call and the probed one take turns, as calls per second and CPU, and as the difference, of the time that the threads ran.
#[cfg(not(target_arch = "x86_64"))]
fn main() {
    eprintln!("probes in the program are for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() {
    let threads = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1);
    cost::measure(threads);
}

#[cfg(target_arch = "x86_64")]
mod cost {
    use kymo_agent::patch::{
        Clock, Consumers, Function, OwnMemory, Rings, Surroundings, attach, detach, plan,
    };
    use kymo_core::ring::Reader;
    use std::arch::global_asm;
    use std::sync::Barrier;
    use std::time::Instant;

    global_asm!(
        ".pushsection .text.kymo_bench, \"ax\", @progbits",
        ".globl kymo_bench_nop, kymo_bench_push, kymo_bench_ret, kymo_bench_loop",
        ".hidden kymo_bench_nop, kymo_bench_push, kymo_bench_ret, kymo_bench_loop",
        ".p2align 6",
        "kymo_bench_nop: nop",
        "ret",
        ".p2align 6, 0xcc",
        "kymo_bench_push: push rbp",
        "mov rbp, rsp",
        "pop rbp",
        "ret",
        ".p2align 6, 0xcc",
        "kymo_bench_ret: ret",
        ".p2align 6, 0xcc",
        // rdi: a function, rsi: how often it is called
        "kymo_bench_loop: push rbx",
        "push r12",
        "push r13",
        "mov rbx, rdi",
        "mov r12, rsi",
        ".p2align 4",
        "2: call rbx",
        "dec r12",
        "jnz 2b",
        "pop r13",
        "pop r12",
        "pop rbx",
        "ret",
        ".p2align 6, 0xcc",
        ".popsection",
    );

    unsafe extern "C" {
        fn kymo_bench_nop();
        fn kymo_bench_push();
        fn kymo_bench_ret();
        fn kymo_bench_loop(function: unsafe extern "C" fn(), count: u64);
    }

    const CALLS: u64 = 500_000;
    const ROUNDS: usize = 15;

    /// Nanoseconds of one call, on as many threads at once.
    fn call_ns(function: unsafe extern "C" fn(), threads: usize) -> f64 {
        let start = Barrier::new(threads);
        let one = || {
            start.wait();
            // The thread's own time: on a busy machine it waits for a CPU in between.
            let begin = own_time_ns();
            // SAFETY: functions without arguments, above.
            unsafe { kymo_bench_loop(function, CALLS) };
            (own_time_ns() - begin) / CALLS as f64
        };
        let each: Vec<f64> = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
            all.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        each.iter().sum::<f64>() / threads as f64
    }

    fn own_time_ns() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a timespec, which is ours.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    /// How long an attach takes beside 2,000 threads that wait; none of them is stopped.
    fn crowd() {
        const THREADS: usize = 2000;
        let memory = OwnMemory::open().expect("/proc");
        let start = kymo_bench_push as *const () as u64;
        let site = plan(&memory, &Function { start, bytes: 6, next: start + 64 }, &Surroundings::default());
        let sites = [site.expect("a plan")];
        let (tell, told) = std::sync::mpsc::channel();
        let (mut ends, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..THREADS {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            let tell = tell.clone();
            ends.push(end);
            let thread = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
                let _ = tell.send(());
                let _ = ended.recv();
            });
            threads.push(thread.expect("a thread"));
        }
        for _ in 0..THREADS {
            told.recv().expect("it tells");
        }
        let (mut on, mut off) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            let probes = attach(&sites, Consumers::Count).expect("attached");
            on.push(begin.elapsed().as_secs_f64() * 1000.0);
            let begin = Instant::now();
            detach(&probes).expect("detached");
            off.push(begin.elapsed().as_secs_f64() * 1000.0);
        }
        println!(
            "beside {THREADS} threads that wait: attached in {:.1} ms, detached in {:.1} ms, nobody stopped",
            median(on),
            median(off)
        );
        drop(ends);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }

    pub(crate) fn measure(threads: usize) {
        if threads == 1 {
            crowd();
        }
        let memory = OwnMemory::open().expect("/proc");
        let functions: [(&str, unsafe extern "C" fn(), u64); 3] =
            [("nop", kymo_bench_nop, 2), ("push", kymo_bench_push, 6), ("ret", kymo_bench_ret, 1)];
        // A ring that fills takes nothing more: what is measured is the record, so one that holds a round's.
        let rings = Rings::create(128 << 20, Clock::measured()).expect("rings");
        let engines = [
            ("count", Consumers::Count),
            ("count-return", Consumers::CountReturns),
            ("latency", Consumers::Latency),
            ("record", Consumers::Record(rings.record(1))),
            ("record-args", Consumers::Record(rings.record(1).with_arguments())),
        ];
        for (engine, consumers) in engines {
            for (name, function, bytes) in functions {
                let start = function as *const () as u64;
                let site =
                    plan(&memory, &Function { start, bytes, next: start + 64 }, &Surroundings::default());
                let sites = [site.expect("a plan")];
                let (mut bare, mut probed) = (Vec::new(), Vec::new());
                for _ in 0..ROUNDS {
                    bare.push(call_ns(function, threads));
                    let probes = attach(&sites, consumers).expect("attached");
                    probed.push(call_ns(function, threads));
                    let expected = CALLS * threads as u64;
                    assert_eq!(probes[0].hits(), expected);
                    assert!(probes[0].returns().is_none_or(|returns| returns == expected));
                    assert_eq!(probes[0].lost().unwrap_or(0), 0);
                    for cpu in 0..rings.cpus() {
                        Reader::new(rings.area(cpu)).skip();
                    }
                    detach(&probes).expect("detached");
                }
                let (bare, probed) = (median(bare), median(probed));
                println!(
                    "{engine:>14}-{name:<5} ({threads:2} cpus): {:8.3}M/s ({:8.3}M/s/cpu)  {:6.2} ns, {:+6.2} over the bare call",
                    1000.0 / probed * threads as f64,
                    1000.0 / probed,
                    probed,
                    probed - bare
                );
            }
        }
    }
}
