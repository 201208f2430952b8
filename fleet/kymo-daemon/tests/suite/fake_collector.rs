//! A collector that behaves as a test wants, and keeps what it took.
use flate2::read::GzDecoder;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What it does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// Takes it, as a collector does.
    Takes,
    /// 503.
    Refuses,
    /// Reads it, and says nothing.
    Hangs,
    /// Does not even read.
    Ignores,
    /// 200, and a page.
    Garbage,
    /// Bytes that are no HTTP.
    Noise,
    /// An answer that does not end.
    Endless,
    /// 307, to itself.
    Redirects,
    /// Closes the connection.
    HangsUp,
}

/// The collector. It ends with the test's process.
pub(crate) struct FakeCollector {
    pub(crate) address: SocketAddr,
    pub(crate) taken: Arc<Mutex<Vec<Vec<u8>>>>,
    behaviour: Arc<Mutex<Behaviour>>,
}

impl FakeCollector {
    /// Starts it; at the given address, if there is one.
    pub(crate) fn start(behaviour: Behaviour, address: Option<SocketAddr>) -> FakeCollector {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = TcpListener::bind(address.unwrap_or(any)).expect("a port");
        let address = listener.local_addr().expect("its address");
        let taken: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let behaviour = Arc::new(Mutex::new(behaviour));
        let (kept, current) = (Arc::clone(&taken), Arc::clone(&behaviour));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (kept, behaviour) = (Arc::clone(&kept), *current.lock().expect("a behaviour"));
                std::thread::spawn(move || _ = answer(stream, behaviour, &kept));
            }
        });
        FakeCollector { address, taken, behaviour }
    }

    /// What it does with connections from now on.
    pub(crate) fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock().expect("a behaviour") = behaviour;
    }

    /// The samples of all requests that it took.
    pub(crate) fn samples(&self) -> u64 {
        self.taken.lock().expect("a list").iter().map(|body| samples_of(body)).sum()
    }

    /// The texts in the dictionaries of all requests that it took: strings, and values of attributes.
    pub(crate) fn texts(&self) -> BTreeSet<String> {
        let mut texts = BTreeSet::new();
        for dictionary in self.taken.lock().expect("a list").iter().flat_map(|body| fields(body, 2)) {
            let values = fields(&dictionary, 6).into_iter().flat_map(|attribute| fields(&attribute, 2));
            let values = values.flat_map(|value| fields(&value, 1));
            let all = fields(&dictionary, 5).into_iter().chain(values);
            texts.extend(all.map(|text| String::from_utf8(text).expect("UTF-8")));
        }
        texts
    }
}

/// An address where nothing listens.
pub(crate) fn unused_address() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("its address")
}

fn answer(mut stream: TcpStream, behaviour: Behaviour, kept: &Mutex<Vec<Vec<u8>>>) -> std::io::Result<()> {
    let sleep_for_ever = || std::thread::sleep(Duration::from_secs(3600));
    match behaviour {
        Behaviour::Ignores => sleep_for_ever(),
        Behaviour::HangsUp => return Ok(()),
        Behaviour::Noise => return stream.write_all(&[0xff; 4096]),
        _ => {}
    }
    let body = read_request(&mut stream)?;
    let head = |status: &str, more: &str| format!("HTTP/1.1 {status}\r\n{more}\r\n");
    match behaviour {
        Behaviour::Takes => {
            kept.lock().expect("a list").push(body);
            let more = "Content-Type: application/x-protobuf\r\nContent-Length: 0\r\n";
            stream.write_all(head("200 OK", more).as_bytes())
        }
        Behaviour::Refuses => {
            stream.write_all(head("503 Service Unavailable", "Content-Length: 0\r\n").as_bytes())
        }
        Behaviour::Garbage => {
            let more = "Content-Type: text/html\r\nContent-Length: 6\r\n";
            stream.write_all(format!("{}<html>", head("200 OK", more)).as_bytes())
        }
        Behaviour::Endless => {
            stream.write_all(head("200 OK", "Content-Type: application/x-protobuf\r\n").as_bytes())?;
            loop {
                stream.write_all(&[0; 4096])?;
            }
        }
        Behaviour::Redirects => {
            let place = stream.local_addr()?;
            let more = format!("Location: http://{place}/\r\nContent-Length: 0\r\n");
            stream.write_all(head("307 Temporary Redirect", &more).as_bytes())
        }
        _ => {
            sleep_for_ever();
            Ok(())
        }
    }
}

/// The body of a request, unpacked.
fn read_request(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut reader = BufReader::new(stream);
    let (mut line, mut length, mut path) = (String::new(), 0, String::new());
    while reader.read_line(&mut line)? > 2 {
        let lower = line.to_ascii_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a length");
        }
        if path.is_empty() {
            path = line.split(' ').nth(1).expect("a path").to_owned();
        }
        line.clear();
    }
    assert_eq!(path, "/v1development/profiles");
    let mut packed = vec![0; length];
    reader.read_exact(&mut packed)?;
    let mut body = Vec::new();
    GzDecoder::new(&packed[..]).read_to_end(&mut body)?;
    Ok(body)
}

/// The values of all samples of a request.
pub(crate) fn samples_of(request: &[u8]) -> u64 {
    // The last byte of a varint has no high bit.
    of_samples(request, 4).iter().flatten().filter(|byte| **byte < 128).count() as u64
}

/// The moment of the first sample of a request, ns since 1970.
pub(crate) fn first_moment_of(request: &[u8]) -> u64 {
    let moments = of_samples(request, 5);
    let moments = moments.iter().flat_map(|packed| packed.chunks_exact(8));
    moments.map(|moment| u64::from_le_bytes(moment.try_into().expect("8 bytes"))).min().expect("a sample")
}

/// A field of all samples of a request: request, resource, scope, profile, sample, the field.
fn of_samples(request: &[u8], field: u64) -> Vec<Vec<u8>> {
    let below =
        |messages: Vec<Vec<u8>>, field| messages.iter().flat_map(|message| fields(message, field)).collect();
    [2, 2, 2, field].into_iter().fold(fields(request, 1), below)
}

/// The fields of this number with a length.
fn fields(mut message: &[u8], wanted: u64) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let tag = varint(&mut message);
        let length = match tag & 7 {
            0 => {
                varint(&mut message);
                0
            }
            1 => 8,
            2 => varint(&mut message) as usize,
            5 => 4,
            other => panic!("no type of a field: {other}"),
        };
        let (value, rest) = message.split_at(length);
        if tag >> 3 == wanted && tag & 7 == 2 {
            found.push(value.to_vec());
        }
        message = rest;
    }
    found
}

fn varint(message: &mut &[u8]) -> u64 {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (byte, rest) = message.split_first().expect("a whole number");
        *message = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return number;
        }
    }
}
