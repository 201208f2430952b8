//! Executes the commands of the control channel.
use super::{Command, ControlChannel, Detail};
use kymo_perf::evlist::{Evlist, Request};
use std::fmt::Write as _;
use std::io;

/// How far commands were obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Execution {
    /// All that have arrived.
    All,
    /// The recording is to end.
    Stop,
    /// A snapshot is wanted, and to be acknowledged when it is there; the commands behind it come
    /// after that.
    UpToSnapshot,
}

/// Does all commands that have arrived and acknowledges each. `snapshots`: another file can be
/// begun.
pub(crate) fn execute(channel: &mut ControlChannel, events: &Evlist, snapshots: bool) -> Execution {
    channel.read();
    while let Some(command) = channel.next() {
        match &command {
            Command::Ping | Command::Stop => {}
            Command::Enable(name) => {
                let done = match name {
                    Some(name) => events.switch(name, true),
                    None => events.enable(false).map(|()| events.events.len()),
                };
                report(channel, "enable", name.as_deref(), done);
            }
            Command::Disable(name) => {
                let done = match name {
                    Some(name) => events.switch(name, false),
                    None => events.pause().map(|()| events.events.len()),
                };
                report(channel, "disable", name.as_deref(), done);
                let off = |event: &Request| name.as_deref().is_none_or(|name| name == event.name);
                let tracks = |event: &Request| event.attr.mmap() == 1 && !event.immediate && off(event);
                if events.events.iter().any(|event| tracks(&event.request)) {
                    channel.note(
                        "programs and libraries that are mapped while events are off will have no names; with --delay they will",
                    );
                }
            }
            Command::Snapshot if snapshots => return Execution::UpToSnapshot,
            Command::Snapshot => {
                channel.note(
                    "no snapshot: this recording writes everything as it comes into one file; --overwrite keeps the latest for snapshots, and with --switch-output a snapshot begins another file",
                );
            }
            Command::Evlist(detail) => lines(events, *detail).iter().for_each(|line| channel.list(line)),
        }
        channel.ack();
        if command == Command::Stop {
            return Execution::Stop;
        }
    }
    Execution::All
}

fn report(channel: &mut ControlChannel, verb: &str, name: Option<&str>, done: io::Result<usize>) {
    let what = name.map_or("events".to_owned(), |name| format!("event {}", name.escape_debug()));
    channel.note(&match done {
        Ok(0) => format!("there is no {what} to {verb}; `evlist` lists them"),
        Ok(_) => format!("{what} {verb}d"),
        Err(error) => format!("failed to {verb} {what}: {error}"),
    });
}

/// The events, one per line.
fn lines(events: &Evlist, detail: Detail) -> Vec<String> {
    let requests: Vec<&Request> = events.events.iter().map(|event| &event.request).collect();
    let of = |leader: usize| requests.iter().filter(move |request| request.leader == Some(leader));
    let each = requests.iter().enumerate().map(|(index, request)| match detail {
        Detail::Names => request.name.clone(),
        Detail::Rates => format!("{}: {}", request.name, rate(request)),
        Detail::Attrs => attr(request),
        Detail::Groups if request.leader.is_some() => String::new(),
        Detail::Groups => {
            let members: Vec<&str> = of(index).map(|member| member.name.as_str()).collect();
            if members.is_empty() {
                request.name.clone()
            } else {
                format!("{{{},{}}}", request.name, members.join(","))
            }
        }
    });
    each.filter(|line| !line.is_empty()).collect()
}

fn rate(request: &Request) -> String {
    let attr = &request.attr;
    let what = if attr.freq() == 1 { "sample_freq" } else { "sample_period" };
    format!("{what}={}", attr.sample_period)
}

/// The parts of an attr that are not zero.
fn attr(request: &Request) -> String {
    let attr = &request.attr;
    let rate = rate(request).replace('=', ": ");
    let mut text = format!("{}: type: {}, config: {:#x}, {rate}", request.name, attr.type_, attr.config);
    let mut add = |name: &str, value: u64| {
        if value != 0 {
            let _ = write!(text, ", {name}: {value:#x}");
        }
    };
    add("config1", attr.config1);
    add("config2", attr.config2);
    add("sample_type", attr.sample_type);
    add("read_format", attr.read_format);
    add("sample_stack_user", attr.sample_stack_user.into());
    let flags = [
        ("disabled", attr.disabled()),
        ("inherit", attr.inherit()),
        ("pinned", attr.pinned()),
        ("exclusive", attr.exclusive()),
        ("exclude_user", attr.exclude_user()),
        ("exclude_kernel", attr.exclude_kernel()),
        ("exclude_hv", attr.exclude_hv()),
        ("mmap", attr.mmap()),
        ("comm", attr.comm()),
        ("enable_on_exec", attr.enable_on_exec()),
        ("task", attr.task()),
        ("precise_ip", attr.precise_ip()),
        ("mmap_data", attr.mmap_data()),
        ("sample_id_all", attr.sample_id_all()),
        ("exclude_guest", attr.exclude_guest()),
        ("mmap2", attr.mmap2()),
        ("use_clockid", attr.use_clockid()),
        ("context_switch", attr.context_switch()),
    ];
    for (name, value) in flags.into_iter().filter(|&(_, value)| value != 0) {
        let _ = write!(text, ", {name}: {value}");
    }
    text
}
