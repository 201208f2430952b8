//! Worker threads that make one list's system calls, from its opening to its closing.
//!
//! ```text
//!   caller:  run(jobs) ----> one queue per worker ----> worker 0  on CPU 0   (its events, for life:
//!            waits  <------- results <----------------- worker 1  on CPU 1    prctl and locality depend on it)
//! ```
//!
//! A job says which worker is to do it. A worker that serves one CPU stays bound to it; one that
//! serves several moves, and goes back when its job is done. Nothing depends on it: where binding
//! is refused, calls are slower and as correct.
use crate::sys::{Binding, Kernel, PriorityBoost};
use std::sync::mpsc::{Sender, channel};

/// Stacks of workers: nothing recurses.
const STACK_BYTES: usize = 256 << 10;

type Job = Box<dyn FnOnce(&mut CpuBinding) + Send>;

/// Where a worker sits.
#[derive(Debug, Default)]
pub(crate) struct CpuBinding {
    before: Option<Binding>,
    cpu: Option<u32>,
}

impl CpuBinding {
    /// Moves to a CPU, if not there yet.
    pub(crate) fn take(&mut self, kernel: &dyn Kernel, cpu: Option<u32>) {
        let Some(cpu) = cpu.filter(|_| self.cpu != cpu) else { return };
        if let Ok(before) = kernel.bind(cpu) {
            self.before.get_or_insert(before);
            self.cpu = Some(cpu);
        }
    }

    /// Goes back to where the thread could run at first.
    pub(crate) fn leave(&mut self, kernel: &dyn Kernel) {
        if let Some(before) = self.before.take() {
            kernel.unbind(&before);
        }
        self.cpu = None;
    }
}

/// The workers. Dropping it ends them; as each job has been waited for, nobody waits for that.
#[derive(Debug)]
pub(crate) struct WorkerPool {
    /// Their queues: a worker ends with its queue.
    workers: Vec<Sender<Job>>,
}

impl WorkerPool {
    /// Starts workers; fewer, perhaps none, if the system refuses more threads.
    pub(crate) fn start(count: usize) -> WorkerPool {
        let mut workers = Vec::with_capacity(count);
        for _ in 0..count {
            let (send, receive) = channel::<Job>();
            let work = move || {
                // What is opened may be thousands of busy threads, among which a worker would wait
                // for seconds.
                let _preferred = PriorityBoost::begin();
                let mut binding = CpuBinding::default();
                while let Ok(job) = receive.recv() {
                    job(&mut binding);
                }
            };
            let thread =
                std::thread::Builder::new().name("kymo-evlist".into()).stack_size(STACK_BYTES).spawn(work);
            match thread {
                Ok(_) => workers.push(send),
                Err(error) => {
                    tracing::debug!(%error, "fewer workers than planned");
                    break;
                }
            }
        }
        WorkerPool { workers }
    }

    /// How many workers there are.
    pub(crate) fn len(&self) -> usize {
        self.workers.len()
    }

    /// Lets worker `i` (modulo their number) do job `i`, and waits for all. The results are in the
    /// order of the jobs.
    ///
    /// # Panics
    /// If a job did.
    pub(crate) fn run<R: Send + 'static>(
        &self,
        jobs: impl IntoIterator<Item = impl FnOnce(&mut CpuBinding) -> R + Send + 'static>,
    ) -> Vec<R> {
        let (send, receive) = channel();
        let mut results: Vec<Option<R>> = Vec::new();
        for (index, job) in jobs.into_iter().enumerate() {
            let send = send.clone();
            let job: Job = Box::new(move |binding| {
                let result = job(binding);
                // Nobody waits any more only if another job panicked.
                let _ = send.send((index, result));
            });
            results.push(None);
            let _ = self.workers[index % self.workers.len()].send(job);
        }
        drop(send);
        for (index, result) in receive {
            results[index] = Some(result);
        }
        results.into_iter().map(|result| result.expect("a worker of the event list panicked")).collect()
    }
}
