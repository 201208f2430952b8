//! Which programs walk, copy or switch their own stacks: in these a return address that a prober
//! has replaced is found by code that knows only real ones,
//! and the program dies. Judged by what their files name: sections and string tables of symbols.
//!
//! | who | what it does with return addresses |
//! |---|---|
//! | Go | copies stacks as they grow, walks them for its collector, moves goroutines between threads |
//! | HotSpot, V8, .NET, Mono | walk from generated code into C++ and back, look up each return address |
//! | Erlang, OCaml 5, GHC | have stacks of their own beside the processor's |
//! | C++ exceptions, Rust panics, `pthread_cancel`, `backtrace` | look up each return address in unwind tables |
//! | `swapcontext`, boost.context, libco | leave a call on one stack and return from another |

use memchr::memmem;

use crate::elf::ElfFile;
use crate::elf_symbols;

/// A language's runtime that walks stacks itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "most names say which one it is")]
pub enum Runtime {
    Go,
    /// A Java virtual machine, or what starts one.
    Java,
    /// V8: node, chromium, electron.
    V8,
    DotNet,
    Mono,
    /// Erlang's BEAM.
    Erlang,
    /// OCaml 4: code that the collector walks through, on the thread's stack.
    OCaml4,
    /// OCaml 5: fibers, whose stacks are copied as they grow.
    OCaml5,
    Ghc,
    LuaJit,
}

impl Runtime {
    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Runtime::Go => "Go",
            Runtime::Java => "a Java virtual machine",
            Runtime::V8 => "V8",
            Runtime::DotNet => ".NET",
            Runtime::Mono => "Mono",
            Runtime::Erlang => "Erlang",
            Runtime::OCaml4 => "OCaml",
            Runtime::OCaml5 => "OCaml 5",
            Runtime::Ghc => "Haskell (GHC)",
            Runtime::LuaJit => "LuaJIT",
        }
    }
}

/// Names of symbols and the runtime that has them. The first match counts.
const SYMBOLS: [(&str, Runtime); 15] = [
    ("JNI_CreateJavaVM", Runtime::Java),
    // The launcher `java`, which loads the machine itself later.
    ("JLI_Launch", Runtime::Java),
    ("_ZN2v88internal", Runtime::V8),
    ("_ZN2v87Isolate", Runtime::V8),
    ("v8_Default_embedded_blob", Runtime::V8),
    ("coreclr_initialize", Runtime::DotNet),
    ("DotNetRuntimeInfo", Runtime::DotNet),
    ("mono_jit_init", Runtime::Mono),
    ("erl_drv_output", Runtime::Erlang),
    ("caml_try_realloc_stack", Runtime::OCaml5),
    ("caml_start_program", Runtime::OCaml4),
    ("stg_returnToStackTop", Runtime::Ghc),
    ("lj_vm_call", Runtime::LuaJit),
    ("luaJIT_setmode", Runtime::LuaJit),
    ("v8::internal", Runtime::V8),
];

/// Names of programs that are delivered without symbols.
const PROGRAMS: [(&str, Runtime); 7] = [
    ("chrom", Runtime::V8),
    ("electron", Runtime::V8),
    ("node", Runtime::V8),
    ("msedge", Runtime::V8),
    ("dotnet", Runtime::DotNet),
    ("beam.smp", Runtime::Erlang),
    ("libcoreclr.so", Runtime::DotNet),
];

/// What reasons begin with that tell of more than one stack.
pub(super) const SWITCHES: &str = "it switches stacks";

/// Names of symbols that a module has, or wants of others, if it leaves calls otherwise than by
/// returning, or walks the stack, or may load what does.
const LEAVES: [(&str, &str); 13] = [
    ("swapcontext", "it switches stacks (swapcontext)"),
    ("makecontext", "it switches stacks (makecontext)"),
    ("setcontext", "it switches stacks (setcontext)"),
    ("_fcontext", "it switches stacks (boost.context)"),
    ("co_switch", "it switches stacks (libco)"),
    ("coro_transfer", "it switches stacks (libcoro)"),
    ("coroutine_transfer", "it switches stacks"),
    ("__cxa_throw", "it throws exceptions, which look up return addresses"),
    ("_Unwind_RaiseException", "it throws exceptions, which look up return addresses"),
    ("_Unwind_ForcedUnwind", "it unwinds its stack"),
    ("_Unwind_Backtrace", "it walks its stack"),
    ("pthread_cancel", "it cancels threads, which unwinds their stacks"),
    // Nobody can judge these libraries before they are there.
    ("dlopen", "it loads libraries later (dlopen), which may copy, switch or unwind stacks"),
];

/// Libraries that have these names for others: they do none of it by themselves.
const PROVIDERS: [&str; 6] = ["libc.so", "libc-", "libpthread", "ld-linux", "libgcc_s", "libm.so"];

/// No string table is searched beyond this.
const MOST_BYTES: u64 = 512 << 20;

/// What a file's names tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StackUse {
    /// Whose runtime it has in it.
    pub(super) runtime: Option<Runtime>,
    /// Why its return addresses must stay what they are, apart from that.
    pub(super) leaves: Option<&'static str>,
}

impl StackUse {
    pub(super) fn of(elf: &ElfFile, debug: Option<&ElfFile>, file_name: &str) -> StackUse {
        let mut found = StackUse::default();
        if go_table(elf).is_some() || elf.section(b".note.go.buildid").is_some() {
            found.runtime = Some(Runtime::Go);
        }
        let tables: Vec<Vec<u8>> = std::iter::once(elf).chain(debug).flat_map(string_tables).collect();
        let has = |name: &str| tables.iter().any(|table| memmem::find(table, name.as_bytes()).is_some());
        found.runtime =
            found.runtime.or_else(|| SYMBOLS.iter().find(|(name, _)| has(name)).map(|(_, runtime)| *runtime));
        found.runtime = found.runtime.or_else(|| {
            PROGRAMS.iter().find(|(name, _)| file_name.starts_with(name)).map(|(_, runtime)| *runtime)
        });
        if !PROVIDERS.iter().any(|name| file_name.starts_with(name)) {
            found.leaves = LEAVES.iter().find(|(name, _)| has(name)).map(|(_, why)| *why);
        }
        found
    }
}

/// The names of a file's symbols, one after another.
fn string_tables(elf: &ElfFile) -> Vec<Vec<u8>> {
    let linked = elf_symbols::tables(elf).filter_map(|table| elf.sections.get(table.link as usize));
    linked
        .filter(|section| section.size <= MOST_BYTES)
        .filter_map(|section| elf.read_section(section))
        .collect()
}

/// Go's table of functions.
pub(super) fn go_table(elf: &ElfFile) -> Option<&crate::elf::Section> {
    let names: [&[u8]; 2] = [b".gopclntab", b".data.rel.ro.gopclntab"];
    names.iter().find_map(|name| elf.section(name))
}
