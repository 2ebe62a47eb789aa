//! A leader that writes to a service over HTTP, which refuses what an old leader writes late.
//!
//!     cargo run --example fencing_http -- serve 127.0.0.1:8080
//!     cargo run --example fencing_http -- write NODES IDENTITY http://127.0.0.1:8080/account [THINK]
//!
//! The service keeps the largest token that has written, beside the data and under the same lock, and answers a smaller
//! one with 412. Stop a leader with SIGSTOP while it thinks, wait until another has written, and let it go on.

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use redleader::election::Elector;
use redleader::election::timing::Wish;

/// The request's token.
const TOKEN: &str = "fencing-token";

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["serve", address] => serve(address).await,
        ["write", nodes, identity, url] => write(nodes, identity, url, 0.5).await,
        ["write", nodes, identity, url, think] => write(nodes, identity, url, think.parse()?).await,
        _ => Err("usage: fencing_http serve ADDRESS | write NODES IDENTITY URL [THINK]".into()),
    }
}

/// The data, and the largest token that has written to it.
#[derive(Default)]
struct Account {
    balance: i64,
    token: u64,
}

async fn serve(address: &str) -> Result<(), Box<dyn Error>> {
    let account = Arc::new(Mutex::new(Account::default()));
    let routes = Router::new().route("/account", get(show).put(add)).with_state(account);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("serving");
    Ok(axum::serve(listener, routes).await?)
}

async fn show(State(account): State<Arc<Mutex<Account>>>) -> String {
    let account = account.lock().expect("nothing panics while it is locked");
    format!("{} {}", account.balance, account.token)
}

async fn add(State(account): State<Arc<Mutex<Account>>>, headers: HeaderMap, body: String) -> StatusCode {
    let token = headers.get(TOKEN).and_then(|token| token.to_str().ok()?.parse::<u64>().ok());
    let (Some(token), Ok(amount)) = (token, body.parse::<i64>()) else { return StatusCode::BAD_REQUEST };
    let mut account = account.lock().expect("nothing panics while it is locked");
    if token < account.token {
        return StatusCode::PRECONDITION_FAILED;
    }
    account.token = token;
    account.balance += amount;
    StatusCode::NO_CONTENT
}

async fn write(nodes: &str, identity: &str, url: &str, think: f64) -> Result<(), Box<dyn Error>> {
    let timing = Wish::with_ttl(Duration::from_secs(1));
    let elector = Elector::builder("fencing-http", nodes.split(',')).identity(identity).timing(timing).start()?;
    tokio::select! {
        never = elector.lead(|token| work(url.to_owned(), token, Duration::from_secs_f64(think))) => never?,
        stopped = tokio::signal::ctrl_c() => stopped?,
    }
    elector.shutdown().await?;
    Ok(())
}

/// Thinks and writes, again and again.
async fn work(url: String, token: u64, think: Duration) {
    loop {
        println!("thinking under token {token}");
        let url = url.clone();
        // A task of its own goes on when the work is dropped, as a request would that is on its way already.
        let write = tokio::spawn(async move {
            pause(think).await;
            let put = move || ureq::put(&url).header(TOKEN, token.to_string()).send("1");
            match tokio::task::spawn_blocking(put).await {
                Ok(Ok(_)) => println!("written under token {token}"),
                Ok(Err(ureq::Error::StatusCode(412))) => println!("refused: a later leader than {token} has written"),
                Ok(Err(error)) => println!("failed: {error}"),
                Err(error) => println!("failed: {error}"),
            }
        });
        // The next thought follows, however this one ended.
        let _ = write.await;
    }
}

/// Whatever takes time.
async fn pause(time: Duration) {
    let _ = tokio::time::timeout(time, std::future::pending::<()>()).await;
}
