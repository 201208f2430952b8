//! The callers of made-up samples in a real program: what each address of a call chain is.
use kymo_data::{Attr, EventSpec, Features, FileWriter, Recording, SampleId, abi, build};
use kymo_profile::export::ExportSamples;
use kymo_profile::load::LoadOptions;
use kymo_profile::profile::Profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::script::{self, ScriptOptions};
use kymo_symbols::{SymbolOptions, SymbolStore};
use std::path::{Path, PathBuf};
use std::process::Command;

/// `caller` calls `work`, and goes on with a function that was inlined behind the call; the last
/// instruction of `quits` is a call that never returns, and the code of a signal trampoline begins
/// where another function ends. It prints addresses in its file.
const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
extern char __executable_start;
static unsigned long at(const void *address) { return (char *)address - &__executable_start; }
static inline __attribute__((always_inline)) int after_call(int x) { return x * 3 + 1; }
__attribute__((noipa)) int leaf(int x) {
    printf("leaf %lx\nwork %lx\n", at((void *)leaf), at(__builtin_return_address(0)));
    return x;
}
__attribute__((noipa)) int work(int x) {
    printf("caller %lx\n", at(__builtin_return_address(0)));
    return leaf(x) - 1;
}
__attribute__((noipa)) void use(int *x) { *x += 1; }
__attribute__((noipa)) int caller(int x) {
    int result = after_call(work(x));
    use(&result);
    return result;
}
__attribute__((noipa, noreturn)) void never(void) {
    printf("quits %lx\n", at(__builtin_return_address(0)));
    exit(0);
}
asm(".globl trampoline_before\n.type trampoline_before, @function\ntrampoline_before: nop\n"
    ".size trampoline_before, 1\n.globl __restore_rt\n.type __restore_rt, @function\n"
    "__restore_rt: mov $15, %rax\nsyscall\n.size __restore_rt, 9\n");
extern char __restore_rt;
__attribute__((noipa)) void quits(void) { never(); }
__attribute__((noipa)) void next(void) { puts("next"); }
int main(int argc, char **argv) {
    printf("trampoline %lx\n", at(&__restore_rt));
    caller(argc);
    if (argc > 9) next();
    quits();
}
"#;

const BASE: u64 = 0x10_0000_0000;
const MAPPED_BYTES: u64 = 1 << 20;
const USER: u64 = -512_i64 as u64;

/// The program, and its addresses by the function that they are in.
struct Program {
    folder: tempfile::TempDir,
    addresses: Vec<(String, u64)>,
}

impl Program {
    fn build(test: &str) -> Option<Program> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("a.c"), SOURCE).expect("written");
        let mut gcc = Command::new("gcc");
        gcc.args(["-O2", "-g", "-fno-schedule-insns2", "-falign-functions=1", "a.c", "-o", "a"])
            .current_dir(folder.path());
        match gcc.status() {
            Ok(status) => assert!(status.success(), "gcc failed"),
            Err(_) => {
                kymo_testing::skip(test, "gcc is not installed");
                return None;
            }
        }
        let said = Command::new(folder.path().join("a")).output().expect("it runs").stdout;
        let line = |line: &str| {
            let (name, address) = line.split_once(' ')?;
            Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
        };
        let addresses = String::from_utf8_lossy(&said).lines().filter_map(line).collect();
        Some(Program { folder, addresses })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("a")
    }

    fn at(&self, name: &str) -> u64 {
        BASE + self.addresses.iter().find(|(of, _)| of == name).expect("printed").1
    }

    /// A recording with one sample, which has this chain and these branch records.
    fn record(&self, attr: &Attr, chain: &[u64], branches: &[[u64; 3]]) -> Recording {
        let path = self.folder.path().join("perf.data");
        let spec = EventSpec { attr: attr.clone(), ids: vec![1], name: "cpu-clock".into() };
        let file = std::fs::File::create(&path).expect("a file");
        let writer = FileWriter::create(file, std::slice::from_ref(&spec)).expect("written");
        let id = SampleId::default();
        let program = self.path();
        let map = build::MapSpec {
            pid: 7,
            tid: 7,
            addr: BASE,
            len: MAPPED_BYTES,
            prot: 5,
            misc: abi::PERF_RECORD_MISC_USER,
            filename: program.as_os_str().as_encoded_bytes(),
            ..build::MapSpec::default()
        };
        let ip = chain.get(1).copied().unwrap_or(0);
        let mut words = vec![ip, 7 | 7 << 32, 100, chain.len() as u64];
        words.extend(chain);
        if attr.sample_type & abi::PERF_SAMPLE_BRANCH_STACK != 0 {
            words.push(branches.len() as u64);
            words.extend(branches.iter().flatten());
        }
        let body: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        let records = [
            build::comm(attr, &id, 7, 7, b"a", false),
            build::mmap2(attr, &id, &map),
            build::record(abi::PERF_RECORD_SAMPLE, abi::PERF_RECORD_MISC_USER, &body),
        ];
        writer.append(&records.concat()).expect("written");
        writer.finish(&Features::default()).expect("written");
        let file = std::fs::File::open(&path).expect("the recording");
        Recording::open(std::sync::Arc::new(file), Vec::new()).expect("a recording")
    }
}

