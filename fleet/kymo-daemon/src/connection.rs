//! Connections to a collector: TCP, and TLS where it was built in.
use std::fmt;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use url::{Host, Url};

/// A stream of bytes in both directions.
pub(crate) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Where a collector is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    url: Url,
    port: u16,
}

impl Endpoint {
    /// Reads a URL.
    ///
    /// # Errors
    /// A sentence: it is none, its scheme is another one, or TLS was not built in.
    pub(crate) fn parse(text: &str) -> Result<Endpoint, String> {
        let url = Url::parse(text).map_err(|error| format!("endpoint = {text:?} is no URL: {error}"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "[otlp] endpoint: a URL with a password is not accepted, set the header authorization".into(),
            );
        }
        match url.scheme() {
            "http" => {}
            "https" if cfg!(feature = "tls") => {}
            "https" => {
                return Err(format!(
                    "endpoint = {text:?}: this kymo-daemon was built without TLS; `make daemon` builds it with it"
                ));
            }
            _ => return Err(format!("endpoint = {text:?}: an endpoint begins with http:// or https://")),
        }
        let port = url.port_or_known_default().unwrap_or(80);
        if url.host().is_none() {
            return Err(format!("endpoint = {text:?} names no host"));
        }
        Ok(Endpoint { url, port })
    }

    /// `http` or `https`.
    pub(crate) fn scheme(&self) -> &str {
        self.url.scheme()
    }

    /// `HOST:PORT`
    pub(crate) fn authority(&self) -> String {
        format!("{}:{}", self.url.host_str().unwrap_or_default(), self.port)
    }

    /// The path before that of OTLP; empty, or `/prefix`.
    pub(crate) fn path(&self) -> &str {
        self.url.path().trim_end_matches('/')
    }

    fn is_secure(&self) -> bool {
        self.scheme() == "https"
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url.as_str().trim_end_matches('/'))
    }
}

/// Connects. `http2`: what is to be spoken.
///
/// # Errors
/// Why not, in words.
pub(crate) async fn connect(endpoint: &Endpoint, http2: bool) -> Result<Box<dyn ByteStream>, String> {
    let connected = match endpoint.url.host() {
        Some(Host::Domain(name)) => TcpStream::connect((name, endpoint.port)).await,
        Some(Host::Ipv4(address)) => TcpStream::connect((address, endpoint.port)).await,
        Some(Host::Ipv6(address)) => TcpStream::connect((address, endpoint.port)).await,
        None => return Err("there is no host".into()),
    };
    let stream = connected.map_err(|error| error.to_string())?;
    if endpoint.is_secure() { secure(endpoint, stream, http2).await } else { Ok(Box::new(stream)) }
}

#[cfg(feature = "tls")]
async fn secure(endpoint: &Endpoint, stream: TcpStream, http2: bool) -> Result<Box<dyn ByteStream>, String> {
    use std::sync::Arc;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring::default_provider;
    use tokio_rustls::rustls::pki_types::ServerName;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err("this machine has no certificates of authorities (package ca-certificates)".into());
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?;
    let mut config = config.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    let host = endpoint.url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
    Ok(Box::new(stream.map_err(|error| error.to_string())?))
}

#[cfg(not(feature = "tls"))]
async fn secure(_: &Endpoint, _: TcpStream, _: bool) -> Result<Box<dyn ByteStream>, String> {
    Err("TLS was not built in".into())
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    /// Checks the parts of endpoints as people write them.
    #[test]
    fn endpoints_are_read() {
        let endpoint = Endpoint::parse("http://localhost:4318").unwrap();
        assert_eq!((endpoint.authority(), endpoint.path()), ("localhost:4318".into(), ""));
        let endpoint = Endpoint::parse("http://[::1]/collect/").unwrap();
        assert_eq!((endpoint.authority(), endpoint.path()), ("[::1]:80".into(), "/collect"));
        for (text, word) in
            [("localhost:4318", "http://"), ("ftp://x", "http://"), ("", "no URL"), ("http://", "no URL")]
        {
            let error = Endpoint::parse(text).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        assert!(!Endpoint::parse("http://u:secret@x").unwrap_err().contains("secret"));
    }
}
