//! Agents that do not listen, talk without end, or say what nobody asked.
use super::exercise::{pair, wanted};
use super::*;
use kymo_core::probe::wire::{self, ProbeSlots};
use rustix::net::{Shutdown, shutdown};

/// A client that soon loses patience, and who answers it. Nobody here says when something is to
/// happen, only that it ends.
fn impatient() -> (Client, OwnedFd) {
    let (ours, its) = pair();
    (Client { patience: Duration::from_millis(100), ..Client::new(ours, None) }, its)
}

fn tell(socket: &OwnedFd, reply: &Reply) -> bool {
    send(socket, &reply.encode(), SendFlags::NOSIGNAL).is_ok()
}

fn refused(id: u32) -> Reply {
    Reply::Refused { id, reason: "odd".to_owned() }
}

/// Checks that who does not listen is not waited for for ever.
#[test]
fn deaf() {
    let (client, _its) = impatient();
    let many = vec![wanted(1); 100 * MOST_ENTRIES];
    assert!(matches!(client.add(b"/lib/x.so", &many), Err(ProtocolError::Silent)));
}

/// Checks that who talks without end and without an answer is not listened to for ever, and that
/// what is refused many times is refused once.
#[test]
fn endless() {
    let (client, its) = impatient();
    client.add(b"/lib/x.so", &[wanted(1)]).unwrap();
    assert!(tell(&its, &refused(1)));
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| while tell(&its, &refused(1)) {});
        let outcome = client.commit();
        shutdown(&client.socket, Shutdown::Both).unwrap();
        outcome
    });
    assert!(matches!(outcome, Err(ProtocolError::Silent)));
    assert_eq!(client.refused_later(), [(1, "odd".to_owned())]);
}

/// Checks that probes which nobody has added are neither refused nor placed.
#[test]
fn unknown_probes() {
    let placed = |id| Reply::Placed { of: vec![ProbeSlots { id, hits: 0, before: 0, times: None }] };
    for (reply, known) in [(refused(7), false), (placed(7), false), (refused(1), true), (placed(1), true)] {
        let (client, its) = impatient();
        client.add(b"/lib/x.so", &[wanted(1)]).unwrap();
        assert!(tell(&its, &reply) && tell(&its, &Reply::Armed { armed: 0, stopped_ns: 0 }));
        let outcome = client.commit();
        assert_eq!(outcome.is_ok(), known, "{reply:?}");
        assert!(known || matches!(outcome, Err(ProtocolError::Unexpected)));
    }
}

/// Checks that threads are not held for one question without end, and that lists end, too.
#[test]
fn too_much() {
    let places = wire::PatchSites {
        thread: 1,
        sites_at: 0,
        sites: 0,
        moves_at: 0,
        moves: 0,
        restorers: vec![],
        edits_at: 0,
        edits: 0,
    };
    let ready = Reply::Ready(places);
    let (mut client, its) = impatient();
    client.patience = ANSWER_TIMEOUT;
    for _ in 0..=MOST_HOLDS {
        assert!(tell(&its, &ready));
    }
    assert!(matches!(client.commit(), Err(ProtocolError::Unexpected)));
    let (mut client, its) = impatient();
    client.patience = ANSWER_TIMEOUT;
    let some = Reply::Losses { of: vec![HitCount { id: 1, hits: 1 }; MOST_ENTRIES], last: false };
    let losses = std::thread::scope(|scope| {
        scope.spawn(|| while tell(&its, &some) {});
        let losses = client.losses();
        shutdown(&client.socket, Shutdown::Both).unwrap();
        losses
    });
    assert!(matches!(losses, Err(ProtocolError::Failed(_))));
}
