//! Tests of following on the kernel that runs.
use super::*;

/// Checks that every program in every variant passes this kernel's verifier and can be attached.
#[test]
fn verified() {
    if let Err(reason) = Follower::available() {
        eprintln!("SKIPPED verified: {reason}");
        return;
    }
    for attachment in [Attachment::Raw, Attachment::Tracepoint] {
        for by_thread in [false, true] {
            for who in [
                Follow::Processes(&[1]),
                Follow::Command(1),
                Follow::Threads { ids: &[1], children: true },
                Follow::Threads { ids: &[1], children: false },
            ] {
                let options = Options { attachment: Some(attachment), by_thread, entries: None };
                let follower = Follower::start_with(who, &options)
                    .unwrap_or_else(|e| panic!("{options:?} {who:?}: {e}"));
                assert!(follower.followed().unwrap().iter().any(|&(id, _)| id == 1));
            }
        }
    }
}
