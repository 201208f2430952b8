//! Parameters at the entry: registers and loads, held against what the calling convention and the types say.

use std::path::Path;

use kymo_symbols::SymbolOptions;
use kymo_symbols::place::call::{Fetch, Part, Routines, arguments};
use kymo_symbols::place::{ModuleFile, ValueKind};
use kymo_testing::skip;

use crate::tools::{run, workshop};

const C: &str = r#"
#include <stddef.h>
#define OUT __attribute__((noinline, noclone, used)) 
enum color { RED, GREEN = 7 };
struct point { int x, y; };
struct pair { long a; double b; };
struct big { long v[4]; char name[16]; };
struct flags { unsigned low : 3, mid : 5; int high : 8; };
struct node { struct node *next; int value; struct point at; const char *label; struct big big; struct flags flags; short table[4]; };
volatile long sink;
OUT int plain(int a, unsigned char b, long c, const char *d, enum color e, _Bool f, long g, short h) {
    sink += a + b + c + (d != NULL) + e + f + g + h; return a; }
OUT long records(struct point p, struct pair q, struct big r, int last) { sink += p.x + p.y + q.a + (long)q.b + r.v[1] + last; return last; }
OUT struct node *pointers(struct node *n, struct node **nn, void *raw, int (*call)(int), unsigned char *bytes) {
    sink += n->value + (nn != NULL) + (raw != NULL) + (call != NULL) + (bytes != NULL); return n; }
OUT double floats(double x, int n, float y, long double z, int m) { sink += n + m; return x + y + (double)z; }
OUT struct big large(int first, int second) { struct big b = { { first, second } }; return b; }
OUT struct point small(int first) { struct point p = { first, 2 }; return p; }
OUT void wide(__int128 w, int a, int b, int c, __int128 on_stack, int d) { sink += (long)w + a + b + c + (long)on_stack + d; }
OUT void nothing(void) { sink++; }
OUT int variadic(const char *format, ...) { sink++; return format[0]; }
int main(int argc, char **argv) {
    struct point p = { 1, 2 }; struct pair q = { 3, 4 }; struct big r = { { 5 } }; struct node n = { 0 }, *nn = &n;
    (void)argv;
    return plain(argc, 2, 3, "d", GREEN, 1, 7, 8) + (int)records(p, q, r, 4) + (pointers(&n, &nn, 0, 0, 0) != 0) + (int)floats(1, 2, 3, 4, 5)
        + (int)large(1, 2).v[0] + small(3).x + variadic("x") + (wide(1, 2, 3, 4, 5, 6), nothing(), 0);
}
"#;

/// Function, expression, register, steps, bytes, bits, kind; or a part of why not.
type Case = (&'static str, &'static str, Result<&'static str, &'static str>);