fn attr() -> Attr {
    use abi::*;
    Attr {
        kind: PERF_TYPE_SOFTWARE,
        sample_type: PERF_SAMPLE_IP | PERF_SAMPLE_TID | PERF_SAMPLE_TIME | PERF_SAMPLE_CALLCHAIN,
        ..Attr::default()
    }
}

fn store() -> SymbolStore {
    SymbolStore::new(SymbolOptions::default())
}

fn profile(recording: &Recording) -> Profile {
    let options = LoadOptions { callchains: true, columns: true, ..LoadOptions::default() };
    Profile::open(recording, &options, ResolveOptions::default(), &store(), &|_, _, _| {}).expect("read")
}

/// The frames of the only sample, outermost first.
fn frames(recording: &Recording) -> Vec<String> {
    let profile = profile(recording);
    assert_eq!(profile.loaded.chains.len(), 1);
    let mut names: Vec<String> =
        profile.stacks.frames(0).iter().map(|function| profile.frame_name(*function)).collect();
    names.reverse();
    names
}

fn text(recording: &Recording, fields: &str) -> String {
    text_with(recording, fields, &store())
}

fn text_with(recording: &Recording, fields: &str, store: &SymbolStore) -> String {
    let options = ScriptOptions { fields: vec![fields.parse().expect("fields")], ..ScriptOptions::new() };
    let mut out = Vec::new();
    script::write(recording, &options, store, &mut out).expect("printed");
    String::from_utf8(out).expect("text")
}

/// Checks that the caller of a function is the one that called it, not what was inlined behind the
/// call nor the function after a call that never returns; and that scripts print the recorded
/// addresses.
#[test]
fn return_addresses_before_inlined_calls() {
    let Some(program) = Program::build("callers::return_addresses_before_inlined_calls") else { return };
    let [leaf, work, caller, quits] = ["leaf", "work", "caller", "quits"].map(|name| program.at(name));
    let recording = program.record(&attr(), &[USER, leaf, work, caller], &[]);
    assert_eq!(frames(&recording), ["caller", "work", "leaf"]);
    let lines = text(&recording, "ip,sym");
    let expected = format!("\t{leaf:>16x} leaf\n\t{work:>16x} work\n\t{caller:>16x} caller\n");
    assert!(lines.contains(&expected), "{lines}");
    let offset = text(&recording, "ip,sym,symoff");
    assert!(offset.contains(&format!("\t{leaf:>16x} leaf+0x0\n")) && !offset.contains("0xffff"), "{offset}");
    let lines = text(&recording, "ip,srcline");
    let called = SOURCE.lines().position(|line| line.contains("after_call(work(x))")).expect("a line") + 1;
    assert!(lines.contains(&format!("\t{caller:>16x}\n  a.c:{called}\n")), "{lines}");
    let recording = program.record(&attr(), &[USER, leaf, quits], &[]);
    assert_eq!(frames(&recording), ["quits", "leaf"]);
}

/// Checks a return address at the end of a mapping: the call is in it, but perf, which looks for
/// the address itself, has nothing there.
#[test]
fn return_addresses_at_the_end_of_a_mapping() {
    let Some(program) = Program::build("callers::return_addresses_at_the_end_of_a_mapping") else { return };
    let end = BASE + MAPPED_BYTES;
    let recording = program.record(&attr(), &[USER, program.at("leaf"), end], &[]);
    let path = program.path();
    let lines = text(&recording, "ip,sym,dso");
    assert!(lines.contains(&format!("\t{end:>16x} [unknown] ({})\n", path.display())), "{lines}");
    let as_perf = SymbolStore::new(SymbolOptions { entry_names: false, ..SymbolOptions::default() });
    let lines = text_with(&recording, "ip,sym,dso", &as_perf);
    assert!(lines.contains(&format!("\t{end:>16x} [unknown] ([unknown])\n")), "{lines}");
}

