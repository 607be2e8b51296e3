//! Channels within one process, as ranks that are threads use them. Between processes: `processes.rs`.

use std::fs::File;
use std::io::{IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use campanile_host::channel::{Channel, ChannelError, Listener, MAX_MESSAGE};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketType, sendmsg,
};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A deadline for what must not come.
fn at_once() -> Instant {
    Instant::now()
}

fn pair() -> (Channel, Channel) {
    Channel::pair().expect("a socket pair")
}

#[test]
fn messages_keep_their_boundaries_and_their_order() {
    let (one, other) = pair();
    for message in [&b"a"[..], b"bc", &[0; 1000]] {
        one.send(message, None, soon()).expect("room for it");
    }
    for message in [&b"a"[..], b"bc", &[0; 1000]] {
        let (bytes, fd) = other.recv(soon()).expect("sent");
        assert_eq!(bytes, message);
        assert!(fd.is_none());
    }
}

#[test]
fn the_longest_message_passes_and_a_longer_one_is_refused() {
    let (one, other) = pair();
    let longest = (0..MAX_MESSAGE).map(|index| index as u8).collect::<Vec<_>>();
    one.send(&longest, None, soon()).expect("room for it");
    assert_eq!(other.recv(soon()).expect("sent").0, longest);
    for bytes in [0, MAX_MESSAGE + 1] {
        let error = one.send(&vec![0; bytes], None, soon()).expect_err("of no length");
        assert!(matches!(error, ChannelError::Length { bytes: given } if given == bytes), "{error:?}");
    }
}

#[test]
fn a_descriptor_travels_with_its_message_and_is_close_on_exec() {
    let (one, other) = pair();
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(b"through the channel").expect("writable");
    one.send(b"first", None, soon()).expect("room");
    one.send(b"second", Some(file.as_fd()), soon()).expect("room");
    assert!(other.recv(soon()).expect("sent").1.is_none());
    let (bytes, fd) = other.recv(soon()).expect("sent");
    assert_eq!(bytes, b"second");
    let fd = fd.expect("it was sent with the second");
    assert!(rustix::io::fcntl_getfd(&fd).expect("open").contains(rustix::io::FdFlags::CLOEXEC));
    let mut received = File::from(fd);
    received.rewind().expect("a file");
    let mut text = String::new();
    received.read_to_string(&mut text).expect("readable");
    assert_eq!(text, "through the channel");
}

#[test]
fn more_than_a_message_may_carry_is_an_error_of_the_receiver() {
    let (one, other) = pair();
    let too_long = vec![1; MAX_MESSAGE + 1];
    let mut none = SendAncillaryBuffer::default();
    sendmsg(&one, &[IoSlice::new(&too_long)], &mut none, SendFlags::empty()).expect("room");
    let error = other.recv(soon()).expect_err("cut off");
    assert!(matches!(error, ChannelError::Truncated { .. }), "{error:?}");

    let fds = [one.as_fd(), one.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut two = SendAncillaryBuffer::new(&mut space);
    assert!(two.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(&one, &[IoSlice::new(b"two descriptors")], &mut two, SendFlags::empty()).expect("room");
    let error = other.recv(soon()).expect_err("one too many");
    assert!(matches!(error, ChannelError::Truncated { .. }), "{error:?}");

    // The channel goes on.
    one.send(b"next", None, soon()).expect("room");
    assert_eq!(other.recv(soon()).expect("sent").0, b"next");
}

#[test]
fn waits_end_at_their_deadlines() {
    let (one, other) = pair();
    let error = one.recv(at_once()).expect_err("nothing was sent");
    assert!(matches!(error, ChannelError::Timeout { .. }), "{error:?}");
    let error = one.recv(Instant::now() + Duration::from_millis(5)).expect_err("nothing was sent");
    assert!(matches!(error, ChannelError::Timeout { .. }), "{error:?}");

    // Nobody reads, so the buffer fills.
    let message = vec![0; MAX_MESSAGE];
    let sent = (0..1000).find_map(|_| one.send(&message, None, at_once()).err());
    assert!(matches!(sent, Some(ChannelError::Timeout { .. })), "{sent:?}");
    // A reader makes room.
    other.recv(soon()).expect("sent");
    one.send(&message, None, soon()).expect("room again");

    let listener = Listener::bind().expect("an address");
    let error = listener.accept(at_once()).expect_err("nobody came");
    assert!(matches!(error, ChannelError::Timeout { .. }), "{error:?}");
}

#[test]
fn a_receiver_is_woken_by_a_later_message() {
    let (one, other) = pair();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| other.recv(soon()));
        one.send(b"later", None, soon()).expect("room");
        assert_eq!(receiver.join().expect("returns").expect("sent").0, b"later");
    });
}

