//! Whole exchanges on GPUs, with experts that scale: what tests, checks and benchmarks run. As [`exchange`](crate::exchange)
//! on the host.

use std::time::Duration;

use campanile_gpu::{Address, Coherence, DeviceMemory, Stream};

use super::{DeviceOut, DeviceTokens, GpuMoe, GpuMoeError, Index, arguments, kernels::type_code};
use crate::protocol::Set;
use crate::{Problem, RankOutput, Received};

/// One rank's part of a problem, in memory of its device.
#[derive(Debug)]
pub struct DeviceProblem {
    /// The stream that everything is launched on.
    pub stream: Stream,
    /// The rank's tokens.
    pub tokens: DeviceTokens,
    /// Where its sums go.
    pub out: DeviceOut,
    count: usize,
    factors: Address,
    out_memory: DeviceMemory,
    weights_memory: DeviceMemory,
    /// Holds the tensors.
    _memories: Vec<DeviceMemory>,
}

impl DeviceProblem {
    /// Uploads the part of `moe`'s rank. `shift` bytes in front of x and out take their alignment away.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn new(moe: &GpuMoe, problem: &Problem, index: Index, shift: usize) -> Result<Self, GpuMoeError> {
        let stream = moe.device.stream()?;
        let input = &problem.ranks[moe.plan.rank];
        let mut memories = Vec::new();
        let mut upload = |bytes: &[u8], shift: usize| -> Result<Address, GpuMoeError> {
            let memory = moe.device.allocate((bytes.len() + shift).max(16), Coherence::Coarse)?;
            stream.upload(&memory, shift, bytes)?;
            memories.push(memory);
            Ok(memories[memories.len() - 1].address() + shift as Address)
        };
        let indices: Vec<u8> = match index {
            Index::I32 => input.topk_idx.iter().flat_map(|index| index.to_ne_bytes()).collect(),
            Index::I64 => input.topk_idx.iter().flat_map(|index| i64::from(*index).to_ne_bytes()).collect(),
        };
        let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
        let count = upload(&(input.tokens as u32).to_ne_bytes(), 0)?;
        let tokens = DeviceTokens {
            count,
            x: upload(&input.x, shift)?,
            stride: problem.x_dtype().row_bytes(problem.hidden),
            scales: upload(&floats(&input.scales), 0)?,
            topk_idx: upload(&indices, 0)?,
            index,
            topk_weights: upload(&floats(&input.topk_weights), 0)?,
        };
        let factors = match &problem.expert_scale {
            None => 0,
            Some(scale) => {
                let owned = problem.expert_rank.iter().zip(scale);
                let owned = owned.filter(|(owner, _)| **owner as usize == moe.plan.rank);
                upload(&floats(&owned.map(|(_, scale)| *scale).collect::<Vec<_>>()), 0)?
            }
        };
        let stride = problem.combine_dtype.row_bytes(problem.hidden);
        let out_memory = moe.device.allocate((input.tokens * stride + shift).max(16), Coherence::Coarse)?;
        let weights_memory = moe.device.allocate((input.tokens * problem.topk * 4).max(16), Coherence::Coarse)?;
        let out = DeviceOut {
            count,
            out: out_memory.address() + shift as Address,
            stride,
            out_weights: if problem.weighted { weights_memory.address() } else { 0 },
        };
        let count = input.tokens;
        Ok(Self { stream, tokens, out, count, factors, out_memory, weights_memory, _memories: memories })
    }

    /// Factors of the local experts, on the device; 0 if there are none.
    pub fn factors(&self) -> Address {
        self.factors
    }

    /// Fills the outputs with a pattern that no result has.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn poison(&self, value: u8) -> Result<(), GpuMoeError> {
        // SAFETY: both live as long as `self`, whose stream does it.
        unsafe {
            self.stream.fill(&self.out_memory, value)?;
            self.stream.fill(&self.weights_memory, value)?;
        }
        Ok(())
    }

    /// The sums, and the weights that came back.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn output(&self, problem: &Problem) -> Result<RankOutput, GpuMoeError> {
        let mut out = vec![0; self.count * self.out.stride];
        let shift = (self.out.out - self.out_memory.address()) as usize;
        self.stream.download(&self.out_memory, shift, &mut out)?;
        let mut weights = vec![0; if problem.weighted { self.count * problem.topk * 4 } else { 0 }];
        self.stream.download(&self.weights_memory, 0, &mut weights)?;
        Ok(RankOutput { out, out_weights: floats(&weights), received: Received::default() })
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|value| f32::from_ne_bytes(*value)).collect()
}

fn integers(bytes: &[u8]) -> Vec<i32> {
    bytes.as_chunks::<4>().0.iter().map(|value| i32::from_ne_bytes(*value)).collect()
}