const C_CASES: &[Case] = &[
    ("plain", "a", Ok("rdi [] 4 signed")),
    ("plain", "b", Ok("rsi [] 1 unsigned-char")),
    ("plain", "c", Ok("rdx [] 8 signed")),
    ("plain", "d", Ok("rcx [] 8 text+0")),
    ("plain", "*d", Ok("rcx [0] 1 char")),
    ("plain", "d[3]", Ok("rcx [3] 1 char")),
    ("plain", "e", Ok("r8 [] 4 enum")),
    ("plain", "f", Ok("r9 [] 1 bool")),
    ("plain", "g", Ok("rsp [8] 8 signed")),
    ("plain", "h", Ok("rsp [16] 2 signed")),
    ("plain", "ret", Ok("rax [] 4 signed")),
    ("plain", "i", Err("`i` is no parameter of plain; they are a, b, c, d, e, f, g, h")),
    ("plain", "a.x", Err("which has no fields")),
    ("records", "p.x", Ok("rdi [] 4 signed")),
    ("records", "p.y", Ok("rdi [] 8 bits 32+32 signed")),
    ("records", "q.a", Ok("rsi [] 8 signed")),
    ("records", "q.b", Ok("xmm0 [] 8 float")),
    ("records", "r.v[1]", Ok("rsp [16] 8 signed")),
    ("records", "r.v[4]", Err("the array is shorter")),
    ("records", "r.name", Ok("rsp [] 8 text+40")),
    ("records", "last", Ok("rdx [] 4 signed")),
    ("records", "p", Err("`p` is struct point, which is more than a number: name a part of it (x, y)")),
    ("records", "p.z", Err("struct point has no field `z` (x, y)")),
    ("pointers", "n", Ok("rdi [] 8 pointer")),
    ("pointers", "n->value", Ok("rdi [8] 4 signed")),
    ("pointers", "n->next->next->at.y", Ok("rdi [0, 0, 16] 4 signed")),
    ("pointers", "(*n).label", Ok("rdi [24] 8 text+0")),
    ("pointers", "n->big.name", Ok("rdi [] 8 text+64")),
    ("pointers", "n->next->big.name", Ok("rdi [0] 8 text+64")),
    ("pointers", "n->table[2]", Ok("rdi [88] 2 signed")),
    ("pointers", "n->flags.mid", Ok("rdi [80] 1 bits 3+5 unsigned")),
    ("pointers", "n->flags.high", Ok("rdi [81] 1 bits 0+8 signed")),
    ("pointers", "nn[1]->value", Ok("rsi [8, 8] 4 signed")),
    ("pointers", "(**nn).value", Ok("rsi [0, 8] 4 signed")),
    ("pointers", "raw", Ok("rdx [] 8 pointer")),
    ("pointers", "*raw", Err("name what it points at by its fields")),
    ("pointers", "call", Ok("rcx [] 8 pointer")),
    ("pointers", "bytes", Ok("r8 [] 8 pointer")),
    ("pointers", "bytes[2]", Ok("r8 [2] 1 unsigned-char")),
    ("pointers", "ret->next->value", Ok("rax [0, 8] 4 signed")),
    ("floats", "x", Ok("xmm0 [] 8 float")),
    ("floats", "n", Ok("rdi [] 4 signed")),
    ("floats", "y", Ok("xmm1 [] 4 float")),
    ("floats", "m", Ok("rsi [] 4 signed")),
    ("floats", "ret", Ok("xmm0 [] 8 float")),
    ("large", "first", Ok("rsi [] 4 signed")),
    ("large", "ret.v[1]", Ok("rax [8] 8 signed")),
    ("large", "ret.name", Ok("rax [] 8 text+32")),
    ("small", "first", Ok("rdi [] 4 signed")),
    ("small", "ret.y", Ok("rax [] 8 bits 32+32 signed")),
    ("wide", "a", Ok("rdx [] 4 signed")),
    ("wide", "c", Ok("r8 [] 4 signed")),
    ("wide", "d", Ok("r9 [] 4 signed")),
    ("wide", "w", Err("more than a number")),
    ("nothing", "ret", Err("nothing returns nothing")),
    ("nothing", "x", Err("which has none")),
    ("variadic", "format", Ok("rdi [] 8 text+0")),
    ("main", "argv[1]", Ok("rsi [8] 8 text+0")),
];

const CXX: &str = r#"
#include <string>
#include <string_view>
#include <memory>
#define OUT __attribute__((noinline, used))
struct point { int x; int y; long z; };
struct special { int v; special(int n) : v(n) {} special(const special &o) : v(o.v) {} ~special() {} };
struct big { long a[4]; };
struct empty {};
struct shape { virtual ~shape() {} int id = 1; };
struct counter : shape {
    int count = 2;
    OUT int add(int n, point p, special s, big b, const std::string &text, int &r, empty e);
    OUT static int fixed(empty e, std::string by_value, std::string_view view, const std::unique_ptr<point> &smart, double d, point &&moved);
};
volatile long sink;
int counter::add(int n, point p, special s, big b, const std::string &text, int &r, empty) {
    sink += n + p.x + s.v + b.a[1] + (long)text.size() + r + count; return count; }
