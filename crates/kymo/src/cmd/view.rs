//! `kymo view`: a recording in the browser, by a server on the loopback address.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{damage, exit, open, signals};
use kymo_data::Recording;
use kymo_profile::firefox::firefox_profile;
use kymo_profile::wall::{WaitDetail, wait_detail};
use kymo_view::{ReadOptions, RecordingReader, Server, ShownRecording, ShownSlot, SymbolApi};
use tempfile::NamedTempFile;

use super::report::SymbolArgs;

/// How soon the end of serving is noticed.
const STOP_POLL: Duration = Duration::from_millis(50);

/// Look at a recording in the browser: exact for any range and thread
#[derive(Debug, Args)]
#[command(
    after_help = "The server is on this machine only, and answers only who has the token in the address. It ends with Ctrl-C.\n\nExamples:\n  kymo view\n  kymo view --live                                # while kymo record still writes it\n  kymo view --bundle profile.html                 # a page that works without a server\n  kymo view --no-open --port 8080 server.data     # with ssh -L 8080:127.0.0.1:8080, from elsewhere"
)]
pub(crate) struct ViewArgs {
    /// The recording, - for stdin
    #[arg(value_name = "FILE", default_value = "perf.data")]
    file: PathBuf,
    /// Print the address, and open no browser
    #[arg(long)]
    no_open: bool,
    /// Write a page that works without a server, with the sources and instructions of the hottest
    /// functions, and serve nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["no_open", "firefox", "port"])]
    bundle: Option<PathBuf>,
    /// Show it in the Firefox Profiler: its page, profiler.firefox.com, asks this server
    #[arg(long)]
    firefox: bool,
    /// Follow a recording that is still written: read it again as it grows
    #[arg(long, conflicts_with_all = ["firefox", "bundle"])]
    live: bool,
    /// The port; 0 takes a free one
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,
    /// The samples of a recording that has the time of threads, too (record --wall)
    #[arg(long)]
    samples: bool,
    /// Worker threads; as many as CPUs are usual
    #[arg(short, long, value_name = "N", default_value_t = 0, hide_default_value = true)]
    jobs: usize,
    #[command(flatten)]
    symbols: SymbolArgs,
    /// Say only what is wrong
    #[arg(short, long)]
    quiet: bool,
}

/// Reads a recording, and shows it until a signal comes.
pub(crate) fn run(args: ViewArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = &args.bundle {
        // A file that cannot be written is said before a long reading.
        let export = open::export(path)?;
        return bundle(&args, path, export);
    }
    let server = Server::bind(args.port).with_context(|| match args.port {
        0 => "failed to listen on 127.0.0.1".to_owned(),
        port => format!("failed to listen on 127.0.0.1:{port}; --port 0 takes a free one"),
    })?;
    if args.firefox { serve_profiler(&args, server) } else { serve(args, server) }
}

/// The page asks until the recording is there: the server answers from the beginning on.
fn serve(args: ViewArgs, server: Server) -> anyhow::Result<ExitCode> {
    // One that is none is said before there is an address.
    let recording = open::recording(&args.file)?;
    let stop = signals::interrupted()?;
    let slot = Arc::new(ShownSlot::default());
    let _redirect = announce(&args, &server.address())?;
    let title = args.file.display().to_string();
    let (of_server, flag) = (Arc::clone(&slot), Arc::clone(&stop));
    let server = std::thread::spawn(move || server.run(of_server, &title, &flag));
    let (result, read) = mpsc::channel();
    let (reader, quiet, flag) = (reader(&args, recording), args.quiet, Arc::clone(&stop));
    std::thread::spawn(move || {
        let first = read_whole(&reader, &slot, quiet);
        let shown = first.as_ref().ok().map(|(shown, _)| Arc::clone(shown));
        // Who waits for it has gone where this fails.
        _ = result.send(first.map(|(_, code)| code));
        if let Some(shown) = shown {
            _ = result.send(reader.follow(&slot, shown, &flag).map(|()| ExitCode::SUCCESS));
        }
    });
    let mut code = None;
    // A reading that still runs ends with the process.
    while !stop.load(Ordering::Relaxed) && !server.is_finished() {
        match read.recv_timeout(STOP_POLL) {
            Ok(Ok(of_reading)) => code = code.or(Some(of_reading)),
            Ok(Err(error)) if code.is_none() => return Err(error),
            Ok(Err(error)) => {
                say(&format!("the recording is not followed any more: {}", exit::with_causes(&error)))
            }
            Err(RecvTimeoutError::Timeout) => {}
            // All is read.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(STOP_POLL),
        }
    }
    if server.is_finished()
        && let Ok(ended) = server.join()
    {
        ended.context("failed to serve the page")?;
    }
    Ok(code.unwrap_or(ExitCode::SUCCESS))
}

/// What reads the recording: as it was opened, and later again.
fn reader(args: &ViewArgs, opened: Recording) -> RecordingReader<anyhow::Error> {
    let (file, symbols) = (args.file.clone(), args.symbols.clone());
    let opened = Mutex::new(Some(opened));
    let options =
        ReadOptions { samples_only: args.samples || args.firefox, workers: args.jobs, follows: args.live };
    RecordingReader {
        path: args.file.clone(),
        open: Box::new(move || {
            let first = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
            first.map_or_else(|| open::recording(&file), Ok)
        }),
        store: Box::new(move |recording| symbols.store(recording)),
        options,
    }
}

