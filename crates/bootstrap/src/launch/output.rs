//! What ranks write: from pipes, as whole lines, to the launcher's own output.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use campanile_core::Rank;
use rustix::io::Errno;

/// Longest line that is kept together. A longer one is broken, so that a rank cannot make the launcher grow.
const MAX_LINE: usize = 1 << 20;

/// With more than this waiting to be written nothing more is read from the ranks.
const CONGESTED: usize = 1 << 20;

/// Takes bytes, gives whole lines behind a prefix.
#[derive(Debug)]
pub(super) struct Lines {
    prefix: Vec<u8>,
    line: Vec<u8>,
}

impl Lines {
    /// Lines of a rank, behind `[rank] `.
    pub(super) fn of(rank: Rank) -> Self {
        Self { prefix: format!("[{}] ", rank.0).into_bytes(), line: Vec::new() }
    }

    /// Takes bytes and appends the lines that they complete.
    fn feed(&mut self, bytes: &[u8], out: &mut VecDeque<u8>) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend(piece);
            if piece.ends_with(b"\n") || self.line.len() >= MAX_LINE {
                self.finish(out);
            }
        }
    }

    /// Appends what is left as a line.
    fn finish(&mut self, out: &mut VecDeque<u8>) {
        if self.line.is_empty() {
            return;
        }
        out.extend(&self.prefix);
        out.extend(&self.line);
        if !self.line.ends_with(b"\n") {
            out.push_back(b'\n');
        }
        self.line.clear();
    }
}

/// What is done with what a rank writes.
#[derive(Debug)]
pub(super) enum Content {
    /// Its lines go to the sink of that index.
    Lines(Lines, usize),
    /// It is kept.
    Captured(Vec<u8>),
}

/// The launcher's end of a pipe that a rank writes to.
#[derive(Debug)]
pub(super) struct Pipe {
    /// `None` once the end was read.
    fd: Option<OwnedFd>,
    content: Content,
    /// Bytes that may still be its rank's, once that has ended.
    last: Option<usize>,
}

impl Pipe {
    pub(super) fn new(fd: OwnedFd, content: Content) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self { fd: Some(fd), content, last: None })
    }

    /// What to poll for input; nothing if its end was read or its sink is congested.
    pub(super) fn poll_fd(&self, sinks: &[Sink]) -> Option<BorrowedFd<'_>> {
        let congested = matches!(self.content, Content::Lines(_, sink) if sinks[sink].congested());
        self.fd.as_ref().filter(|_| !congested).map(AsFd::as_fd)
    }

    /// Whether everything was read.
    pub(super) fn at_end(&self) -> bool {
        self.fd.is_none()
    }

    /// Reads what is there, 64 KiB at most; how much it was.
    pub(super) fn read(&mut self, sinks: &mut [Sink]) -> usize {
        let Some(fd) = &self.fd else { return 0 };
        let mut buffer = [0_u8; 64 << 10];
        match rustix::io::read(fd, &mut buffer) {
            Ok(0) => self.close(sinks),
            Ok(length) => {
                match &mut self.content {
                    Content::Lines(lines, sink) => lines.feed(&buffer[..length], &mut sinks[*sink].backlog),
                    Content::Captured(bytes) => bytes.extend(&buffer[..length]),
                }
                return length;
            }
            // A read that does not block is not interrupted, either.
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Nothing else is known to happen to the reading end of a pipe; it would happen again.
            Err(_) => self.close(sinks),
        }
        0
    }

    /// Reads what is there and then closes the pipe, whoever else may still hold its other end: its rank has ended,
    /// and had written no more than fits into the pipe.
    pub(super) fn drain(&mut self, sinks: &mut [Sink]) {
        while self.poll_fd(sinks).is_some() {
            let capacity = || self.fd.as_ref().and_then(|fd| rustix::pipe::fcntl_getpipe_size(fd).ok()).unwrap_or(0);
            let last = self.last.unwrap_or_else(capacity);
            let length = self.read(sinks);
            if length == 0 || length >= last {
                self.close(sinks);
            }
            self.last = Some(last.saturating_sub(length));
        }
    }

    /// Closes the pipe; what was read is passed on.
    fn close(&mut self, sinks: &mut [Sink]) {
        self.fd = None;
        if let Content::Lines(lines, sink) = &mut self.content {
            lines.finish(&mut sinks[*sink].backlog);
        }
    }

    /// What was captured.
    pub(super) fn into_captured(self) -> Vec<u8> {
        match self.content {
            Content::Captured(bytes) => bytes,
            Content::Lines(..) => Vec::new(),
        }
    }
}

