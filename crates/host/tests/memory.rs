//! Shared memory within one process: two mappings of one descriptor stand for two ranks. Between processes:
//! `processes.rs`.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use campanile_host::memory::{HUGE_PAGE, MemoryError, Pages, SharedMemory, available};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;

fn create(name: &str, bytes: usize) -> SharedMemory {
    SharedMemory::create(name, bytes, Pages::Huge).expect("a little memory")
}

fn duplicate(memory: &SharedMemory) -> OwnedFd {
    memory.fd().try_clone_to_owned().expect("a descriptor")
}

/// The value of a field of `/proc/self/smaps`, in bytes, for the mapping that starts at `address`.
fn smaps(address: *mut u8, field: &str) -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").expect("/proc is mounted");
    let header = format!("{:x}-", address as usize);
    let line = text
        .lines()
        .skip_while(|line| !line.starts_with(&header))
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .expect("the mapping has the field");
    let kilobytes = line.trim().strip_suffix(" kB").expect("in kB");
    kilobytes.parse::<usize>().expect("a number") * 1024
}

#[test]
fn two_mappings_see_each_other_to_the_last_byte() {
    for bytes in [1, 100, 4096, 4097, HUGE_PAGE - 1, HUGE_PAGE, HUGE_PAGE + 1, 5 * HUGE_PAGE + 12_345] {
        let one = create("two mappings", bytes);
        let other = SharedMemory::open(duplicate(&one), bytes).expect("sealed, of that size");
        assert_eq!((one.len(), other.len()), (bytes, bytes));
        assert_ne!(one.as_ptr(), other.as_ptr());
        for index in [0, bytes / 2, bytes - 1] {
            // SAFETY: within both mappings, and this thread alone uses them.
            unsafe {
                assert_eq!(other.as_ptr().add(index).read_volatile(), 0, "memory is zero at first");
                one.as_ptr().add(index).write_volatile(0xA5);
                assert_eq!(other.as_ptr().add(index).read_volatile(), 0xA5);
                other.as_ptr().add(index).write_volatile(0);
                assert_eq!(one.as_ptr().add(index).read_volatile(), 0);
            }
        }
    }
}

#[test]
fn addresses_are_aligned_for_the_largest_page_that_fits() {
    for (bytes, align) in [(1, 4096), (HUGE_PAGE - 1, 4096), (HUGE_PAGE, HUGE_PAGE), (3 * HUGE_PAGE + 1, HUGE_PAGE)] {
        let memory = create("aligned", bytes);
        let peer = SharedMemory::open(duplicate(&memory), bytes).expect("sealed, of that size");
        for memory in [memory, peer] {
            assert_eq!(memory.as_ptr() as usize % align, 0, "{bytes} bytes");
        }
    }
}

#[test]
fn every_page_is_there_before_it_is_touched() {
    for bytes in [1, 10 * 4096 + 1, 2 * HUGE_PAGE + 5 * 4096] {
        let memory = create("populated", bytes);
        let peer = SharedMemory::open(duplicate(&memory), bytes).expect("sealed, of that size");
        for memory in [memory, peer] {
            let pages = bytes.next_multiple_of(rustix::param::page_size());
            assert_eq!(smaps(memory.as_ptr(), "Rss"), pages, "of {bytes} bytes");
            assert_eq!(smaps(memory.as_ptr(), "Size"), pages, "of {bytes} bytes");
        }
    }
}

#[test]
fn memory_that_is_claimed_in_several_steps_is_whole() {
    let bytes = (256 << 20) + HUGE_PAGE + 4096;
    let memory = create("several steps", bytes);
    assert_eq!(smaps(memory.as_ptr(), "Rss"), bytes);
    // SAFETY: within the mapping, and this thread alone uses it.
    let last = unsafe { memory.as_ptr().add(bytes - 1).read_volatile() };
    assert_eq!(last, 0);
}

#[test]
fn huge_pages_are_reported_as_the_kernel_counts_them() {
    let memory = create("huge", 3 * HUGE_PAGE + 4096);
    assert_eq!(memory.huge_bytes(), smaps(memory.as_ptr(), "ShmemPmdMapped"));
    assert!(memory.huge_bytes() <= memory.len());
    assert_eq!(create("small", HUGE_PAGE - 1).huge_bytes(), 0);
}

