//! Signals that are the child's to handle: whatever the wrapper can catch and does not act on itself.

use std::io;

use rustix::process::Signal;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Signals that are passed on to the child. Not among them: TERM and INT, which ask the wrapper to stop; PIPE, TTIN and
/// TTOU, which are about the wrapper's own reading and writing; CHLD; and those that tell of a fault in the wrapper.
pub const FORWARDED: [Signal; 13] = [
    Signal::HUP,
    Signal::QUIT,
    Signal::ABORT,
    Signal::USR1,
    Signal::USR2,
    Signal::ALARM,
    Signal::VTALARM,
    Signal::PROF,
    Signal::WINCH,
    Signal::CONT,
    Signal::TSTP,
    Signal::IO,
    Signal::POWER,
];

/// Signals of one kind that come faster than they are passed on are one to the kernel too.
const WAITING: usize = 16;

/// From here on these signals end up in the receiver. Must be called inside a tokio runtime.
pub(super) fn listen() -> io::Result<mpsc::Receiver<Signal>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    for forwarded in FORWARDED {
        let mut arrivals = signal(SignalKind::from_raw(forwarded.as_raw()))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while arrivals.recv().await.is_some() {
                // A receiver that is full is about to read this signal or has lost interest in all.
                let _ = sender.try_send(forwarded);
            }
        });
    }
    Ok(receiver)
}
