//! The windows of all ranks, as one rank's device reaches them: [`Windows`].

use std::sync::Arc;

use campanile_core::Window;
use campanile_gpu::{Address, Coherence, Device, Memory, VirtualMemory};

use super::GpuMoeError;
use crate::Plan;

/// One rank's window, and where it reaches those of the others.
#[derive(Debug)]
pub(super) struct Windows {
    /// First byte of each rank's window, as this rank's device sees it.
    addresses: Vec<Address>,
    rank: usize,
    bytes: usize,
    /// Keeps the mappings.
    _held: Held,
}

/// Who keeps windows mapped.
#[derive(Debug)]
enum Held {
    /// Memory that the ranks of one process have together.
    Process { _memory: Arc<[VirtualMemory]> },
    /// A window of a communicator.
    Communicator { _window: Window },
}

impl Windows {
    /// Windows of ranks that are threads of this process, one a plan, on these devices.
    pub(super) fn in_process(devices: &[Device], plans: &[Plan]) -> Result<Vec<Self>, GpuMoeError> {
        let allocate = |(device, plan): (&Device, &Plan)| {
            // Words must not be cached in an L2 that a peer's store does not reach.
            let memory = device.allocate_virtual(plan.bytes(), Coherence::Uncached)?;
            for peer in devices.iter().filter(|peer| peer.ordinal() != device.ordinal()) {
                memory.allow_access(peer)?;
            }
            Ok(memory)
        };
        let memory = devices.iter().zip(plans).map(allocate).collect::<Result<Arc<[_]>, GpuMoeError>>()?;
        let addresses: Vec<Address> = memory.iter().map(VirtualMemory::address).collect();
        let of_rank = |plan: &Plan| Self {
            addresses: addresses.clone(),
            rank: plan.rank,
            bytes: plan.bytes(),
            _held: Held::Process { _memory: Arc::clone(&memory) },
        };
        Ok(plans.iter().map(of_rank).collect())
    }

    /// The window that the ranks of a communicator have made.
    pub(super) fn of(window: Window, plan: &Plan) -> Result<Self, GpuMoeError> {
        let addresses = (0..plan.ranks).map(|rank| window.device_address(rank));
        let addresses = addresses.collect::<Option<Vec<_>>>().ok_or_else(|| GpuMoeError::Argument {
            what: "the transport",
            given: "does not map device memory of every rank".to_owned(),
            allowed: "kernels load from and store to all of them: use transport p2p".to_owned(),
        })?;
        let _held = Held::Communicator { _window: window };
        Ok(Self { addresses, rank: plan.rank, bytes: plan.bytes(), _held })
    }

    /// First byte of each rank's window.
    pub(super) fn addresses(&self) -> &[Address] {
        &self.addresses
    }
}

// SAFETY: this rank's own window, of the plan's bytes, which `_held` keeps mapped.
unsafe impl Memory for Windows {
    fn address(&self) -> Address {
        self.addresses[self.rank]
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}
