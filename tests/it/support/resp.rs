//! The Redis protocol, as much of it as servers, proxies and fakes need.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// One value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// `+`
    Simple(String),
    /// `-`
    Error(String),
    /// `:`
    Int(i64),
    /// `$`; `None` is nil.
    Bulk(Option<Vec<u8>>),
    /// `*`; `None` is nil.
    Array(Option<Vec<Value>>),
}

impl Value {
    /// The text of a simple string, error or bulk; the digits of an integer; empty for nil and arrays.
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Int(number) => number.to_string(),
            Self::Bulk(Some(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Bulk(None) | Self::Array(_) => String::new(),
        }
    }

    /// An integer, also if it comes as text.
    pub fn int(&self) -> Option<i64> {
        self.text().parse().ok()
    }

    /// Nil of either kind.
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Bulk(None) | Self::Array(None))
    }

    /// An error.
    pub fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// The items of an array; empty for anything else.
    pub fn list(&self) -> &[Value] {
        match self {
            Self::Array(Some(items)) => items,
            Self::Simple(_) | Self::Error(_) | Self::Int(_) | Self::Bulk(_) | Self::Array(None) => &[],
        }
    }

    /// As bytes on the wire.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Simple(text) => format!("+{text}\r\n").into_bytes(),
            Self::Error(text) => format!("-{text}\r\n").into_bytes(),
            Self::Int(number) => format!(":{number}\r\n").into_bytes(),
            Self::Bulk(None) => b"$-1\r\n".to_vec(),
            Self::Bulk(Some(bytes)) => [format!("${}\r\n", bytes.len()).as_bytes(), bytes, b"\r\n"].concat(),
            Self::Array(None) => b"*-1\r\n".to_vec(),
            Self::Array(Some(items)) => {
                let head = format!("*{}\r\n", items.len()).into_bytes();
                items.iter().fold(head, |mut bytes, item| {
                    bytes.extend(item.encode());
                    bytes
                })
            }
        }
    }
}

/// A command as bytes on the wire.
pub fn command(args: &[&str]) -> Vec<u8> {
    let items = args.iter().map(|arg| Value::Bulk(Some(arg.as_bytes().to_vec()))).collect();
    Value::Array(Some(items)).encode()
}

/// The bytes are not this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotResp;

/// The first value in `bytes` and how many bytes it takes, or `None` if it is not complete.
pub fn parse(bytes: &[u8]) -> Result<Option<(Value, usize)>, NotResp> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else {
        return if bytes.first().is_none_or(|kind| b"+-:$*".contains(kind)) { Ok(None) } else { Err(NotResp) };
    };
    let (kind, line) = (bytes[0], String::from_utf8_lossy(&bytes[1..end]).into_owned());
    let after = end + 2;
    let number = || line.parse::<i64>().map_err(|_| NotResp);
    match kind {
        b'+' => Ok(Some((Value::Simple(line), after))),
        b'-' => Ok(Some((Value::Error(line), after))),
        b':' => Ok(Some((Value::Int(number()?), after))),
        b'$' => {
            let Ok(length) = usize::try_from(number()?) else { return Ok(Some((Value::Bulk(None), after))) };
            let body = bytes.get(after..after + length + 2);
            Ok(body.map(|body| (Value::Bulk(Some(body[..length].to_vec())), after + length + 2)))
        }
        b'*' => {
            let Ok(count) = usize::try_from(number()?) else { return Ok(Some((Value::Array(None), after))) };
            let mut items = Vec::new();
            let mut at = after;
            for _ in 0..count {
                let Some((item, taken)) = parse(&bytes[at..])? else { return Ok(None) };
                items.push(item);
                at += taken;
            }
            Ok(Some((Value::Array(Some(items)), at)))
        }
        _ => Err(NotResp),
    }
}

/// A connection to a server: one command, one reply.
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    buffer: Vec<u8>,
}

#[derive(Debug)]
enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Client {
    /// To `host:port`.
    pub fn tcp(address: &str, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(Self { stream: Stream::Tcp(stream), buffer: Vec::new() })
    }

    /// To a unix socket.
    pub fn unix(path: &std::path::Path, timeout: Duration) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: Stream::Unix(stream), buffer: Vec::new() })
    }

    /// Sends a command and reads one reply.
    pub fn call(&mut self, args: &[&str]) -> io::Result<Value> {
        self.send(&command(args))?;
        self.read()
    }

    /// Sends raw bytes.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.stream {
            Stream::Tcp(stream) => stream.write_all(bytes),
            Stream::Unix(stream) => stream.write_all(bytes),
        }
    }

    /// Reads one value.
    pub fn read(&mut self) -> io::Result<Value> {
        loop {
            let parsed = parse(&self.buffer).map_err(|NotResp| io::Error::other("not the redis protocol"))?;
            if let Some((value, taken)) = parsed {
                self.buffer.drain(..taken);
                return Ok(value);
            }
            let mut chunk = [0; 16 * 1024];
            let read = match &mut self.stream {
                Stream::Tcp(stream) => stream.read(&mut chunk),
                Stream::Unix(stream) => stream.read(&mut chunk),
            };
            let count = match read {
                // A read with a time limit ends so when the whole machine was frozen for a moment.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read?,
            };
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&chunk[..count]);
        }
    }

    /// A handle that can end a blocked read from another thread.
    pub(super) fn closer(&self) -> impl Fn() + Send + use<> {
        let (tcp, unix) = match &self.stream {
            Stream::Tcp(stream) => (stream.try_clone().ok(), None),
            Stream::Unix(stream) => (None, stream.try_clone().ok()),
        };
        move || {
            let _ = tcp.as_ref().map(|stream| stream.shutdown(std::net::Shutdown::Both));
            let _ = unix.as_ref().map(|stream| stream.shutdown(std::net::Shutdown::Both));
        }
    }

    /// No limit on the time of a read.
    pub(super) fn wait_forever(&self) -> io::Result<()> {
        match &self.stream {
            Stream::Tcp(stream) => stream.set_read_timeout(None),
            Stream::Unix(stream) => stream.set_read_timeout(None),
        }
    }
}
