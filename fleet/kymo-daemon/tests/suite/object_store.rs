//! A store that speaks S3, as far as PUT goes.
#![cfg(feature = "cloud")]
use crate::daemon::{Daemon, is_permitted};
use kymo_dataset::{Table, TableReader};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Objects in the order in which they came: key and content.
pub(crate) type Objects = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Starts a store that ends with the process of the test. It hangs up while `is_away`.
pub(crate) fn start(is_away: &Arc<AtomicBool>) -> (SocketAddr, Objects) {
    let is_away = Arc::clone(is_away);
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let address = listener.local_addr().expect("its address");
    let objects = Objects::default();
    let kept = Arc::clone(&objects);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (kept, is_away) = (Arc::clone(&kept), Arc::clone(&is_away));
            std::thread::spawn(move || while serve(&stream, &kept, &is_away).is_some() {});
        }
    });
    (address, objects)
}

/// Takes a PUT; none at the end of the connection.
fn serve(mut stream: &TcpStream, objects: &Objects, is_away: &AtomicBool) -> Option<()> {
    let mut reader = BufReader::with_capacity(1, stream);
    let (mut line, mut length, mut key) = (String::new(), 0, String::new());
    while reader.read_line(&mut line).ok()? > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if let Some(path) = line.strip_prefix("PUT ") {
            key = path.split(' ').next().expect("a path").to_owned();
        }
        line.clear();
    }
    if key.is_empty() {
        return None;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    if is_away.load(Ordering::Relaxed) {
        return None;
    }
    objects.lock().expect("a list").push((key, body));
    stream.write_all(b"HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 0\r\n\r\n").ok()
}

/// Writes a configuration for that store.
pub(crate) fn configure(state: &Path, address: SocketAddr) -> PathBuf {
    let config = state.join("daemon.toml");
    let text = format!(
        "[dataset]\nurl = \"s3://bucket/fleet\"\ntimeout_s = 5\n[dataset.options]\n\
         aws_endpoint = \"http://{address}\"\naws_allow_http = \"true\"\naws_region = \"x\"\n\
         aws_access_key_id = \"a\"\naws_secret_access_key = \"b\"\n"
    );
    std::fs::write(&config, text).expect("a folder");
    config
}

/// The table of a key, and its name there.
pub(crate) fn table(key: &str) -> (Table, &str) {
    let key = key.strip_prefix("/bucket/fleet/").unwrap_or_else(|| panic!("{key}"));
    let table = Table::ALL.into_iter().find(|table| key.starts_with(table.name())).expect("a table");
    (table, key.rsplit('/').next().expect("a name"))
}

/// Checks that a dataset goes into a bucket: whole files under the keys of the layout, of which
/// those with samples come after what they refer to.
#[test]
fn a_bucket_gets_whole_files() {
    if !is_permitted("object_store::a_bucket_gets_whole_files") {
        return;
    }
    let (address, objects) = start(&Arc::default());
    let state = tempfile::tempdir().unwrap();
    let config = configure(state.path(), address);
    let mut daemon = Daemon::start(state.path(), &["-F", "99", "--config", config.to_str().unwrap()]);
    let health = daemon.wait_until("two batches", |health| health["sent_batches"].as_u64() >= Some(2));
    assert!(health["last_error"].is_null(), "{health}");
    assert!(daemon.terminate().success());
    let objects = objects.lock().unwrap();
    let mut seen = Vec::new();
    for (key, bytes) in objects.iter() {
        let (table, stem) = table(key);
        TableReader::of_bytes(key, bytes.clone().into(), table).unwrap_or_else(|error| panic!("{error}"));
        if table == Table::Samples {
            assert!(
                [Table::Stacks, Table::Frames, Table::Hosts].iter().all(|of| seen.contains(&(*of, stem)))
            );
        }
        seen.push((table, stem));
    }
    assert!(seen.iter().any(|(table, _)| *table == Table::Samples));
}

/// Checks that a dry run does not say of a store that it works: nothing was put there.
#[test]
fn a_dry_run_does_not_vouch_for_a_store() {
    let state = tempfile::tempdir().unwrap();
    // Nothing listens there.
    let config = configure(state.path(), "127.0.0.1:1".parse().unwrap());
    let output =
        crate::daemon::command(state.path()).arg("--dry-run").arg("--config").arg(config).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("dataset")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.ends_with("s3://bucket/fleet: not tried"), "{line}");
}