int counter::fixed(empty, std::string by_value, std::string_view view, const std::unique_ptr<point> &smart, double d, point &&moved) {
    sink += (long)by_value.size() + (long)view.size() + smart->x + (long)d + moved.x; return 1; }
OUT std::string made(int n) { return std::string((size_t)n, 'x'); }
int main() {
    counter c; int q = 1; auto u = std::make_unique<point>();
    return c.add(1, { 1, 2, 3 }, special(4), big{}, "text", q, {}) + counter::fixed({}, "value", "view", u, 1.5, point{}) + (int)made(3).size();
}
"#;

const CXX_CASES: &[Case] = &[
    ("add", "this", Ok("rdi [] 8 pointer")),
    ("add", "this->count", Ok("rdi [12] 4 signed")),
    ("add", "this->id", Ok("rdi [8] 4 signed")),
    ("add", "n", Ok("rsi [] 4 signed")),
    ("add", "p.x", Ok("rdx [] 4 signed")),
    ("add", "p.z", Ok("rcx [] 8 signed")),
    ("add", "s.v", Ok("r8 [0] 4 signed")),
    ("add", "b.a[2]", Ok("rsp [24] 8 signed")),
    ("add", "text", Ok("r9 [0] 8 text+0 of r9 [8]")),
    ("add", "r", Ok("rsp [40, 0] 4 signed")),
    ("fixed", "by_value", Ok("rdi [0] 8 text+0 of rdi [8]")),
    ("fixed", "view", Ok("rdx [] 8 text+0 of rsi []")),
    ("fixed", "smart->y", Ok("rcx [0, 4] 4 signed")),
    ("fixed", "d", Ok("xmm0 [] 8 float")),
    ("fixed", "moved.z", Ok("r8 [8] 8 signed")),
    ("made", "n", Ok("rsi [] 4 signed")),
    ("made", "ret", Ok("rax [0] 8 text+0 of rax [8]")),
];

const RUST: &str = r#"
use std::hint::black_box;
pub struct Point { pub x: i32, pub y: i32 }
pub struct Long { pub a: u64, pub b: u64, pub c: u64 }
#[derive(Clone, Copy)]
pub enum Color { Red, Green = 7 }
#[inline(never)]
pub fn texts(name: &str, count: u32, owned: &String, color: Color, flag: bool) -> usize { black_box((name, count, owned, color as u8, flag)); name.len() + count as usize + owned.len() }
#[inline(never)]
pub fn slices(values: &[u16], last: i64) -> i64 { black_box((values, last)); values.len() as i64 + last }
#[inline(never)]
pub fn records(pair: Point, long: Long, boxed: Box<Long>, by_ref: &Point) -> Long { black_box((&pair, &long, &boxed, by_ref)); Long { a: pair.x as u64, b: long.b, c: boxed.c } }
fn main() {
    let own = String::from("own");
    // Called in a way that the compiler cannot see, or it would change them.
    let n = black_box(texts as fn(&str, u32, &String, Color, bool) -> usize)("abc", 5, &own, Color::Green, true);
    let n = n + black_box(slices as fn(&[u16], i64) -> i64)(&[1, 2, 3], 4) as usize;
    let long = |a| Long { a, b: 2, c: 3 };
    let r = black_box(records as fn(Point, Long, Box<Long>, &Point) -> Long)(Point { x: 1, y: 2 }, long(1), Box::new(long(4)), &Point { x: 7, y: 8 });
    black_box(Color::Red);
    std::process::exit((n + r.a as usize) as i32);
}
"#;

const RUST_CASES: &[Case] = &[
    ("texts", "name", Ok("rdi [] 8 text+0 of rsi []")),
    ("texts", "count", Ok("rdx [] 4 unsigned")),
    ("texts", "owned", Ok("rcx [8] 8 text+0 of rcx [16]")),
    ("texts", "color", Ok("r8 [] 1 enum")),
    ("texts", "flag", Ok("r9 [] 1 bool")),
    ("texts", "ret", Ok("rax [] 8 unsigned")),
    ("slices", "values[1]", Ok("rdi [2] 2 unsigned")),
    ("slices", "values.length", Ok("rsi [] 8 unsigned")),
    ("slices", "last", Ok("rdx [] 8 signed")),
    ("records", "pair.x", Ok("rsi [] 4 signed")),
    ("records", "pair.y", Ok("rdx [] 4 signed")),
    ("records", "long.b", Ok("rcx [8] 8 unsigned")),
    ("records", "boxed.c", Ok("r8 [16] 8 unsigned")),
    ("records", "by_ref.y", Ok("r9 [4] 4 signed")),
    ("records", "ret.b", Ok("rax [8] 8 unsigned")),
];

