//! The byte stream under a connection, with a limit on what a reply may take.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bytes that may come in between two replies. The largest that is asked for is INFO, some 8 KiB; a server that sends
/// more is none, and its bytes must not fill our memory.
const REPLY_LIMIT: usize = 64 * 1024;

/// TCP, TLS or a unix socket.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A stream that fails once more than [`REPLY_LIMIT`] bytes have come in since [`Allowance::renew`].
pub(super) struct Wire {
    stream: Box<dyn Duplex>,
    allowance: Allowance,
    first_byte: Option<u8>,
}

/// The owner's hand on a [`Wire`]'s limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Allowance(Arc<AtomicUsize>);

impl Allowance {
    /// A reply has been read: the next one may be as large again.
    pub(super) fn renew(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Wire {
    pub(super) fn new(stream: impl Duplex + 'static) -> Self {
        Self { stream: Box::new(stream), allowance: Allowance::default(), first_byte: None }
    }

    /// The other side has answered with a TLS alert, which no server does that was asked in its own language.
    pub(super) fn wants_tls(&self) -> bool {
        const ALERT: u8 = 0x15;
        self.first_byte == Some(ALERT)
    }

    pub(super) fn allowance(&self) -> Allowance {
        self.allowance.clone()
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let used = self.allowance.0.load(Ordering::Relaxed);
        if used >= REPLY_LIMIT {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "a reply is larger than 64 KiB")));
        }
        let before = buf.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(cx, buf);
        self.allowance.0.store(used + buf.filled().len() - before, Ordering::Relaxed);
        self.first_byte = self.first_byte.or_else(|| buf.filled().get(before).copied());
        result
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test]
    async fn more_than_the_limit_between_two_replies_is_an_error() {
        let (ours, mut theirs) = tokio::io::duplex(4 * REPLY_LIMIT);
        let mut wire = Wire::new(ours);
        let allowance = wire.allowance();
        theirs.write_all(&vec![b'x'; 3 * REPLY_LIMIT]).await.unwrap();
        let mut half = vec![0; REPLY_LIMIT / 2];
        for _ in 0..3 {
            wire.read_exact(&mut half).await.unwrap();
            allowance.renew();
        }
        let mut rest = Vec::new();
        let error = wire.read_to_end(&mut rest).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }
}
