//! Which functions no probe may stand in, and which must stay where they are.
//!
//! **The rule.** A probe changes the first bytes of a function. That is sound where these bytes are
//! only ever executed, from the first on, as instructions that
//! mean the same elsewhere. So nothing is put
//! - where code is entered at an address that was made by arithmetic (Go's `goexit+1` is the return
//!   address of each goroutine's first function),
//! - where others read the bytes as data (unwinders and debuggers know `__restore_rt` by its
//!   bytes),
//! - into a runtime's own switching of stacks, which runs while there is no stack to speak of (Go's
//!   assembly, LuaJIT's and Haskell's code, which is entered by
//!   jumps from everywhere).
//!
//! And nothing is *moved* (the engine inside the program moves a function's first instructions)
//! where somebody knows instructions by their addresses: a fault
//! handler (`SafeFetch`), restartable sequences, and all of Go's code, whose runtime looks up where
//! a fault or a preemption was.

use super::find::{Site, SiteKind};
use super::runtime::Runtime;

/// Names of functions of Go's assembly, for programs whose own table cannot be read.
const GO_ASSEMBLY: [&str; 14] = [
    "runtime.goexit",
    "runtime.gogo",
    "runtime.mcall",
    "runtime.morestack",
    "runtime.asmcgocall",
    "runtime.cgocallback",
    "runtime.sig",
    "runtime.systemstack",
    "runtime.rt0_go",
    "runtime.mstart",
    "runtime.asyncPreempt",
    "runtime.gosave",
    "runtime.debugCall",
    "_rt0_",
];

/// Packages whose assembly is the runtime's own.
const GO_RUNTIME: [&str; 7] =
    ["runtime.", "runtime/", "internal/runtime/", "internal/abi.", "reflect.", "syscall.", "gogo"];

/// Names, without leading lines and versions, of functions whose bytes are read or that are entered
/// elsewhere than at their beginning.
const NEVER: [&str; 3] = ["restore_rt", "restore", "kernel_rt_sigreturn"];

/// Beginnings of names of code that jumps enter: LuaJIT's interpreter and what it returns to.
const LUAJIT: [&str; 6] = ["lj_BC_", "lj_vm_", "lj_ff_", "lj_fff_", "lj_cont_", "lj_vmeta_"];

/// Endings of names of Haskell's code: closures, returns and entries, with data before their first
/// byte.
const HASKELL: [&str; 4] = ["_info", "_entry", "_ret", "_fast"];

/// Beginnings of names of code that is known by the addresses of its instructions.
const PINNED: [(&str, &str); 8] = [
    ("SafeFetch", "its fault handler knows it by the address of its instructions"),
    ("ZN9SafeFetch", "its fault handler knows it by the address of its instructions"),
    ("TcmallocSlab_", "it is a restartable sequence"),
    ("ZN2v88internal12trap_handler", "its fault handler knows it by the address of its instructions"),
    ("rseq_", "it is a restartable sequence"),
    ("syscall_cancel_arch", "its C library cancels threads by where in it they are"),
    ("syscall_cp_asm", "its C library cancels threads by where in it they are"),
    ("cp_", "its C library cancels threads by where in it they are"),
];

fn plain(name: &str) -> &str {
    name.split('@').next().unwrap_or(name).trim_start_matches('_')
}

impl Site {
    /// Why no engine may put a probe here; `None` if it may be tried.
    #[must_use]
    pub fn untouchable(&self) -> Option<&'static str> {
        let name = self.symbol.as_deref()?;
        if NEVER.contains(&plain(name)) {
            return Some("unwinders know it by its bytes");
        }
        match self.module.runtime()? {
            Runtime::Go => self.go_assembly(name).then_some(
                "it is no function, or assembly of Go's runtime, which is entered and left otherwise than by calls",
            ),
            Runtime::LuaJit if LUAJIT.iter().any(|begin| name.starts_with(begin)) => {
                Some("it is a part of LuaJIT's interpreter, which jumps enter")
            }
            Runtime::Ghc if HASKELL.iter().any(|end| name.ends_with(end)) => {
                Some("it is Haskell code, which jumps enter, with data before it")
            }
            _ => None,
        }
    }

    fn go_assembly(&self, name: &str) -> bool {
        let start = self.function_start();
        match self.module.go_functions().at(start) {
            Some(function) => {
                let runtime = GO_RUNTIME.iter().any(|package| name.starts_with(package));
                (function.is_assembly() && runtime) || GO_ASSEMBLY[..3].contains(&name)
            }
            None => {
                name.starts_with("_rt0_")
                    || (self.module.go_functions().is_empty()
                        && GO_ASSEMBLY.iter().any(|begin| name.starts_with(begin)))
            }
        }
    }

    /// Why this site's instructions must stay where they are, so that no jump may take their place;
    /// `None` if they may move.
    #[must_use]
    pub fn immovable(&self) -> Option<&'static str> {
        if self.is_go() {
            return Some("Go's runtime looks up where in a function a fault or a preemption was");
        }
        self.pinned()
    }

    /// Whether it is in code that Go's compiler or assembler made.
    #[must_use]
    pub fn is_go(&self) -> bool {
        self.module.runtime() == Some(Runtime::Go)
            && self.module.go_functions().at(self.function_start()).is_some()
    }

    /// The same as [`Site::immovable`], for who moves only such instructions of Go as can neither
    /// fault nor be a place where the runtime stops a goroutine.
    #[must_use]
    pub fn pinned(&self) -> Option<&'static str> {
        let name = self.symbol.as_deref()?;
        PINNED.iter().find(|(begin, _)| plain(name).starts_with(begin)).map(|(_, why)| *why)
    }

    /// Where the function that this site is in begins, as linked.
    pub(super) fn function_start(&self) -> u64 {
        if self.kind == SiteKind::Function {
            return self.svma;
        }
        self.module.function_at(self.offset).map_or(self.svma, |function| function.svma)
    }
}
