//! The programs in the machine of the tests: events of the scheduler in, records out.
use super::model::{ModelTimes, SchedEvent};
use super::programs::{self, CALL_REGISTER, COUNTS, LOST, MISSED, TaskAccess, Thresholds, WaitMaps, entry};
use super::{ThreadState, WaitKind, WaitRecord, entry_of, untold};
use crate::bpf::interpreter::BpfMachine;
use crate::bpf::program::{CLONE_THREAD, Program};
use crate::bpf::types::Member;
use std::collections::BTreeMap;

/// The numbers of the maps.
const MAPS: WaitMaps = WaitMaps {
    threads: 1,
    switch_scratch: 2,
    waking_scratch: 3,
    events: 4,
    counts: 5,
    followed: None,
    tasks: TaskAccess::Loads,
};

/// Threads wait in so many calls.
const CALLS: i64 = 5;

/// Programs, maps and tasks.
pub(super) struct Emulated {
    pub(super) machine: BpfMachine,
    switch: Program,
    /// Where the kernel has a tracepoint behind the switch.
    switched: Option<Program>,
    waking: Program,
    new: Program,
    exec: Program,
    /// Where the task of each thread is.
    tasks: BTreeMap<i32, u64>,
    /// The process of each thread.
    processes: BTreeMap<i32, i32>,
    /// The registers of threads in each system call.
    registers: Vec<u64>,
}

impl Emulated {
    /// `directly`: records are written at the switch; `most`: threads that have a place.
    pub(super) fn new(
        (thresholds, tasks): (Thresholds, TaskAccess),
        directly: bool,
        most: usize,
        cpus: usize,
    ) -> Emulated {
        let maps = WaitMaps { tasks, ..MAPS };
        let mut machine = BpfMachine::default();
        machine.hash(MAPS.threads, 8, 8 * entry::WORDS, most);
        machine.per_cpu_array(MAPS.switch_scratch, programs::SCRATCH_BYTES, 1, cpus);
        machine.per_cpu_array(MAPS.waking_scratch, programs::SCRATCH_BYTES, 1, cpus);
        machine.events(MAPS.events);
        machine.array(MAPS.counts, 8, COUNTS as usize);
        let in_call = |call: i64| {
            let mut registers = vec![0; 512];
            registers[CALL_REGISTER as usize..][..8].copy_from_slice(&call.to_le_bytes());
            registers
        };
        let registers: Vec<u64> = (0..CALLS).map(|call| machine.memory(in_call(call))).collect();
        machine.registers = registers[0];
        let mut emulated = Emulated {
            machine,
            switch: programs::switch(maps, thresholds, directly),
            switched: (!directly).then(|| programs::switched(maps, None)),
            waking: programs::waking(maps, thresholds),
            new: programs::newtask(maps),
            exec: programs::exec(maps),
            tasks: BTreeMap::new(),
            processes: BTreeMap::new(),
            registers,
        };
        emulated.add(0, 0);
        emulated
    }

    /// A thread has a task, as programs describe one.
    pub(super) fn add(&mut self, pid: i32, tid: i32) {
        let queue = self.machine.memory(vec![0; 64]);
        let mut task = vec![0; 256];
        task[Member::Id.described_offset() as usize..][..4].copy_from_slice(&tid.to_le_bytes());
        task[Member::Queue.described_offset() as usize..][..8].copy_from_slice(&queue.to_le_bytes());
        let at = self.machine.memory(task);
        self.tasks.insert(tid, at);
        self.processes.insert(tid, pid);
    }

    /// A thread takes over the id of its process.
    fn rename(&mut self, old: i32, tid: i32) {
        if old != tid {
            let pid = self.processes.remove(&old).expect("a thread");
            self.add(pid, tid);
        }
    }

    /// The call in which a thread waits that was blocked from this moment on.
    pub(super) fn call_at(since: u64) -> i64 {
        since.cast_signed() % CALLS
    }

    /// The thread that the next programs look at has waited since then.
    pub(super) fn waits_since(&mut self, since: u64) {
        self.machine.registers = self.registers[Emulated::call_at(since) as usize];
    }

    fn run_as(&mut self, cpu: usize, tid: i32) {
        self.machine.cpu = cpu;
        self.machine.current = (self.processes[&tid], tid);
        self.machine.task = self.tasks[&tid];
    }

