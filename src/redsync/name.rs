//! What a lock and a replica may be called, and the keys that follow from it (docs/protocol.md, state on a node).

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The lock's name, which is the Redis key, verbatim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockName(Arc<str>);

/// Why a text is no [`LockName`] or [`Identity`].
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NameError {
    /// Nothing, or more than Redis clients agree on.
    #[error("must have 1 to {limit} bytes, has {bytes}")]
    Length {
        /// Bytes allowed at most.
        limit: usize,
        /// Bytes given.
        bytes: usize,
    },
    /// A control character would break logs and labels.
    #[error("must not contain control characters")]
    Control,
    /// The two keys of a lock must share a hash slot.
    #[error("must have no braces, or exactly one non-empty {{tag}}")]
    Braces,
    /// The name would be another lock's state key.
    #[error("must not end in `{0}`: that is where the state of a lock is kept")]
    StateKey(&'static str),
    /// A character that an identity must not have.
    #[error("may contain letters, digits, `.`, `_` and `-` only")]
    Identity,
}

const STATE: &str = ":redleader";
const STATE_TAGGED: &str = ":redleader:tagged";

impl LockName {
    /// Bytes allowed at most.
    pub const MAX: usize = 512;

    /// Checks a name.
    ///
    /// # Errors
    /// The first rule for names that it breaks.
    pub fn parse(name: &str) -> Result<Self, NameError> {
        check_length(name, Self::MAX)?;
        if name.chars().any(char::is_control) {
            return Err(NameError::Control);
        }
        let braces: String = name.chars().filter(|c| matches!(c, '{' | '}')).collect();
        if !(braces.is_empty() || braces == "{}" && !name.contains("{}")) {
            return Err(NameError::Braces);
        }
        for ending in [STATE, STATE_TAGGED] {
            if name.ends_with(ending) {
                return Err(NameError::StateKey(ending));
            }
        }
        Ok(Self(name.into()))
    }

    /// The lock's key: the name itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The key of the lock's state, in the same hash slot.
    #[must_use]
    pub fn state_key(&self) -> String {
        if self.0.contains('{') { format!("{}{STATE_TAGGED}", self.0) } else { format!("{{{}}}{STATE}", self.0) }
    }

    /// The channel that a release is told on.
    #[must_use]
    pub fn channel(&self) -> String {
        format!("redleader:{}", self.0)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who a replica is, for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(Arc<str>);

impl Identity {
    /// Bytes allowed at most: a Kubernetes name's.
    pub const MAX: usize = 253;

    /// Checks an identity.
    ///
    /// # Errors
    /// When it is empty, too long, or has other characters than `[A-Za-z0-9._-]`.
    pub fn parse(identity: &str) -> Result<Self, NameError> {
        check_length(identity, Self::MAX)?;
        if !identity.bytes().all(is_identity_byte) {
            return Err(NameError::Identity);
        }
        Ok(Self(identity.into()))
    }

    /// The identity as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_identity_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-')
}

fn check_length(text: &str, limit: usize) -> Result<(), NameError> {
    match text.len() {
        bytes if bytes == 0 || bytes > limit => Err(NameError::Length { limit, bytes }),
        _ => Ok(()),
    }
}

/// 128 random bits that make an owner value unique; a fresh one for every attempt.
pub type Nonce = [u8; 16];

/// The value stored in the lock's key: `identity:nonce` for a replica of ours, anything for others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Owner {
    /// The owner value of an attempt.
    #[must_use]
    pub fn new(identity: &Identity, nonce: Nonce) -> Self {
        use base64::Engine as _;
        let nonce = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(nonce);
        Self(format!("{identity}:{nonce}").into())
    }

    /// A value as found in a key.
    #[must_use]
    pub fn found(value: &str) -> Self {
        Self(value.into())
    }

    /// The value, for the wire and the log.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whose it is, if it has the form of a redleader owner value.
    #[must_use]
    pub fn identity(&self) -> Option<&str> {
        let (identity, nonce) = self.0.rsplit_once(':')?;
        let is_nonce =
            nonce.len() == 22 && nonce.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
        (is_nonce && Identity::parse(identity).is_ok()).then_some(identity)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_share_a_slot() {
        for (name, state) in [
            ("job", Some("{job}:redleader")),
            ("redleader:ns/app", Some("{redleader:ns/app}:redleader")),
            ("a{tag}b", Some("a{tag}b:redleader:tagged")),
            ("{tag}", Some("{tag}:redleader:tagged")),
            ("a{}b", None),
            ("a{b", None),
            ("}a{", None),
            ("a{b}{c}", None),
            ("a{{b}", None),
            ("{job}:redleader", None),
            ("a{t}:redleader:tagged", None),
            ("", None),
            ("a\nb", None),
        ] {
            let found = LockName::parse(name).ok().map(|name| name.state_key());
            assert_eq!(found.as_deref(), state, "{name:?}");
        }
        assert!(LockName::parse(&"x".repeat(512)).is_ok());
        assert!(LockName::parse(&"x".repeat(513)).is_err());
    }

    #[test]
    fn an_owner_value_tells_its_identity_or_is_foreign() {
        let pod = Identity::parse("pod-1").unwrap();
        let owner = Owner::new(&pod, [7; 16]);
        assert_eq!(owner.identity(), Some("pod-1"));
        assert_eq!(owner.as_str().len(), "pod-1:".len() + 22);
        assert_eq!(Owner::found("c29tZSByYW5kb20gdmFsdWU=").identity(), None);
        assert_eq!(Owner::found("a b:0123456789012345678901").identity(), None);
    }
}
