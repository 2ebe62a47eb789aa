//! One of several copies of this program works, and another one takes over when it goes.
//!
//!     cargo run --example elector -- redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 [IDENTITY] [TTL]
//!
//! Start it twice. Stop one with Ctrl-C, and the other leads within milliseconds; kill it with -9, and within the ttl.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use redleader::clock;
use redleader::election::Elector;
use redleader::election::timing::Wish;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let nodes = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let identity = args.next().unwrap_or_else(|| format!("example-{}", std::process::id()));
    let ttl = args.next().map_or(Ok(8.0), |seconds| seconds.parse())?;

    let timing = Wish::with_ttl(Duration::from_secs_f64(ttl));
    let elector = Elector::builder("example", nodes.split(',')).identity(&identity).timing(timing).start()?;
    println!("{identity} takes part");
    tokio::select! {
        // It goes on for ever, one leadership after the other.
        never = elector.lead(work) => never?,
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    elector.shutdown().await?;
    println!("{identity} has left");
    Ok(())
}

/// Whatever must not run twice at a time. It is dropped at an `.await`, so that it needs no care for its end.
async fn work(token: u64) {
    println!("leading under token {token} at {} ms", clock::now().as_millis());
    let _stopped = Stopped(token);
    loop {
        pause(Duration::from_millis(100)).await;
        println!("working under token {token}");
    }
}

/// Says when the work is dropped.
struct Stopped(u64);

impl Drop for Stopped {
    fn drop(&mut self) {
        println!("stopped under token {} at {} ms", self.0, clock::now().as_millis());
    }
}

/// Whatever takes time.
async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
