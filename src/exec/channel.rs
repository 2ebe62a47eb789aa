//! A pair of sockets between wrapper and guardian: whole packets, and an end that is noticed when the other is gone.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::cmsg_space;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recv, recvmsg, send, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::unix::AsyncFd;

/// The longest packet: a report with the message of an error in it.
const PACKET: usize = 4096;

/// One end.
#[derive(Debug)]
pub(super) struct Channel(AsyncFd<OwnedFd>);

impl Channel {
    /// Our end, and the one to be given to another process.
    pub(super) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self::new(ours)?, theirs))
    }

    /// The end that was given to us. Must be called inside a tokio runtime.
    pub(super) fn new(socket: OwnedFd) -> io::Result<Self> {
        #[expect(deprecated, reason = "an OwnedFd keeps its descriptor open, and the replacement is an unsafe fn")]
        Ok(Self(AsyncFd::new(socket)?))
    }

    /// Sends a packet, or fails at once: whoever does not read a handful of packets hangs.
    pub(super) fn send(&self, packet: &impl Serialize) -> io::Result<()> {
        let bytes = serde_json::to_vec(packet).map_err(io::Error::other)?;
        send(self.0.get_ref(), &bytes, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The same, with a descriptor in it.
    pub(super) fn send_with(&self, packet: &impl Serialize, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let bytes = serde_json::to_vec(packet).map_err(io::Error::other)?;
        let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [descriptor];
        if !control.push(SendAncillaryMessage::ScmRights(&descriptors)) {
            return Err(io::Error::other("no room for a descriptor"));
        }
        sendmsg(self.0.get_ref(), &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next packet; `None`: the other end is gone. May be dropped while it waits.
    pub(super) async fn receive<T: DeserializeOwned>(&self) -> io::Result<Option<T>> {
        self.read(|socket| {
            let mut packet = [0; PACKET];
            let (length, _) = recv(socket, &mut packet, RecvFlags::empty())?;
            Ok(packet[..length].to_vec())
        })
        .await
    }

    /// The next packet with the descriptor in it.
    pub(super) async fn receive_with<T: DeserializeOwned>(&self) -> io::Result<Option<(T, OwnedFd)>> {
        let mut descriptor = None;
        let packet = self
            .read(|socket| {
                let mut packet = [0; PACKET];
                let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
                let mut control = RecvAncillaryBuffer::new(&mut space);
                let flags = RecvFlags::CMSG_CLOEXEC;
                let length = recvmsg(socket, &mut [IoSliceMut::new(&mut packet)], &mut control, flags)?.bytes;
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                        descriptor = descriptors.into_iter().next();
                    }
                }
                Ok(packet[..length].to_vec())
            })
            .await?;
        Ok(packet.zip(descriptor))
    }

    async fn read<T: DeserializeOwned>(
        &self,
        mut take: impl FnMut(BorrowedFd<'_>) -> rustix::io::Result<Vec<u8>>,
    ) -> io::Result<Option<T>> {
        loop {
            let mut guard = self.0.readable().await?;
            match take(self.0.get_ref().as_fd()) {
                Ok(packet) if packet.is_empty() => return Ok(None),
                Ok(packet) => return serde_json::from_slice(&packet).map(Some).map_err(io::Error::other),
                Err(Errno::AGAIN) => guard.clear_ready(),
                Err(Errno::CONNRESET | Errno::PIPE) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}
