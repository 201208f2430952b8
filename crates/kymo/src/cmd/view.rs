//! `kymo view`: a recording in the browser, by a server on the loopback address.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use clap::Args;
use kymo_cli::terminal::{ReadProgress, say};
use kymo_cli::{exit, open, signals};
use kymo_profile::firefox::firefox_profile;
use kymo_profile::resolve::ResolveOptions;
use kymo_profile::view::RecordingView;
use kymo_view::{Server, ShownFile, ShownRecording, SymbolApi};
use tempfile::NamedTempFile;

use super::report::{SymbolArgs, written_unix_ns};

/// Look at a recording in the browser: exact for any range and thread
#[derive(Debug, Args)]
#[command(
    after_help = "The server is on this machine only, and answers only who has the token in the address. It ends with Ctrl-C.\n\nExamples:\n  kymo view\n  kymo view --bundle profile.html                 # a page that works without a server\n  kymo view --no-open --port 8080 server.data     # with ssh -L 8080:127.0.0.1:8080, from elsewhere"
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
    // A port that is taken, or a file that cannot be written, is said before a long reading.
    let bundle =
        args.bundle.as_deref().map(|path| open::export(path).map(|export| (path, export))).transpose()?;
    let server = Server::bind(args.port).with_context(|| match args.port {
        0 => "failed to listen on 127.0.0.1".to_owned(),
        port => format!("failed to listen on 127.0.0.1:{port}; --port 0 takes a free one"),
    })?;
    let file = ShownFile::new(&args.file);
    let recording = open::recording(&args.file)?;
    let store = args.symbols.store(&recording);
    let progress = ReadProgress::new(args.quiet);
    let source = args.file.display().to_string();
    let symbols = (ResolveOptions::default(), &store);
    let view = RecordingView::open(
        &recording,
        (&source, args.samples || args.firefox),
        symbols,
        args.jobs,
        &|pass, done, all| {
            progress.at(pass, done, all);
        },
    );
    progress.finish();
    let mut view = view.with_context(|| format!("failed to read {source}"))?;
    view.set_written(written_unix_ns(&args.file));
    if !args.quiet {
        recording.problems.iter().chain(view.data().problems()).for_each(|problem| say(&problem.to_string()));
        view.data().notes().iter().for_each(|note| say(note));
    }
    let code = exit::of_reading(&recording, view.data().problems());
    let stop = signals::interrupted()?;
    if let Some((path, export)) = bundle {
        let failed = || format!("failed to write {}", path.display());
        let mut file = io::BufWriter::new(export);
        view.write_bundle(&store, &stop, &mut file).with_context(failed)?;
        let whole = file.into_inner().map_err(io::IntoInnerError::into_error);
        whole.and_then(kymo_files::Export::finish).with_context(failed)?;
        return Ok(code);
    }
    let (server, address) = match args.firefox {
        true => {
            let when = view.export().start_unix_ns;
            let profile = firefox_profile(&recording, view.data(), &store, (&source, when));
            let profile = profile.with_context(|| format!("failed to show {source}"))?;
            server.with_symbols(SymbolApi::new(profile, &store)).context("failed to read random bits")?
        }
        false => {
            let address = server.address();
            (server, address)
        }
    };
    // The address is the verb's result; whoever waits for it must get it now.
    writeln!(io::stdout(), "{address}").and_then(|()| io::stdout().flush()).context("failed to write")?;
    let _redirect = if args.no_open { None } else { open_browser(&address) };
    if !args.quiet {
        say("the page is served until Ctrl-C");
    }
    server.run(ShownRecording { recording, view, store, file }, &stop).context("failed to serve the page")?;
    Ok(code)
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
