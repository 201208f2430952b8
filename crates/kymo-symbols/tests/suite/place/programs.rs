//! Programs that tell where their own variables are: the judge of every answer.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use kymo_symbols::SymbolOptions;
use kymo_symbols::place::{self, Mapping, Module, ModuleFile, ResolveError, Target, Watch};

use crate::tools::run;

pub(super) const C: &str = r#"
#include <stdio.h>
#include <stdint.h>
#include <stdatomic.h>
#include <unistd.h>
#include <stddef.h>
struct opaque;
typedef struct node { struct node *next; int value; char name[16]; } node_t;
enum mode { IDLE, BUSY = 5, BROKEN = -1 };
union word { uint64_t all; struct { uint32_t low, high; }; uint8_t bytes[8]; };
struct packed { char tag; uint32_t number; } __attribute__((packed));
struct flags { unsigned a : 3; unsigned b : 5; int c : 9; unsigned long long wide : 40; };
struct outer {
    int first;
    struct { int inner; union { long deep; double real; }; };
    node_t nodes[3];
    const volatile enum mode mode;
    struct packed packed;
    struct flags flags;
    void (*call)(int);
    struct opaque *hidden;
};
int counter = 1;
static long own = 2;
const int constant = 3;
volatile double real = 0.5;
_Atomic unsigned atomic_count = 7;
enum mode mode = BUSY;
union word word;
int grid[3][4][5];
node_t chain[3];
node_t *head = &chain[0];
node_t **head_pointer = &head;
node_t *nothing;
void *untyped = &counter;
struct outer outer;
struct outer *outer_pointer = &outer;
char text[32] = "text";
char *words[4] = { "a", "b", "c", "d" };
typedef int row_t[4];
row_t rows[2];
struct { int x; } unnamed;
_Bool flag = 1;
__thread int per_thread = 4;
extern long shared_name;
extern struct opaque *opaque_pointer;
int *numbers;
static int storage[8];
int calls(int n) { static int counter = 10; static struct node local; local.value = counter; counter += n; return counter + local.value; }
int other(int n) { static int counter = 20; counter += n; return counter; }
int locals(int n) { volatile int only_local = n; return only_local + 1; }
#define AT(e) printf("%s %#lx %zu\n", #e, (unsigned long)(uintptr_t)&(e), sizeof(e))
#define AS(name, e) printf("%s %#lx %zu\n", name, (unsigned long)(uintptr_t)&(e), sizeof(e))
int main(void) {
    chain[0].next = &chain[1]; chain[1].next = &chain[2]; chain[2].value = 9;
    numbers = storage; outer.hidden = opaque_pointer;
    own += calls(1) + other(2) + locals(3) + per_thread + constant + (int)real + shared_name;
    AT(counter); AS("main.c:own", own); AT(constant); AT(real); AT(atomic_count); AT(mode); AT(word); AT(word.high); AT(word.bytes[3]);
    AT(grid); AT(grid[2]); AT(grid[2][3]); AT(grid[2][3][4]); AT(chain[1].name[5]); AT(head); AT(head->next); AT(head->next->next->value);
    AT(*head); AT((*head).value); AT(**head_pointer); AT((*head_pointer)->name); AT(outer.inner); AT(outer.deep); AT(outer.real);
    AT(outer.nodes[2].value); AT(outer.mode); AT(outer.packed); AT(outer.call); AT(outer_pointer->nodes[1].next); AT(text); AT(text[7]);
    AT(words[2]); AT(*words[2]); AT(rows[1][2]); AT(unnamed.x); AT(flag); AT(numbers[3]); AT(*numbers); AT(shared_name); AT(outer.packed.number); AT(chain->value);
    printf("ready\n"); fflush(stdout);
    char c; return (int)read(0, &c, 1);
}
"#;

pub(super) const C_OTHER: &str = r#"
#include <stddef.h>
struct opaque { long before; int inside[4]; };
static struct opaque the_one = { 5, { 1, 2, 3, 4 } };
struct opaque *opaque_pointer = &the_one;
static long own = 8;
static int twice = 1;
long shared_name = 77;
long use_other(void) { return own + twice + the_one.before; }
"#;

pub(super) const C_THIRD: &str = "static int twice = 2; int *use_third(void) { return &twice; }\n";

