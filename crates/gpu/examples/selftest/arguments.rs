//! Arguments of the kernels of `kernels/smoke.cpp`, field by field.

use campanile_gpu::Address;

/// `Outcome` of `kernels/wait.h`.
pub const DONE: u32 = 0;
pub const TIMEOUT: u32 = 1;
pub const ABORTED: u32 = 2;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Copy16 {
    pub source: Address,
    pub target: Address,
    /// Times 16 bytes.
    pub count: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct PutSignal {
    pub source: Address,
    pub target: Address,
    pub count: u64,
    pub finished: Address,
    pub base: u64,
    pub signal: Address,
    pub value: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Patience {
    /// 0 is null: nobody aborts.
    pub abort: Address,
    pub nanoseconds: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Wait {
    pub signal: Address,
    pub value: u64,
    pub patience: Patience,
    pub window: Address,
    pub target: Address,
    pub count: u64,
    pub outcome: Address,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Barrier {
    pub counter: Address,
    pub base: u64,
    pub patience: Patience,
    pub cells: Address,
    pub errors: Address,
    pub rounds: u32,
    pub outcome: Address,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Words {
    pub device32: Address,
    pub device64: Address,
    pub system32: Address,
    pub system64: Address,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pull {
    pub windows: [Address; 8],
    pub target: Address,
    pub count: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lanes {
    pub words: Address,
}
