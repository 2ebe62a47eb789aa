//! Work that takes longer than the lock lives, twice at a time: the lock is kept until the work is done.
//!
//!     cargo run --example held_task -- redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 [SECONDS]
//!
//! Two tasks of ten seconds take the same lock, whose key lives for eight: the second starts when the first has ended.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use redleader::clock;
use redleader::redsync::{Options, Redsync};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let nodes = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let seconds = args.next().map_or(Ok(10.0), |seconds| seconds.parse())?;

    let redsync = Redsync::new(nodes.split(','))?;
    let time = Duration::from_secs_f64(seconds);
    tokio::try_join!(task("first", &redsync, time), task("second", &redsync, time))?;
    Ok(())
}

async fn task(name: &str, redsync: &Redsync, time: Duration) -> Result<(), Box<dyn Error>> {
    let holder = redsync.try_lock("held-task", Options::new().tries(100)).await?;
    println!("{name} starts at {} ms", clock::now().as_millis());
    tokio::select! {
        () = work(time) => println!("{name} ends at {} ms", clock::now().as_millis()),
        loss = holder.lost() => println!("{name} stops: {loss}"),
    }
    holder.release_lock().await?;
    Ok(())
}

/// Whatever must not run twice at a time.
async fn work(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