#[test]
fn nobody_can_change_the_size() {
    let memory = create("sealed", 8192);
    let peer = duplicate(&memory);
    assert_eq!(ftruncate(&peer, 4096), Err(Errno::PERM));
    assert_eq!(ftruncate(&peer, 0), Err(Errno::PERM));
    assert_eq!(ftruncate(&peer, 16384), Err(Errno::PERM));
    assert_eq!(fcntl_add_seals(&peer, SealFlags::WRITE), Err(Errno::PERM));
    assert_eq!(ftruncate(&peer, 8192), Ok(()));
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = memfd_create("by hand", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a memfd");
    ftruncate(&fd, bytes).expect("a little memory");
    fcntl_add_seals(&fd, seals).expect("not sealed before");
    fd
}

#[test]
fn memory_that_could_shrink_is_not_opened() {
    let partly = [
        (SealFlags::empty(), vec![]),
        (SealFlags::GROW | SealFlags::SEAL, vec!["SEAL", "GROW"]),
        (SealFlags::SHRINK | SealFlags::SEAL, vec!["SEAL", "SHRINK"]),
        (SealFlags::SHRINK | SealFlags::GROW, vec!["SHRINK", "GROW"]),
    ];
    for (seals, names) in partly {
        let error = SharedMemory::open(memfd(4096, seals), 4096).expect_err("not sealed");
        let MemoryError::NotSealed { bytes: 4096, found } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(*found, names, "{error}");
    }
    let all = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    assert_eq!(SharedMemory::open(memfd(4096, all), 4096).expect("sealed").len(), 4096);
}

#[test]
fn what_is_no_memfd_is_not_opened() {
    let file = tempfile::tempfile().expect("a temporary file");
    file.set_len(4096).expect("writable");
    let null = File::open("/dev/null").expect("there is one");
    for fd in [file, null] {
        let error = SharedMemory::open(fd.into(), 4096).expect_err("no memfd");
        assert!(matches!(&error, MemoryError::NotSealed { found, .. } if found.is_empty()), "{error:?}");
    }
}

#[test]
fn another_size_than_agreed_upon_is_not_opened() {
    let memory = create("size", 8192);
    for expected in [1, 4096, 8191, 8193, 1 << 40] {
        let error = SharedMemory::open(duplicate(&memory), expected).expect_err("has 8192 bytes");
        assert!(error.to_string().contains(&format!("has 8192 bytes; {expected} were")), "{error}");
    }
    let error = SharedMemory::open(duplicate(&memory), 0).expect_err("empty");
    assert!(matches!(error, MemoryError::Empty), "{error:?}");
}

#[test]
fn more_than_there_is_is_an_error_with_both_numbers() {
    let there_is = usize::try_from(available().expect("/proc is mounted")).expect("64 bits");
    for bytes in [there_is + 1, there_is + (1 << 30), 1 << 50, usize::MAX] {
        let error = SharedMemory::create("too large", bytes, Pages::Huge).expect_err("more than there is");
        let MemoryError::TooLittle { bytes: asked, available } = error else {
            panic!("{error:?}");
        };
        assert_eq!(asked, bytes);
        assert!(available < bytes as u64);
        assert!(error.to_string().contains(&available.to_string()), "{error}");
    }
}

#[test]
fn no_bytes_and_no_name_are_refused() {
    let error = SharedMemory::create("empty", 0, Pages::Huge).expect_err("empty");
    assert!(matches!(error, MemoryError::Empty), "{error:?}");
    for name in ["with\0NUL", &"x".repeat(250)] {
        let error = SharedMemory::create(name, 1, Pages::Huge).expect_err("no name");
        assert!(matches!(error, MemoryError::Name { .. }), "{error:?}");
    }
    create(&"x".repeat(249), 1);
    create("", 1);
}

#[test]
fn dropping_leaves_nothing_behind() {
    const NAME: &str = "dropped without trace";
    let held = || {
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
        let fds = std::fs::read_dir("/proc/self/fd").expect("/proc is mounted");
        let links = fds.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        (
            maps.lines().filter(|line| line.contains(NAME)).count(),
            links.filter(|link| link.to_string_lossy().contains(NAME)).count(),
        )
    };
    let one = create(NAME, 2 * HUGE_PAGE);
    let other = SharedMemory::open(duplicate(&one), 2 * HUGE_PAGE).expect("sealed, of that size");
    assert_eq!(held(), (2, 2));
    drop(one);
    // SAFETY: within the mapping, which outlives that of its creator.
    unsafe { other.as_ptr().write_volatile(1) };
    assert_eq!(held(), (1, 1));
    drop(other);
    assert_eq!(held(), (0, 0));
    let files = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    assert!(files.into_iter().all(|file| !file.file_name().to_string_lossy().contains(NAME)));
}

#[test]
fn the_descriptor_is_not_inherited_by_programs() {
    let memory = create("close on exec", 1);
    let flags = rustix::io::fcntl_getfd(memory.fd().as_fd()).expect("open");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn small_pages_are_small() {
    let memory = SharedMemory::create("small", 4 * HUGE_PAGE, Pages::Small).expect("a little memory");
    assert_eq!(memory.huge_bytes(), 0);
}
