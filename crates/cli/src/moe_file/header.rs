//! The header of a safetensors file: which tensors there are, and where.
//!
//! A file is the length of the header (8 bytes, little-endian); the header, a JSON object from the name of each tensor
//! to its `{dtype, shape, data_offsets}` and from `__metadata__` to an object of strings; the data, counted from the
//! end of the header, which the tensors cover without hole or overlap.
//! Source: <https://github.com/huggingface/safetensors#format>.
//!
//! The `safetensors` crate reads the same from a buffer that holds the whole file, and most of its errors do not say
//! which tensor is wrong. Here the header is read alone, so that everything can be checked before a tensor is
//! allocated, and each error names its tensor.

use std::collections::BTreeMap;
use std::io::Read;

use safetensors::tensor::TensorInfo;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::FormatError;

/// Bytes of the length that a file starts with.
const LENGTH: u64 = 8;

/// The longest header; the limit of the format, against files that would have a reader allocate anything.
pub(super) const MAX_HEADER: u64 = 100_000_000;

/// The key that is not a tensor.
const METADATA: &str = "__metadata__";

/// A header whose tensors lie within the file, without hole or overlap, each as large as its shape says.
#[derive(Debug)]
pub(super) struct Header {
    /// Strings that go with the file.
    pub metadata: BTreeMap<String, String>,
    /// The tensors by name; offsets count from [`data`](Self::data).
    pub tensors: BTreeMap<String, TensorInfo>,
    /// Where in the file the data start.
    pub data: u64,
}

impl Header {
    /// Reads and checks the header of a file of `size` bytes, from its start.
    pub fn read(source: &mut impl Read, size: u64) -> Result<Self, FormatError> {
        let failed = |cause| FormatError::Read { what: "the header".into(), cause };
        let not_safetensors = |reason| FormatError::NotSafetensors { reason };
        if size < LENGTH {
            return Err(not_safetensors(format!(
                "it has {size} bytes, and the length of the header alone takes {LENGTH}"
            )));
        }
        let mut length = [0; LENGTH as usize];
        source.read_exact(&mut length).map_err(failed)?;
        let length = u64::from_le_bytes(length);
        let left = size - LENGTH;
        if length > MAX_HEADER {
            return Err(FormatError::HeaderTooLarge { bytes: length });
        }
        if length > left {
            return Err(FormatError::HeaderTruncated { bytes: length, left });
        }
        let mut text = vec![0; length as usize];
        source.read_exact(&mut text).map_err(failed)?;
        let Entries(entries) = serde_json::from_slice(&text)
            .map_err(|error| not_safetensors(format!("its header is not a JSON object ({error})")))?;

        let mut metadata = BTreeMap::new();
        let mut tensors = BTreeMap::new();
        for (name, value) in entries {
            if name == METADATA {
                metadata = serde_json::from_value(value).map_err(|error| {
                    not_safetensors(format!("its {METADATA} is not an object of strings ({error})"))
                })?;
                continue;
            }
            let info = serde_json::from_value::<TensorInfo>(value)
                .map_err(|error| FormatError::Entry { tensor: name.clone(), reason: error.to_string() })?;
            if tensors.contains_key(&name) {
                return Err(FormatError::Duplicate { tensor: name });
            }
            tensors.insert(name, info);
        }
        let header = Self { metadata, tensors, data: LENGTH + length };
        header.check_offsets(left - length)?;
        Ok(header)
    }

    /// Checks that the tensors are as large as their shapes say and cover `data` bytes exactly.
    fn check_offsets(&self, data: u64) -> Result<(), FormatError> {
        let mut tensors: Vec<_> = self.tensors.iter().collect();
        tensors.sort_by_key(|(_, info)| info.data_offsets);
        let mut expected = 0;
        for (name, info) in tensors {
            let (start, end) = info.data_offsets;
            let takes = bytes(info);
            if end < start || (end - start) as u128 != takes {
                return Err(FormatError::Bytes {
                    tensor: name.clone(),
                    dtype: info.dtype,
                    shape: info.shape.clone(),
                    takes,
                    offsets: info.data_offsets,
                });
            }
            if start != expected {
                return Err(FormatError::Offset { tensor: name.clone(), start, expected });
            }
            if end as u64 > data {
                return Err(FormatError::Truncated { tensor: name.clone(), end, left: data });
            }
            expected = end;
        }
        match data - expected as u64 {
            0 => Ok(()),
            bytes => Err(FormatError::Trailing { bytes }),
        }
    }
}

/// Bytes of a tensor. Saturates: what overflows is larger than any file.
fn bytes(info: &TensorInfo) -> u128 {
    let elements = info.shape.iter().fold(1, |product: u128, &extent| product.saturating_mul(extent as u128));
    elements.saturating_mul(info.dtype.bitsize() as u128).div_ceil(8)
}

/// The entries of a JSON object in their order, with those that are there twice.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;

        impl<'de> Visitor<'de> for Collect {
            type Value = Entries;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object from names to tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Collect)
    }
}
