//! What only several processes show: memory and descriptors that cross, deaths that are noticed, wakes that arrive.
//!
//! A peer is this test program once more, told by its environment to run one of the functions of [`ROLES`] instead of
//! the tests.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use campanile_host::channel::{Channel, ChannelError, Listener};
use campanile_host::memory::{Pages, SharedMemory};
use campanile_host::process::{Pidfd, ProcessError, Signal, die_with_parent, node_identity};
use campanile_host::wait::{futex_wait, futex_wake};

const ROLE: &str = "CAMPANILE_HOST_TEST_ROLE";
const ADDRESS: &str = "CAMPANILE_HOST_TEST_ADDRESS";

type Role = fn(Channel);

/// What a peer does with its channel to the test.
const ROLES: &[(&str, Role)] = &[
    ("idle", idle),
    ("tampers with memory", tampers_with_memory),
    ("speaks and dies", speaks_and_dies),
    ("leaves its socket to a child", leaves_its_socket_to_a_child),
    ("sleeps on a word", sleeps_on_a_word),
    ("starts a child that dies with it", starts_a_child_that_dies_with_it),
    ("tells its node", tells_its_node),
    ("sends where nobody is", sends_where_nobody_is),
];

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// A peer process; killed and reaped when dropped.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(role: &str, listener: &[u8]) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program"));
    command
        .args(["--exact", "peer", "--nocapture"])
        .env(ROLE, role)
        .env(ADDRESS, std::str::from_utf8(listener).expect("printable"))
        .stdin(Stdio::piped())
        .stdout(Stdio::null());
    command
}

/// Starts a peer, and returns it with a channel to it.
fn start(role: &str) -> (Peer, Channel) {
    let listener = Listener::bind().expect("an address");
    let peer = Peer(command(role, listener.address()).spawn().expect("this program again"));
    let channel = listener.accept(soon()).expect("the peer connects");
    assert_eq!(channel.peer_pid(), Some(peer.0.id()));
    (peer, channel)
}

/// Not a test of its own: what a peer process runs. Among the tests it has no role and does nothing.
#[test]
fn peer() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let address = std::env::var(ADDRESS).expect("set with the role");
    let (_, run) = ROLES.iter().find(|(name, _)| *name == role).expect("a role of the table");
    run(Channel::connect(address.as_bytes(), soon()).expect("the test listens"));
}

fn idle(channel: Channel) {
    let _ = channel.recv(soon());
}

fn kill(peer: &Peer) {
    let pidfd = Pidfd::open(peer.0.id()).expect("not reaped yet");
    pidfd.send_signal(Signal::KILL).expect("ours");
    assert!(pidfd.wait(soon()).expect("can be polled"), "SIGKILL ends it");
}

const BYTES: usize = (4 << 20) + 100;

fn tampers_with_memory(channel: Channel) {
    let (_, fd) = channel.recv(soon()).expect("the memory");
    let fd = fd.expect("with the message");
    let shrunk = rustix::fs::ftruncate(&fd, 4096);
    let memory = SharedMemory::open(fd, BYTES).expect("sealed, of that size");
    // SAFETY: within the mapping; the test waits for our message.
    unsafe {
        assert_eq!(memory.as_ptr().add(BYTES - 1).read_volatile(), 1);
        memory.as_ptr().write_volatile(2);
    }
    channel.send(format!("{shrunk:?}").as_bytes(), None, soon()).expect("the test lives");
}

#[test]
fn memory_crosses_to_another_process_that_cannot_shrink_it() {
    let memory = SharedMemory::create("crosses", BYTES, Pages::Huge).expect("a little memory");
    // SAFETY: within the mapping; nobody else has it yet.
    unsafe { memory.as_ptr().add(BYTES - 1).write_volatile(1) };
    let (_peer, channel) = start("tampers with memory");
    channel.send(b"memory", Some(memory.fd()), soon()).expect("room");
    let (shrunk, _) = channel.recv(soon()).expect("it answers");
    assert_eq!(shrunk, format!("{:?}", Err::<(), _>(rustix::io::Errno::PERM)).as_bytes());
    // SAFETY: within the mapping; the peer has answered and stores no more.
    let (first, last) = unsafe { (memory.as_ptr().read_volatile(), memory.as_ptr().add(BYTES - 1).read_volatile()) };
    assert_eq!((first, last), (2, 1));
}

