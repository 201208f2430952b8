//! Runtimes with a just-in-time compiler, and what they need to name its code.

/// A runtime with a just-in-time compiler that names its code only if it is told to.
#[derive(Debug, PartialEq, Eq)]
pub struct Runtime {
    /// How its programs' names begin.
    programs: &'static [&'static str],
    /// What has to be done.
    pub advice: &'static str,
}

const RUNTIMES: [Runtime; 11] = [
    Runtime {
        programs: &["node", "nodejs", "electron"],
        advice: "start it as `node --perf-basic-prof` (or `--perf-prof`)",
    },
    Runtime { programs: &["deno"], advice: "start it as `deno run --v8-flags=--perf-basic-prof`" },
    Runtime { programs: &["dotnet"], advice: "set DOTNET_PerfMapEnabled=1 in its environment" },
    Runtime { programs: &["php"], advice: "start it with `-d opcache.jit_debug=16`" },
    Runtime { programs: &["ruby"], advice: "start it as `ruby --yjit --yjit-perf` (Ruby 3.3 and later)" },
    Runtime {
        programs: &["luajit"],
        advice: "build LuaJIT with -DLUAJIT_USE_PERFTOOLS: it has no option for that",
    },
    Runtime { programs: &["wasmtime"], advice: "start it as `wasmtime run --profile=perfmap`" },
    Runtime {
        programs: &["python", "pypy"],
        advice: "let the module that compiles write a perf map (wasmtime: `Config.profiler = \"perfmap\"`)",
    },
    Runtime { programs: &["beam", "erl"], advice: "start it as `erl +JPperf true`" },
    Runtime { programs: &["julia"], advice: "set ENABLE_JITPROFILING=1 in its environment" },
    Runtime { programs: &["mono"], advice: "start it as `mono --jitmap`" },
];

const OTHER: Runtime = Runtime {
    programs: &[],
    advice: "look whether its compiler can write /tmp/perf-PID.map or a jitdump for profilers",
};

/// The runtime of a program by its file's name, or one whose advice holds for any compiler.
pub fn by_name(name: &str) -> &'static Runtime {
    known(name).unwrap_or(&OTHER)
}

/// The runtime of a program or library by its file's name: `php8.2` and `python3.11` are known by
/// their beginning.
pub(crate) fn known(name: &str) -> Option<&'static Runtime> {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    let is_of = |program: &&str| stem == *program || stem.strip_prefix(*program).is_some_and(is_variant);
    RUNTIMES.iter().find(|runtime| runtime.programs.iter().any(is_of))
}

/// What may follow a program's name: `php-cgi`, `php-fpm8.2`, `beam.smp`.
fn is_variant(rest: &str) -> bool {
    rest.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that programs are known by their names, with versions and variants, and that others
    /// are not taken for them.
    #[test]
    fn programs() {
        for (name, word) in [
            ("node", "--perf-basic-prof"),
            ("php8.2", "opcache"),
            ("php-fpm8.2", "opcache"),
            ("beam.smp", "JPperf"),
            ("luajit-2.1.0", "LUAJIT"),
            ("ruby3.1", "yjit"),
            ("nodejs-like", "perf-basic"),
            ("rubyfmt", "compiler"),
            ("", "compiler"),
        ] {
            assert!(by_name(name).advice.contains(word), "{name}: {}", by_name(name).advice);
        }
    }
}