impl GpuMoe {
    /// Launches the scaling experts on what came in the open round of `set`; `factors` are those of the local experts, or 0.
    ///
    /// # Errors
    /// Those of the call.
    ///
    /// # Safety
    /// As [`dispatch`](Self::dispatch), for `[local experts]` f32 at `factors`.
    pub unsafe fn scale(&self, set: Set, stream: &Stream, factors: Address) -> Result<(), GpuMoeError> {
        let config = self.plan.config();
        let argument = arguments::Scale {
            common: self.common(set)?,
            factors,
            hidden: config.hidden as u32,
            dtype: type_code(config.dtype),
            combine_dtype: type_code(config.combine_dtype),
            scale_block: if config.scales == 0 { 0 } else { config.hidden.div_ceil(config.scales) as u32 },
        };
        // SAFETY: own memory, and the caller's promise for the factors.
        unsafe { self.kernels.scale.launch(stream, &argument)? };
        Ok(())
    }

    /// Launches a whole round of `part` on its stream: dispatch, experts, combine.
    ///
    /// # Errors
    /// Those of the calls.
    ///
    /// # Safety
    /// `part` is of this rank, and lives until its stream is done.
    pub unsafe fn launch_round(&self, set: Set, part: &DeviceProblem) -> Result<(), GpuMoeError> {
        // SAFETY: the memories of `part` have the lengths of its problem, which is the operation's.
        unsafe {
            self.dispatch(set, &part.stream, &part.tokens)?;
            self.scale(set, &part.stream, part.factors)?;
            self.combine(set, &part.stream, &part.out)
        }
    }

    /// Waits until the stream is done, then reports what the kernels recorded.
    ///
    /// # Errors
    /// [`GpuMoeError::Failed`], or a stream that is not done within `patience`.
    pub fn finish(&self, stream: &Stream, patience: Duration) -> Result<(), GpuMoeError> {
        stream.synchronize(patience)?;
        self.check()
    }

    /// What came in the last round of `set`, as the model says it. The stream's earlier work is waited for.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn received(&self, set: Set, stream: &Stream) -> Result<Received, GpuMoeError> {
        let (config, planes) = (self.plan.config(), self.plan.set(set));
        let rows = self.state.words(stream, &self.state.set(set).rows_from, self.plan.ranks)?;
        let (row_bytes, topk) = (config.dtype.row_bytes(config.hidden), config.topk);
        let mut received = Received::default();
        for (source, &rows) in rows.iter().enumerate() {
            let read = |plane: &campanile_core::ArenaRegion| -> Result<Vec<u8>, GpuMoeError> {
                let mut bytes = vec![0; plane.stride * rows as usize];
                if !bytes.is_empty() {
                    stream.download(self.window(), self.plan.at(plane, source, 0), &mut bytes)?;
                }
                Ok(bytes)
            };
            for row in read(&planes.rows)?.chunks_exact(planes.rows.stride) {
                received.x.extend_from_slice(&row[..row_bytes]);
            }
            if config.scales > 0 {
                for row in read(&planes.scales)?.chunks_exact(planes.scales.stride) {
                    received.scales.extend(floats(&row[..config.scales * 4]));
                }
            }
            for row in read(&planes.meta)?.chunks_exact(planes.meta.stride) {
                let words = integers(row);
                received.src.extend([source as i32, words[0]]);
                received.topk_idx.extend_from_slice(&words[1..=topk]);
                if config.weighted {
                    received.topk_weights.extend(floats(&row[4 * (1 + topk)..4 * (1 + 2 * topk)]));
                }
            }
        }
        Ok(received)
    }

    /// Rows for each local expert in the last round of `set`. The stream's earlier work is waited for.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn read_expert_counts(&self, set: Set, stream: &Stream) -> Result<Vec<u32>, GpuMoeError> {
        Ok(self.state.words(stream, &self.state.set(set).expert_counts, self.plan.local_experts())?)
    }

    /// Reads the words that the others have written here, as [`WordMap`](crate::protocol::WordMap) lays them out.
    ///
    /// # Errors
    /// Those of the call.
    pub fn read_words(&self, stream: &Stream, words: &mut [u8]) -> Result<(), GpuMoeError> {
        Ok(stream.download(self.window(), self.plan.words.offset, words)?)
    }

    /// Fills the planes of `set`, but not its words. No round of it is open on any rank.
    ///
    /// # Errors
    /// Those of the calls.
    pub fn poison(&self, set: Set, stream: &Stream, value: u8) -> Result<(), GpuMoeError> {
        let planes = self.plan.set(set);
        for plane in [&planes.rows, &planes.scales, &planes.meta, &planes.outputs] {
            let bytes = vec![value; plane.stride * plane.count];
            if !bytes.is_empty() {
                stream.upload(self.window(), plane.offset, &bytes)?;
            }
        }
        Ok(())
    }
}