#[test]
fn a_killed_peer_is_gone_and_is_named() {
    let (peer, channel) = start("idle");
    assert!(!channel.peer_gone());
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| channel.recv(soon()));
        kill(&peer);
        let error = receiver.join().expect("returns").expect_err("killed");
        let ChannelError::Gone { peer: Some(pid), .. } = error else {
            panic!("{error:?}");
        };
        assert_eq!(pid, peer.0.id());
        assert!(error.to_string().contains(&format!("process {pid}")), "{error}");
    });
    assert!(channel.peer_gone());
}

#[test]
fn a_stopped_peer_is_late_but_not_gone() {
    let (peer, channel) = start("idle");
    let pidfd = Pidfd::open(peer.0.id()).expect("it lives");
    pidfd.send_signal(Signal::STOP).expect("ours");
    let error = channel.recv(Instant::now() + Duration::from_millis(5)).expect_err("stopped");
    assert!(matches!(error, ChannelError::Timeout { peer: Some(pid), .. } if pid == peer.0.id()), "{error:?}");
    assert!(!channel.peer_gone());
}

fn speaks_and_dies(channel: Channel) {
    channel.send(b"one", None, soon()).expect("room");
    channel.send(b"two", None, soon()).expect("room");
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).expect("ourselves");
}

#[test]
fn what_a_peer_sent_before_it_died_arrives() {
    let (peer, channel) = start("speaks and dies");
    let pidfd = Pidfd::open(peer.0.id()).expect("not reaped yet");
    assert!(pidfd.wait(soon()).expect("can be polled"));
    assert!(channel.peer_gone());
    assert_eq!(channel.recv(soon()).expect("sent before").0, b"one");
    assert_eq!(channel.recv(soon()).expect("sent before").0, b"two");
    let error = channel.recv(soon()).expect_err("dead");
    assert!(matches!(error, ChannelError::Gone { .. }), "{error:?}");
}

fn leaves_its_socket_to_a_child(channel: Channel) {
    // Without close-on-exec. The child ends with our standard input, which the test holds.
    let _copy = rustix::io::dup(channel.as_fd()).expect("a descriptor");
    let mut child = Command::new("cat").stdin(Stdio::inherit()).stdout(Stdio::null()).spawn().expect("cat");
    channel.send(b"started", None, soon()).expect("room");
    let _ = child.wait();
}

#[test]
fn a_dead_peer_is_gone_although_its_child_holds_its_socket() {
    let (peer, channel) = start("leaves its socket to a child");
    assert_eq!(channel.recv(soon()).expect("started").0, b"started");
    assert!(!channel.peer_gone());
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| channel.recv(soon()));
        kill(&peer);
        let error = receiver.join().expect("returns").expect_err("killed");
        assert!(matches!(error, ChannelError::Gone { .. }), "{error:?}");
    });
    assert!(channel.peer_gone());
    // The socket itself knows nothing of it.
    let mut socket = [rustix::event::PollFd::new(&channel, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut socket, Some(&rustix::event::Timespec::default())), Ok(0));
}

fn sleeps_on_a_word(channel: Channel) {
    let (_, fd) = channel.recv(soon()).expect("the memory");
    let memory = SharedMemory::open(fd.expect("with the message"), 4).expect("sealed, of that size");
    // SAFETY: aligned, within the mapping, and only used as an atomic by both processes.
    let word = unsafe { AtomicU32::from_ptr(memory.as_ptr().cast()) };
    while word.load(Ordering::Acquire) == 0 {
        futex_wait(word, 0, Duration::from_secs(20));
    }
    channel.send(&word.load(Ordering::Acquire).to_ne_bytes(), None, soon()).expect("room");
}

#[test]
fn a_wake_reaches_a_sleeper_in_another_process() {
    let memory = SharedMemory::create("word", 4, Pages::Huge).expect("a little memory");
    // SAFETY: aligned, within the mapping, and only used as an atomic by both processes.
    let word = unsafe { AtomicU32::from_ptr(memory.as_ptr().cast()) };
    let (_peer, channel) = start("sleeps on a word");
    channel.send(b"memory", Some(memory.fd()), soon()).expect("room");
    // The word is unchanged, so the sleeper goes back to sleep: one that was woken was asleep.
    let deadline = soon();
    while futex_wake(word, 1) == 0 {
        assert!(Instant::now() < deadline && !channel.peer_gone(), "the peer never slept");
        std::thread::yield_now();
    }
    word.store(7, Ordering::Release);
    futex_wake(word, 1);
    assert_eq!(channel.recv(soon()).expect("it wakes").0, 7_u32.to_ne_bytes());
}

