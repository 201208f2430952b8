//! Rows as a writer takes them. Texts are borrowed: the writer keeps each once.

/// A host, as it was when it measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HostRow {
    /// Its name, or whatever tells it from all others; [`ids::host`](crate::ids::host) makes its
    /// id.
    pub host: String,
    /// Release of the kernel.
    pub kernel: String,
    /// Architecture, as `uname -m` says it.
    pub arch: String,
    /// CPUs online, 0 if not known.
    pub cpus: i32,
    /// Samples per second and CPU that were asked for, 0 if not known or not at a frequency.
    pub rate_hz: f64,
    /// Version of the program that measured.
    pub kymo_version: String,
    /// When it was seen first, nanoseconds since 1970.
    pub first_seen_ns: i64,
}

/// A file with code.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildRow {
    /// In hexadecimal digits.
    pub build_id: String,
    /// Where it lay on the host.
    pub path: String,
    /// Base name of the path.
    pub module: String,
    /// Architecture, as `uname -m` says it.
    pub arch: String,
    /// When it was seen first, nanoseconds since 1970.
    pub first_seen_ns: i64,
    /// Where its code was linked, less where it is in the file; see
    /// [`code_bias`](kymo_symbols::code_bias). `None` if not known.
    pub code_bias: Option<i64>,
}

/// What sort of code is at a location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FrameKind {
    /// Code of a file in user space.
    #[default]
    User,
    /// Code of the kernel or one of its modules.
    Kernel,
    /// Code that was made while the program ran.
    Jit,
    /// A function that an interpreter runs.
    Script,
}

impl FrameKind {
    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            FrameKind::User => "user",
            FrameKind::Kernel => "kernel",
            FrameKind::Jit => "jit",
            FrameKind::Script => "script",
        }
    }
}

/// A location: code that stacks go through.
#[derive(Clone, Copy, Debug)]
pub struct LocationRow<'a> {
    /// Base name of the file, or the name in brackets.
    pub module: &'a str,
    /// Build id in hexadecimal digits, if known.
    pub build_id: Option<&'a str>,
    /// What symbols are looked up by: the offset in the file, in the kernel from `_text` on. 0
    /// where there is none.
    pub address: i64,
    /// What sort of code.
    pub kind: FrameKind,
    /// Its functions, innermost first: those but the last are inlined. One without a name where it
    /// is not symbolized.
    pub frames: &'a [FrameRow<'a>],
}

/// A function at a location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameRow<'a> {
    /// Its name, if known.
    pub function: Option<&'a str>,
    /// Its source file, if known.
    pub file: Option<&'a str>,
    /// Line in that file, if known.
    pub line: Option<i32>,
}

/// Where samples were taken: a process, or one of its threads.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProcessRow<'a> {
    /// Process.
    pub pid: i32,
    /// Thread; `None` where the samples of all threads are added up.
    pub tid: Option<i32>,
    /// Name of the thread at that time, or of the program.
    pub command: &'a str,
    /// Container, if it is in one.
    pub container: Option<&'a str>,
    /// Pod of Kubernetes, if it is in one.
    pub pod: Option<&'a str>,
    /// Unit of systemd, if it is in one.
    pub systemd_unit: Option<&'a str>,
    /// Service that the user named for it.
    pub service: Option<&'a str>,
}

impl<'a> ProcessRow<'a> {
    /// The service: what the user named, else the unit, else pod or container, else the command.
    pub fn service_name(&self) -> &'a str {
        let named = self.service.or(self.systemd_unit).or(self.pod).or(self.container);
        named.unwrap_or(self.command)
    }
}

/// What is measured.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventRow<'a> {
    /// Name of the event, for example `cpu-clock`.
    pub event: &'a str,
    /// What values count: `ns` for clocks, the unit of an imported profile, else empty.
    pub value_unit: &'a str,
    /// `on-cpu`, or what the thread waited for.
    pub state: &'a str,
    /// Of a wait: the name of the thread that ended it, or what an interrupt did; `None` where that
    /// is not known.
    pub waker: Option<&'a str>,
}

/// The state of a thread that runs.
pub const ON_CPU: &str = "on-cpu";

/// A sample, or a sum of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleValue {
    /// When, nanoseconds since 1970: the moment, or the beginning of the minute of a sum.
    pub time_ns: i64,
    /// What it stands for, in the event's unit.
    pub value: i64,
    /// How many samples it is the sum of; of waits, how many.
    pub samples: i64,
}