/// Checks that exports have the address of the call for callers, and the functions at it.
#[test]
fn exports_of_return_addresses() {
    let Some(program) = Program::build("callers::exports_of_return_addresses") else { return };
    let [leaf, work, caller] = ["leaf", "work", "caller"].map(|name| program.at(name));
    for (callers, back) in [(0, 1), (8192, 0)] {
        let attr = Attr { sample_stack_user: callers, ..attr() };
        let recording = program.record(&attr, &[USER, leaf, work + back - 1, caller + back - 1], &[]);
        assert_eq!(frames(&recording), ["caller", "work", "leaf"]);
        let profile = profile(&recording);
        let store = store();
        let samples = ExportSamples::of_profile(&recording, &profile, &store, "perf.data");
        let addresses: Vec<u64> = samples
            .locations
            .stack(0)
            .iter()
            .map(|at| samples.locations.list[*at as usize].address)
            .collect();
        assert_eq!(addresses, [leaf, work - 1, caller - 1]);
    }
}

/// Checks that addresses which no call put there are looked up as they are: those of unwound
/// stacks, what was interrupted, and the trampoline that a signal handler returns to.
#[test]
fn addresses_without_a_call_before_them() {
    let Some(program) = Program::build("callers::addresses_without_a_call_before_them") else { return };
    let [leaf, caller, trampoline] = ["leaf", "caller", "trampoline"].map(|name| program.at(name));
    let recording = program.record(&attr(), &[USER, leaf, trampoline, caller], &[]);
    assert_eq!(frames(&recording), ["caller", "__restore_rt", "leaf"]);
    let unwound = Attr { sample_stack_user: 8192, ..attr() };
    let recording = program.record(&unwound, &[USER, leaf, trampoline, leaf, caller - 1], &[]);
    assert_eq!(frames(&recording), ["caller", "leaf", "__restore_rt", "leaf"]);
}

/// Checks that branch records which are a stack of calls take the place of the program's callers:
/// in stacks, and in scripts.
#[test]
fn branch_records_as_call_chains() {
    let Some(program) = Program::build("callers::branch_records_as_call_chains") else { return };
    let [leaf, work, caller] = ["leaf", "work", "caller"].map(|name| program.at(name));
    let calls = [[work - 5, leaf, 0], [caller - 5, work - 30, 0]];
    let mut lbr = attr();
    lbr.sample_type |= abi::PERF_SAMPLE_BRANCH_STACK;
    lbr.branch_sample_type = abi::PERF_SAMPLE_BRANCH_CALL_STACK | 1;
    for stray in [&[0x3ff5_81e4_da4d_76b1][..], &[0], &[]] {
        let recording = program.record(&lbr, &[&[USER, leaf], stray].concat(), &calls);
        assert_eq!(frames(&recording), ["caller", "work", "leaf"], "{stray:?}");
        let lines = text(&recording, "ip,sym");
        let expected = format!("{leaf:>16x} leaf\n\t{:>16x} work\n\t{:>16x} caller\n", work - 5, caller - 5);
        assert!(lines.contains(&expected), "{lines}");
    }
    // Branches of any kind are no stack, and without any the chain is what there is.
    let any = Attr { branch_sample_type: 9, ..lbr.clone() };
    assert_eq!(frames(&program.record(&any, &[USER, leaf, work], &calls)), ["work", "leaf"]);
    assert_eq!(frames(&program.record(&lbr, &[USER, leaf, work], &[])), ["work", "leaf"]);
}

/// Checks that names of inlined functions are printed with symbols only, as perf does.
#[test]
fn inlined_functions_without_the_field_sym() {
    let Some(program) = Program::build("callers::inlined_functions_without_the_field_sym") else { return };
    // What follows the call is the function that was inlined.
    let inlined = program.at("caller");
    let recording = program.record(&attr(), &[USER, inlined], &[]);
    assert_eq!(frames(&recording), ["caller", "after_call (inlined)"]);
    let path = program.path();
    let path = Path::new(&path).display();
    let named = text(&recording, "ip,sym,dso");
    assert!(named.contains(&format!("\t{inlined:>16x} after_call (inlined)\n")), "{named}");
    let bare = text(&recording, "ip,dso");
    let expected = format!("\t{inlined:>16x} (inlined)\n\t{inlined:>16x} ({path})\n");
    assert!(bare.contains(&expected), "{bare}");
}
