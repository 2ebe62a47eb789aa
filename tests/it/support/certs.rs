//! A certificate authority for one test.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use super::clock::ShiftedClock;
use super::process::run;
use super::temp::TempDir;

/// A private CA, a server certificate for `localhost` and `127.0.0.1`, and a client certificate.
#[derive(Clone, Debug)]
pub struct Certificates(Arc<TempDir>);

impl Certificates {
    /// Makes them with openssl.
    pub fn generate() -> Self {
        let certificates = Self(Arc::new(TempDir::new()));
        let ca = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"];
        let ca_files = ["-subj", "/CN=test ca", "-keyout", "ca.key", "-out", "ca.pem"];
        let ca_rights = ["-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign"];
        certificates.openssl(&[&ca[..], &ca_files, &ca_rights].concat());
        certificates.sign("server", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1\nextendedKeyUsage=serverAuth\n");
        certificates.sign("client", "extendedKeyUsage=clientAuth\n");
        certificates
    }

    /// The CA's certificate.
    pub fn ca(&self) -> PathBuf {
        self.0.join("ca.pem")
    }

    /// The server's certificate.
    pub fn server_cert(&self) -> PathBuf {
        self.0.join("server.pem")
    }

    /// The server's key.
    pub fn server_key(&self) -> PathBuf {
        self.0.join("server.key")
    }

    /// The client's certificate.
    pub fn client_cert(&self) -> PathBuf {
        self.0.join("client.pem")
    }

    /// The client's key.
    pub fn client_key(&self) -> PathBuf {
        self.0.join("client.key")
    }

    /// A certificate of this CA, as it is made when the wall clock is `clock`, and its key; without extensions, one
    /// of version 1.
    pub fn issue(&self, name: &str, extensions: Option<&str>, clock: Option<&ShiftedClock>) -> (PathBuf, PathBuf) {
        self.sign_at(name, extensions, clock);
        (self.0.join(&format!("{name}.pem")), self.0.join(&format!("{name}.key")))
    }

    fn sign(&self, name: &str, extensions: &str) {
        self.sign_at(name, Some(extensions), None);
    }

    fn sign_at(&self, name: &str, extensions: Option<&str>, clock: Option<&ShiftedClock>) {
        let (key, request, cert) = (format!("{name}.key"), format!("{name}.csr"), format!("{name}.pem"));
        let subject = format!("/CN={name}");
        let make = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        self.openssl(&[&make[..], &["-subj", &subject, "-keyout", &key, "-out", &request]].concat());
        let sign = ["x509", "-req", "-in", &request, "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"];
        let extension = format!("{name}.ext");
        let mut sign = [&sign[..], &["-days", "2", "-out", &cert]].concat();
        if let Some(extensions) = extensions {
            self.0.write(&extension, &format!("basicConstraints=CA:FALSE\n{extensions}"));
            sign.extend(["-extfile", &extension]);
        }
        self.openssl_at(&sign, clock);
    }

    fn openssl(&self, args: &[&str]) {
        self.openssl_at(args, None);
    }

    fn openssl_at(&self, args: &[&str], clock: Option<&ShiftedClock>) {
        let mut command = Command::new("openssl");
        command.args(args).current_dir(self.0.path()).envs(clock.into_iter().flat_map(ShiftedClock::env));
        let output = run("openssl", command, Duration::from_secs(20));
        assert_eq!(output.code, 0, "openssl {args:?}: {}", output.stderr);
    }
}
