//! Functions whose return address is more than the place that they return to, by their names.

/// Whether a function of this name uses its return address for more than one return: it keeps it
/// for another time, gives it to another stack, asks who calls, or is entered where no return
/// address is on top of the stack. A probe must not stand in it; the entry can be probed.
pub fn returns_oddly(name: &str) -> bool {
    // What a compiler moved out of a function is entered by jumps, with the function's frame in
    // place.
    if name == "_start" || name.contains(".cold") {
        return true;
    }
    // Versions are names, too: `setjmp@@GLIBC_2.2.5`.
    let name = name.split('@').next().unwrap_or(name);
    let name = name.trim_start_matches('_');
    const NAMES: [&str; 24] = [
        "setjmp",
        "sigsetjmp",
        "longjmp",
        "siglongjmp",
        "vfork",
        "libc_vfork",
        "clone",
        "clone3",
        "getcontext",
        "setcontext",
        "makecontext",
        "swapcontext",
        "start_context",
        "dlopen",
        "dlmopen",
        "dlsym",
        "dlvsym",
        "tls_get_addr",
        "libc_start_main",
        // Entered by the dynamic loader's begin, by the return of a signal's handler.
        "dl_start_user",
        "restore_rt",
        // Of profilers: they note who calls whom.
        "mcount",
        "fentry__",
        "mcount_internal",
    ];
    // Then, in this order: ways that compilers take for `jmp` and `ret`, and for saving registers
    // at entries; functions of OCaml, whose collector looks the stack's return addresses up.
    const BEGINS: [&str; 20] = [
        "dl_runtime_",
        "dl_tlsdesc",
        // Unwinders, libgcc's and LLVM's: they begin with who called them.
        "Unwind_",
        "uw_init_context",
        "uw_install_context",
        "unw_",
        "morestack",
        "sigjmp",
        "libc_sigaction_restore",
        "x86_indirect_",
        "x86_return_",
        "x86.get_pc_thunk",
        "llvm_retpoline_",
        "savms64",
        "resms64",
        "sse_savms64",
        "sse_resms64",
        "avx_savms64",
        "avx_resms64",
        "caml",
    ];
    NAMES.contains(&name) || BEGINS.iter().any(|begin| name.starts_with(begin))
}
