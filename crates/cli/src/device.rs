//! `--device`: whether the ranks work on memory of the host, on GPUs, or on GPUs that the CPU emulates.

use anyhow::{Context, anyhow};
use campanile::core::selection::Preference;
use campanile::core::{Config, GpuChoice, Path};
use campanile::gpu::{Cache, Device, Gpu, Settings};
use campanile::{Communicator, GpuMoe, MoeConfig};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::exit::Error;

/// The transport that maps memory of devices.
const TRANSPORT: &str = "p2p";

/// What is said beside the figures of emulated devices.
pub const EMULATED: &str = "emulated: the figures say that it runs, and nothing about a GPU";

/// Where the ranks' data lies, and what works on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Kind {
    /// Memory of the host, and its CPUs.
    #[default]
    Host,
    /// The GPUs of this machine by transport p2p: one a rank, in turn again if there are fewer than ranks.
    Gpu,
    /// GPUs that the CPU emulates: the same kernels, built by this machine's C++ compiler; slow.
    Emulator,
}

impl Kind {
    /// The name that the command line accepts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Gpu => "gpu",
            Self::Emulator => "emulator",
        }
    }

    /// The configuration with the backends that may have such devices.
    pub fn choose(self, config: Config) -> Result<Config, Error> {
        let gpu = match (self, config.gpu()) {
            (Self::Host, _) => return Ok(config),
            (Self::Gpu, GpuChoice::Emulator) => GpuChoice::Auto,
            (Self::Gpu, choice) => choice,
            (Self::Emulator, _) => GpuChoice::Emulator,
        };
        config.with_gpu(gpu).map_err(Error::input)
    }

    /// The configuration of ranks on such devices.
    pub fn configure(self, config: Config) -> Result<Config, Error> {
        if self == Self::Host {
            return Ok(config);
        }
        let transport = config.transport();
        if !transport.is_auto() && !transport.names().iter().any(|name| name == TRANSPORT) {
            return Err(Error::input(anyhow!(
                "--device {} needs transport {TRANSPORT}, but transport {transport} was asked for",
                self.name()
            )));
        }
        let transport = Preference::of([TRANSPORT]).context("the name of a transport")?;
        self.choose(config)?.with_transport(transport).map_err(Error::input)
    }

    /// Refuses what MoE has on the host, and on a device not yet.
    pub fn check_moe(self, config: &MoeConfig, ranks: usize, path: Path) -> Result<(), Error> {
        if self == Self::Host {
            return Ok(());
        }
        if path == Path::Queue {
            return Err(self.lacks("path queue", "its kernels load and store: use path auto or load-store"));
        }
        GpuMoe::check_mode(config, ranks).map_err(Error::input)
    }

    /// The library of its devices, of which there is one at least.
    pub fn open(self, config: &Config) -> Result<Gpu, Error> {
        Gpu::choose(config.gpu(), &Settings::from(config)).map_err(|error| match self {
            Self::Gpu => Error::input(anyhow!("{error}; --device emulator does without a GPU")),
            _ => Error::input(error),
        })
    }

    /// The error that says what a device cannot do yet.
    fn lacks(self, what: &str, instead: &str) -> Error {
        Error::input(anyhow!("--device {} does not have {what} yet; {instead}", self.name()))
    }
}

/// The devices that the ranks of a job on this machine share out.
pub struct Devices {
    gpu: Gpu,
    count: usize,
    /// Their kernels, compiled.
    pub cache: Cache,
}

impl Devices {
    /// Those that `config` says, which has been [configured](Kind::configure) for `kind`; `None` for the host.
    pub fn open(kind: Kind, config: &Config) -> Result<Option<Self>, Error> {
        if kind == Kind::Host {
            return Ok(None);
        }
        let gpu = kind.open(config)?;
        // What cannot be compiled fails here, once, and not on every rank.
        gpu.calls().compiler().map_err(Error::input)?;
        let count = gpu.calls().device_count().map_err(Error::input)? as usize;
        Ok(Some(Self { gpu, count, cache: Cache::new(&Settings::from(config)) }))
    }

    /// Says so, on standard error, if several ranks have one device: what they measure is not what each would have alone.
    pub fn warn_if_shared(&self, ranks: usize) {
        if ranks > self.count {
            let devices = if self.count == 1 { "1 device".to_owned() } else { format!("{} devices", self.count) };
            eprintln!("warning: {ranks} ranks share {devices}: they take turns on it, and times say little");
        }
    }

    /// Multiprocessors of the first.
    pub fn multiprocessors(&self) -> anyhow::Result<u32> {
        Ok(self.gpu.device(0)?.multiprocessors())
    }

    /// The device of this rank.
    pub fn of_rank(&self, comm: &Communicator) -> anyhow::Result<Device> {
        let transport = comm.transport().info().name;
        let ordinal = comm.device().with_context(|| format!("transport {transport} has no device memory"))?;
        Ok(self.gpu.device(ordinal)?)
    }
}
