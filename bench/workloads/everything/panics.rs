//! Rust that departs from plain calls and returns: panics through many frames that are caught, resumed on another thread, and dropped through;
//! an executor of futures that wait for one another, on one thread and on several. Prints one line for each, always the same.
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};

thread_local! {
    static DROPPED: RefCell<u64> = const { RefCell::new(0) };
}

struct Guard(u64);

impl Drop for Guard {
    fn drop(&mut self) {
        DROPPED.with_borrow_mut(|dropped| *dropped += self.0);
    }
}

fn dropped() -> u64 {
    DROPPED.with_borrow(|dropped| *dropped)
}

#[inline(never)]
fn deep(depth: u64, number: u64) -> u64 {
    let guard = Guard(depth);
    let text = format!("{depth}-{number}");
    if depth == 0 {
        assert!(number % 2 == 0, "{number} is odd");
        return text.len() as u64;
    }
    let below = deep(depth - 1, number);
    below + guard.0 + text.len() as u64
}

/// Panics and catches while another panic passes.
struct Busy(u64);

impl Drop for Busy {
    fn drop(&mut self) {
        if catch_unwind(AssertUnwindSafe(|| deep(3, self.0 | 1))).is_err() {
            DROPPED.with_borrow_mut(|dropped| *dropped += 1000);
        }
    }
}

fn panics(rounds: u64) -> u64 {
    let mut sum = 0;
    for n in 0..rounds {
        sum += match catch_unwind(|| deep(n % 40, n)) {
            Ok(value) => value,
            Err(payload) => payload.downcast_ref::<String>().map_or(7, |text| text.len() as u64),
        };
    }
    sum
}

fn resumed(rounds: u64) -> u64 {
    let mut sum = 0;
    for n in 0..rounds {
        let thread = std::thread::spawn(move || deep(n % 20, n));
        let caught = catch_unwind(AssertUnwindSafe(|| match thread.join() {
            Ok(value) => value,
            Err(payload) => resume_unwind(payload),
        }));
        sum += caught.unwrap_or(3);
    }
    sum
}

fn while_passing(rounds: u64) -> u64 {
    let mut sum = 0;
    for n in 0..rounds {
        // A panic while a panic passes ends a program unless it is caught inside: it is.
        let caught = catch_unwind(AssertUnwindSafe(|| {
            let busy = Busy(n);
            deep(2, n) + busy.0
        }));
        sum += caught.unwrap_or(11);
    }
    sum
}

/// A channel of futures, one value at a time.
struct Slot<T>(Mutex<(VecDeque<T>, Vec<Waker>)>);

impl<T> Slot<T> {
    fn new() -> Arc<Slot<T>> {
        Arc::new(Slot(Mutex::new((VecDeque::new(), Vec::new()))))
    }

    fn send(&self, value: T) {
        let mut slot = self.0.lock().expect("no panic inside");
        slot.0.push_back(value);
        for waker in slot.1.drain(..) {
            waker.wake();
        }
    }

    fn receive(self: &Arc<Self>) -> Receive<T> {
        Receive(Arc::clone(self))
    }
}

struct Receive<T>(Arc<Slot<T>>);

impl<T> Future for Receive<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.0.lock().expect("no panic inside");
        match slot.0.pop_front() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.1.push(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

type Task = Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>;

struct Job {
    task: Task,
    queue: mpsc::Sender<Arc<Job>>,
}

impl Wake for Job {
    fn wake(self: Arc<Self>) {
        let _ = self.queue.send(Arc::clone(&self));
    }
}

/// Runs tasks on some threads until all are done.
fn execute(tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>, threads: usize) {
    let (queue, jobs) = mpsc::channel::<Arc<Job>>();
    let left = AtomicU64::new(tasks.len() as u64);
    let jobs = Mutex::new(jobs);
    for task in tasks {
        let job = Arc::new(Job { task: Mutex::new(Some(task)), queue: queue.clone() });
        queue.send(job).expect("a receiver");
    }
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while left.load(Ordering::SeqCst) > 0 {
                    let next = jobs.lock().expect("no panic inside").recv_timeout(std::time::Duration::from_millis(1));
                    let Ok(job) = next else { continue };
                    let waker = Waker::from(Arc::clone(&job));
                    let mut task = job.task.lock().expect("no panic inside");
                    let Some(mut future) = task.take() else { continue };
                    match future.as_mut().poll(&mut Context::from_waker(&waker)) {
                        Poll::Pending => *task = Some(future),
                        Poll::Ready(()) => {
                            left.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
    });
}

async fn step(n: u64) -> u64 {
    if n == 0 { 1 } else { Box::pin(step(n - 1)).await + n }
}

async fn risky(n: u64) -> u64 {
    catch_unwind(AssertUnwindSafe(|| deep(n % 10, n))).unwrap_or(1) + step(n % 12).await
}

fn futures(count: u64, threads: usize) -> u64 {
    let sum = Arc::new(AtomicU64::new(0));
    let slots: Vec<Arc<Slot<u64>>> = (0..count).map(|_| Slot::new()).collect();
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>> = Vec::new();
    for n in 0..count {
        let (own, next) = (Arc::clone(&slots[n as usize]), Arc::clone(&slots[((n + 1) % count) as usize]));
        let sum = Arc::clone(&sum);
        tasks.push(Box::pin(async move {
            if n == 0 {
                next.send(1);
            }
            for _ in 0..5 {
                let value = own.receive().await;
                let more = risky(n).await;
                sum.fetch_add(value % 10 + more, Ordering::SeqCst);
                next.send(value + 1);
            }
        }));
    }
    execute(tasks, threads);
    sum.load(Ordering::SeqCst)
}

fn collections(rounds: u64) -> u64 {
    let mut words: HashMap<String, u64> = HashMap::new();
    let mut order: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for n in 0..rounds {
        let word = format!("{:x}", n.wrapping_mul(2_654_435_761) % 1000);
        *words.entry(word.clone()).or_default() += n;
        order.entry(n % 17).or_default().push(word);
    }
    let mut all: Vec<(String, u64)> = words.into_iter().collect();
    all.sort();
    let hash = |sum: u64, value: u64| sum.wrapping_mul(31).wrapping_add(value);
    all.iter().fold(order.values().map(|list| list.len() as u64).fold(0, hash), |sum, (word, n)| hash(hash(sum, *n), word.len() as u64))
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let times = std::env::args().nth(1).and_then(|times| times.parse().ok()).unwrap_or(1);
    for _ in 0..times {
        println!("panics {} {}", panics(500), dropped());
        println!("resumed {} {}", resumed(20), dropped());
        println!("while passing {} {}", while_passing(100), dropped());
        println!("futures {}", futures(50, 1));
        println!("futures on threads {}", futures(50, 3));
        println!("collections {}", collections(5000));
    }
    println!("end");
}
