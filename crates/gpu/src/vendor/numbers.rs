//! The vendors' numbers: codes, flags and enumerators, one table of all that are used.
//!
//! Most are the same in both, since HIP took them over from CUDA; the numbers of attributes are not. HIP's are of
//! `hip_runtime_api.h` of HIP 6.3.0 (ROCm/HIP at c5e11fc), compared with the numbers of later versions where those are
//! written out (HIP 7.x, in the bindings of hipfort); none changed in between. CUDA's are of `cuda.h` 12.0 and later.
//! The tests below hold HIP's by name, written from the header and not from this table.

use std::ffi::{c_int, c_uint};

use super::Dialect;
use crate::Attribute;

/// `CUDA_ERROR_INVALID_VALUE`, `hipErrorInvalidValue`.
pub(super) const INVALID_VALUE: c_int = 1;
/// `CUDA_ERROR_NOT_READY`, `hipErrorNotReady`.
pub(super) const NOT_READY: c_int = 600;
/// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`, `hipErrorPeerAccessAlreadyEnabled`.
pub(super) const PEER_ACCESS_ALREADY_ENABLED: c_int = 704;

/// `CU_MEM_LOCATION_TYPE_DEVICE`, `hipMemLocationTypeDevice`.
pub(super) const LOCATION_DEVICE: c_int = 1;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`, `hipMemAllocationTypePinned`.
pub(super) const ALLOCATION_PINNED: c_int = 1;
/// `hipMemAllocationTypeUncached`, of HIP alone, since 7.0.2.
pub(super) const ALLOCATION_UNCACHED: c_int = 0x4000_0000;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`, `hipMemHandleTypePosixFileDescriptor`.
pub(super) const POSIX_FD: c_int = 1;
/// `CU_MEM_ACCESS_FLAGS_PROT_READWRITE`, `hipMemAccessFlagsProtReadWrite`.
pub(super) const READ_WRITE: c_int = 3;
/// `CU_MEM_ALLOC_GRANULARITY_RECOMMENDED`, `hipMemAllocationGranularityRecommended`: larger pages, fewer TLB misses.
pub(super) const RECOMMENDED: c_int = 1;
/// The first HIP that takes a descriptor by value in `hipMemImportFromShareableHandle`, as CUDA does; earlier ones take
/// a pointer to it. As rocSHMEM and RCCL tell them apart.
pub(super) const HIP_IMPORTS_BY_VALUE: c_int = 70_100_000;

/// `CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP`, `hipHostMallocPortable | hipHostMallocMapped`.
pub(super) const HOST_PORTABLE_MAPPED: c_uint = 1 | 2;
/// `hipHostMallocCoherent`: fine-grained, so that a kernel's system-scope accesses are seen while it runs.
pub(super) const HIP_HOST_COHERENT: c_uint = 0x4000_0000;
/// `hipDeviceMallocFinegrained`.
pub(super) const HIP_FINE: c_uint = 1;
/// `hipDeviceMallocUncached`.
pub(super) const HIP_UNCACHED: c_uint = 3;
/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`, `hipIpcMemLazyEnablePeerAccess`.
pub(super) const IPC_LAZY_PEER_ACCESS: c_uint = 1;
/// `hipMemcpyDefault`: the addresses tell the direction.
pub(super) const COPY_DEFAULT: c_int = 4;

/// `CU_STREAM_NON_BLOCKING`, `hipStreamNonBlocking`.
pub(super) const NON_BLOCKING: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`, `hipStreamCaptureModeThreadLocal`: other threads stay free to allocate.
pub(super) const CAPTURE_THREAD_LOCAL: c_int = 1;
/// `CU_STREAM_WAIT_VALUE_GEQ`, which compares as on a circle; `hipStreamWaitValueGte`, which does not (the device library
/// of ROCm compares unsigned numbers).
pub(super) const WAIT_GREATER_OR_EQUAL: c_uint = 0;
/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(super) const CUDA_MAX_DYNAMIC_SHARED: c_int = 8;
/// `CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED`.
pub(super) const CUDA_RDMA_WITH_VIRTUAL_MEMORY: c_int = 110;
/// Where `CUmemAllocationProp::allocFlags` has `gpuDirectRDMACapable`.
pub(super) const RDMA_CAPABLE: usize = 1;

