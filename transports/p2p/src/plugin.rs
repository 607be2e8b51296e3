//! The plugin: lists the devices of this machine and opens transports on them.

use std::sync::{Arc, OnceLock};

use campanile_core::{
    Config, DeviceCode, GpuChoice, OpenError, OpenOptions, Probed, Transport, TransportInfo, TransportPlugin,
};
use campanile_gpu::{Attribute, Backend, Device, Gpu, Settings};

use crate::transport::{P2pTransport, WINDOWS};

/// Name of the transport, as selection prints and accepts it.
pub(crate) const NAME: &str = "p2p";

/// Kernels reach every window by load and store: the device API is all that they need.
pub(crate) static DEVICE_CODE: DeviceCode = DeviceCode::map(NAME);

pub(crate) fn info() -> TransportInfo {
    TransportInfo {
        name: NAME,
        version: env!("CARGO_PKG_VERSION"),
        summary: "device memory of one node, by XGMI or NVLink: load / store and streams; host memory as shm",
        device_code: Some(&DEVICE_CODE),
    }
}

/// The P2P transport, before it is opened.
///
/// ```
/// use campanile_core::{GpuChoice, TransportPlugin};
/// use campanile_p2p::P2pPlugin;
///
/// let plugin = P2pPlugin::new(GpuChoice::Emulator, Default::default());
/// let devices: Vec<_> = plugin.probe().into_iter().map(|probed| probed.device).collect();
/// assert_eq!(devices, ["emulator:0", "emulator:1", "emulator:2", "emulator:3"]);
/// ```
#[derive(Debug, Default)]
pub struct P2pPlugin {
    choice: GpuChoice,
    settings: Settings,
    backends: OnceLock<Vec<(Backend, Result<Gpu, String>)>>,
}

impl P2pPlugin {
    /// One that uses the devices of that choice. Libraries are loaded when it is first asked for devices.
    #[must_use]
    pub fn new(choice: GpuChoice, settings: Settings) -> Self {
        Self { choice, settings, backends: OnceLock::new() }
    }

    /// One that the `CAMPANILE_*` variables of this process configure: for a library, which is handed no configuration. What
    /// they must not say is as if nobody had said it; the program that loads the library has refused it before.
    #[must_use]
    pub fn from_environment() -> Self {
        Self::from(&Config::load(std::env::vars_os(), None).unwrap_or_default())
    }

    fn backends(&self) -> &[(Backend, Result<Gpu, String>)] {
        self.backends.get_or_init(|| {
            let open =
                |&backend: &Backend| (backend, Gpu::open(backend, &self.settings).map_err(|error| error.to_string()));
            Backend::of(self.choice).iter().map(open).collect()
        })
    }

    /// The devices, and why each backend without any has none.
    fn devices(&self) -> impl Iterator<Item = (String, Result<Device, String>)> {
        self.backends().iter().flat_map(|(backend, gpu)| {
            let none = |reason: String| vec![(backend.name().to_owned(), Err(reason))];
            let gpu = match gpu {
                Ok(gpu) => gpu,
                Err(reason) => return none(reason.clone()),
            };
            match gpu.devices() {
                Ok(devices) if devices.is_empty() => none(format!("{backend} sees no device")),
                Ok(devices) => devices.into_iter().map(|device| (device.label(), Ok(device))).collect(),
                Err(error) => none(error.to_string()),
            }
        })
    }
}

impl From<&Config> for P2pPlugin {
    fn from(config: &Config) -> Self {
        Self::new(config.gpu(), config.into())
    }
}

impl TransportPlugin for P2pPlugin {
    fn info(&self) -> TransportInfo {
        info()
    }

    fn probe(&self) -> Vec<Probed> {
        let probed = |(name, device): (String, Result<Device, String>)| Probed {
            device: name,
            usable: device.and_then(|device| note(&device)),
        };
        self.devices().map(probed).collect()
    }

    fn open(&self, device: &str, options: OpenOptions) -> Result<Arc<dyn Transport>, OpenError> {
        let mut available = Vec::new();
        for (name, found) in self.devices() {
            match found {
                Ok(found) if name == device => {
                    let system = |reason| OpenError::System { transport: NAME, reason };
                    note(&found).map_err(system)?;
                    return Ok(Arc::new(P2pTransport::open(found, options)?));
                }
                Ok(_) => available.push(name),
                Err(reason) => available.push(format!("no {name} ({reason})")),
            }
        }
        let available = available.join(", ");
        Err(OpenError::NoDevice { transport: NAME, device: device.to_owned(), available })
    }
}

/// What a device is and which others it reaches, or why it cannot be used.
fn note(device: &Device) -> Result<String, String> {
    let told = || {
        let shares = device.attribute(Attribute::SharesByDescriptor)? != 0;
        let others = device.gpu().devices()?;
        let others = others.iter().filter(|other| other.ordinal() != device.ordinal());
        let reached = others.map(|other| Ok((other.label(), device.can_access(other)?)));
        let reached = reached.collect::<Result<Vec<_>, campanile_gpu::CallError>>()?;
        Ok::<_, campanile_gpu::CallError>((shares, device.name()?, device.pci_address()?, reached))
    };
    let (shares, name, pci, reached) = told().map_err(|error| error.to_string())?;
    if !shares {
        return Err(format!("{name} at {pci} shares no memory by file descriptor here, which windows need"));
    }
    // An old HIP shares memory, but none of this kind. CUDA has one kind, and would take a context on the device to say so.
    if device.gpu().backend() == Backend::Hip {
        device.gpu().calls().granularity(device.ordinal(), WINDOWS).map_err(|error| error.to_string())?;
    }
    let those = |which: bool| {
        let names = reached.iter().filter(|(_, reached)| *reached == which).map(|(name, _)| name.as_str());
        names.collect::<Vec<_>>().join(", ")
    };
    let mut note = format!("{name} at {pci}");
    for (what, devices) in [("reaches", those(true)), ("no peer access to", those(false))] {
        if !devices.is_empty() {
            note += &format!(", {what} {devices}");
        }
    }
    Ok(note)
}
