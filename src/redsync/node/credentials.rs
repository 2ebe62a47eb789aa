//! Who we are to a node: from its URL, else from the settings.

use std::io;
use std::path::PathBuf;

use tokio::task::spawn_blocking;

use crate::redsync::error::Failure;
use crate::redsync::node::NodeSettings;
use crate::redsync::reply::Kind;
use crate::redsync::url::Secret;

/// Where a password comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Password {
    /// There is none.
    None,
    /// From the environment.
    Value(Secret),
    /// From a file that is read at each connect, so that a rotated password needs no restart; one final newline is
    /// dropped.
    File(PathBuf),
}

/// What AUTH says, as of one connect.
#[derive(Debug)]
pub(super) struct Credentials {
    username: Option<String>,
    password: Option<Secret>,
}

impl Credentials {
    /// What the URL says goes first.
    pub(super) async fn read(settings: &NodeSettings) -> Result<Self, Failure> {
        let username = settings.url.username.clone().or_else(|| settings.username.clone());
        let password = match (&settings.url.password, &settings.password) {
            (Some(secret), _) | (None, Password::Value(secret)) => Some(secret.clone()),
            (None, Password::File(path)) => Some(read_password(path.clone()).await?),
            (None, Password::None) => None,
        };
        Ok(Self { username, password })
    }

    /// The arguments of AUTH, if there is anything to say.
    pub(super) fn auth(&self) -> Option<Vec<&str>> {
        let password = self.password.as_ref().map(Secret::expose);
        match &self.username {
            // A user with `nopass` takes any password.
            Some(username) => Some(vec![username, password.unwrap_or_default()]),
            None => password.map(|password| vec![password]),
        }
    }

    /// A server, or a proxy that does not know AUTH, may repeat what it was told.
    pub(super) fn hide(&self, failure: Failure) -> Failure {
        match self.password.as_ref().map(Secret::expose).filter(|password| !password.is_empty()) {
            Some(password) => Failure::new(failure.kind, failure.text.replace(password, "***")),
            None => failure,
        }
    }
}

async fn read_password(path: PathBuf) -> Result<Secret, Failure> {
    let name = path.display().to_string();
    let read = spawn_blocking(move || std::fs::read_to_string(path)).await.unwrap_or_else(|e| Err(io::Error::other(e)));
    let mut text = read.map_err(|error| Failure::new(Kind::Auth, format!("password file {name}: {error}")))?;
    if text.ends_with('\n') {
        text.pop();
    }
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_repeats_of_the_password_is_hidden() {
        let credentials = Credentials { username: None, password: Some(Secret::new("S3cr3t")) };
        let hidden = credentials.hide(Failure::new(Kind::Unsupported, "ERR unknown command 'AUTH S3cr3t'"));
        assert_eq!(hidden.text, "ERR unknown command 'AUTH ***'");
    }
}