/// The number of an attribute, `CU_DEVICE_ATTRIBUTE_*` or `hipDeviceAttribute*`; `None` if there is none to ask for, and
/// every device has it.
pub(super) fn attribute(dialect: Dialect, attribute: Attribute) -> Option<c_int> {
    let (cuda, hip) = match attribute {
        // MAX_THREADS_PER_BLOCK, MaxThreadsPerBlock.
        Attribute::MaxThreads => (1, 56),
        // WARP_SIZE, WarpSize.
        Attribute::WaveSize => (10, 87),
        // MULTIPROCESSOR_COUNT, MultiprocessorCount.
        Attribute::Multiprocessors => (16, 63),
        // MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, MaxSharedMemoryPerBlock: HIP gives all of it without being asked.
        Attribute::MaxSharedBytes => (97, 74),
        // COMPUTE_CAPABILITY_MAJOR, ComputeCapabilityMajor.
        Attribute::Major => (75, 23),
        // COMPUTE_CAPABILITY_MINOR, ComputeCapabilityMinor.
        Attribute::Minor => (76, 61),
        // PCI_BUS_ID, PciBusId.
        Attribute::PciBus => (33, 67),
        // PCI_DEVICE_ID, PciDeviceId.
        Attribute::PciDevice => (34, 68),
        // PCI_DOMAIN_ID, PciDomainID.
        Attribute::PciDomain => (50, 69),
        // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, VirtualMemoryManagementSupported.
        Attribute::SharesByDescriptor => (103, 89),
        // CanUseStreamWaitValue. CUDA 11.7 and later allow it on every device; the old attribute asked for a module
        // parameter.
        Attribute::StreamWaitsForMemory => return (dialect == Dialect::Hip).then_some(10_013),
    };
    Some(if dialect == Dialect::Cuda { cuda } else { hip })
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::super::table::{AccessDescription, AllocationProperties, Location};
    use super::*;
    use crate::calls::IpcBytes;

    fn hip(which: Attribute) -> i64 {
        i64::from(attribute(Dialect::Hip, which).expect("HIP has a number for each"))
    }

    /// HIP's names and numbers, from its header. A shim that took its numbers from the table above would hide a wrong
    /// one; this does not.
    #[test]
    fn numbers_are_those_of_the_header_of_hip() {
        let of_the_header = [
            ("hipDeviceAttributeComputeCapabilityMajor", 23, hip(Attribute::Major)),
            ("hipDeviceAttributeMaxThreadsPerBlock", 56, hip(Attribute::MaxThreads)),
            ("hipDeviceAttributeComputeCapabilityMinor", 61, hip(Attribute::Minor)),
            ("hipDeviceAttributeMultiprocessorCount", 63, hip(Attribute::Multiprocessors)),
            ("hipDeviceAttributePciBusId", 67, hip(Attribute::PciBus)),
            ("hipDeviceAttributePciDeviceId", 68, hip(Attribute::PciDevice)),
            ("hipDeviceAttributePciDomainID", 69, hip(Attribute::PciDomain)),
            ("hipDeviceAttributeMaxSharedMemoryPerBlock", 74, hip(Attribute::MaxSharedBytes)),
            ("hipDeviceAttributeWarpSize", 87, hip(Attribute::WaveSize)),
            ("hipDeviceAttributeVirtualMemoryManagementSupported", 89, hip(Attribute::SharesByDescriptor)),
            ("hipDeviceAttributeCanUseStreamWaitValue", 10_013, hip(Attribute::StreamWaitsForMemory)),
            ("hipErrorInvalidValue", 1, INVALID_VALUE.into()),
            ("hipErrorNotReady", 600, NOT_READY.into()),
            ("hipErrorPeerAccessAlreadyEnabled", 704, PEER_ACCESS_ALREADY_ENABLED.into()),
            ("hipMemLocationTypeDevice", 1, LOCATION_DEVICE.into()),
            ("hipMemAllocationTypePinned", 1, ALLOCATION_PINNED.into()),
            ("hipMemAllocationTypeUncached", 0x4000_0000, ALLOCATION_UNCACHED.into()),
            ("hipMemHandleTypePosixFileDescriptor", 1, POSIX_FD.into()),
            ("hipMemAccessFlagsProtReadWrite", 3, READ_WRITE.into()),
            ("hipMemAllocationGranularityRecommended", 1, RECOMMENDED.into()),
            ("hipHostMallocPortable | hipHostMallocMapped", 0x1 | 0x2, HOST_PORTABLE_MAPPED.into()),
            ("hipHostMallocCoherent", 0x4000_0000, HIP_HOST_COHERENT.into()),
            ("hipDeviceMallocFinegrained", 0x1, HIP_FINE.into()),
            ("hipDeviceMallocUncached", 0x3, HIP_UNCACHED.into()),
            ("hipIpcMemLazyEnablePeerAccess", 0x1, IPC_LAZY_PEER_ACCESS.into()),
            ("hipMemcpyDefault", 4, COPY_DEFAULT.into()),
            ("hipStreamNonBlocking", 0x1, NON_BLOCKING.into()),
            ("hipStreamCaptureModeThreadLocal", 1, CAPTURE_THREAD_LOCAL.into()),
            ("hipStreamWaitValueGte", 0x0, WAIT_GREATER_OR_EQUAL.into()),
        ];
        for (name, header, ours) in of_the_header {
            assert_eq!(ours, header, "{name}");
        }
    }

    /// Layouts on the targets that HIP is built for, 64-bit ones; CUDA's struct has four reserved bytes at its end, where
    /// HIP's is padded.
    #[test]
    fn structs_are_laid_out_as_in_the_header_of_hip() {
        assert_eq!((size_of::<Location>(), offset_of!(Location, kind), offset_of!(Location, id)), (8, 0, 4));
        let properties = [
            ("type", 0, offset_of!(AllocationProperties, kind)),
            ("requestedHandleType", 4, offset_of!(AllocationProperties, handle_types)),
            ("location", 8, offset_of!(AllocationProperties, location)),
            ("win32HandleMetaData", 16, offset_of!(AllocationProperties, win32)),
            ("allocFlags", 24, offset_of!(AllocationProperties, flags)),
            ("sizeof(hipMemAllocationProp)", 32, size_of::<AllocationProperties>()),
            ("hipMemAccessDesc::location", 0, offset_of!(AccessDescription, location)),
            ("hipMemAccessDesc::flags", 8, offset_of!(AccessDescription, flags)),
            ("sizeof(hipMemAccessDesc)", 12, size_of::<AccessDescription>()),
            ("sizeof(hipIpcMemHandle_t)", 64, size_of::<IpcBytes>()),
            ("alignof(hipIpcMemHandle_t)", 1, align_of::<IpcBytes>()),
        ];
        for (name, header, ours) in properties {
            assert_eq!(ours, header, "{name}");
        }
    }
}
