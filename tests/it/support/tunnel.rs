//! An HTTP proxy that does CONNECT and nothing else.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One that serves until the test process ends.
pub struct Tunnel {
    /// What a client is given as its proxy.
    pub url: String,
    served: Arc<AtomicUsize>,
}

impl Tunnel {
    /// Starts it at this address of the machine.
    pub fn start(host: &str) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("the address is this machine's");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let served = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&served);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let count = Arc::clone(&count);
                std::thread::spawn(move || serve(client, &count));
            }
        });
        Self { url, served }
    }

    /// How many connections it has made.
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }
}

fn serve(mut client: TcpStream, count: &AtomicUsize) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let target = head.strip_prefix("CONNECT ").and_then(|rest| rest.split(' ').next()).expect("a CONNECT");
    let mut server = TcpStream::connect(target)?;
    count.fetch_add(1, Ordering::Relaxed);
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    std::thread::spawn(move || std::io::copy(&mut from, &mut to));
    std::io::copy(&mut server, &mut client).map(|_| ())
}
