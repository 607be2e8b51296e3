//! Launch geometry as data: [`GeometryTable`], and [`Pins`] that override it.

use serde::Deserialize;

use crate::{Grid, PlanError};

/// Which geometry an operation is launched with: rows by operation, target and tokens. The first row that fits is
/// taken, so specific rows come first.
///
/// ```
/// use campanile_gpu::{GeometryTable, Grid, Pins};
///
/// let table = GeometryTable::parse(r#"
///     [[row]]
///     operation = "dispatch"
///     target = "sm_90"
///     tokens = 128            # up to
///     blocks = 64
///     threads = 512
///
///     [[row]]
///     operation = "dispatch"
///     target = "*"
///     blocks = 24
///     threads = 512
///     shared_bytes = 1024
/// "#)?;
/// let pins = Pins { blocks: Some(16), ..Pins::default() };
/// assert_eq!(table.find("dispatch", "sm_90", 100, pins)?, Grid { blocks: 16, threads: 512, shared_bytes: 0 });
/// assert_eq!(table.find("dispatch", "sm_90", 200, Pins::default())?.blocks, 24);
/// assert!(table.find("combine", "sm_90", 1, Pins::default()).is_err());
/// # Ok::<(), campanile_gpu::PlanError>(())
/// ```
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GeometryTable {
    #[serde(default, rename = "row")]
    rows: Vec<Row>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    operation: String,
    /// `*` is any.
    target: String,
    /// Up to so many; any number without it.
    tokens: Option<u64>,
    blocks: u32,
    threads: u32,
    #[serde(default)]
    shared_bytes: u32,
}

/// Fields that a caller fixes, whatever the table says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    /// Blocks.
    pub blocks: Option<u32>,
    /// Threads of a block.
    pub threads: Option<u32>,
    /// Bytes of dynamic shared memory.
    pub shared_bytes: Option<u32>,
}

impl GeometryTable {
    /// Reads the table, TOML.
    ///
    /// # Errors
    /// [`PlanError::Table`] with line and reason.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        toml::from_str(text).map_err(|error| PlanError::Table(error.to_string()))
    }

    /// The geometry of an operation on a target at that many tokens.
    ///
    /// # Errors
    /// [`PlanError::NoRow`].
    pub fn find(&self, operation: &str, target: &str, tokens: u64, pins: Pins) -> Result<Grid, PlanError> {
        let fits = |row: &&Row| {
            row.operation == operation
                && (row.target == "*" || row.target == target)
                && row.tokens.is_none_or(|most| tokens <= most)
        };
        let row = self.rows.iter().find(fits).ok_or_else(|| PlanError::NoRow {
            operation: operation.to_owned(),
            target: target.to_owned(),
            tokens,
        })?;
        Ok(Grid {
            blocks: pins.blocks.unwrap_or(row.blocks),
            threads: pins.threads.unwrap_or(row.threads),
            shared_bytes: pins.shared_bytes.unwrap_or(row.shared_bytes),
        })
    }
}
