//! As much HTTP as the tests ask with.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

/// What came back.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// Header lines: name in small letters, value.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: String,
}

impl Response {
    /// The first header of this name (in small letters).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }
}

/// A connection that is kept open between requests.
#[derive(Debug)]
pub struct HttpConnection {
    address: String,
    stream: BufReader<TcpStream>,
}

impl HttpConnection {
    /// Connects to `host:port`; `timeout` is for the connect, and for each read and write.
    pub fn connect(address: &str, timeout: Duration) -> io::Result<Self> {
        let target = address.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
        let stream = TcpStream::connect_timeout(&target, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { address: address.to_owned(), stream: BufReader::new(stream) })
    }

    /// GET.
    pub fn get(&mut self, path: &str) -> io::Result<Response> {
        self.request("GET", path, "")
    }

    /// Any method; `headers` are whole lines, each with its `\r\n`.
    pub fn request(&mut self, method: &str, path: &str, headers: &str) -> io::Result<Response> {
        let request = format!("{method} {path} HTTP/1.1\r\nHost: {}\r\n{headers}\r\n", self.address);
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.read_response(method == "HEAD")
    }

    /// Sends raw bytes: half requests, nonsense.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads one response; a HEAD has no body whatever its headers say.
    pub fn read_response(&mut self, is_head: bool) -> io::Result<Response> {
        let status_line = self.line()?;
        let status = status_line.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not a status line: {status_line}")))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line()?;
            let Some((name, value)) = line.split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut response = Response { status, headers, body: String::new() };
        if !is_head {
            response.body = self.body(&response)?;
        }
        Ok(response)
    }

    /// One line, without its end. For streams.
    pub fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }

    fn body(&mut self, response: &Response) -> io::Result<String> {
        if response.header("transfer-encoding") == Some("chunked") {
            let mut body = Vec::new();
            loop {
                let size = usize::from_str_radix(&self.line()?, 16).map_err(io::Error::other)?;
                body.extend(self.exactly(size)?);
                self.line()?;
                if size == 0 {
                    return String::from_utf8(body).map_err(io::Error::other);
                }
            }
        }
        let length = response.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        String::from_utf8(self.exactly(length)?).map_err(io::Error::other)
    }

    fn exactly(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// One GET on a connection of its own.
pub fn get(address: &str, path: &str) -> io::Result<Response> {
    HttpConnection::connect(address, Duration::from_secs(5))?.get(path)
}