/// A stream of the launcher that lines go to.
///
/// It may be shared with other processes, so it is not made non-blocking. Instead at most one page is written, and only
/// when it polls as writable: of a pipe that means that a page fits.
#[derive(Debug)]
pub(super) struct Sink {
    fd: OwnedFd,
    name: &'static str,
    backlog: VecDeque<u8>,
}

impl Sink {
    /// The sinks for stdout and stderr, and their indices: the same one if both are the same file, so that lines of one
    /// do not tear lines of the other.
    pub(super) fn standard() -> io::Result<(Vec<Self>, [usize; 2])> {
        let (mut stdout, stderr) = (io::stdout(), io::stderr());
        // What this program has printed so far comes first.
        stdout.flush()?;
        let sink = |fd: BorrowedFd<'_>, name| {
            let fd = fd.try_clone_to_owned()?;
            Ok::<_, io::Error>(Self { fd, name, backlog: VecDeque::new() })
        };
        let mut sinks = vec![sink(stdout.as_fd(), "standard output")?];
        let (out, err) = (rustix::fs::fstat(&stdout)?, rustix::fs::fstat(&stderr)?);
        if (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino) {
            return Ok((sinks, [0, 0]));
        }
        sinks.push(sink(stderr.as_fd(), "standard error")?);
        Ok((sinks, [0, 1]))
    }

    /// What it is called.
    pub(super) fn name(&self) -> &'static str {
        self.name
    }

    /// Whether everything was written.
    pub(super) fn is_idle(&self) -> bool {
        self.backlog.is_empty()
    }

    /// Forgets what was not written.
    pub(super) fn discard(&mut self) {
        self.backlog.clear();
    }

    /// Writes a page at most. Call it when it polls as writable.
    pub(super) fn write(&mut self) -> Result<(), Errno> {
        let (front, _) = self.backlog.as_slices();
        match rustix::io::write(&self.fd, &front[..front.len().min(4096)]) {
            Ok(length) => drop(self.backlog.drain(..length)),
            // Another process that shares the stream may have made it non-blocking.
            Err(Errno::INTR | Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn congested(&self) -> bool {
        self.backlog.len() >= CONGESTED
    }
}

impl AsFd for Sink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<u8> {
        let (mut lines, mut out) = (Lines::of(Rank(3)), VecDeque::new());
        pieces.iter().for_each(|piece| lines.feed(piece, &mut out));
        lines.finish(&mut out);
        out.into()
    }

    #[test]
    fn lines_are_whole_however_the_bytes_come() {
        assert_eq!(lines(&[b"a\nb", b"", b"c\n\nd"]), b"[3] a\n[3] bc\n[3] \n[3] d\n");
        assert_eq!(lines(&[b"\xff\xfe\r\n"]), b"[3] \xff\xfe\r\n");
        assert_eq!(lines(&[]), b"");
    }

    #[test]
    fn an_endless_line_is_broken() {
        let piece = [b'x'; 64 << 10];
        let written = lines(&[piece.as_slice(); 40]);
        let expected = [vec![b'x'; MAX_LINE], vec![b'x'; MAX_LINE], vec![b'x'; 8 * piece.len()]];
        let expected: Vec<u8> = expected.iter().flat_map(|line| [b"[3] ", line.as_slice(), b"\n"].concat()).collect();
        assert!(written == expected);
    }

    #[test]
    fn of_a_rank_that_has_ended_no_more_is_read_than_its_pipe_could_hold() {
        const PIECE: usize = 64 << 10;
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        rustix::pipe::fcntl_setpipe_size(&writer, 2 * PIECE).unwrap();
        let null = std::fs::File::create("/dev/null").unwrap().into();
        let mut sinks = [Sink { fd: null, name: "nothing", backlog: VecDeque::new() }];
        let mut pipe = Pipe::new(reader, Content::Lines(Lines::of(Rank(0)), 0)).unwrap();
        let piece = [b"x".repeat(PIECE - 1), b"\n".to_vec()].concat();
        let write = || assert_eq!(rustix::io::write(&writer, &piece).unwrap(), PIECE);
        write();
        write();
        sinks[0].backlog.extend(vec![b'x'; CONGESTED - 1]);
        // The first piece congests the sink. What is written meanwhile is not the rank's: it has ended.
        pipe.drain(&mut sinks);
        assert!(!pipe.at_end());
        write();
        sinks[0].discard();
        pipe.drain(&mut sinks);
        assert!(pipe.at_end());
        assert_eq!(sinks[0].backlog.len(), b"[0] ".len() + PIECE);
    }
}