pub(super) const CXX: &str = r#"
#include <cstdio>
#include <cstdint>
#include <atomic>
#include <vector>
#include <array>
#include <memory>
#include <string>
#include <unistd.h>
namespace ns {
enum class Color : unsigned char { Red, Green = 7 };
struct Base { int id = 1; virtual ~Base() {} };
struct Left : virtual Base { long left = 2; };
struct Right : virtual Base { long right = 3; };
struct Both : Left, Right { Color color = Color::Green; static int made; int plain = 4; };
int Both::made = 5;
template <class T> struct Box { T content; static T last; struct Inner { T deep; } inner; };
template <class T> T Box<T>::last = T();
namespace inner { int value = 6; }
namespace { int hidden = 7; }
inline namespace v1 { int versioned = 8; }
class Pool { public: static int &instances() { static int count = 9; return count; } private: static long limit; long used = 0; friend int main(); };
long Pool::limit = 10;
Pool pool;
}
template struct ns::Box<int>;
template struct ns::Box<double>;
ns::Both both;
ns::Base *base = &both;
ns::Both *derived = &both;
ns::Box<int> box;
std::atomic<long> atomic_long{11};
std::vector<ns::Box<int>> vec(4);
std::array<int, 6> arr{};
std::unique_ptr<ns::Both> unique{new ns::Both};
int referred = 12;
int &reference = referred;
int const volatile qualified = 13;
int ns::Both::*member = &ns::Both::plain;
bool truth = true;
static ns::Color color = ns::Color::Green;
int overloaded(int n) { static int count = 1; return count += n; }
int overloaded(long n) { static int count = 2; return count += (int)n; }
#define AT(e) std::printf("%s %#lx %zu\n", #e, (unsigned long)(uintptr_t)&(e), sizeof(e))
#define AS(name, e) std::printf("%s %#lx %zu\n", name, (unsigned long)(uintptr_t)&(e), sizeof(e))
int main() {
    overloaded(1); overloaded(1L); ns::hidden += (int)color;
    AT(both); AT(both.left); AT(both.right); AT(both.color); AT(both.plain); AT(ns::Both::made); AS("Both::made", ns::Both::made);
    AT(both.id); AT(derived->id); AT(base->id); AT(ns::Box<int>::last); AT(ns::Box<double>::last); AT(box.content); AT(box.inner.deep);
    AT(ns::inner::value); AS("inner::value", ns::inner::value); AS("ns::value", ns::inner::value); AT(ns::hidden); AS("ns::(anonymous namespace)::hidden", ns::hidden);
    AT(ns::versioned); AT(ns::Pool::limit); AT(ns::pool.used); AS("ns::Pool::instances::count", ns::Pool::instances());
    AT(atomic_long); AT(vec[2].inner.deep); AS("vec[3]", vec[3]); AT(arr[5]); AT(unique->plain); AS("*unique", *unique);
    AT(reference); AT(qualified); AT(truth); AT(color); AT(referred);
    std::printf("ready\n"); std::fflush(stdout);
    char c; return (int)read(0, &c, 1);
}
"#;

