//! Connections to a collector: TCP, and TLS where it was built in.
use std::fmt;
use std::path::Path;
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
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.url.as_str().trim_end_matches('/'))
    }
}

/// Connects to a collector, each time anew.
#[derive(Debug)]
pub(crate) struct Connector {
    endpoint: Endpoint,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::Tls>,
}

impl Connector {
    /// For an endpoint. `http2`: what is to be spoken. `ca_file`: authorities that are trusted in
    /// place of those of the machine. Nothing is connected.
    ///
    /// # Errors
    /// A sentence: there are no certificates of authorities.
    #[cfg(feature = "tls")]
    pub(crate) fn new(endpoint: &Endpoint, http2: bool, ca_file: Option<&Path>) -> Result<Connector, String> {
        let host = endpoint.url.host_str().unwrap_or_default();
        let tls = || crate::tls::Tls::new(host, http2, ca_file);
        let tls = (endpoint.scheme() == "https").then(tls).transpose()?;
        Ok(Connector { endpoint: endpoint.clone(), tls })
    }

    #[cfg(not(feature = "tls"))]
    pub(crate) fn new(endpoint: &Endpoint, _: bool, _: Option<&Path>) -> Result<Connector, String> {
        Ok(Connector { endpoint: endpoint.clone() })
    }

    /// Connects.
    ///
    /// # Errors
    /// Why not, in words.
    pub(crate) async fn connect(&self) -> Result<Box<dyn ByteStream>, String> {
        let Endpoint { url, port } = &self.endpoint;
        let connected = match url.host() {
            Some(Host::Domain(name)) => TcpStream::connect((name, *port)).await,
            Some(Host::Ipv4(address)) => TcpStream::connect((address, *port)).await,
            Some(Host::Ipv6(address)) => TcpStream::connect((address, *port)).await,
            None => return Err("there is no host".into()),
        };
        let stream = connected.map_err(|error| error.to_string())?;
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            return tls.connect(stream).await;
        }
        Ok(Box::new(stream))
    }
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
