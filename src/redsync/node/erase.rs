//! The end of a lock that nobody will use again: its keys are deleted.

use crate::redsync::error::Failure;
use crate::redsync::name::LockName;
use crate::redsync::node::NodeSettings;
use crate::redsync::node::dial::{Budget, dial};
use crate::redsync::node::greet;
use crate::redsync::node::resolver::Resolver;
use crate::redsync::reply::Kind;

/// Deletes the lock's key and its state from one node, over a connection of its own.
///
/// The state has no expiry, since a token must never go back. So this is for a lock that was made to try something out
/// and whose every contender has ended: after it the node knows nothing of the lock, and the next one to use the name
/// waits for a quarantine there.
///
/// # Errors
/// Why the node could not be reached within its connect timeout, or does not delete.
pub async fn erase(settings: &NodeSettings, lock: &LockName) -> Result<(), Failure> {
    let budget = Budget::new(settings.connect_timeout);
    let (mut wire, _) = dial(&settings.url, &settings.tls, &mut Resolver::default(), budget).await?;
    let state = lock.state_key();
    let erasing = greet::delete(&mut wire, settings, [lock.as_str(), &state]);
    budget.wait(Kind::Timeout, "deleting the lock's keys", erasing).await
}
