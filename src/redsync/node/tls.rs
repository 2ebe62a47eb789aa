//! TLS towards a node: a private CA or the system's, and a client certificate if one is asked for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use crate::redsync::error::Failure;
use crate::redsync::reply::Kind;

/// Files in PEM, read at each connect, so that a rotated certificate needs no restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Whom to trust; the system's roots if there is none.
    pub ca: Option<PathBuf>,
    /// Our certificate, with its chain.
    pub cert: Option<PathBuf>,
    /// The key of our certificate.
    pub key: Option<PathBuf>,
}

/// Reads the files. Blocks: not for the election's thread.
pub(super) fn config(files: &TlsFiles) -> Result<Arc<ClientConfig>, Failure> {
    let roots = match &files.ca {
        Some(path) => Arc::new(read_roots(path)?),
        None => system_roots(),
    };
    // The provider is named, for a process may hold two and rustls would not choose.
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| refuse(error.to_string()))?
        .with_root_certificates(roots);
    let config = match (&files.cert, &files.key) {
        (None, None) => builder.with_no_client_auth(),
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(read_certificates(cert)?, read_key(key)?)
            .map_err(|error| refuse(format!("--redis-cert-file and --redis-key-file do not fit: {error}")))?,
        (Some(_), None) | (None, Some(_)) => {
            return Err(refuse("--redis-cert-file and --redis-key-file need each other".to_owned()));
        }
    };
    Ok(Arc::new(config))
}

/// The system's roots are a few hundred files: read once in the life of the process.
fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    let read = || {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        Arc::new(roots)
    };
    ROOTS.get_or_init(read).clone()
}

fn read_roots(path: &Path) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        roots.add(certificate).map_err(|error| refuse(format!("{}: {error}", path.display())))?;
    }
    Ok(roots)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let fault = |error: String| refuse(format!("{}: {error}", path.display()));
    let certificates: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| fault(error.to_string()))?.collect();
    let certificates = certificates.map_err(|error| fault(error.to_string()))?;
    if certificates.is_empty() {
        return Err(fault("holds no certificate in PEM".to_owned()));
    }
    Ok(certificates)
}

fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, Failure> {
    // The error names what is missing, and never the key's bytes.
    PrivateKeyDer::from_pem_file(path).map_err(|error| refuse(format!("{}: {error}", path.display())))
}

fn refuse(text: String) -> Failure {
    Failure::new(Kind::Tls, text)
}
