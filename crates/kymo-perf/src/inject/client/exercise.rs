//! Any bytes as what an agent says: for the fuzz target, and for its corpus in tests.
use super::*;
use kymo_core::probe::wire::ProbeKind;
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};

/// Nothing is waited for: whatever the agent says is there before it is asked.
const EXERCISE_TIMEOUT: Duration = Duration::from_secs(2);
/// As much as a socket surely holds.
const MOST_PACKETS: usize = 64;

pub(super) fn wanted(id: u32) -> ProbeSpec {
    let (offset, size_bytes, room_bytes, inside_bytes, semaphore) = (0, 0, 0, 0, 0);
    let (kind, action_id) = (ProbeKind::Count, 0);
    ProbeSpec { id, offset, size_bytes, room_bytes, inside_bytes, semaphore, kind, action_id }
}

/// Two ends of a connection.
pub(super) fn pair() -> (OwnedFd, OwnedFd) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    pair.expect("descriptors")
}

/// Asks an agent everything that there is to ask, of which it has said all answers in advance:
/// packets of these bytes, each after its length in two
/// bytes. The first byte says whether it is greeted, or is taken for one that was.
#[allow(unreachable_pub, reason = "the fuzz target calls it")]
pub fn exercise(said: &[u8]) {
    let Some((greets, mut rest)) = said.split_first() else { return };
    let (ours, its) = pair();
    for _ in 0..MOST_PACKETS {
        let [low, high, more @ ..] = rest else { break };
        let bytes = usize::from(u16::from_le_bytes([*low, *high])).min(more.len());
        let (packet, after) = more.split_at(bytes);
        if send(&its, packet, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).is_err() {
            break;
        }
        rest = after;
    }
    _ = shutdown(&its, Shutdown::Write);
    let client = Client { patience: EXERCISE_TIMEOUT, ..Client::new(ours, None) };
    let client = match greets % 2 {
        0 => client.hello(false).and_then(Client::holds),
        _ => {
            let counters = SharedCounters::create(1, 1, 4096).ok();
            Ok(Client { cpus: 1, counters, ..client })
        }
    };
    let client = match client {
        Ok(client) => client,
        Err(refusal) => return assert!(is_shown(&refusal.to_string())),
    };
    if let Err(broken) = ask_everything(&client) {
        assert!(is_shown(&broken.to_string()), "{broken:?}");
    }
    _ = client.leave();
}

/// Whether nothing in it steers a terminal.
pub(super) fn is_shown(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

/// In the order in which it is done, as far as it is answered.
pub(super) fn ask_everything(client: &Client) -> Result<(), ProtocolError> {
    client.define_action(1, ProbeAction::default())?;
    client.time_holds()?;
    client.add(b"/lib/x.so", &[wanted(1), wanted(2), wanted(3)])?;
    let outcome = client.commit()?;
    assert!(outcome.refused.len() <= 3, "each is refused once");
    assert!(outcome.refused.iter().all(|(_, reason)| is_shown(reason)));
    assert!(client.counts().len() <= 3, "of those that there are");
    assert_eq!(client.rings(4096, 1, 0)?.len(), client.cpus as usize);
    assert!(client.losses()?.len() <= MOST_ANSWERS);
    assert!(client.callers()?.len() <= MOST_CALLERS);
    assert!(client.list()?.len() <= MOST_ANSWERS);
    client.remove(&[1])?;
    client.commit()?;
    assert!(client.refused_later().iter().all(|(_, reason)| is_shown(reason)));
    _ = (client.lock_holds(), client.counts(), client.is_over(), client.cleaned_up());
    Ok(())
}
