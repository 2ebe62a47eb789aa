//! What an app can be asked, and why an answer is none that is good.

use std::io;
use std::path::PathBuf;

use axum::http::StatusCode;
use thiserror::Error;
use tokio::task::JoinHandle;
use url::Url;

use super::{command, http};
use crate::cli::Environment;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Check {
    /// GET over plain HTTP: healthy is 200 to 299.
    Http(Url),
    /// Healthy while there is something at the path.
    File(PathBuf),
    /// A program and its arguments, without a shell: healthy is exit code 0.
    Exec(Vec<String>),
}

/// Why a text is no check. The text is not shown: a URL may hold a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CheckError {
    /// None of the forms.
    #[error("must be an http:// URL, file:PATH or exec:COMMAND")]
    Form,
    /// TLS, and a socket, are for the program of an `exec:` check.
    #[error("can be asked over plain http only: use exec: with a program that asks, such as curl")]
    Scheme,
    /// Every process can read the arguments of every other.
    #[error("must have no user and no password in it: use exec: with a program that reads them from a file")]
    Credentials,
    /// Nothing after `file:`.
    #[error("has no path after file:")]
    NoPath,
    /// Nothing after `exec:`, or a quote that is not closed.
    #[error("needs a command after exec:, in words that may be quoted as in a shell; there is no shell")]
    NoCommand,
}

impl Check {
    /// Reads `http://…`, `file:PATH` or `exec:COMMAND`.
    ///
    /// # Errors
    /// When it is none of them, or one that cannot be asked.
    pub fn parse(text: &str) -> Result<Self, CheckError> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("file:") {
            return if path.is_empty() { Err(CheckError::NoPath) } else { Ok(Self::File(PathBuf::from(path))) };
        }
        if let Some(command) = text.strip_prefix("exec:") {
            let words = shlex::split(command).filter(|words| words.first().is_some_and(|word| !word.is_empty()));
            return words.map(Self::Exec).ok_or(CheckError::NoCommand);
        }
        let has_scheme = |scheme: &str| text.get(..scheme.len()).is_some_and(|at| at.eq_ignore_ascii_case(scheme));
        if ["https:", "unix:", "tcp:"].into_iter().any(has_scheme) {
            return Err(CheckError::Scheme);
        }
        if !has_scheme("http://") {
            return Err(CheckError::Form);
        }
        let url = Url::parse(text).map_err(|_| CheckError::Form)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(CheckError::Credentials);
        }
        Ok(Self::Http(url))
    }
}

/// Why the app does not count as healthy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Failure {
    /// It took longer than the time between two checks.
    #[error("no answer within --app-ready-every")]
    Timeout,
    /// The name of its URL has no address.
    #[error("its name cannot be resolved: {0}")]
    Name(io::Error),
    /// Nobody listens there, or the system refuses the connection.
    #[error("cannot connect: {0}")]
    Connect(io::Error),
    /// What answers speaks no HTTP, or too much of it, or ends the connection.
    #[error("no answer in HTTP: {0}")]
    Http(#[from] hyper::Error),
    /// It answers, and says no.
    #[error("status {}", .0.as_u16())]
    Status(StatusCode),
    /// There is nothing at the path, or it cannot be looked at.
    #[error("the file cannot be seen: {0}")]
    File(io::Error),
    /// The command cannot be run.
    #[error("the command cannot be run: {0}")]
    Run(io::Error),
    /// The command said no.
    #[error("the command ended with {0}")]
    Exit(std::process::ExitStatus),
}

/// Asks, one question at a time.
pub(super) struct Checker {
    check: Check,
    environment: Environment,
    blocking: Blocking,
}

impl Checker {
    pub(super) fn new(check: Check, environment: Environment) -> Self {
        Self { check, environment, blocking: Blocking(None) }
    }

    /// Asks once. May be dropped at any moment: nothing is left behind but one system call that hangs.
    pub(super) async fn check(&mut self) -> Result<(), Failure> {
        match &self.check {
            Check::Http(url) => http::get(url, &mut self.blocking).await,
            Check::File(path) => {
                let path = path.clone();
                self.blocking.ask(move || std::fs::metadata(path).map(drop)).await.map_err(Failure::File)
            }
            Check::Exec(words) => command::run(words, &self.environment).await,
        }
    }
}

/// System calls that cannot be taken back, such as the look-up of a name or of a file on a server that hangs: at most one
/// is under way, for each holds a thread for as long as it likes.
pub(super) struct Blocking(Option<JoinHandle<()>>);

impl Blocking {
    pub(super) async fn ask<T: Send + 'static>(
        &mut self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if let Some(hung) = &mut self.0 {
            // How it ended is no matter: what it would have told is old.
            let _ = hung.await;
        }
        let (sender, answer) = tokio::sync::oneshot::channel();
        self.0 = Some(tokio::task::spawn_blocking(move || {
            // Nobody waits for an answer that comes too late.
            let _ = sender.send(call());
        }));
        let answer = answer.await.map_err(io::Error::other)?;
        self.0 = None;
        answer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_has_one_of_three_forms() {
        let exec = |words: &[&str]| Ok(Check::Exec(words.iter().map(|word| (*word).to_owned()).collect()));
        for (text, expected) in [
            (
                "http://127.0.0.1:8080/ready?x=1",
                Ok(Check::Http(Url::parse("http://127.0.0.1:8080/ready?x=1").unwrap())),
            ),
            ("HTTP://app/", Ok(Check::Http(Url::parse("http://app/").unwrap()))),
            ("file:/run/ready", Ok(Check::File("/run/ready".into()))),
            ("exec:/bin/check --for 'two words'", exec(&["/bin/check", "--for", "two words"])),
            ("exec:true; false", exec(&["true;", "false"])),
            ("https://app/ready", Err(CheckError::Scheme)),
            ("unix:/run/app.sock", Err(CheckError::Scheme)),
            ("http://user:S3cr3t@app/", Err(CheckError::Credentials)),
            ("http://user@app/", Err(CheckError::Credentials)),
            ("http://", Err(CheckError::Form)),
            ("/run/ready", Err(CheckError::Form)),
            ("", Err(CheckError::Form)),
            ("ü", Err(CheckError::Form)),
            ("file:", Err(CheckError::NoPath)),
            ("exec:", Err(CheckError::NoCommand)),
            ("exec: ''", Err(CheckError::NoCommand)),
            ("exec:'open", Err(CheckError::NoCommand)),
        ] {
            assert_eq!(Check::parse(text), expected, "{text}");
        }
    }
}
