//! Moments in which a thread is where it must not be, made on purpose.
use super::library::Library;
use kymo_agent::patch::{Consumers, attach, detach};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};

/// Checks that a thread in a handler of a signal that interrupted it between two instructions which
/// a patch replaces goes on in the moved copy when the handler returns, be the thread busy or
/// asleep in its handler, with a signal's stack or without.
#[test]
fn a_handler_returns_into_a_patch() {
    let Some(library) = Library::of("hazards::a_handler_returns_into_a_patch", "interrupted.c", &[]) else {
        return;
    };
    let (prepare, wait) = (library.function("prepare"), library.function("wait_there"));
    for how in [0, 1] {
        assert_eq!(prepare(how, libc::SIGUSR1 as u64), 0);
        let (there, tid) = (AtomicU32::new(0), AtomicI32::new(0));
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                tid.store(super::process::own_thread(), Ordering::Relaxed);
                wait(41, there.as_ptr() as u64)
            });
            while there.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            super::process::signal(tid.load(Ordering::Relaxed), libc::SIGUSR1);
            while prepare(3, 0) == 0 {
                std::thread::yield_now();
            }
            let site = library.plan("two_instructions").expect("a plan");
            assert!(!site.is_single_instruction());
            let probes = attach(&[site], Consumers::Count).unwrap_or_else(|error| panic!("{error}"));
            prepare(2, 0);
            // Wakes it, if it sleeps.
            if how == 1 {
                super::process::signal(tid.load(Ordering::Relaxed), super::process::quiet_signal());
            }
            assert_eq!(waits.join().expect("no panic"), 42);
            assert_eq!(probes[0].hits(), 0, "it came in behind the probe");
            assert_eq!(library.function("two_instructions")(1, 0), 2);
            assert_eq!(probes[0].hits(), 1);
            library.take(&probes);
        });
    }
}

/// Checks sites whose bytes lie on two pages, while a thread runs through them.
#[test]
fn a_site_across_pages() {
    let Some(library) = Library::of("hazards::a_site_across_pages", "pages.S", &["-nostdlib"]) else {
        return;
    };
    let names = ["three_bytes_before", "last_byte"];
    let ends = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                for name in names {
                    assert_eq!(library.function(name)(41, 0), 42, "{name}");
                }
            }
        });
        for round in 0..50 {
            let consumers = if round % 2 == 0 { Consumers::Count } else { Consumers::CountReturns };
            let probes = library.put(&names, consumers);
            assert!(probes.iter().all(|probe| probe.address() % 4096 > 4091));
            while probes.iter().any(|probe| probe.hits() == 0) {
                std::thread::yield_now();
            }
            detach(&probes).expect("detached");
        }
        ends.store(true, Ordering::Relaxed);
    });
    library.assert_untouched();
}

/// Checks that probes come and go while another thread loads and unloads a library whose tables
/// lead to functions that the agent stands in for: the loader fills them, makes them read-only and
/// takes them away at any moment.
#[test]
fn libraries_come_while_probes_do() {
    const TEST: &str = "hazards::libraries_come_while_probes_do";
    let Some(library) = Library::of(TEST, "shapes.S", &["-nostdlib", "-Wl,-Bsymbolic"]) else { return };
    let ends = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for options in [["-Wl,-z,relro,-z,now"], ["-Wl,-z,relro,-z,lazy"], ["-Wl,-z,norelro"]] {
                Library::comes_and_goes(TEST, "guarded.c", &options, 400);
            }
            ends.store(1, Ordering::Relaxed);
        });
        while ends.load(Ordering::Relaxed) == 0 {
            detach(&library.put(&["push_first"], Consumers::CountReturns)).expect("detached");
        }
    });
    library.assert_untouched();
}

/// Checks that a child of vfork which changes the handler of traps, in its parent's memory, changes
/// nothing for its parent.
#[test]
fn a_child_of_vfork_changes_handlers() {
    let Some(library) = Library::of("hazards::a_child_of_vfork_changes_handlers", "vforks.c", &[]) else {
        return;
    };
    let probes = library.put(&["probed"], Consumers::Count);
    for how in [0, 1, 2] {
        assert_eq!(library.function("child_changes_traps")(how, 0), 1, "{how}");
    }
    library.take(&probes);
}