/// Reads all of the recording into the slot, and says what was wrong with it.
fn read_whole(
    reader: &RecordingReader<anyhow::Error>,
    slot: &ShownSlot,
    quiet: bool,
) -> anyhow::Result<(Arc<ShownRecording>, ExitCode)> {
    let progress = ReadProgress::new(quiet);
    let shown = reader.read(slot, &|pass, done, all| progress.at(pass, done, all));
    progress.finish();
    let shown = shown.with_context(|| format!("failed to read {}", reader.path.display()))?;
    let problems = shown.view.data().problems();
    if !quiet {
        damage::tell(shown.recording.problems.iter().chain(problems));
        shown.view.data().notes().iter().for_each(|note| say(note));
        which_time(&shown).into_iter().for_each(say);
    }
    let code = exit::of_reading(&shown.recording, problems);
    Ok((shown, code))
}

/// Which of its two times a recording with waits is shown by.
fn which_time(shown: &ShownRecording) -> Option<&'static str> {
    let has_both = wait_detail(&shown.recording) == WaitDetail::All;
    has_both.then(|| match shown.view.data().is_of_spans() {
        true => {
            "this is the time of all threads, waits among it; --samples shows the samples of threads that ran"
        }
        false => "these are samples of threads that ran, not the time of all threads, waits among it",
    })
}

/// Writes a page that needs no server.
fn bundle(args: &ViewArgs, path: &Path, export: kymo_files::Export) -> anyhow::Result<ExitCode> {
    let (shown, code) =
        read_whole(&reader(args, open::recording(&args.file)?), &ShownSlot::default(), args.quiet)?;
    let stop = signals::interrupted()?;
    let failed = || format!("failed to write {}", path.display());
    let mut file = io::BufWriter::new(export);
    shown.view.write_bundle(&shown.store, &stop, &mut file).with_context(failed)?;
    let whole = file.into_inner().map_err(io::IntoInnerError::into_error);
    whole.and_then(kymo_files::Export::finish).with_context(failed)?;
    Ok(code)
}

/// The Firefox Profiler's page asks for all of the profile at once: it is read before.
fn serve_profiler(args: &ViewArgs, server: Server) -> anyhow::Result<ExitCode> {
    let slot = Arc::new(ShownSlot::default());
    let (shown, code) = read_whole(&reader(args, open::recording(&args.file)?), &slot, args.quiet)?;
    let source = args.file.display().to_string();
    let when = shown.view.export().start_unix_ns;
    let profile = firefox_profile(&shown.recording, shown.view.data(), &shown.store, (&source, when));
    let profile = profile.with_context(|| format!("failed to show {source}"))?;
    let symbols = SymbolApi::new(profile, &shown.store);
    let (server, address) = server.with_symbols(symbols).context("failed to read random bits")?;
    let stop = signals::interrupted()?;
    let _redirect = announce(args, &address)?;
    server.run(slot, &source, &stop).context("failed to serve the page")?;
    Ok(code)
}

/// Prints the address, and opens the browser there. The file that leads to the page stays until it
/// is dropped.
fn announce(args: &ViewArgs, address: &str) -> anyhow::Result<Option<NamedTempFile>> {
    // The address is the verb's result; whoever waits for it must get it now.
    writeln!(io::stdout(), "{address}").and_then(|()| io::stdout().flush()).context("failed to write")?;
    let redirect = if args.no_open { None } else { open_browser(address) };
    if !args.quiet {
        say("the page is served until Ctrl-C");
    }
    Ok(redirect)
}

/// Opens the user's browser where there is a screen. Root's browser is nobody's: the address is
/// there. The file that leads to the page stays until it is dropped.
fn open_browser(address: &str) -> Option<NamedTempFile> {
    let has_screen = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if !has_screen || rustix::process::geteuid().is_root() || !Path::new("/usr/bin/xdg-open").exists() {
        return None;
    }
    let opened = redirect_to(address).and_then(|redirect| {
        let quiet = || Stdio::null();
        let mut command = Command::new("/usr/bin/xdg-open");
        let child = command.arg(redirect.path()).stdin(quiet()).stdout(quiet()).stderr(quiet()).spawn();
        Ok((redirect, child?))
    });
    match opened {
        // It hands the file to the browser and ends.
        Ok((redirect, mut child)) => {
            std::thread::spawn(move || child.wait());
            Some(redirect)
        }
        Err(error) => {
            say(&format!("no browser was opened: {error}"));
            None
        }
    }
}

/// A file of the user's own that leads a browser to an address. Arguments of programs can be read
/// by all users, and the address has the token.
fn redirect_to(address: &str) -> io::Result<NamedTempFile> {
    let mut file = tempfile::Builder::new().prefix("kymo-view-").suffix(".html").tempfile()?;
    write!(file, "<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={address}\">")?;
    file.flush()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    /// Checks that nobody else can read the file that has the token, and that it is gone with its
    /// owner.
    #[test]
    fn the_redirect_is_the_users_own() {
        let redirect = redirect_to("http://127.0.0.1:1/?token=2").expect("a file");
        let found = redirect.path().metadata().expect("it is there");
        assert_eq!(found.permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(redirect.path()).expect("readable");
        assert!(text.contains("url=http://127.0.0.1:1/?token=2\""), "{text}");
        let path = redirect.path().to_owned();
        drop(redirect);
        assert!(!path.exists());
    }
}