fn shape(fetch: &Fetch) -> String {
    let mut text = format!("{} {:?} {}", fetch.register, fetch.steps, fetch.len_bytes);
    if let Some((first, width)) = fetch.bits {
        text += &format!(" bits {first}+{width}");
    }
    if let Some(found) = &fetch.text {
        text += &format!(" text+{}", found.offset);
        if let Some(length) = &found.length {
            text += &format!(" of {} {:?}", length.register, length.steps);
        }
        return text;
    }
    let kind = match (&fetch.kind, fetch.is_signed()) {
        (ValueKind::Char, false) => "unsigned-char",
        (ValueKind::Char, true) => "char",
        (ValueKind::Enum { .. }, _) => "enum",
        (ValueKind::Bool, _) => "bool",
        (ValueKind::Float, _) => "float",
        (ValueKind::Pointer, _) => "pointer",
        (_, true) => "signed",
        (_, false) => "unsigned",
    };
    text + " " + kind
}

/// Asks all cases of a program; what is not as expected, and the functions that were asked.
fn check(program: &Path, what: &str, cases: &[Case]) {
    let module = ModuleFile::open(program, program, &SymbolOptions::default()).expect("the program");
    let routines = Routines::of(&module).expect("debug information");
    let all: Vec<_> = routines.beginnings().iter().filter_map(|&svma| routines.at(svma, "").ok()).collect();
    let mut wrong = Vec::new();
    for (function, expression, expected) in cases {
        let routine = all.iter().find(|routine| routine.name() == *function).expect(function);
        let found = routine.fetch(expression);
        match (&found, expected) {
            (Ok(fetch), Ok(expected)) if shape(fetch) == *expected => {}
            (Err(error), Err(expected)) if error.to_string().contains(expected) => {}
            (Ok(fetch), _) => {
                wrong.push(format!("{function} {expression}: {} for {expected:?}", shape(fetch)))
            }
            (Err(error), _) => wrong.push(format!("{function} {expression}: {error}")),
        }
    }
    for routine in &all {
        wrong.extend(routine.unconventional().iter().map(|odd| format!("{}: {odd}", routine.name())));
    }
    assert!(wrong.is_empty(), "{what}:\n{}", wrong.join("\n"));
}

/// Checks registers, steps and kinds of C's parameters and results, unoptimized, where locations are those behind the prologue, and optimized, where lists tell.
#[test]
fn parameters_of_c() {
    let Some(dir) = workshop("place::call::parameters_of_c", &["cc"], &[("call.c", C)]) else { return };
    for (name, flags) in [
        ("o0", &["-O0", "-g"][..]),
        ("o2", &["-O2", "-g"]),
        ("o2d4", &["-O2", "-gdwarf-4"]),
        ("og", &["-Og", "-g"]),
    ] {
        run(dir.path(), "cc", &[&["call.c", "-o", name], flags].concat());
        check(&dir.path().join(name), name, C_CASES);
    }
}

/// Checks C++: `this`, base classes, references, classes that are passed by address, strings.
#[test]
fn parameters_of_cxx() {
    let Some(dir) = workshop("place::call::parameters_of_cxx", &["c++"], &[("call.cc", CXX)]) else { return };
    for (name, flag) in [("o0", "-O0"), ("o2", "-O2")] {
        run(dir.path(), "c++", &["call.cc", "-std=c++17", "-g", flag, "-o", name]);
        check(&dir.path().join(name), name, CXX_CASES);
    }
}

