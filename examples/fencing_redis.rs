//! A leader that writes to a Redis, which refuses what an old leader writes late.
//!
//!     cargo run --example fencing_redis -- NODES IDENTITY redis://localhost:6379 [THINK]
//!
//! The data's Redis is not one of the lock's nodes. The token is kept beside the data, and a script compares it and
//! writes in one step. Stop a leader with SIGSTOP while it thinks, wait until another has written, and let it go on.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redleader::election::Elector;
use redleader::election::timing::Wish;

/// Both keys are declared and in one hash slot, so that it works in a cluster, too. A token is below 2^53, so that Lua's
/// numbers hold it; it is stored as it came, for they print fewer digits.
const WRITE: &str = "
    local seen = tonumber(redis.call('GET', KEYS[2]) or '0')
    if tonumber(ARGV[1]) < seen then return 0 end
    redis.call('SET', KEYS[2], ARGV[1])
    redis.call('INCRBY', KEYS[1], ARGV[2])
    return 1";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [nodes, identity, data, rest @ ..] = args.as_slice() else {
        return Err("usage: fencing_redis NODES IDENTITY DATA [THINK]".into());
    };
    let think = rest.first().map_or(Ok(0.5), |seconds| seconds.parse())?;
    let data = redis::Client::open(data.as_str())?.get_multiplexed_async_connection().await?;

    let timing = Wish::with_ttl(Duration::from_secs(1));
    let elector = Elector::builder("fencing-redis", nodes.split(',')).identity(identity).timing(timing).start()?;
    tokio::select! {
        never = elector.lead(|token| work(data.clone(), token, Duration::from_secs_f64(think))) => never?,
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    elector.shutdown().await?;
    Ok(())
}

/// Thinks and writes, again and again.
async fn work(data: MultiplexedConnection, token: u64, think: Duration) {
    loop {
        println!("thinking under token {token}");
        let data = data.clone();
        // A task of its own goes on when the work is dropped, as a request would that is on its way already.
        let write = tokio::spawn(async move {
            pause(think).await;
            match add(data, token, 1).await {
                Ok(true) => println!("written under token {token}"),
                Ok(false) => println!("refused: a later leader than {token} has written"),
                Err(error) => println!("failed: {error}"),
            }
        });
        // The next thought follows, however this one ended.
        let _ = write.await;
    }
}

/// False if a leader with a larger token has written before: then nothing is changed.
async fn add(mut data: MultiplexedConnection, token: u64, amount: i64) -> redis::RedisResult<bool> {
    let script = redis::Script::new(WRITE);
    script.key("{account}").key("{account}:token").arg(token).arg(amount).invoke_async(&mut data).await
}

/// Whatever takes time.
async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