fn starts_a_child_that_dies_with_it(channel: Channel) {
    let parent = std::process::id();
    // It would end with our standard input, which the test holds.
    let mut child = Command::new("cat");
    // SAFETY: die_with_parent is async-signal-safe.
    unsafe { child.pre_exec(move || die_with_parent(parent)) };
    let child = Peer(child.stdin(Stdio::inherit()).stdout(Stdio::null()).spawn().expect("cat"));
    channel.send(&child.0.id().to_ne_bytes(), None, soon()).expect("room");
    idle(channel);
}

#[test]
fn a_child_dies_with_its_parent() {
    let (peer, channel) = start("starts a child that dies with it");
    let (pid, _) = channel.recv(soon()).expect("its child's pid");
    let pid = u32::from_ne_bytes(pid.try_into().expect("4 bytes"));
    let child = Pidfd::open(pid).expect("it lives");
    assert!(!child.wait(Instant::now()).expect("can be polled"));
    kill(&peer);
    assert!(child.wait(soon()).expect("can be polled"), "the child outlived its parent");
}

#[test]
fn a_child_whose_parent_has_already_died_does_not_start() {
    let mut child = Command::new("true");
    // SAFETY: die_with_parent is async-signal-safe.
    unsafe { child.pre_exec(|| die_with_parent(u32::MAX)) };
    let error = child.spawn().expect_err("another parent than we are");
    assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::SRCH.raw_os_error()));
}

#[test]
fn a_pidfd_waits_for_the_end_and_no_longer_than_asked() {
    let (mut peer, _channel) = start("idle");
    let pidfd = Pidfd::open(peer.0.id()).expect("it lives");
    assert!(!pidfd.wait(Instant::now() + Duration::from_millis(5)).expect("can be polled"));
    kill(&peer);
    assert!(pidfd.wait(Instant::now()).expect("can be polled"));
    peer.0.wait().expect("ours");
    assert!(pidfd.wait(Instant::now()).expect("also when it was reaped"));
    pidfd.send_signal(Signal::KILL).expect("no error then either");
    for pid in [peer.0.id(), 0, u32::MAX] {
        let error = Pidfd::open(pid).expect_err("no such process");
        assert!(matches!(error, ProcessError::NotFound { pid: given } if given == pid), "{error:?}");
    }
}

fn sends_where_nobody_is(channel: Channel) {
    // SAFETY: sets a default disposition; nothing runs in a handler.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let (one, other) = Channel::pair().expect("a socket pair");
    drop(other);
    let error = one.send(b"hello?", None, soon()).expect_err("gone");
    channel.send(error.to_string().as_bytes(), None, soon()).expect("room");
}

#[test]
fn sending_to_a_closed_end_is_an_error_and_no_signal() {
    // Rust programs ignore SIGPIPE, but a library may find itself in others.
    let (_peer, channel) = start("sends where nobody is");
    let (error, _) = channel.recv(soon()).expect("it lives on");
    assert!(String::from_utf8_lossy(&error).contains("closed its end"));
}

fn tells_its_node(channel: Channel) {
    let identity = node_identity().expect("/proc is mounted");
    channel.send(identity.as_bytes(), None, soon()).expect("room");
}

#[test]
fn processes_of_one_machine_are_one_node() {
    let (_peer, channel) = start("tells its node");
    let here = node_identity().expect("/proc is mounted");
    assert_eq!(channel.recv(soon()).expect("it answers").0, here.as_bytes());
    assert!(here.len() > 36 && !here.contains(char::is_whitespace), "{here}");
}

#[test]
fn a_peer_of_another_user_is_turned_away_and_the_wait_goes_on() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root can start a process of another user");
        return;
    }
    let listener = Listener::bind().expect("an address");
    let other = command("idle", listener.address()).uid(NOBODY).stderr(Stdio::null()).spawn();
    let mut other = match other {
        Ok(child) => Peer(child),
        Err(error) => {
            eprintln!("not run: another user may not run this program ({error})");
            return;
        }
    };
    // It sees that we are not of its user, and fails, whether or not we have accepted.
    let status = other.0.wait().expect("ours");
    assert!(!status.success(), "it connected to another user's listener");
    let error = listener.accept(Instant::now()).expect_err("it was turned away");
    assert!(matches!(error, ChannelError::Timeout { .. }), "{error:?}");
    let _ours = Peer(command("idle", listener.address()).spawn().expect("this program again"));
    let channel = listener.accept(soon()).expect("one of us");
    assert_eq!(channel.peer_pid(), Some(_ours.0.id()));
}