pub(super) const RUST: &str = r#"
use std::cell::Cell;
use std::io::{Read, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
pub mod inner {
    pub struct Node { pub next: Option<Box<Node>>, pub value: u32, pub pair: (u8, i64) }
    pub static mut HEAD: Option<Box<Node>> = None;
    pub static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(3);
    pub struct Pool;
    impl Pool { #[inline(never)] pub fn get(n: u64) -> u64 { static MADE: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        super::at("inner::Pool::get::MADE", &MADE); super::at("get::MADE", &MADE); MADE.fetch_add(n, std::sync::atomic::Ordering::Relaxed) } }
}
#[repr(C)] pub struct Plain { pub tag: u8, pub number: u32 }
pub enum State { Idle, Busy(u32), Done { code: i64, name: String } }
#[derive(Clone, Copy)] pub enum Mode { Off, Slow = 7, Fast }
pub struct Wrapper<T>(pub T, pub u16);
static mut STATE: State = State::Idle;
static mut MODE: Mode = Mode::Slow;
static mut TABLE: [[u16; 4]; 3] = [[1; 4]; 3];
static LOCKED: Mutex<(u32, bool)> = Mutex::new((1, true));
static mut VEC: Vec<Plain> = Vec::new();
static mut NAME: &str = "abc";
static mut SLICE: &[u32] = &[1, 2, 3];
static FLAG: AtomicBool = AtomicBool::new(false);
static mut ARC: Option<Arc<inner::Node>> = None;
static mut COUNTED: Option<Rc<inner::Node>> = None;
static mut BOXED: Option<Box<[u64]>> = None;
static mut WRAPPED: Wrapper<i32> = Wrapper(1, 2);
static mut REF: &Plain = &Plain { tag: 1, number: 2 };
static mut LETTER: char = 'x';
static mut RAW: *const Plain = std::ptr::null();
thread_local! { static PER_THREAD: Cell<u32> = const { Cell::new(1) }; }
#[inline(never)] fn work(n: u64) -> u64 {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    at("CALLS", &CALLS); at("work::CALLS", &CALLS); at("places::work::CALLS", &CALLS);
    CALLS.fetch_add(n, Ordering::Relaxed) + inner::COUNT.fetch_add(1, Ordering::Relaxed)
}
// SAFETY: of at(): a place that is there; of main(): one thread.
fn at<T: ?Sized>(name: &str, place: *const T) where *const T: std::fmt::Pointer { unsafe { println!("{name} {:#x} {}", place as *const () as usize, size_of_val(&*place)) } }
fn main() { unsafe {
    let leaf = inner::Node { next: None, value: 2, pair: (1, 2) };
    inner::HEAD = Some(Box::new(inner::Node { next: Some(Box::new(leaf)), value: 1, pair: (3, 4) }));
    VEC = vec![Plain { tag: 1, number: 2 }, Plain { tag: 3, number: 4 }];
    NAME = "xyz"; TABLE[1][2] = 7; MODE = Mode::Fast; SLICE = &[4, 5, 6];
    STATE = State::Busy(5); STATE = State::Done { code: 4, name: "x".into() };
    ARC = Some(Arc::new(inner::Node { next: None, value: 9, pair: (0, 0) }));
    COUNTED = Some(Rc::new(inner::Node { next: None, value: 8, pair: (0, 0) })); std::hint::black_box(&raw const COUNTED);
    BOXED = Some(vec![1u64, 2, 3].into_boxed_slice());
    PER_THREAD.with(|t| t.set(work(3) as u32 + inner::Pool::get(1) as u32));
    FLAG.store(true, Ordering::Relaxed); LOCKED.lock().unwrap().0 = 5; WRAPPED.1 = 9; LETTER = 'é';
    RAW = &raw const VEC[1];
    println!("kept {:?} {:?}", Rc::new(1), std::hint::black_box(&raw const BOXED)); println!("{}", match STATE { State::Done { code, .. } => code, State::Busy(n) => n as i64, State::Idle => 0 });
    at("inner::HEAD", &raw const inner::HEAD); at("HEAD", &raw const inner::HEAD); at("places::inner::HEAD", &raw const inner::HEAD);
    let head: *const inner::Node = &**inner::HEAD.as_ref().unwrap();
    at("HEAD.Some.0.value", &raw const (*head).value); at("HEAD.0.value", &raw const (*head).value); at("*HEAD.Some.0", head);
    at("HEAD.0.pair.1", &raw const (*head).pair.1); at("HEAD.0->pair.0", &raw const (*head).pair.0);
    let next: *const inner::Node = &**(*head).next.as_ref().unwrap();
    at("HEAD.0.next.0.value", &raw const (*next).value);
    at("COUNT", &inner::COUNT); at("inner::COUNT", &inner::COUNT);
    at("STATE", &raw const STATE); if let State::Done { code, name } = &*(&raw const STATE) { at("STATE.code", code); at("STATE.Done.code", code); at("STATE.Done.name", name); }
    at("MODE", &raw const MODE); at("TABLE", &raw const TABLE); at("TABLE[1]", &raw const TABLE[1]); at("TABLE[1][2]", &raw const TABLE[1][2]);
    at("LOCKED", &LOCKED); { let guard = LOCKED.lock().unwrap(); at("LOCKED.data.value.0", &guard.0); at("LOCKED.data.value.1", &guard.1); }
    at("VEC", &raw const VEC); at("VEC[1]", &raw const VEC[1]); at("VEC[1].number", &raw const VEC[1].number);
    at("NAME", &raw const NAME); at("SLICE", &raw const SLICE); at("SLICE[2]", &raw const SLICE[2]); at("NAME[1]", &NAME.as_bytes()[1]);
    at("FLAG", &FLAG); at("BOXED.0[2]", &raw const BOXED.as_ref().unwrap()[2]);
    let shared: *const inner::Node = &**ARC.as_ref().unwrap();
    at("ARC.0.data.value", &raw const (*shared).value); at("ARC.0.value", &raw const (*shared).value); at("ARC.0->pair.1", &raw const (*shared).pair.1); at("*ARC.0", shared);
    at("COUNTED.0.value", &raw const COUNTED.as_ref().unwrap().value);
    at("WRAPPED.0", &raw const WRAPPED.0); at("WRAPPED.1", &raw const WRAPPED.1); at("*REF", REF); at("REF.number", &raw const REF.number); at("REF", &raw const REF);
    at("LETTER", &raw const LETTER); at("RAW->number", &raw const (*RAW).number); at("(*RAW).tag", &raw const (*RAW).tag);
    println!("ready"); std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read(&mut [0u8]);
} }
"#;

/// A program that waits, with what it said about its variables.
pub(super) struct Running {
    child: Child,
    /// Expression, address, size.
    pub(super) places: Vec<(String, u64, u64)>,
    modules: Vec<Module>,
}

impl Running {
    /// Starts a program and reads until it is ready.
    pub(super) fn start(program: &Path) -> Running {
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut places = Vec::new();
        for line in BufReader::new(child.stdout.take().expect("its output")).lines() {
            let line = line.expect("a line");
            if line == "ready" {
                break;
            }
            let mut words = line.rsplitn(3, ' ');
            if let (Some(size), Some(address), Some(name)) = (words.next(), words.next(), words.next())
                && let (Ok(size), Some(Ok(address))) =
                    (size.parse(), address.strip_prefix("0x").map(|hex| u64::from_str_radix(hex, 16)))
            {
                places.push((name.to_owned(), address, size));
            }
        }
        let mappings = mappings_of(&format!("/proc/{}/maps", child.id()));
        let program = program.canonicalize().expect("the program");
        let open = |mapping: &Mapping| {
            let path: &Path = &mapping.path;
            // Libraries of the system only slow the search down.
            let is_ours = path == program || path.starts_with(program.parent()?);
            is_ours.then(|| ModuleFile::open(path, path, &SymbolOptions::default()).ok().map(Arc::new))?
        };
        let modules = place::modules_of(&mappings, Some(&program), open);
        Running { child, places, modules }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resolves in the running program.
    pub(super) fn resolve(&self, text: &str) -> Result<Watch, ResolveError> {
        let path = format!("/proc/{}/mem", self.child.id());
        let memory = |avma: u64, bytes: &mut [u8]| {
            use std::os::unix::fs::FileExt;
            std::fs::File::open(&path)?.read_exact_at(bytes, avma)
        };
        let request = place::parse(text).unwrap_or_else(|error| panic!("{error}"));
        place::resolve(&request, &Target { modules: self.modules.clone(), memory: &memory })
    }

    /// The bytes at a watch, as it would print them.
    pub(super) fn value(&self, watch: &Watch) -> String {
        use std::os::unix::fs::FileExt;
        let mut bytes = vec![0; watch.len_bytes as usize];
        let memory = std::fs::File::open(format!("/proc/{}/mem", self.child.id())).expect("its memory");
        memory.read_exact_at(&mut bytes, watch.avma).expect("readable");
        watch.value.show(&bytes)
    }

    /// Every expression that the program told about resolves to its address and its size.
    pub(super) fn check_places(&self, what: &str) {
        assert!(self.places.len() > 20, "{what}: the program told about {} places", self.places.len());
        let mut wrong = Vec::new();
        for (text, address, size) in &self.places {
            match self.resolve(text) {
                Ok(watch) if (watch.avma, watch.len_bytes) == (*address, *size) => {}
                Ok(watch) => wrong.push(format!(
                    "{text}: {:#x} of {} bytes, the program says {address:#x} of {size}",
                    watch.avma, watch.len_bytes
                )),
                Err(error) => wrong.push(format!("{text}: {error}")),
            }
        }
        assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The mappings of files that a `maps` file lists.
pub(super) fn mappings_of(maps: &str) -> Vec<Mapping> {
    let text = std::fs::read_to_string(maps).expect("the mappings");
    let hex = |word: &str| u64::from_str_radix(word, 16).expect("a number");
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next()?.split_once('-')?;
            let offset = words.nth(1)?;
            let path = words.nth(2)?;
            Some(Mapping { range: hex(start)..hex(end), offset: hex(offset), path: PathBuf::from(path) })
        })
        .collect()
}

/// Compiles the three C files with flags.
pub(super) fn build_c(dir: &Path, name: &str, flags: &[&str]) -> PathBuf {
    for (file, text) in [("main.c", C), ("other.c", C_OTHER), ("third.c", C_THIRD)] {
        std::fs::write(dir.join(file), text).expect("the source");
    }
    let mut arguments = vec!["main.c", "other.c", "third.c", "-o", name];
    arguments.extend_from_slice(flags);
    run(dir, "cc", &arguments);
    dir.join(name)
}
