//! The wake-up: a second connection that listens to the lock's channel.
//!
//! It is for comfort: a standby that misses a message looks again by itself. So its failures are never a node's, and a
//! message is a flag, for what it says is looked up on all nodes anyway.

use std::sync::Arc;

use futures_util::StreamExt;
use redis::RedisConnectionInfo;
use redis::aio::PubSub;
use tokio::sync::{Notify, watch};
use tracing::debug;

use crate::redsync::error::Failure;
use crate::redsync::node::NodeSettings;
use crate::redsync::node::dial::{Budget, Reached, dial_again};
use crate::redsync::node::greet::log_in;
use crate::redsync::node::wire::Allowance;
use crate::redsync::reply::Kind;

/// Listens wherever the node's own connection has got through to, until that watch closes.
pub(super) async fn run(
    settings: Arc<NodeSettings>,
    channel: String,
    mut reached: watch::Receiver<Option<Reached>>,
    woken: Arc<Notify>,
) {
    loop {
        let Some(place) = reached.borrow_and_update().clone() else {
            if reached.changed().await.is_err() {
                return;
            }
            continue;
        };
        let failure = tokio::select! {
            // The node has a new connection: perhaps to another server, so this one is made anew.
            changed = reached.changed() => {
                if changed.is_err() {
                    return;
                }
                continue;
            }
            Err(failure) = listen(&settings, &channel, &place, &woken) => failure,
        };
        debug!(node = settings.url.name(), kind = failure.kind.as_str(), text = failure.text, "no wake-ups");
        // Not to be had: left out until the node has a new connection. Else dialled again, no sooner than the node itself.
        let is_denied = matches!(failure.kind, Kind::Noperm | Kind::Unsupported);
        let pause = (!is_denied).then_some(settings.redial);
        let changed = match pause {
            Some(pause) => tokio::time::timeout(pause, reached.changed()).await.unwrap_or(Ok(())),
            None => reached.changed().await,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// Ends with the reason why there is nothing more to hear.
async fn listen(
    settings: &NodeSettings,
    channel: &str,
    place: &Reached,
    woken: &Notify,
) -> Result<std::convert::Infallible, Failure> {
    let budget = Budget::new(settings.connect_timeout);
    let (mut messages, allowance) = subscribe(settings, channel, place, budget).await?;
    loop {
        match messages.on_message().next().await {
            Some(_) => {
                allowance.renew();
                woken.notify_one();
            }
            None => return Err(Failure::new(Kind::Connect, "the server has closed the subscription")),
        }
    }
}

async fn subscribe(
    settings: &NodeSettings,
    channel: &str,
    place: &Reached,
    budget: Budget,
) -> Result<(PubSub, Allowance), Failure> {
    let mut wire = dial_again(&settings.url, &settings.tls, place, budget).await?;
    let allowance = wire.allowance();
    let info = RedisConnectionInfo::default().set_skip_set_lib_name();
    let subscribing = async {
        log_in(&mut wire, settings).await?;
        let mut messages = PubSub::new(&info, wire).await.map_err(|error| Failure::from_client(&error))?;
        messages.subscribe(channel).await.map_err(|error| Failure::from_client(&error))?;
        allowance.renew();
        Ok(messages)
    };
    let messages = budget.wait(Kind::Timeout, "the subscription", subscribing).await?;
    Ok((messages, allowance))
}