/// Checks Rust: text and slices in two registers, pairs, what is passed by its address.
#[test]
fn parameters_of_rust() {
    let Some(dir) = workshop("place::call::parameters_of_rust", &["rustc"], &[("call.rs", RUST)]) else {
        return;
    };
    for (name, flag) in [("o0", "-Copt-level=0"), ("o2", "-Copt-level=2")] {
        run(dir.path(), "rustc", &["call.rs", "--edition", "2021", "-g", "-Awarnings", flag, "-o", name]);
        check(&dir.path().join(name), name, RUST_CASES);
    }
}

/// Checks that types inside of types, of which there are more than anyone can look at, are answered about soon.
#[test]
fn types_without_end() {
    let mut text = "struct s0 { int x; };\n".to_owned();
    for level in 1..9 {
        let members: Vec<String> = (0..10).map(|number| format!("s{} m{number};", level - 1)).collect();
        text += &format!("struct s{level} {{ {} }};\n", members.join(" "));
    }
    text += "s8 *address; s8 made(int n) { return address[n]; }\nint main() { return address ? made(1).m0.m0.m0.m0.m0.m0.m0.m0.x : 0; }\n";
    let files = [("types.cc", text.as_str())];
    let Some(dir) = workshop("place::call::types_without_end", &["c++"], &files) else { return };
    run(dir.path(), "c++", &["types.cc", "-g", "-O0", "-o", "types"]);
    check(
        &dir.path().join("types"),
        "types",
        &[
            ("made", "n", Ok("rsi [] 4 signed")),
            ("made", "ret.m1.m2.m3.m4.m5.m6.m7.m8.x", Ok("rax [49382712] 4 signed")),
        ],
    );
}

/// Checks that of a function that the compiler has changed only what the debug information says is believed.
#[test]
fn changed_functions() {
    const TEST: &str = "place::call::changed_functions";
    let Some(dir) = workshop(TEST, &["cc", "nm"], &[]) else { return };
    let text = "struct s { long a, b; }; volatile long sink;\n\
        static __attribute__((noinline)) long part(struct s *p, int unused, int n) { sink += p->b; return n + p->b; }\n\
        int main(int argc, char **argv) { struct s s = { 1, argc }; return (int)(part(&s, 1, argc) + part(&s, 2, argc + 1)); }\n";
    std::fs::write(dir.path().join("changed.c"), text).expect("the source");
    run(dir.path(), "cc", &["changed.c", "-O2", "-g", "-fipa-sra", "-o", "changed"]);
    let program = dir.path().join("changed");
    let symbols = run(dir.path(), "nm", &["changed"]);
    let Some(line) = symbols.lines().find(|line| line.contains(" part.")) else {
        return skip(TEST, "this compiler left the function as it is");
    };
    let (svma, symbol) =
        (line.split(' ').next().expect("an address"), line.rsplit(' ').next().expect("a name"));
    let svma = u64::from_str_radix(svma, 16).expect("an address");
    let module = ModuleFile::open(&program, &program, &SymbolOptions::default()).expect("the program");
    let routine = Routines::of(&module).expect("debug information").at(svma, symbol).expect("the function");
    assert_eq!(routine.name(), "part");
    // Its first register is no pointer any more.
    for name in ["p", "p->b", "unused"] {
        let error = routine.fetch(name).expect_err(name).to_string();
        assert!(error.contains("cannot be read at its entry"), "{name}: {error}");
    }
    assert!(routine.fetch("n").is_ok_and(|fetch| fetch.steps.is_empty()), "{:?}", routine.fetch("n"));
}

