//! A leader that writes to PostgreSQL, which refuses what an old leader writes late.
//!
//!     cargo run --example fencing_postgres -- NODES IDENTITY "host=localhost user=postgres" [THINK]
//!
//! The row keeps the largest token that has written to it, and every statement of a leader carries the condition
//! `token <= $1`. Stop a leader with SIGSTOP while it thinks, wait until another has written, and let it go on.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use redleader::election::Elector;
use redleader::election::timing::Wish;
use tokio_postgres::{Client, NoTls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [nodes, identity, database, rest @ ..] = args.as_slice() else {
        return Err("usage: fencing_postgres NODES IDENTITY DATABASE [THINK]".into());
    };
    let think = rest.first().map_or(Ok(0.5), |seconds| seconds.parse())?;
    let account = Arc::new(Account::open(database).await?);

    let timing = Wish::with_ttl(Duration::from_secs(1));
    let elector = Elector::builder("fencing-postgres", nodes.split(',')).identity(identity).timing(timing).start()?;
    tokio::select! {
        never = elector.lead(|token| work(Arc::clone(&account), token, Duration::from_secs_f64(think))) => never?,
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    elector.shutdown().await?;
    Ok(())
}

/// Thinks and writes, again and again.
async fn work(account: Arc<Account>, token: u64, think: Duration) {
    loop {
        println!("thinking under token {token}");
        let account = Arc::clone(&account);
        // A task of its own goes on when the work is dropped, as a request would that is on its way already.
        let write = tokio::spawn(async move {
            pause(think).await;
            match account.add(token, 1).await {
                Ok(true) => println!("written under token {token}"),
                Ok(false) => println!("refused: a later leader than {token} has written"),
                Err(error) => println!("failed: {error}"),
            }
        });
        // The next thought follows, however this one ended.
        let _ = write.await;
    }
}

/// What the leader writes to.
struct Account(Client);

impl Account {
    async fn open(database: &str) -> Result<Self, tokio_postgres::Error> {
        let (client, connection) = tokio_postgres::connect(database, NoTls).await?;
        tokio::spawn(connection);
        client
            .batch_execute(
                "CREATE TABLE IF NOT EXISTS account (name text PRIMARY KEY, balance bigint NOT NULL, token bigint NOT NULL);
                 INSERT INTO account VALUES ('main', 0, 0) ON CONFLICT DO NOTHING;",
            )
            .await?;
        Ok(Self(client))
    }

    /// False if a leader with a larger token has written before: then nothing is changed.
    async fn add(&self, token: u64, amount: i64) -> Result<bool, tokio_postgres::Error> {
        // A token is below 2^53.
        let token = token.cast_signed();
        let statement = "UPDATE account SET balance = balance + $2, token = $1 WHERE name = 'main' AND token <= $1";
        Ok(self.0.execute(statement, &[&token, &amount]).await? == 1)
    }
}

/// Whatever takes time.
async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
