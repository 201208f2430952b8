//! TLS towards a collector: which authorities are trusted, and what is said of a certificate that
//! is not accepted.
use crate::connection::ByteStream;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{CertificateError, ClientConfig, Error, RootCertStore};

/// What is read of a file with certificates: those of all authorities of a machine take a quarter.
const MOST_CERTIFICATE_BYTES: u64 = 1 << 20;

/// What a connection needs beside its stream.
pub(crate) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Tls {
    /// For a host, by its name or address. `ca_file`: certificates (PEM) of the authorities that
    /// are trusted in place of those of the machine.
    ///
    /// # Errors
    /// A sentence: there are no certificates, or the host cannot have one.
    pub(crate) fn new(host: &str, http2: bool, ca_file: Option<&Path>) -> Result<Tls, String> {
        let roots = match ca_file {
            Some(file) => roots_of_file(file)?,
            None => roots_of_machine()?,
        };
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?;
        let mut config = config.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
        let name = name.map_err(|error| format!("endpoint: {host} cannot have a certificate: {error}"))?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), name })
    }

    /// Encrypts a connection.
    ///
    /// # Errors
    /// What is wrong with the certificate or the answer, in one sentence.
    pub(crate) async fn connect(&self, stream: TcpStream) -> Result<Box<dyn ByteStream>, String> {
        match self.connector.connect(self.name.clone(), stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => Err(sentence(&error, &self.name.to_str())),
        }
    }
}

fn roots_of_machine() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err("this machine has no certificates of authorities: install the package \
                     ca-certificates, or set ca_file in [otlp]"
            .into()),
        false => Ok(roots),
    }
}

fn roots_of_file(file: &Path) -> Result<RootCertStore, String> {
    let failed = |reason: String| format!("[otlp] ca_file {}: {reason}", file.display());
    let mut text = Vec::new();
    File::open(file)
        .and_then(|file| file.take(MOST_CERTIFICATE_BYTES).read_to_end(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text) {
        let certificate = certificate.map_err(|error| failed(format!("it is damaged: {error}")))?;
        roots.add(certificate).map_err(|error| failed(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(failed("it has no certificates (PEM)".into())),
        false => Ok(roots),
    }
}

/// What a failed handshake means.
fn sentence(error: &io::Error, host: &str) -> String {
    use CertificateError::{BadSignature, Expired, ExpiredContext, UnknownIssuer};
    use CertificateError::{NotValidForName, NotValidForNameContext};
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        // A bad signature: another authority has the same name.
        Some(Error::InvalidCertificate(UnknownIssuer | BadSignature)) => {
            "its certificate is of an authority that is not trusted here: set ca_file in [otlp]".into()
        }
        Some(Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
            format!("its certificate is one of another host than {host}")
        }
        Some(Error::InvalidCertificate(Expired | ExpiredContext { .. })) => {
            "its certificate has expired".into()
        }
        Some(Error::InvalidMessage(_)) => {
            "its answer is not TLS: does its endpoint begin with http://?".into()
        }
        _ => error.to_string().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}