/// Checks where a list of expressions begins, and that names with parentheses have none.
#[test]
fn lists() {
    let part = |name: &str, expression: &str| Part { name: name.into(), expression: expression.into() };
    assert_eq!(arguments("f(a, b->c)"), Some(("f", vec![part("a", "a"), part("b->c", "b->c")])));
    assert_eq!(
        arguments("lib.so:ns::f(n = *count,t[2].x)"),
        Some(("lib.so:ns::f", vec![part("n", "*count"), part("t[2].x", "t[2].x")]))
    );
    assert_eq!(arguments("f((*p).x)"), Some(("f", vec![part("(*p).x", "(*p).x")])));
    assert_eq!(arguments("f()"), Some(("f", Vec::new())));
    assert_eq!(arguments("T::operator()(x)"), Some(("T::operator()", vec![part("x", "x")])));
    for name in
        ["f", "T::operator()", "(anonymous namespace)", "(anonymous namespace)::f", "(x)", "f)", ")", ""]
    {
        assert_eq!(arguments(name), None, "{name}");
    }
}

/// C++ with much of its library, so that many functions take all kinds of values.
const LIBRARY: &str = r#"
#include <algorithm>
#include <complex>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>
struct mixed { float a; int b; double c; };
struct floats { float a, b, c; };
struct tiny { char c[3]; short s; };
struct bits { unsigned a : 20, b : 20; long long c : 5; };
union either { double d; long l; };
struct __attribute__((packed)) packed { char c; int i; };
volatile double sink;
__attribute__((noinline)) void kinds(mixed m, floats f, tiny t, bits b, either e, packed p, std::complex<double> z, long double l, char32_t u, std::nullptr_t n, int mixed::*member, int (std::string::*method)() const) {
    sink = m.a + f.c + t.s + b.b + e.d + p.i + z.imag() + (double)l + u + (n == nullptr) + (member != nullptr) + (method != nullptr);
}
__attribute__((noinline)) void pairs(std::pair<int, double> p, std::pair<std::string, int> q, std::function<int(int)> f, std::shared_ptr<int> s, std::vector<int> v) {
    sink = p.second + (double)q.first.size() + f(1) + *s + v[0];
}
int main(int argc, char **argv) {
    std::map<std::string, std::vector<int>> all;
    for (int i = 0; i < argc; i++) { all[argv[i]].push_back(i); sink = sink + i; }
    std::string out;
    for (auto &[name, list] : all) { std::sort(list.begin(), list.end()); out += name + std::to_string(list.size()); }
    kinds({ 1, 2, 3 }, { 1, 2, 3 }, {}, { 1, 2, 3 }, { 1 }, {}, { 1, 2 }, 3, U'x', nullptr, nullptr, nullptr);
    pairs({ 1, 2 }, { "x", 1 }, [](int i) { return i; }, std::make_shared<int>(3), { 1 });
    sink = (double)out.size();
}
"#;

/// Checks what we know of the calling convention against what compilers say of many parameters of optimized functions, which lists place at their first instruction.
#[test]
fn convention_and_lists_agree() {
    let Some(dir) =
        workshop("place::call::convention_and_lists_agree", &["c++", "nm"], &[("library.cc", LIBRARY)])
    else {
        return;
    };
    run(dir.path(), "c++", &["library.cc", "-std=c++17", "-g", "-O1", "-fno-inline", "-o", "library"]);
    let program = dir.path().join("library");
    let symbols = run(dir.path(), "nm", &["library"]);
    let module = ModuleFile::open(&program, &program, &SymbolOptions::default()).expect("the program");
    let routines = Routines::of(&module).expect("debug information");
    let (mut wrong, mut known, mut unknown) = (Vec::new(), 0, Vec::new());
    for line in symbols.lines() {
        let mut words = line.split(' ');
        let (Some(address), Some(_), Some(symbol)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let Ok(svma) = u64::from_str_radix(address, 16) else { continue };
        let Ok(routine) = routines.at(svma, symbol) else { continue };
        wrong.extend(routine.unconventional().iter().map(|what| format!("{symbol}: {what}")));
        for parameter in routine.parameters() {
            match parameter.place {
                Ok(_) => known += 1,
                Err(why) => unknown.push(format!("{symbol}: {}: {why}", parameter.name)),
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {known}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(
        known > 500 && unknown.len() * 20 < known,
        "{known} known, {}:\n{}",
        unknown.len(),
        unknown.join("\n")
    );
}
