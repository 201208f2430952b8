//! The health endpoint: one JSON document for each GET, on an address of loopback.
use crate::spool::Spool;
use crate::status::Status;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A request has so many bytes at most.
const MOST_REQUEST_BYTES: usize = 4096;
/// A connection is over after so long.
const DEADLINE: Duration = Duration::from_secs(2);
/// So many are served at once; others wait.
const MOST_CONNECTIONS: usize = 8;

/// Answers until the runtime ends.
pub(crate) async fn serve(listener: TcpListener, status: Arc<Status>, spool: Arc<Spool>) {
    let places = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            // No descriptor is left: one of them may be later.
            tokio::time::sleep(DEADLINE).await;
            continue;
        };
        let (status, spool) = (Arc::clone(&status), Arc::clone(&spool));
        tokio::spawn(async move {
            let _place = place;
            let _ = timeout(DEADLINE, answer(stream, &status, &spool)).await;
        });
    }
}

async fn answer(mut stream: TcpStream, status: &Status, spool: &Spool) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut part = [0; 512];
        let read = stream.read(&mut part).await?;
        request.extend_from_slice(&part[..read]);
        if read == 0 || request.len() > MOST_REQUEST_BYTES {
            return Ok(());
        }
    }
    let (code, body) = match request.starts_with(b"GET / ") || request.starts_with(b"GET /health ") {
        true => ("200 OK", status.json(spool)),
        false => ("404 Not Found", "{}\n".to_owned()),
    };
    let head = format!(
        "HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}