#[test]
fn a_dropped_end_is_gone_after_what_it_sent() {
    let (one, other) = pair();
    assert!(!one.peer_gone());
    other.send(b"last words", None, soon()).expect("room");
    drop(other);
    assert!(one.peer_gone());
    assert_eq!(one.recv(soon()).expect("sent before").0, b"last words");
    let error = one.recv(soon()).expect_err("gone");
    assert!(matches!(error, ChannelError::Gone { .. }), "{error:?}");
    let error = one.send(b"hello?", None, soon()).expect_err("gone");
    assert!(matches!(error, ChannelError::Gone { .. }), "{error:?}");
}

#[test]
fn a_blocked_receiver_learns_that_its_peer_has_gone() {
    let (one, other) = pair();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| one.recv(soon()));
        drop(other);
        let error = receiver.join().expect("returns").expect_err("gone");
        assert!(matches!(error, ChannelError::Gone { .. }), "{error:?}");
    });
}

#[test]
fn threads_connect_through_a_listener() {
    let listener = Listener::bind().expect("an address");
    assert!(listener.address().iter().all(u8::is_ascii_graphic));
    let accepted = std::thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            let channel = Channel::connect(listener.address(), soon()).expect("somebody listens");
            channel.send(b"hello", None, soon()).expect("room");
            assert_eq!(channel.peer_pid(), Some(std::process::id()));
            channel.recv(soon()).expect("answered").0
        });
        let channel = listener.accept(soon()).expect("somebody comes");
        assert_eq!(channel.recv(soon()).expect("sent").0, b"hello");
        channel.send(b"welcome", None, soon()).expect("room");
        assert_eq!(connecting.join().expect("returns"), b"welcome");
        channel
    });
    // That thread's end is dropped; the process, which is ours, lives on.
    assert!(accepted.peer_gone());
    assert_eq!(accepted.peer_pid(), Some(std::process::id()));
}

#[test]
fn addresses_are_never_the_same() {
    let (one, other) = (Listener::bind().expect("an address"), Listener::bind().expect("an address"));
    assert_ne!(one.address(), other.address());
    assert_eq!(one.address().len(), "campanile-".len() + 32);
}

#[test]
fn connecting_where_nobody_listens_is_refused_at_once() {
    let address = Listener::bind().expect("an address").address().to_owned();
    // The listener is dropped.
    let error = Channel::connect(&address, soon()).expect_err("freed");
    assert!(matches!(error, ChannelError::Refused { .. }), "{error:?}");
    let name = String::from_utf8(address).expect("printable");
    assert!(error.to_string().contains(&name), "{error}");
    for no_address in [&b""[..], &[b'x'; 108]] {
        let error = Channel::connect(no_address, soon()).expect_err("no address");
        assert!(matches!(error, ChannelError::Address { .. }), "{error:?}");
    }
}

#[test]
fn connecting_to_a_full_queue_ends_at_the_deadline() {
    let name = Listener::bind().expect("an address").address().to_owned();
    let busy = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).expect("a socket");
    rustix::net::bind(&busy, &SocketAddrUnix::new_abstract_name(&name).expect("short")).expect("free again");
    rustix::net::listen(&busy, 0).expect("bound");
    let deadline = || Instant::now() + Duration::from_millis(5);
    let connected = (0..100).map(|_| Channel::connect(&name, deadline())).collect::<Result<Vec<_>, _>>();
    assert!(matches!(connected, Err(ChannelError::Timeout { .. })), "{connected:?}");
}
