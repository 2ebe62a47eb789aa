//! The environment of the processes that we start.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;

use clap::CommandFactory;

use super::{Cli, PASSWORD_VARIABLE, POD_VARIABLES, RedisArgs};

/// What another `run` that we start finds in its environment, in place of what we found in ours.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, Option<OsString>>);

impl Environment {
    /// The nodes of `redis`, and nothing else of what `run` would read.
    #[must_use]
    pub fn of_nodes(redis: &RedisArgs) -> Self {
        let mut environment = Self::without_ours();
        environment.0.extend(POD_VARIABLES.map(|variable| (variable.to_owned(), None)));
        if !redis.redis.is_empty() {
            environment.set("REDLEADER_REDIS", redis.redis.join(","));
        }
        for (variable, value) in [
            ("REDLEADER_REDIS_FILE", &redis.redis_file),
            ("REDLEADER_REDIS_USERNAME", &redis.redis_username),
            ("REDLEADER_REDIS_PASSWORD_FILE", &redis.redis_password_file),
            ("REDLEADER_REDIS_CA_FILE", &redis.redis_ca_file),
            ("REDLEADER_REDIS_CERT_FILE", &redis.redis_cert_file),
            ("REDLEADER_REDIS_KEY_FILE", &redis.redis_key_file),
        ] {
            environment.0.insert(variable.to_owned(), value.as_ref().map(OsString::from));
        }
        environment.0.insert(PASSWORD_VARIABLE.to_owned(), redis.password.clone());
        environment
    }

    /// Nothing of what `run` reads under names of its own: the environment of programs that are not ours.
    #[must_use]
    pub fn without_ours() -> Self {
        let command = Cli::command();
        let run = command.find_subcommand("run").expect("the command has it");
        let flags = run.get_arguments().filter_map(|arg| arg.get_env()?.to_str());
        // And what has such a name and is nobody's: a flag of another version, or a slip in a secret's variable.
        let found = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        let found = found.filter(|name| name.starts_with("REDLEADER_"));
        let known = flags.chain([PASSWORD_VARIABLE]).map(str::to_owned);
        Self(known.chain(found).map(|variable| (variable, None)).collect())
    }

    /// Sets a variable.
    pub fn set(&mut self, variable: &str, value: impl Into<OsString>) {
        self.0.insert(variable.to_owned(), Some(value.into()));
    }

    /// Gives it to a command.
    pub fn apply(&self, command: &mut std::process::Command) {
        for (variable, value) in &self.0 {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
    }
}

/// Names only: values may be secret.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name)).finish()
    }
}
