//! Memory: how much, in which pages, and what may be locked.

use campanile::host::filesystem::Space;
use campanile::host::huge_pages::{HugePages, Pool};
use campanile::host::limits::Limits;

use super::check::{Check, Verdict, size};

/// A window, its staging and some room, for one rank: below it even small problems do not fit.
const LITTLE_A_RANK: u64 = 64 << 20;

/// What Docker gives `/dev/shm` unless told otherwise is 64 MiB; NCCL alone asks for more at 8 ranks.
const LITTLE_DEV_SHM: u64 = 1 << 30;

/// Memory that this process can still take; the error of looking, if that failed.
pub fn available(bytes: Result<u64, String>, ranks: usize) -> Check {
    let (name, matters) = ("memory", "shm: windows are memory that is claimed when they are made, never later");
    match bytes {
        Err(error) => Check::not(name, Verdict::Warning, error, matters, "mount /proc"),
        Ok(bytes) if bytes / ranks.max(1) as u64 >= LITTLE_A_RANK => {
            Check::ok(name, format!("{} can be taken (MemAvailable, memory cgroups)", size(bytes)), matters)
        }
        Ok(bytes) => {
            let found = format!("only {} can be taken by {ranks} ranks (MemAvailable, memory cgroups)", size(bytes));
            Check::not(name, Verdict::Warning, found, matters, "raise the container's memory limit, or use fewer ranks")
        }
    }
}

/// The file system on `/dev/shm`; the error of looking, if that failed.
pub fn dev_shm(space: Result<Space, String>) -> Check {
    let (name, matters) =
        ("/dev/shm", "not shm, whose memory has no files; NCCL, MPI and PyTorch in the same job use it");
    match space {
        Ok(Space { total, free }) if total >= LITTLE_DEV_SHM => {
            Check::ok(name, format!("{}, {} free", size(total), size(free)), matters)
        }
        Ok(Space { total, free }) => {
            let found = format!("{}, {} free", size(total), size(free));
            Check::not(name, Verdict::Note, found, matters, "if they fail: docker run --shm-size=8g, or --ipc=host")
        }
        Err(error) => Check::not(name, Verdict::Note, error, matters, "if they fail: mount a tmpfs there"),
    }
}

/// What the kernel says, and how many bytes of a window of so many came in huge pages when that was tried.
pub fn huge_pages(says: &HugePages, tried: Result<[usize; 2], String>) -> Check {
    let (name, matters) = ("huge pages", "shm: fewer TLB misses, and large windows are made eight times as fast");
    let mode = |mode: &Option<String>| mode.clone().unwrap_or_else(|| "not there".to_owned());
    let pool = |Pool { page_bytes, pages, free }: &Pool| format!("{pages} of {} ({free} free)", size(*page_bytes));
    let pools: Vec<_> = says.pools.iter().filter(|pool| pool.pages > 0).map(pool).collect();
    let pools = if pools.is_empty() { "empty".to_owned() } else { pools.join(", ") };
    let says = format!(
        "transparent {}, for shared memory {}; hugetlb pools {pools} (windows do not use them)",
        mode(&says.private),
        mode(&says.shared)
    );
    match tried {
        Err(error) => Check::not(name, Verdict::Warning, format!("{says}; {error}"), matters, "see the line on memory"),
        Ok([bytes, huge]) if huge == bytes => Check::ok(name, format!("windows get them; {says}"), matters),
        Ok(_) => Check::not(
            name,
            Verdict::Warning,
            format!("windows do not get them; {says}"),
            matters,
            "Linux 6.1 or newer, and another mode than deny in /sys/kernel/mm/transparent_hugepage/shmem_enabled; \
             CAMPANILE_HUGE_PAGES=never asks for none",
        ),
    }
}

/// Memory that may be locked.
pub fn locked(limits: &Limits) -> Check {
    let (name, matters) = ("memlock", "not shm; rdma: memory is locked when it is registered with a NIC");
    let found = |soft| format!("{} may be locked", size(soft));
    match limits.locked_memory {
        None => Check::ok(name, "the kernel does not tell", matters),
        Some(limit) => match limit.soft {
            None => Check::ok(name, "unlimited", matters),
            Some(soft) => Check::not(
                name,
                Verdict::Note,
                found(soft),
                matters,
                "for rdma: memlock unlimited in /etc/security/limits.conf, or docker run --ulimit memlock=-1",
            ),
        },
    }
}
