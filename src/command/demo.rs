//! `demo`: three nodes and three replicas, and what happens to them, told to a person while it happens.
//!
//! Nothing is acted: the replicas are `run` of this very binary, the nodes are real servers, and a sentence that states
//! a fact is printed after the fact was seen in a replica's log or in its own report. Every wait has a bound, and what
//! does not come within it ends the demonstration with 1.
//!
//! Nothing is left behind, however it ends: the nodes write no file and listen on no socket of the file system, every
//! process dies with this one ([`crate::command::tied`]), and on nodes of others the lock's keys are deleted.

mod cast;
mod diary;
mod stage;
mod story;

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};

use crate::command::{Exit, Said};
use crate::config::DemoConfig;

use cast::Cast;
use stage::Stage;
use story::Story;

/// Why the demonstration could not go on.
#[derive(Debug, Error)]
#[non_exhaustive]
enum DemoError {
    /// There is no server to start nodes with.
    #[error(
        "neither redis-server nor valkey-server is on the PATH: install one (apt-get install redis-server, dnf install \
         valkey, brew install redis), or name nodes that run already with --redis"
    )]
    NoServer,
    /// Too few nodes of the list can vote.
    #[error("these nodes cannot form a quorum: {reachable} of {all} can vote, {required} required{faults}")]
    NoQuorum {
        /// Nodes that can vote.
        reachable: usize,
        /// Nodes of the list.
        all: usize,
        /// Votes needed.
        required: usize,
        /// What is wrong with each of the others, a line each.
        faults: String,
    },
    /// Something did not happen in its time.
    #[error("waited {} s in vain for this: {what}{reason}", limit.as_secs())]
    InVain {
        /// What was waited for.
        what: String,
        /// How long.
        limit: Duration,
        /// What a replica says of itself, if one was asked.
        reason: String,
    },
    /// A process ended by itself.
    #[error("{name} ended though nobody asked it to; its last words: {last}")]
    Gone {
        /// Which.
        name: String,
        /// The last line that it wrote.
        last: String,
    },
    /// A replica ended with another code than 0 when it was asked to stop.
    #[error("{name} was asked to stop and ended with {status}")]
    BadEnd {
        /// Which.
        name: String,
        /// How.
        status: String,
    },
    /// What must never happen has been seen.
    #[error("{0}: please report this")]
    Broken(String),
    /// Leadership changed though a quorum was there all the time.
    #[error("{0}: this machine hardly gets on; a longer --ttl suits it better")]
    Unsteady(String),
    /// The system refuses what the demonstration needs.
    #[error("{what}: {why}")]
    System {
        /// For what.
        what: String,
        /// What the system says.
        why: io::Error,
    },
    /// Nobody reads any more.
    #[error("nobody reads what is told: {0}")]
    Unread(io::Error),
    /// A person has seen enough.
    #[error("{0}")]
    Interrupted(&'static str),
}

impl DemoError {
    fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |why| Self::System { what: what.into(), why }
    }
}

/// Shows an election on real nodes. Ends with 1 if anything of it did not happen.
pub async fn demo(config: DemoConfig) -> Said {
    let mut stage = Stage::new(config.plain);
    let mut cast = match Cast::new(&config) {
        Ok(cast) => cast,
        Err(error) => return Said { text: format!("demo: {error}"), exit: Exit::NotWell },
    };
    let told = tokio::select! {
        biased;
        interrupted = interrupted() => Err(interrupted),
        told = Story::new(&config, &mut cast, &mut stage).tell() => told,
    };
    let took = cast.age();
    let ended = cast.end().await;
    stage.clear();
    let left = match &ended {
        Ok(()) => "Nothing of this demonstration is left: every process that it started has ended.".to_owned(),
        Err(error) => format!("Not all could be cleaned up: {error}"),
    };
    match (told, ended) {
        (Ok(()), Ok(())) => {
            Said { text: format!("   {left}\n   It took {:.1} s.", took.as_secs_f64()), exit: Exit::Well }
        }
        (Ok(()), Err(_)) => Said { text: format!("demo: {left}"), exit: Exit::NotWell },
        (Err(error), _) => Said { text: format!("demo: {error}\n{left}"), exit: Exit::NotWell },
    }
}

/// Waits until a person, or whoever started us, wants the demonstration to end.
async fn interrupted() -> DemoError {
    let listen = |kind| signal(kind).map_err(DemoError::system("signals"));
    let signals = (listen(SignalKind::interrupt()), listen(SignalKind::terminate()), listen(SignalKind::hangup()));
    let (Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)) = signals else {
        return DemoError::Interrupted("the system lets this process hear no signals");
    };
    DemoError::Interrupted(tokio::select! {
        _ = interrupt.recv() => "interrupted by SIGINT",
        _ = terminate.recv() => "ended by SIGTERM",
        _ = hangup.recv() => "ended by SIGHUP",
    })
}
