//! A basic lock: lock, work, unlock.
//!
//!     cargo run --example basic_lock -- redis://127.0.0.1:7001,redis://127.0.0.1:7002,redis://127.0.0.1:7003 [SECONDS]
//!
//! If it ends without unlocking, the key stays until its expiry.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use redleader::redsync::Redsync;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let nodes = args.next().unwrap_or_else(|| "redis://127.0.0.1:6379".to_owned());
    let seconds = args.next().map_or(Ok(0.1), |seconds| seconds.parse())?;

    let redsync = Redsync::new(nodes.split(','))?;
    let mut mutex = redsync.mutex("my-global-mutex");
    mutex.lock().await?;
    println!("locked, valid for {} ms", mutex.valid_for().as_millis());

    work(Duration::from_secs_f64(seconds)).await;

    mutex.unlock().await?;
    println!("unlocked");
    Ok(())
}

/// Whatever must not run twice at a time.
async fn work(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