    fn set_throttled(&mut self, tid: i32, throttled: bool) {
        let task = self.tasks[&tid];
        let queue = self.machine.load(task + Member::Queue.described_offset() as u64, 8);
        self.machine.store(task + Member::Throttled.described_offset() as u64, 1, throttled.into());
        self.machine.store(queue + Member::QueueThrottled.described_offset() as u64, 4, throttled.into());
    }

    /// Runs the program of an event on a CPU, in the thread that has it.
    pub(super) fn apply(&mut self, now: u64, cpu: usize, running: i32, event: SchedEvent) {
        self.machine.now_ns = now;
        match event {
            SchedEvent::Enter { pid, tid, state } => {
                self.add(pid, tid);
                self.enter(now, pid, tid, state);
            }
            SchedEvent::New { pid, tid } => {
                self.add(pid, tid);
                self.run_as(cpu, running);
                let is_thread = self.processes[&running] == pid;
                let flags = if is_thread { CLONE_THREAD as u64 } else { 0 };
                self.machine.run(&self.new, &[self.tasks[&tid], flags]);
            }
            SchedEvent::Switch { prev, task_state, preempted, throttled, next } => {
                self.set_throttled(prev, throttled);
                self.run_as(cpu, prev);
                let context =
                    [u64::from(preempted), self.tasks[&prev], self.tasks[&next], u64::from(task_state)];
                self.machine.run(&self.switch, &context);
            }
            SchedEvent::Waking { waker, tid } => {
                self.run_as(cpu, waker);
                self.machine.run(&self.waking, &[self.tasks[&tid]]);
            }
            SchedEvent::Exec { old, tid } => {
                self.rename(old, tid);
                self.run_as(cpu, tid);
                self.machine.run(&self.exec, &[self.tasks[&tid], u64::from(old.cast_unsigned()), 0]);
            }
        }
    }

    /// What [`super::WaitTracer::enter`] does.
    fn enter(&mut self, now: u64, pid: i32, tid: i32, state: ThreadState) {
        let value = entry_of(pid.cast_unsigned().into(), state, now);
        let value: Vec<u8> = value.iter().flat_map(|word| word.to_ne_bytes()).collect();
        self.machine.update(MAPS.threads, &i64::from(tid).to_ne_bytes(), &value, 1);
    }

    /// What runs behind a switch, in the thread that has the CPU now.
    pub(super) fn behind(&mut self, now: u64, cpu: usize, running: i32) {
        self.machine.now_ns = now;
        self.run_as(cpu, running);
        if let Some(program) = &self.switched {
            self.machine.run(program, &[1, 0]);
        }
    }

    /// Records that were written since the last call, and whether there was room for them.
    pub(super) fn take(&mut self) -> Vec<(WaitRecord, bool)> {
        let parse = |raw: &[u8]| WaitRecord::parse(raw).expect("a record");
        std::mem::take(&mut self.machine.output).iter().map(|it| (parse(&it.raw), it.lost)).collect()
    }

    /// What [`super::WaitTracer::end`] gives.
    pub(super) fn end(&self, now: u64) -> Vec<WaitRecord> {
        let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
        let entries = self.machine.entries(MAPS.threads).into_iter();
        let value = |value: &[u8]| value.chunks_exact(8).map(word).collect::<Vec<_>>();
        entries.filter_map(|(key, bytes)| untold(word(&key), &value(&bytes), now)).collect()
    }

    pub(super) fn missed(&mut self) -> u64 {
        self.machine.word(MAPS.counts, MISSED)
    }

    pub(super) fn lost(&mut self) -> u64 {
        self.machine.word(MAPS.counts, LOST)
    }
}

/// What a record tells. The wait of a record at the end is not over, or none.
pub(super) fn told(record: &WaitRecord) -> ModelTimes {
    let of_wait = u64::from(record.kind == WaitKind::Wait);
    let is_ready = record.task_state & !(1 << 31) == 0;
    ModelTimes {
        run_ns: record.run_ns,
        blocked_ns: record.blocked_ns + record.short.blocked_ns,
        runnable_ns: record.runnable_ns + record.short.runnable_ns,
        waits: record.short.waits + if is_ready { 0 } else { of_wait },
        preemptions: record.short.preemptions + if is_ready { of_wait } else { 0 },
        longest_ns: record.short.longest_ns.max(record.blocked_ns * of_wait),
    }
}
