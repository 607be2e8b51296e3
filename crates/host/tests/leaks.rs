//! Descriptors are closed on every path, good or bad. One test, alone in its process: it counts all of them.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use campanile_host::channel::{Channel, ChannelError, Listener};
use campanile_host::memory::{Pages, SharedMemory};
use campanile_host::process::Pidfd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("/proc is mounted").count()
}

/// Mappings of shared memory, and of address space that is only reserved.
fn mappings() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    let count = |what: &str| maps.lines().filter(|line| line.contains(what)).count();
    (count("/memfd:"), count(" ---p 00000000 00:00 0"))
}

fn use_everything() {
    let soon = || Instant::now() + Duration::from_secs(20);
    let memory = SharedMemory::create("leaks", 5 << 20, Pages::Huge).expect("a little memory");
    SharedMemory::create("leaks", 1 << 50, Pages::Huge).expect_err("too large");
    SharedMemory::open(memory.fd().try_clone_to_owned().expect("open"), 5).expect_err("another size");

    let listener = Listener::bind().expect("an address");
    let client = Channel::connect(listener.address(), soon()).expect("somebody listens");
    let server = listener.accept(soon()).expect("connected");
    client.send(b"memory", Some(memory.fd()), soon()).expect("room");
    let (_, fd) = server.recv(soon()).expect("sent");
    SharedMemory::open(fd.expect("sent along"), 5 << 20).expect("sealed, of that size");
    Channel::connect(b"campanile-nobody", soon()).expect_err("nobody listens");

    // Descriptors that arrive with a message that is refused, and one that nobody receives.
    let fds = [memory.fd(), memory.fd(), memory.fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
    let mut three = SendAncillaryBuffer::new(&mut space);
    assert!(three.push(SendAncillaryMessage::ScmRights(&fds)));
    sendmsg(client.as_fd(), &[IoSlice::new(b"three")], &mut three, SendFlags::empty()).expect("room");
    server.recv(soon()).expect_err("too many descriptors");
    // One that this process has no number left for.
    client.send(b"no room", Some(memory.fd()), soon()).expect("room");
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).expect("lower");
    let received = server.recv(soon());
    setrlimit(Resource::Nofile, limit).expect("as before");
    assert!(matches!(received, Err(ChannelError::Descriptors { .. })), "{received:?}");
    client.send(b"never received", Some(memory.fd()), soon()).expect("room");

    Channel::pair().expect("a pair");
    Pidfd::open(std::process::id()).expect("we live");
}

#[test]
fn nothing_stays_open_and_nothing_stays_mapped() {
    // Whatever the first use opens for good (nothing, today) is not a leak.
    use_everything();
    let before = (descriptors(), mappings());
    assert_eq!(before.1.0, 0);
    for _ in 0..10 {
        use_everything();
    }
    assert_eq!((descriptors(), mappings()), before);
}
