//! The thread that takes up CPUs which come back while a recording runs.
//!
//! It opens their events anew, tells the drains, and marks in the recording from when to when each
//! CPU was not observed ([`kymo_perf::hotplug`] says how it learns of them).
use crate::channel::{Sender, timespec};
use crate::opening::Opened;
use crate::options::RecordingClock;
use crate::shared::{DrainShared, Message};
use kymo_data::Mark;
use kymo_perf::event_clock::EventClock;
use kymo_perf::hotplug::{CpuFollower, CpuGap, CpuWatch};
use kymo_perf::sys::ANY;
use rustix::event::{PollFd, PollFlags, poll};
use std::sync::atomic::Ordering;

/// The thread is called so, and renames itself so to learn the time.
const THREAD_NAME: &std::ffi::CStr = c"cpus";

/// What follows the CPUs of a recording.
pub(crate) struct CpuRecorder<'a> {
    opened: &'a Opened,
    follower: CpuFollower,
    marks: Sender<Message>,
}

impl<'a> CpuRecorder<'a> {
    /// `None` where the events are bound to no CPU.
    pub(crate) fn new(opened: &'a Opened, marks: Sender<Message>) -> Option<CpuRecorder<'a>> {
        let cpus = opened.events.cpus();
        if cpus == [ANY] {
            return None;
        }
        let cpus: Vec<u32> = cpus.into_iter().filter_map(|cpu| cpu.try_into().ok()).collect();
        let only = !opened.plan.options.targets.cpus.is_empty();
        Some(CpuRecorder { opened, follower: CpuFollower::begin(&cpus, only), marks })
    }

    /// Until the recording ends. Returns the gaps.
    pub(crate) fn run(mut self, shared: &DrainShared) -> Vec<CpuGap> {
        let _ = rustix::thread::set_name(THREAD_NAME);
        let id = self.opened.plan.options.clock.map(RecordingClock::id);
        // Opened when a CPU goes, which hardly ever happens.
        let mut clock: Option<Option<EventClock>> = None;
        // Where the time cannot be told it is 0, and the gap is known all the same.
        let mut now_ns = || {
            let clock = clock.get_or_insert_with(|| EventClock::new(id));
            clock.as_mut().and_then(EventClock::now).map_or(0, |pair| pair.recording_ns)
        };
        let mut all = Vec::new();
        // Acquire: pairs with the Release of whoever ends the recording.
        while !shared.stop.load(Ordering::Acquire) {
            let opened = self.opened;
            let gaps = self.follower.follow(&mut now_ns, &mut |cpu| reopen(opened, cpu, shared));
            gaps.iter().for_each(|gap| self.marks.send_blocking(Message::Note(record(gap))));
            all.extend(gaps);
            let mut polled = vec![PollFd::new(shared.stop_notifier.fd(), PollFlags::IN)];
            let messages = self.follower.fd();
            polled.extend(messages.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let _ = poll(&mut polled, Some(&timespec(CpuWatch::INTERVAL)));
        }
        let CpuRecorder { follower, mut marks, .. } = self;
        let lasting = follower.finish(&mut now_ns);
        for gap in &lasting {
            marks.send_blocking(Message::Note(record(gap)));
        }
        all.extend(lasting);
        all
    }
}

fn record(gap: &CpuGap) -> Vec<u8> {
    Mark::CpuGap { cpu: gap.cpu, start_ns: gap.start_ns, end_ns: gap.end_ns }.record()
}

/// Opens a CPU's events anew, with all that they had.
fn reopen(opened: &Opened, cpu: u32, shared: &DrainShared) -> Result<bool, String> {
    let number = i32::try_from(cpu).unwrap_or(ANY);
    let reopened = opened.events.reopen(number, &mut |ids| shared.aliases.add(ids));
    if !reopened.map_err(|error| error.to_string())? {
        return Ok(false);
    }
    if let Err(error) = opened.observer.bind_cpu(&opened.events, number) {
        tracing::debug!(%error, cpu, "Python's frames are not walked there any more");
    }
    // The drains poll the new events, and move back to their CPUs.
    shared.returned_cpus.fetch_add(1, Ordering::Release);
    Ok(true)
}
